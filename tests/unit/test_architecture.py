"""The shape of the house: who imports whom, who starts programs, and how long a file is."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from samples import ROOT

PACKAGE = ROOT / "builder"
FILES = sorted(PACKAGE.rglob("*.py"))
LEAVES = {
    "agreement",
    "bodies",
    "bound_files",
    "cells",
    "daemons",
    "descendants",
    "output",
    "supervisor",
    "workers",
    "digests",
    "errors",
    "exact_json",
    "model",
    "process",
    "facts",
    "versions",
    "templates",
    "terminal",
    "home",
    "inflating",
    "indices",
    "door",
    "journals",
    "locks",
    "mounts",
    "namespaces",
    "nvml",
    "orphans",
    "places",
    "packages",
    "runs",
    "proxy",
    "regular_files",
    "suites",
    "upstream",
    "predicates",
    "scripts",
    "tags",
    "web",
    "wheels",
    "whole",
    "words",
    "zstd",
}

# What the modules of each stage may import besides the leaves and their own package.
MAY_IMPORT = {
    **{name: set[str]() for name in LEAVES},
    "load": set(),
    "contract": set(),
    "plan": {"contract"},
    "spec": {"contract"},
    "lint": set(),
    "rehearse": {"lint"},
    "schema": {"hosts", "load", "policy", "spec", "verify"},
    "artifacts": {"contract"},
    "bases": {"artifacts"},
    "registry": set(),
    "publish": {"artifacts", "registry"},
    "bundle": {"bases", "native", "publish", "registry"},
    "sources": {"registry"},
    "native": {"bases"},
    "engines": {"artifacts", "bases"},
    "verify": {"artifacts", "contract", "engines"},
    "proof": set(),
    "measure": {"verify"},
    "report": {"measure"},
    "doctor": {"engines", "native"},
    "sites": {"contract"},
    "pipelines": set(),
    "catalog": {"contract", "hosts", "report", "sites"},
    "hosts": {"artifacts", "contract", "doctor", "load"},
    "policy": {"hosts", "load", "verify"},
    "pull": {"artifacts", "hosts", "policy", "proof", "registry"},
    "cli": None,  # composes everything
    "__main__": {"cli"},
    "__init__": set(),
}
MAX_LINES = 400
STARTS_PROGRAMS = re.compile(
    r"os\.(system|popen|exec\w*|spawn\w*|posix_spawnp?|fork\w*)|pty\.spawn|asyncio\.create_subprocess_\w+"
)


def stage_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")


def imported(file: Path) -> Iterator[str]:
    """The full name of everything that a file imports, also within functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def stages_imported(file: Path) -> set[str]:
    found = set()
    for name in imported(file):
        parts = name.split(".")
        if parts[0] != "builder":
            continue
        below = parts[1] if len(parts) > 1 else "__init__"
        known = (PACKAGE / below).is_dir() or (PACKAGE / f"{below}.py").exists()
        found.add(below if known else "__init__")
    return found - {"__init__"}


def test_every_module_has_its_place() -> None:
    assert {stage_of(file) for file in FILES} <= MAY_IMPORT.keys()


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_imports_go_one_way(file: Path) -> None:
    allowed = MAY_IMPORT[stage_of(file)]
    if allowed is not None:
        found = stages_imported(file) - LEAVES - {stage_of(file)}
        assert found <= allowed, f"{module_of(file)} imports {sorted(found - allowed)}"


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_leaves_import_leaves_alone(file: Path) -> None:
    if stage_of(file) in LEAVES:
        assert stages_imported(file) <= LEAVES


def test_leaves_do_not_import_each_other_in_a_circle() -> None:
    imports = {name: set[str]() for name in LEAVES}
    for file in FILES:
        if (name := stage_of(file)) in LEAVES:
            imports[name] |= stages_imported(file) - {name}
    done: set[str] = set()
    while len(done) < len(imports):
        ready = {name for name, some in imports.items() if some <= done} - done
        assert ready, f"a circle among {sorted(imports.keys() - done)}"
        done |= ready


def test_what_only_pulls_starts_without_what_is_built() -> None:
    """The values of recipes, plans and specs take a seventh of what a pull takes to start."""
    program = "import builder.cli.pulling, sys; print([*sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert "builder.policy.statements" in done.stdout
    assert "builder.model" not in done.stdout


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_process_alone_starts_programs(file: Path) -> None:
    if module_of(file) in {"builder.process", "builder.supervisor", "builder.workers"}:
        return  # the second is started by the first; the third forks, and starts nothing else
    names = set(imported(file))
    roots = {name.split(".")[0] for name in names}
    assert not roots & {"subprocess", "pty", "multiprocessing", "pexpect"}
    called = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
    }
    assert not [name for name in called | names if STARTS_PROGRAMS.fullmatch(name)]


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_spec_alone_imports_hpccm(file: Path) -> None:
    if stage_of(file) != "spec":
        assert not [name for name in imported(file) if name.split(".")[0] == "hpccm"]


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_a_file_is_read_in_one_go(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= MAX_LINES


def test_modules_keep_no_mutable_globals() -> None:
    found = [
        f"{module_of(file)}: global {', '.join(node.names)}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Global)
    ]
    assert found == []


def tracked() -> list[Path]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("no git, or no git checkout: the tracked files are not known")
    done = subprocess.run(
        [git, "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


# Package mirrors and registries are chosen on the machine (see builder.bases.mirror), never here.
# Pages for people, such as a distribution's search, may be linked.
HOSTS = re.compile(
    r"\b(?:"
    r"(?:deb|security|ftp(?:\.\w+)?|httpredir|cdn-fastly\.deb|snapshot)\.debian\.org"
    r"|(?:archive|security|ports|\w\w\.archive)\.ubuntu\.com"
    r"|(?:test\.|upload\.)?py" + r"pi\.org"
    r"|files\.pythonhosted\.org"
    r"|registry\.npmjs\.org"
    r"|(?:static\.|index\.)?crates\.io"
    r"|proxy\.golang\.org"
    r")",
    re.IGNORECASE,
)
MACHINE_PATHS = re.compile(r"(?<![\w.}$])/(?:wor" + r"k/\w|tm" + r"p/w(?:/|\b))")


def found_in_tracked(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for file in tracked()
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_package_host_is_written_down() -> None:
    assert found_in_tracked(HOSTS) == []


def test_no_path_of_one_machine_is_written_down() -> None:
    assert found_in_tracked(MACHINE_PATHS) == []


def test_the_patterns_find_what_they_are_for() -> None:
    dot, slash = ".", "/"
    for parts in (
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("ftp", "de", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("py" + "pi", "org"),
    ):
        assert HOSTS.search(f"http://{dot.join(parts)}/x")
    assert not HOSTS.search("https://packages.debian.org/trixie/")
    for parts in (("", "work", "x"), ("", "tmp", "w", "v")):
        assert MACHINE_PATHS.search(f"cd {slash.join(parts)}")
    assert not MACHINE_PATHS.search("/var/lib/work/x and /tmp/work")
