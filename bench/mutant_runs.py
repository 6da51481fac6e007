"""Run tests against mutants, each in a child of one pytest that has collected all tests.

Starting pytest and importing what tests import takes longer than most tests. So a plugin collects
them once and then, for each mutant, forks a child that changes the code of the functions that are
loaded already. Where what runs at import is changed, the child imports all of the project anew, the
changed module from its changed source.

Tests are run in groups by file, the quickest file first, until one fails. At the end, those that
noticed a mutant are run without any: one that fails all the same has noticed nothing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

PROJECT = Path(__file__).resolve().parents[1]
LIMIT_S = 240.0
OPTIONS = ("-q", "-s", "-p", "no:cacheprovider", "-p", "no:cov", "-n", "0", "--tb=no")
OF_PROJECT = tuple(f"{PROJECT / name}/" for name in ("builder", "tests", "bench"))
WITHOUT_FAILURE = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
_FUNCTION = 0x1  # CO_OPTIMIZED: a function's code, and not a module's or a class's

Functions = Mapping[tuple[str, str, int], Sequence[FunctionType]]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A changed source file, and the tests that cover the change."""

    file: str
    source: bytes
    changed: bytes
    tests: tuple[str, ...]
    is_run_at_import: bool

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Whether a test failed, and which; no name where the child broke off or hung."""

    failed: bool
    test: str = ""


@dataclass(frozen=True, kw_only=True)
class Child:
    """A child at work."""

    number: int
    until: float
    output: int
    folder: str


class MutantRuns:
    """A pytest plugin that runs mutants in the place of the tests."""

    def __init__(self, mutants: Sequence[Mutant], jobs: int, tell: Callable[[int], None]) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._mutants = mutants
        self._jobs = jobs
        self._tell = tell

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        if lost := {name for mutant in self._mutants for name in mutant.tests} - set(items):
            raise RuntimeError(f"{len(lost)} covering tests are not collected: {min(lost)}, ...")
        functions = functions_of_builder()
        gc.collect()
        gc.freeze()
        numbers = list(range(len(self._mutants)))
        unsound: set[str] = set()
        while numbers:
            for number, outcome in self._run(numbers, session, items, functions, unsound):
                self.outcomes[number] = outcome
                self._tell(len(self.outcomes))
            unsound |= self._failing_anyway(session, items, unsound)
            numbers = [at for at, of in self.outcomes.items() if of.test in unsound]
        return True

    def _run(
        self,
        numbers: Sequence[int],
        session: pytest.Session,
        items: Mapping[str, pytest.Item],
        functions: Functions,
        unsound: set[str],
    ) -> Iterator[tuple[int, Outcome]]:
        waiting, children = list(reversed(numbers)), dict[int, Child]()
        while waiting or children:
            while waiting and len(children) < self._jobs:
                number = waiting.pop()
                mutant = self._mutants[number]
                names = [name for name in mutant.tests if name in items and name not in unsound]
                chosen = in_groups([items[name] for name in names])
                pid, child = started(number, partial(_tried, mutant, chosen, session, functions))
                children[pid] = child
            time.sleep(0.01)
            yield from ended(children)

    def _failing_anyway(
        self, session: pytest.Session, items: Mapping[str, pytest.Item], known: set[str]
    ) -> set[str]:
        """Those tests that noticed mutants and fail without any, too."""
        names = {outcome.test for outcome in self.outcomes.values()} & set(items) - known
        failing: set[str] = set()
        while True:
            chosen = in_groups([items[name] for name in sorted(names - failing)])
            pid, child = started(0, partial(_first_failure, session, chosen))
            children = {pid: child}
            while not (outcomes := list(ended(children))):
                time.sleep(0.05)
            if not (outcome := outcomes[0][1]).failed:
                return failing
            if not outcome.test:
                raise RuntimeError("the tests that noticed mutants break off without any")
            failing.add(outcome.test)


def run(
    mutants: Sequence[Mutant], tests: Path, jobs: int, tell: Callable[[int], None]
) -> list[Outcome]:
    """Run the tests of a folder against mutants, so many at once."""
    plugin = MutantRuns(mutants, jobs, tell)
    status = pytest.main([*OPTIONS, str(tests)], plugins=[plugin])
    if len(plugin.outcomes) < len(mutants):
        raise RuntimeError(f"pytest ended with {status} before all mutants were tried")
    return [plugin.outcomes[number] for number in range(len(mutants))]


def in_groups(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Put tests of one file together, in the order in which their files come up."""
    groups: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[item.path].append(item)
    return [item for group in groups.values() for item in group]


