"""The program as pip installs it: from a wheel, away from the clone, used from another folder."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import PROJECT, Ended, manifest_of, passed, run_program
from projects import copy_of_project
from real_registry import in_memory_or
from small_base import LEAN, NAME, NUMBERS

from builder.build.inputs import program_digest
from builder.system.home import ORDINARY_USER

pytestmark = pytest.mark.engines
ARCH = os.uname().machine
SPEC = ("Dockerfile", "Singularity.def")


@dataclass(frozen=True, kw_only=True, slots=True)
class Distributions:
    """An sdist, the wheel built from it, and the tracked files of the package: `builder/...`."""

    sources: Path
    sdist: Path
    wheel: Path
    tracked: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """A virtual environment with the wheel; its folder is readable to every user."""

    environment: Path
    elsewhere: Path

    @property
    def package(self) -> Path:
        [folder] = self.environment.glob("lib/python3*/site-packages/builder")
        return folder

    def run(
        self,
        *argv: str | Path,
        program: str = "build-images",
        user: str | None = None,
        env: dict[str, str] | None = None,
    ) -> Ended:
        """Run a program of the environment in another folder than the project's."""
        path = self.environment / "bin" / program
        return ended(path, *argv, folder=self.elsewhere, user=user, env=env)


def ended(
    *argv: str | Path, folder: Path, user: str | None = None, env: dict[str, str] | None = None
) -> Ended:
    """Run a command without the variables that lead Python to the clone."""
    variables = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    variables["PATH"] += f":{sysconfig.get_path('scripts')}"  # linters that came with wheels
    env = {**variables, **(env or {})}
    return run_program(*argv, env=env, inherit=False, cwd=folder, user=user)


def tracked_files() -> list[str]:
    """Paths of the files that git tracks in the project and that have not been removed."""
    argv = ("git", "-c", f"safe.directory={PROJECT}", "ls-files", "-z")
    listed = passed(run_program(*argv, cwd=PROJECT))
    return [name for name in listed.stdout.split("\0") if name and (PROJECT / name).is_file()]


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """An sdist of the tracked files, and a wheel of that sdist.

    The tracked files are copied first: setuptools also packs what an egg-info folder or a build
    folder of earlier runs lists, which would hide a missing file.
    """
    sources = tmp_path_factory.mktemp("sources")
    tracked = tracked_files()
    for name in tracked:
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, sources / name)
    target = tmp_path_factory.mktemp("dist")
    words = ("-m", "build", "--no-isolation", "--outdir", target, sources)
    passed(ended(sys.executable, *words, folder=target))
    [sdist], [wheel] = target.glob("*.tar.gz"), target.glob("*.whl")
    package = frozenset(name for name in tracked if name.startswith("builder/"))
    return Distributions(sources=sources, sdist=sdist, wheel=wheel, tracked=package)


