"""The check `libraries` finds what cannot be loaded, and accuses nothing that can.

Its program looks at a small root file system, whose programs and libraries are compiled here.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
from check_programs import SOURCES, compiled, mounting
from harness import Ended, need, run_program, sample
from library_roots import (
    DEFECTS,
    LIBRARIES,
    OF_X86_64,
    SOUND,
    SOUND_ON_X86_64,
    X86_64,
    Root,
    command,
    sound_root,
)

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound root; the check's program is in it."""
    need("cc")
    folder = tmp_path_factory.mktemp("root")
    sound_root(folder, tmp_path_factory.mktemp("built"))
    return folder


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Root:
    return Root(path=Path(shutil.copytree(template, tmp_path / "root")), built=tmp_path)


def looked_at(root: Root, cpu: str = "generic", route: str = "none") -> Ended:
    """What the check says of a root file system that it takes for its own."""
    shutil.copy(root.file("opt/libraries"), root.built / "libraries")
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    return run_program(*command(root, cpu, route), env=environment)


def test_a_sound_root_passes(root: Root) -> None:
    root.script("usr/bin/env", "#!/usr/bin/user\n")
    for name in ("usr/local/bin/one", "usr/local/bin/other"):
        root.script(name, "#!/usr/bin/env user\n")
    result = looked_at(root)
    assert result.status == 0, result
    assert result.finding.endswith("scripts find all that they need")
    assert result.data["programs"] == 2
    assert (result.data["scripts"], result.data["faults"]) == (4, 0)


@pytest.mark.campaign
@pytest.mark.parametrize("name", sample([*DEFECTS, *OF_X86_64], 12))
def test_a_defect_is_found(name: str, root: Root) -> None:
    if name in OF_X86_64 and not X86_64:
        pytest.skip("the code is for x86_64")
    plant, reason = {**DEFECTS, **OF_X86_64}[name]
    plant(root)
    result = looked_at(root)
    assert result.status == 1, result
    assert reason in result.finding


@pytest.mark.campaign
@pytest.mark.parametrize("name", sample([*SOUND, *SOUND_ON_X86_64], 6))
def test_nothing_sound_is_accused(name: str, root: Root) -> None:
    if name in SOUND_ON_X86_64 and not X86_64:
        pytest.skip("the code is for x86_64")
    {**SOUND, **SOUND_ON_X86_64}[name](root)
    result = looked_at(root)
    assert result.status == 0, result


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_library_that_this_user_cannot_read_is_named_so(root: Root) -> None:
    """Not as if it were missing; of a program that is private nothing is said."""
    root.file(f"{LIBRARIES}/libown.so.1").chmod(0o600)
    root.build("provider", "usr/bin/setuid").chmod(0o4711)
    root.path.chmod(0o755)
    words = command(root)
    words.insert(1, "--setuid=65534")
    result = run_program(*words, env={"PATH": "/usr/bin"})
    assert (result.status, result.finding) == (1, "/usr/lib/libown.so.1 cannot be read by users")


def test_what_the_host_brings_is_not_looked_for(root: Root) -> None:
    for name in ("libcuda.so.1", "libmpi.so.40"):
        root.library("own", name)
        library = str(root.file(f"{LIBRARIES}/{name}"))
        root.build("user", f"usr/bin/{name}.user", "-Wl,--no-as-needed", library)
        root.file(f"{LIBRARIES}/{name}").unlink()
    result = looked_at(root)
    assert "/usr/bin/libmpi.so.40.user needs libmpi.so.40" in result.finding
    assert "libcuda.so.1" not in result.finding
    assert looked_at(root, route="host").status == 0


@pytest.mark.skipif(not X86_64, reason="the code is for x86_64")
def test_an_image_for_newer_processors_may_have_their_code(root: Root) -> None:
    root.build("fast", "usr/bin/fast", "-O3", "-march=x86-64-v3")
    assert looked_at(root).status == 1
    assert looked_at(root, "x86_64_v3").status == 0
    assert looked_at(root, "zen4").status == 0


# ---- python3 and verbs ----

PYTHON = SOURCES / "python3-check.py"


def test_python3_passes_and_finds_a_module_that_cannot_be_imported(tmp_path: Path) -> None:
    assert run_program(sys.executable, PYTHON).finding.startswith("Python 3.")
    (tmp_path / "sqlite3.py").write_text("raise ImportError('libsqlite3.so.0: no such file')\n")
    result = run_program(sys.executable, PYTHON, env={"PYTHONPATH": str(tmp_path)})
    assert result.status == 1
    assert "sqlite3 (ImportError: libsqlite3.so.0: no such file)" in result.finding


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python has no list of its modules")
@pytest.mark.parametrize("lost", ["argparse.py", "wsgiref/__init__.py"])
def test_python3_misses_a_module_of_the_standard_library(tmp_path: Path, lost: str) -> None:
    """Python starts from a copy of its library, of links, without the module."""
    library = Path(sysconfig.get_path("stdlib"))
    home = tmp_path / library.relative_to(sys.base_prefix)
    shutil.copytree(library, home, copy_function=os.symlink, ignore=without_packages)
    words = [Path(sys.base_prefix) / "bin/python3", PYTHON]
    assert run_program(*words, env={"PYTHONHOME": str(tmp_path)}).status == 0
    (home / lost).unlink()
    result = run_program(*words, env={"PYTHONHOME": str(tmp_path)})
    name = lost.partition("/")[0].removesuffix(".py")
    assert result.status == 1
    assert result.finding.endswith(f"cannot import {name} (it is not there)")


def without_packages(_folder: str, names: list[str]) -> set[str]:
    return {"__pycache__", "site-packages", "dist-packages", "test", "idlelib"} & {*names}


def test_verbs_loads_all_drivers_and_finds_those_that_are_gone(tmp_path: Path) -> None:
    if not Path("/etc/libibverbs.d").is_dir():
        pytest.skip("no drivers of verbs on this machine (Debian: ibverbs-providers)")
    program = compiled(SOURCES / "verbs.c", tmp_path / "verbs", "-ldl")
    result = run_program(program)
    assert result.status == 0, result
    assert result.data["configured"] == result.data["loaded"] > 0
    hidden = mounting('mount -t tmpfs none /etc/libibverbs.d; exec "$1"', program)
    assert (hidden.status, hidden.finding) == (
        1,
        "no driver of verbs is configured in: /etc/libibverbs.d",
    )
    lost = "mount -t tmpfs none /etc/libibverbs.d; "
    lost += 'echo driver none >/etc/libibverbs.d/none.driver; exec "$1"'
    result = mounting(lost, program)
    assert (result.status, result.finding) == (
        1,
        "no library of a driver of verbs that is configured: none",
    )
