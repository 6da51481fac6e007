"""Six cells that share stages, in all formats, against buildx, Apptainer and Charliecloud.

hpc-base, python-mpi and hpc-bench for two architectures: cold, with nothing changed, and with one
leaf recipe changed. The others: `docker buildx bake` on the same Dockerfiles, all targets in one
file, then of each image `apptainer build` (of what `docker save` wrote) and `ch-convert` to a
tarball. Both start from bases that are there already. `--verify` also proves our images; the others
prove nothing. As root, for it starts a Docker Engine of its own. It takes hours when one of the
architectures is emulated; `--arch` and `--recipe` make it smaller.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from docker_engine import docker_engine
from timing import environment, machine, seconds

from builder.build.base_store import StoredBase
from builder.build.engines import Docker, Tools
from builder.system.home import ORDINARY_USER, Home
from builder.system.process import Processes

PROJECT = Path(__file__).resolve().parents[1]
RECIPES = ("hpc-base", "python-mpi", "hpc-bench")
ARCHITECTURES = ("x86_64", "ppc64le")
LEAF = "hpc-bench"
CHANGE = "\n  - shell: {{commands: [echo change {number}]}}\n"
SCENARIOS = {"cold": 3.0, "nothing changed": 5.0, "one leaf changed": 1.0}
OCI = {"x86_64": "amd64", "ppc64le": "ppc64le", "aarch64": "arm64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """One round: a folder of its own, in which both contenders begin with bases alone."""

    folder: Path
    selectors: tuple[str, ...]
    verify: bool

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def images(self, recipe: str = "") -> list[str]:
        """The images' identifiers; those of one recipe, if it is given."""
        done = self._ours("plan", "--json", *self.selectors, text=True)
        found = list(json.loads(done)["images"])
        return [one["image"] for one in found if not recipe or one["cell"]["recipe"] == recipe]

    def build(self) -> None:
        options = [] if self.verify else ["--no-verify"]
        self._ours("build", "--quiet", *options, *self.selectors, f"--output={self.folder}/out")

    def specs(self) -> Path:
        """The specs of all images, as the others are given them."""
        self._ours("spec", *self.selectors, f"--output={self.folder}/specs")
        return self.folder / "specs"

    def _ours(self, command: str, *arguments: str, text: bool = False) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "builder", command, f"--project={self.project}", *arguments],
            cwd=PROJECT,
            env=environment(self.folder / "home"),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        return done.stdout if text else ""

    def change(self, number: int) -> None:
        """Change the leaf recipe: one more command when it runs."""
        path = self.project / f"recipes/{LEAF}.yaml"
        text = (PROJECT / f"recipes/{LEAF}.yaml").read_text()
        path.write_text(text.replace("\nlabels:", CHANGE.format(number=number) + "\nlabels:"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Others:
    """docker buildx bake, docker save, apptainer build and ch-convert."""

    bench: Bench
    host: str
    tools: Tools
    spent: dict[str, list[float]] = field(default_factory=dict)

    def build(self, converted: Sequence[str]) -> None:
        """Bake all images, and convert some of them."""
        specs = self.bench.folder / "specs"
        self._timed("docker buildx bake", lambda: self._bake(specs))
        for image in converted:
            self._timed("docker save + apptainer build", partial(self._sif, image))
            self._timed("ch-convert", partial(self._tarball, image))

    def _timed(self, name: str, work: Callable[[], None]) -> None:
        self.spent.setdefault(name, []).append(seconds(work))

    def _bake(self, specs: Path) -> None:
        targets = {
            name.replace(".", "_"): {
                "context": str(specs / name),
                "dockerfile": "Dockerfile",
                "tags": [f"bench/{name.lower()}:1"],
                "platforms": [f"linux/{OCI[name.rpartition('-')[2]]}"],
                "network": "host",
                "output": ["type=docker"],
            }
            for name in self.bench.images()
        }
        file = self.bench.folder / "docker-bake.json"
        file.write_text(
            json.dumps({"group": {"default": {"targets": [*targets]}}, "target": targets})
        )
        allowed = ["--allow=network.host", f"--allow=fs.read={specs}"]
        self._run([self._buildx(), "bake", *allowed, "--file", str(file), "--progress=plain"])

    def _buildx(self) -> str:
        plugins = self.tools.home.path / "tools/cli-plugins"
        places = [str(plugins), "/usr/libexec/docker/cli-plugins", "/usr/lib/docker/cli-plugins"]
        found = shutil.which("docker-buildx", path=os.pathsep.join(places))
        assert found, "docker-buildx is missing: make setup-test"
        return found

    def _sif(self, image: str) -> None:
        folder = self._folder()
        saved, sif = folder / "image.tar", folder / f"{image}.sif"
        self._run(["docker", "save", "--output", str(saved), f"bench/{image.lower()}:1"])
        saved.chmod(0o644)
        command = [self.tools.program("apptainer"), "build", "--force"]
        command += [f"--arch={OCI[image.rpartition('-')[2]]}", str(sif), f"docker-archive:{saved}"]
        self._as_user(command, folder)
        saved.unlink()

    def _tarball(self, image: str) -> None:
        target = self._folder() / f"{image}.tar.gz"
        target.unlink(missing_ok=True)
        self._run(
            ["ch-convert", "-i", "docker", "-o", "tar", f"bench/{image.lower()}:1", str(target)]
        )

    def _folder(self) -> Path:
        folder = self.bench.folder / "converted"
        if not folder.exists():
            folder.mkdir()
            shutil.chown(folder, ORDINARY_USER)
        return folder

    def _as_user(self, command: Sequence[str], folder: Path) -> None:
        env = {"TMPDIR": str(folder), "APPTAINER_TMPDIR": str(folder)}
        env["APPTAINER_CACHEDIR"] = str(folder / "cache")
        self.tools.processes.capture(command, cwd=folder, env=env, user=ORDINARY_USER)

    def _run(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            command,
            env={**os.environ, "DOCKER_HOST": self.host, "PATH": self._path()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-3000:]}")

    def _path(self) -> str:
        # ch-convert takes the python3 that it finds first, and needs the system's own.
        return f"/usr/bin:/bin:{self.tools.home.search_path()}"


@contextlib.contextmanager
def a_round(options: argparse.Namespace, bases: Path) -> Iterator[Bench]:
    """A fresh folder with a project and a home that has this machine's bases and tools."""
    home = Home.of_environment()
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="bench-cells-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the ordinary user works in it
        for part in ("recipes", "base-images", "tests/images"):
            shutil.copytree(PROJECT / part, folder / "project" / part)
        for part in ("matrix.yaml", "lock.yaml"):
            shutil.copy(PROJECT / part, folder / "project")
        (folder / "home").mkdir()
        (folder / "home/tools").symlink_to(home.tools.parent)
        shutil.copytree(bases, folder / "home/bases")
        selectors = ["--base=debian13", "--cuda=none", "--mpi=openmpi5.0"]
        selectors += [f"--arch={one}" for one in options.arch or ARCHITECTURES]
        selectors += [f"--recipe={one}" for one in options.recipe or RECIPES]
        yield Bench(folder=folder, selectors=tuple(selectors), verify=options.verify)


def known_bases(bench: Bench) -> Iterator[StoredBase]:
    """The bases that the specs start from, by the names that these have for them."""
    names: dict[str, str] = {}
    for path in bench.specs().glob("*/Dockerfile"):
        source = re.search(r"^FROM (\S+)", path.read_text(), re.MULTILINE)
        assert source is not None
        names[path.parent.name.rpartition("-")[2]] = source[1]
    for arch, name in names.items():
        records = (bench.folder / "home/bases").glob(f"debian13-{arch}-*/base.json")
        path = max(records, key=lambda one: str(json.loads(one.read_text())["made"]))
        record = json.loads(path.read_text())
        archive = path.parent / Path(record["archive"]).name
        yield StoredBase(**{**record, "name": name, "archive": archive})


def one_round(
    options: argparse.Namespace, times: dict[str, dict[str, list[float]]]
) -> Mapping[str, list[float]]:
    """All scenarios once, the contenders in turns; what the others spent their time on."""
    with (
        a_round(options, Home.of_environment().bases) as bench,
        docker_engine(bench.folder) as host,
    ):
        os.environ["DOCKER_HOST"] = host
        home = Home(path=bench.folder / "home")
        tools = Tools(processes=Processes(), home=home)
        home.work.mkdir()
        for base in known_bases(bench):
            Docker(tools).provide_base(base, log=bench.folder / "docker.log")
        others = Others(bench=bench, host=host, tools=tools)
        for number, scenario in enumerate(SCENARIOS):
            converted = bench.images()
            if scenario == "one leaf changed":
                bench.change(number)
                converted = bench.images(LEAF)
            bench.specs()
            contenders: dict[str, Callable[[], object]] = {
                "build-images": bench.build,
                "the others": partial(others.build, converted),
            }
            for name, build in contenders.items():
                times[scenario][name].append(seconds(build))
                print(f"  {scenario}, {name}: {times[scenario][name][-1]:.2f} s", flush=True)
        own = [
            json.loads((bench.folder / f"out/{one}/manifest.json").read_text())
            for one in bench.images(LEAF)
        ]
        cells = [sum(one["durations_s"].values()) for one in own]
        own_steps = ", ".join(f"{one:.1f} s" for one in cells)
        print(f"  the changed cells' own steps, added up: {own_steps}")
        return others.spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--verify", action="store_true", help="prove our images, too")
    parser.add_argument("--arch", action="append", help=f"default: {', '.join(ARCHITECTURES)}")
    parser.add_argument("--recipe", action="append", help=f"default: {', '.join(RECIPES)}")
    parser.add_argument(
        "--scratch", default="/var/tmp", help="where there is room (default: /var/tmp)"
    )
    options = parser.parse_args()
    print(machine())
    times: dict[str, dict[str, list[float]]] = {
        name: {"build-images": [], "the others": []} for name in SCENARIOS
    }
    spent: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for name, some in one_round(options, times).items():
            spent.setdefault(name, []).extend(some)
    for scenario, reach in SCENARIOS.items():
        ours, theirs = times[scenario]["build-images"], times[scenario]["the others"]
        ratio = statistics.median(theirs) / statistics.median(ours)
        for name, found in times[scenario].items():
            print(
                f"  {scenario + ', ' + name:34} median {statistics.median(found):8.2f} s"
                f"   ({min(found):.2f} to {max(found):.2f}, {len(found)} runs)"
            )
        print(f"  {scenario}: {ratio:.2f} times faster   (reach: {reach:.0f})")
    for name, found in spent.items():
        print(f"  {name}: median {statistics.median(found):.1f} s of {len(found)}")


if __name__ == "__main__":
    main()
