"""Publishing five images of this project and pulling them, against `skopeo copy` there and back.

    python bench/family.py [--rounds 3] [--output FOLDER]

The images are real ones with shared layers: `hpc-base`, two of its children, and two that a site
might add; they are built and verified first, which takes minutes. Published is all that `publish`
does, with signed proof, into an empty registry with TLS and a password; pulled are all five by one
command that applies the whole policy, starting with nothing. skopeo copies the images alone. The
contenders take turns, and the medians are told.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from command import build_quietly
from projects import copy_of_project
from published import SIGNING, made_key
from real_registry import PASSWORD, USER, RealRegistry, real_registry
from timing import environment, machine

from builder.system.home import Home

CELL = "debian13-openmpi5.0"
CHILDREN = {"site-tools": ("hpc-base", "gdb"), "site-python": ("python-mpi", "python3-yaml")}
RECIPES = ("hpc-base", "python-mpi", "hpc-bench", *CHILDREN)
RECIPE = """\
recipe: {name}
version: "1.0"
about: What a site adds
parent: {parent}
runtime:
  - packages: {{ospackages: [{package}]}}
"""


def images_of(out: Path) -> list[Path]:
    return [out / f"{recipe}-1.0-{CELL}-x86_64" for recipe in RECIPES]


def made_project(folder: Path) -> Path:
    """This project with the recipes of a site."""
    copy_of_project(folder)
    for name, (parent, package) in CHILDREN.items():
        text = RECIPE.format(name=name, parent=parent, package=package)
        (folder / f"recipes/{name}.yaml").write_text(text)
    return folder


class Family:
    """The images, and how either side publishes and pulls them."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder, self.out = folder, out
        self.project = made_project(folder / "project")
        self.key = made_key(folder)
        policy = {
            "schema": "build-images/policy/v1",
            "keys": [self.key.public.name],
            "evidence": {"required": ["environment", "mpi"]},  # one format has no other to equal
        }
        (folder / "policy.yaml").write_text(json.dumps(policy))
        self._select = [f"--image={one.name}" for one in images_of(out)]

    def build(self) -> None:
        """The images, with this machine's own home; what is there and unchanged stays."""
        words: list[str | Path] = [*self._select, "--arch=x86_64", "--format=oci"]
        words += ["--project", self.project, "--output", self.out]
        build_quietly(*words, env=environment(Home.of_environment().path))

    def publish(self, registry: RealRegistry) -> None:
        """All images with their proof, by one command."""
        words: list[str | Path] = ["publish", "-q", *self._select, "--arch=x86_64"]
        words += ["--project", self.project, "--output", self.out]
        words += ["--to", f"{registry.host}/site", "--key", self.key.private]
        build_quietly(
            *words, env={**environment(self._fresh("home")), **registry.environment, **SIGNING}
        )

    def push(self, registry: RealRegistry) -> None:
        """The images alone, by skopeo."""
        trust = self._trust(registry, "dest")
        for recipe, image in zip(RECIPES, images_of(self.out), strict=True):
            target = f"docker://{registry.host}/copied/{recipe}:1.0"
            skopeo(*trust, f"oci:{image}/image.oci", target)

    def pull(self, registry: RealRegistry) -> None:
        """All images by one command, into OCI layouts."""
        references = [f"{registry.host}/site/{recipe}:1.0-{CELL}" for recipe in RECIPES]
        words: list[str | Path] = ["pull", "-q", *references, "--format=oci", "--arch=x86_64"]
        words += ["--policy", self.folder / "policy.yaml", "--output", self._fresh("pulled")]
        build_quietly(*words, env={**environment(self._fresh("home")), **registry.environment})

    def copy(self, registry: RealRegistry) -> None:
        """The same layouts by skopeo, one after the other."""
        trust, out = self._trust(registry, "src"), self._fresh("pulled")
        for recipe in RECIPES:
            source = f"docker://{registry.host}/site/{recipe}:1.0-{CELL}"
            skopeo(*trust, source, f"oci:{out}/{recipe}:1")

    def _fresh(self, name: str) -> Path:
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def _trust(self, registry: RealRegistry, side: str) -> list[str]:
        """What skopeo is shown of a registry: its authority, and the password."""
        assert registry.authority is not None
        certificates, login = self._fresh("trusted"), self.folder / "auth.json"
        shutil.copy(registry.authority, certificates / "ca.crt")
        auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        login.write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
        return [f"--{side}-cert-dir={certificates}", f"--{side}-authfile={login}"]


def skopeo(*words: str) -> None:
    subprocess.run(["skopeo", "copy", "-q", *words], check=True)


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="where the images are, or are to be built")
    given = parser.parse_args()
    print(machine())
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="bench-family-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        family = Family(folder, (given.output or folder / "out").absolute())
        family.build()

        def timed(what: str, work: Callable[[RealRegistry], None], registry: RealRegistry) -> None:
            os.sync()
            start = time.monotonic()
            work(registry)
            taken.setdefault(what, []).append(time.monotonic() - start)

        for number in range(given.rounds):
            with (
                real_registry(folder / f"ours-{number}", secured=True) as mine,
                real_registry(folder / f"theirs-{number}", secured=True) as theirs,
            ):
                timed("publish", family.publish, mine)
                timed("skopeo copy, there", family.push, theirs)
                timed("pull", family.pull, mine)
                timed("skopeo copy, back", family.copy, mine)
            for one in ("ours", "theirs"):
                shutil.rmtree(folder / f"{one}-{number}")
    found = {what: statistics.median(some) for what, some in taken.items()}
    for what, some in taken.items():
        print(f"  {what:20} {found[what]:6.2f} s ({min(some):.2f} to {max(some):.2f})")
    publish, push, pull, copy = found.values()
    print(f"publishing {publish / push:.2f}, pulling {pull / copy:.2f}, ", end="")
    print(f"both {(publish + pull) / (push + copy):.2f} times   (reach: 1.15)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