@pytest.fixture(scope="session")
def installed(distributions: Distributions) -> Iterator[Installed]:
    """The wheel in a new virtual environment, which borrows the dependencies of the tests'."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="installed-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        venv.create(folder / "venv")
        pip = (sys.executable, "-m", "pip", "--python", folder / "venv/bin/python")
        words = ("install", "--no-deps", "--no-index", distributions.wheel)
        passed(ended(*pip, *words, folder=folder))
        (folder / "elsewhere").mkdir(mode=0o755)
        program = Installed(environment=folder / "venv", elsewhere=folder / "elsewhere")
        # Appended to sys.path; the editable installation's hook, a .pth file there, is not read.
        borrowed = [path for path in sys.path if path.endswith("-packages")]
        (program.package.parent / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
        yield program


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_every_tracked_file_of_the_package_is_in_it(
    kind: str, distributions: Distributions
) -> None:
    if kind == "wheel":
        packed = set(zipfile.ZipFile(distributions.wheel).namelist())
    else:
        with tarfile.open(distributions.sdist) as archive:
            packed = {name.partition("/")[2] for name in archive.getnames()}
    missing = sorted(distributions.tracked - packed)
    assert not missing, f"not in the {kind}: {', '.join(missing)}"


def test_the_wheel_holds_the_package_and_the_shipped_files_alone(
    distributions: Distributions,
) -> None:
    wheel = zipfile.ZipFile(distributions.wheel)
    others = set(wheel.namelist()) - distributions.tracked
    shipped = {name for name in others if name.startswith("build_images/")}
    folders = ("recipes/", "base-images/", "tests/images/")
    assert {name.removeprefix("build_images/") for name in shipped} == {
        name
        for name in tracked_files()
        if name in {"matrix.yaml", "lock.yaml"}
        or (name.startswith(folders) and not name.startswith("tests/images/site/"))
    }
    for name in shipped:
        path = distributions.sources / name.removeprefix("build_images/")
        assert wheel.read(name) == path.read_bytes()
    assert {name.split("/")[0].partition("-")[2] for name in others - shipped} == {
        "0.1.0.dist-info"
    }


def test_it_is_the_program_that_runs(installed: Installed, distributions: Distributions) -> None:
    script = "import builder; print(builder.__file__)"
    done = installed.run("-c", script, program="python")
    assert done.stdout == f"{installed.package / '__init__.py'}\n", done.stderr
    assert program_digest(installed.package) == program_digest(distributions.sources / "builder")


@pytest.mark.parametrize("command", ["plan", "lint", "doctor"])
def test_a_command_from_another_folder(command: str, installed: Installed) -> None:
    done = installed.run(command, "--project", PROJECT)
    # 4: doctor on a machine that lacks something.
    assert done.status == 0 or (command == "doctor" and done.status == 4), done.stderr
    expected = {"plan": "hpc-base-1.0-debian13", "lint": "0 errors", "doctor": "buildah"}
    assert expected[command] in done.stdout + done.stderr


def test_specs_of_the_full_matrix(installed: Installed, tmp_path: Path) -> None:
    """Without the linters: with them, 311 specs take 42 s where none has been linted before.

    They are 24,000 files: written to a disk and removed, they take longer than to compile.
    """
    with in_memory_or(tmp_path) as out:
        words = ("--all", "--no-lint", "--project", PROJECT, "--output", out)
        passed(installed.run("spec", *words))
        numbers = [len(list(out.glob(f"*/{name}"))) for name in SPEC]
    plan = installed.run("plan", "--all", "--project", PROJECT)
    for number in numbers:
        assert f"\n{number} images; " in plan.stdout


def test_it_sets_itself_up_as_a_clone_does(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scripts are there, and bring Apptainer into an empty home."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BUILD_IMAGES_SHARED", "")
    done = passed(installed.run("setup", "--dry-run"))
    assert str(tmp_path / "home/tools/apptainer") in done.stdout + done.stderr
    assert installed.run("setup", "--check").status == 4
    assert not (tmp_path / "home").exists()


def test_native_tools_are_compiled_from_its_files(installed: Installed) -> None:
    """`build-images setup` does it: twins.c and twins.ld are read."""
    if not shutil.which("gcc") or ARCH != "x86_64":
        pytest.skip("missing on this machine: gcc for x86_64")
    script = (
        "from builder.build.native.interpreter import compiled_code; "
        "from builder.system.process import Processes; print(len(compiled_code(Processes())))"
    )
    done = passed(installed.run("-c", script, program="python"))
    assert int(done.stdout) > 0


def test_an_ordinary_user_writes_nothing_beside_it(installed: Installed) -> None:
    user = ORDINARY_USER if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="user-") as name:
        place = Path(name)
        project = copy_of_project(place)
        if user:
            shutil.chown(place, user)
        env = {"HOME": name, "BUILD_IMAGES_HOME": f"{name}/home", "XDG_CACHE_HOME": f"{name}/cache"}
        probe = installed.run("-c", "import yaml", program="python", user=user, env=env)
        if probe.status:
            pytest.skip(f"{user} may not read the dependencies: {probe.stderr.strip()}")
        files = set(installed.package.rglob("*"))
        modes = {path: path.stat().st_mode for path in [installed.package, *files]}
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        try:
            for command in (["plan"], ["lint"], ["spec", "--output", f"{name}/specs"]):
                passed(installed.run(*command, "--project", project, user=user, env=env))
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
        assert set(installed.package.rglob("*")) == files


def test_a_real_build(
    installed: Installed, distributions: Distributions, small_site: Path, small_home: Path
) -> None:
    """Two stages, three formats, and a check in each."""
    env = {"BUILD_IMAGES_HOME": str(small_home)}
    argv: list[str | Path] = ["--recipe", "lean", "--project", small_site]
    passed(installed.run(*argv, env=env))
    built = manifest_of(small_site / "out" / LEAN)
    assert (built["outcome"], built["formats_equal"]) == ("verified", True)
    assert built["inputs"]["program"] == program_digest(distributions.sources / "builder")
    assert "verified" in passed(installed.run("plan", "--stages", *argv, env=env)).stdout


def test_a_project_of_ones_own(
    installed: Installed, small_site: Path, small_home: Path, tmp_path: Path
) -> None:
    """Nothing of a clone is in reach: all that it inherits came with the wheel."""
    env = {"BUILD_IMAGES_HOME": str(small_home)}
    project = tmp_path / "climate"

    def run(*argv: str | Path) -> Ended:
        return passed(installed.run(*argv, "--project", project, env=env))

    passed(installed.run("init", project, env=env))
    image = f"climate-1.0-debian13-openmpi5.0-{ARCH}"
    assert f"{image}  " in run("plan").stdout
    assert "0 errors, 0 warnings in 1 spec linted" in run("lint").stdout
    assert run("spec").stdout == f"{project}/out/{image}\n"
    assert "mpicc -O2" in (project / "out" / image / "Dockerfile").read_text()
    assert "from shipped: recipe hpc-base; base debian13" in run("explain").stdout
    if ARCH == "x86_64":
        _build_in(project, small_site, run)


def _build_in(project: Path, small_site: Path, run: Callable[..., Ended]) -> None:
    """Build a recipe of the project's own, on a base and with a check of its own."""
    for name in ("recipes/lean.yaml", f"base-images/{NAME}.yaml"):
        (project / name).parent.mkdir(exist_ok=True)
        shutil.copy(small_site / name, project / name)
    matrix = (project / "matrix.yaml").read_text().replace("[debian13]", f"[{NAME}]")
    (project / "matrix.yaml").write_text(matrix.replace("[openmpi5.0]", "[none]"))
    with (project / "tests/images/checks.yaml").open("a") as checks:
        checks.write(NUMBERS)
    run("--recipe", "lean")
    built = manifest_of(project / "out" / LEAN)
    assert (built["outcome"], built["formats_equal"]) == ("verified", True)
    assert {*built["inputs"]["files"]} == {
        *("matrix.yaml", "recipes/lean.yaml", f"base-images/{NAME}.yaml", "files/hello.c"),
        *("tests/images/checks.yaml", "shipped:matrix.yaml", "shipped:lock.yaml"),
        "shipped:tests/images/checks.yaml",
    }
    assert "verified" in run("plan", "--recipe", "lean").stdout
    run("verify", project / "out" / LEAN)