# ---- Children ----


def started(number: int, work: Callable[[], str | None]) -> tuple[int, Child]:
    """Fork a child that does some work and hands on which test failed, if one did."""
    folder = tempfile.mkdtemp(prefix="mutant-")
    reading, writing = os.pipe()
    if pid := os.fork():
        os.close(writing)
        until = time.monotonic() + LIMIT_S
        return pid, Child(number=number, until=until, output=reading, folder=folder)
    status = 2
    try:
        os.setsid()
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        failed = work()
        if failed is not None:
            os.write(writing, failed.encode())
        status = 0 if failed is None else 1
    finally:
        os._exit(status)


def ended(children: dict[int, Child]) -> Iterator[tuple[int, Outcome]]:
    """Children that have ended, or are ended since they took too long; they are dropped."""
    for pid, child in list(children.items()):
        done, status = os.waitpid(pid, os.WNOHANG)
        if not done and time.monotonic() < child.until:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # with what it started
        if not done:
            os.waitpid(pid, 0)
        with os.fdopen(child.output, "rb") as output:
            test = output.read().decode() if done else ""
        shutil.rmtree(child.folder, ignore_errors=True)
        del children[pid]
        yield child.number, Outcome(failed=not done or status != 0, test=test)


def _tried(
    mutant: Mutant, items: Sequence[pytest.Item], session: pytest.Session, functions: Functions
) -> str | None:
    """The first test that fails with a mutant, if any."""
    if not mutant.is_run_at_import and changed_in_place(mutant, functions):
        return _first_failure(session, items)
    return _first_failure_anew(mutant, items)


def _first_failure(session: pytest.Session, items: Sequence[pytest.Item]) -> str | None:
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return item.nodeid
    return None


def _first_failure_anew(mutant: Mutant, items: Sequence[pytest.Item]) -> str | None:
    """The first test that fails where all of the project is imported once more."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(OF_PROJECT):
            del sys.modules[name]
    sys.meta_path.insert(0, ChangedModule(mutant))
    chosen = ChosenTests([item.nodeid for item in items])
    files = sorted({str(item.path) for item in items})
    status = pytest.main([*OPTIONS, "-x", *files], plugins=[chosen])
    return None if status in WITHOUT_FAILURE else next(iter(chosen.failed), "")


class ChosenTests:
    """A pytest plugin that runs tests of certain names in their order, and notes which fail.

    As arguments, names with brackets or colons in a parameter would not be found.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[name] for name in self._names if name in by_name]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


class ChangedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a changed source, as if it was that of its file."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != self._mutant.module:
            return None
        file = PROJECT / self._mutant.file
        folders = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname, file, loader=self, submodule_search_locations=folders
        )

    def exec_module(self, module: ModuleType) -> None:
        exec(_compiled(self._mutant, self._mutant.changed), module.__dict__)


# ---- Code that is loaded ----


def functions_of_builder() -> Functions:
    """The functions of `builder/` that are loaded, by file, name and first line."""
    functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(OF_PROJECT[0]):
            functions[key_of(thing.__code__)].append(thing)
    return functions


def changed_in_place(mutant: Mutant, functions: Functions) -> bool:
    """Change the code of loaded functions; not where more than their code is changed."""
    before = _compiled(mutant, mutant.source)
    after = _compiled(mutant, mutant.changed)
    for old, path in _changes((before,), (after,)):
        live = [
            (function, code)
            for code in path
            for function in functions.get(key_of(code), ())
            if function.__code__.co_freevars == code.co_freevars
        ]
        if not old.co_flags & _FUNCTION or not live:
            return False
        for function, code in live:
            function.__code__ = code
    return True


def _changes(
    old: tuple[CodeType, ...], new: tuple[CodeType, ...]
) -> Iterator[tuple[CodeType, tuple[CodeType, ...]]]:
    """Code that changed, with the new code of it and of what it is nested in, module first."""
    before, after = old[-1], new[-1]
    if _own(before) != _own(after):
        yield before, new
    for inner_before, inner_after in zip(_inner(before), _inner(after), strict=True):
        yield from _changes((*old, inner_before), (*new, inner_after))


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _own(code: CodeType) -> tuple[object, ...]:
    constants = [repr(one) for one in code.co_consts if not isinstance(one, CodeType)]
    return code.co_code, constants, code.co_names


def key_of(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _compiled(mutant: Mutant, source: bytes) -> CodeType:
    return compile(source, str(PROJECT / mutant.file), "exec", dont_inherit=True)
