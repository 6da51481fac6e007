"""A run: what is lent to build steps, what is said of downloads, and from when indices may be."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from samples import base, block, image, recipe
from test_stages import FakeEngine

from builder.build import run as run_module
from builder.build.base_store import StoredBase
from builder.build.engines import DockerfileBuild, Lent, Tools
from builder.build.engines.protocol import tag
from builder.build.mirror import DebianMirror
from builder.build.native.tools import NativeTools
from builder.build.run import (
    BuildSettings,
    Run,
    build_dockerfile,
    downloading,
    index_states,
    native_tools,
)
from builder.model import PlannedImage
from builder.model.errors import BadInput
from builder.model.measurement import HostFacts
from builder.model.package_indices import IndexState
from builder.sources.suites import MOST_BEHIND
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.terminal import Progress

HOST = HostFacts(arch="x86_64", kernel="6.1.0", cpu="a processor", cores=2, os="Debian 12")
STATE = IndexState(archive="debian", suite="trixie", taken_as="trixie", date="", sha256="a" * 64)


class Machine:
    """Makes runs, and has native tools: those in the store, and those that it would fetch."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.said, self.open = folder, io.StringIO(), True
        self.kept: NativeTools | None = NativeTools(
            name="kept", digest="sha256:1", made="", root=folder / "kept"
        )
        self.fetched = dataclasses.replace(self.kept, name="fetched", root=folder / "fetched")
        self.ways: list[Any] = []
        self.built: list[DockerfileBuild] = []
        patch.setattr(run_module, "is_open", lambda _arch: self.open)
        patch.setattr(run_module, "newest_tools", lambda *_, **__: self.kept)
        patch.setattr(run_module, "ensure_tools", self._ensure)

    def _ensure(self, _base: object, _arch: str, way: object) -> NativeTools:
        self.ways.append(way)
        return self.fetched

    def image(self, arch: str = "ppc64le", **changes: Any) -> PlannedImage:
        return image(self.folder / "project", arch=(arch,), **changes)

    def run(self, tools: dict[str, Any] | None = None, **settings: Any) -> Run:
        made = {"project": self.folder, "out": self.folder / "out", **settings}
        engine = FakeEngine()
        engine.lends = True
        engine.build = self.built.append  # type: ignore[method-assign, assignment]
        home = Home(path=self.folder / "home")
        return Run(
            settings=BuildSettings(**made),
            tools=Tools(processes=Processes(), home=home, **(tools or {})),
            engine=engine,
            progress=Progress(stream=self.said, level=2),
            host=HOST,
            mirror=DebianMirror(main="https://mirror.example.org/debian", security=""),
        )

    def lent(self, arch: str = "ppc64le", **settings: Any) -> str:
        """The name of the tools that are lent to an image's build; none if it is empty."""
        found = native_tools(self.run(**settings), self.image(arch), log=self.folder / "log")
        return found.name if found else ""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_native_tools_come_from_the_store_or_from_the_mirror(machine: Machine) -> None:
    assert machine.lent() == "fetched"
    assert machine.lent(offline=True) == "kept"
    assert machine.lent(offline=True, refresh=True) == "fetched"
    first, second = machine.ways
    assert (first.not_before, second.not_before != "") == ("", True)
    assert first.store == machine.folder / "home/native"
    assert first.mirror.main == "https://mirror.example.org/debian"
    machine.kept = None
    assert machine.lent(offline=True) == "fetched"
    assert machine.said.getvalue() == ""


def test_no_native_tools_are_lent_where_they_are_not_wanted_or_do_not_run(machine: Machine) -> None:
    assert machine.lent("x86_64") == ""
    assert machine.lent(native_tools=False) == ""
    assert machine.said.getvalue() == ""
    machine.open = False
    assert machine.lent() == ""
    assert machine.said.getvalue().endswith(
        "core-1.0-debian13-ppc64le: no native tools: the kernel's handler is not from set-up: "
        "run 'build-images setup'\n"
    )
    assert machine.ways == []


def test_a_dockerfile_is_built_with_what_is_lent(machine: Machine) -> None:
    (machine.folder / "pip").mkdir()
    log, context = machine.folder / "build.log", machine.folder / "context"
    stored = StoredBase(
        name="debian13:1", arch="ppc64le", key="", archive=log, digest="sha256:1", made=""
    )
    run = machine.run({"pip": str(machine.folder / "pip")}, cache=False)
    pip = recipe(runtime=(block("pip", packages=["numpy"]),))
    for planned in (machine.image(), machine.image(recipes=[pip])):
        build_dockerfile(run, planned, context, log=log, bases=[stored])
    build_dockerfile(run, planned, context, log=log, name="other:1", file="Dockerfile.cut")
    first, second, third = machine.built
    second.on_line("RUN make")
    assert machine.said.getvalue().endswith(f"{planned.identifier}: RUN make\n")
    assert log.read_text() == "base debian13:1\n" * 2
    tools = Lent(path=machine.folder / "fetched", at="/.native")
    pips = Lent(path=machine.folder / "pip", at="/.packages")
    assert (first.lent, second.lent) == ([tools], [tools, pips])
    expected = DockerfileBuild(
        image=planned,
        context=context,
        name=tag(planned),
        log=log,
        on_line=second.on_line,
        on_output=second.on_output,
        cache=False,
        lent=[tools, pips],
    )
    assert second == expected
    assert (third.name, third.file, third.lent) == ("other:1", "Dockerfile.cut", [tools, pips])
    run.engine.lends = False
    build_dockerfile(run, planned, context, log=log)
    assert machine.built[-1].lent == []


def test_a_build_that_asks_no_proxy_is_recorded_with_the_state_of_now(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def state(archive: str, suite: str) -> IndexState:
        asked.append((archive, suite))
        return STATE

    monkeypatch.setattr(run_module, "state_beside", state)
    planned = machine.image()
    assert index_states(machine.run(), planned, "x") == (STATE,)
    assert asked == [("https://mirror.example.org/debian", "trixie")]
    assert index_states(machine.run(), planned, "x", asks=False) == ()
    assert index_states(machine.run(offline=True), planned, "x") == ()
    http = DebianMirror(main="http://mirror.example.org/debian", security="")
    assert index_states(dataclasses.replace(machine.run(), mirror=http), planned, "x") == ()
    remote = dataclasses.replace(planned, base=base(bootstrap=None))
    assert index_states(machine.run(), remote, "x") == ()
    noted = SimpleNamespace(index_states=lambda _build: (STATE, STATE))
    assert index_states(machine.run({"packages": noted}), remote, "x") == (STATE, STATE)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("days", "variable", "expected"),
    [(None, "", MOST_BEHIND), (3, "7", dt.timedelta(3)), (None, "7", dt.timedelta(7))],
)
def test_packages_are_downloaded_through_the_cache(
    days: int | None,
    variable: str,
    expected: dt.timedelta,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []
    cache = SimpleNamespace(
        url="http://cache", journals="journals", taken=2, fetched=1, taken_bytes=3e6, suspected=1
    )

    @contextlib.contextmanager
    def package_cache(*words: Any, **named: Any) -> Iterator[object]:
        given.append((*words, named))
        yield cache

    monkeypatch.setattr(run_module, "package_cache", package_cache)
    monkeypatch.setattr(
        run_module, "pip_configuration", lambda *_: contextlib.nullcontext("configured")
    )
    monkeypatch.setenv(run_module.MAX_INDEX_AGE, variable)
    home = Home(path=machine.folder / "home", shared=machine.folder / "shared")
    run = machine.run(offline=True, max_index_age=days)
    words = (run.tools, home, [machine.image()], run.progress, run.settings)
    with downloading(*words) as tools:
        shown: tuple[object, ...] = (tools.packages, tools.pip, tools.journals)
        assert shown == (cache, "", "journals")
        assert tools.downloading == {"http_proxy": "http://cache"}
    said = [line.partition("] ")[2] for line in machine.said.getvalue().splitlines()]
    assert said == [
        "2 of 3 packages came from the cache (3 MB)",
        "1 package of failed steps will be fetched again",
    ]
    [(folder, named)] = given
    suites = named.pop("suites")
    assert (suites.architectures, suites.most_behind) == ({"ppc64el", "amd64"}, expected)
    assert folder == machine.folder / "home/packages"
    assert named == {"offline": True, "shared": machine.folder / "shared/packages"}
    cache.taken = cache.suspected = 0
    pip = machine.image("x86_64", recipes=[recipe(development=(block("pip"),))])
    with downloading(run.tools, Home(path=home.path), [pip], run.progress, run.settings) as tools:
        assert tools.pip == "configured"
    assert (given[1][1]["shared"], given[1][1]["suites"].architectures) == (None, {"amd64"})
    assert len(machine.said.getvalue().splitlines()) == 2


@pytest.mark.parametrize("age", ["a week", "7d", "-1"])
def test_an_age_that_is_no_number_is_refused(
    age: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_MAX_INDEX_AGE", age)
    run = machine.run()
    text = f"BUILD_IMAGES_MAX_INDEX_AGE is not a number of days: {age}"
    with (
        pytest.raises(BadInput, match=text),
        downloading(run.tools, run.tools.home, [], run.progress, run.settings),
    ):
        pass
