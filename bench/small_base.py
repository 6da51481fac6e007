"""A base image of 10 MB, as if mmdebstrap had made it: for builds whose content does not matter."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from host_images import write_base

from builder.artifacts import oci
from builder.build.base_store import PATH_IN_IMAGES, StoredBase, base_key
from builder.build.mirror import find_mirror
from builder.load.project import load_project
from builder.model.architectures import ARCHITECTURES

NAME = "small"
MATRIX = (
    f"axes:\n  arch: [x86_64]\n  base: [{NAME}]\n  cuda: [none]\n  mpi: [none]\ninherit: false\n"
)
_YAML = f"""\
base: {NAME}
about: a shell and what steps call, copied out of the host of a test
distribution: debian
version: "13"
hpccm: ubuntu24
architectures: [x86_64]
bootstrap:
  suite: trixie
  components: [main]
  packages: [none]
  keyring: debian-archive-keyring.gpg
"""
LEAN = f"lean-1.0-{NAME}-x86_64"
_LEAN = """\
recipe: lean
version: "1.0"
about: two stages, an environment, and a check that is a script
development:
  - shell: {commands: ["echo a step of the development stage"]}
runtime:
  - shell: {commands: ["mkdir -p /opt/lean", "seq 9 > /opt/lean/numbers"]}
environment:
  LEAN: "an image's own"
checks: [numbers]
"""
_TINY = """\
recipe: {name}
version: "1.0"
about: a few commands on the base
development: []
runtime:
  - shell: {{commands: [{commands}]}}
"""
NUMBERS = """\

  numbers:
    about: what a step of the run-time stage wrote is there
    run: test -s /opt/lean/numbers && echo the numbers are there
    timeout: 60
"""


def add_small_base(site: Path) -> None:
    """Make it the only base of a project, with one recipe, `lean`."""
    for recipe in (site / "recipes").glob("*.yaml"):
        recipe.unlink()
    (site / "recipes/lean.yaml").write_text(_LEAN)
    with (site / "tests/images/checks.yaml").open("a") as checks:
        checks.write(NUMBERS)
    (site / f"base-images/{NAME}.yaml").write_text(_YAML)
    (site / "matrix.yaml").write_text(MATRIX)


def write_tiny(site: Path, commands: str, *, name: str = "tiny", base: str = NAME) -> None:
    """Make a project one of tiny recipes, without MPI, for x86_64; those of earlier calls stay."""
    for recipe in (site / "recipes").glob("*.yaml"):
        if "about: a few commands" not in recipe.read_text():
            recipe.unlink()
    (site / f"recipes/{name}.yaml").write_text(_TINY.format(name=name, commands=commands))
    (site / "matrix.yaml").write_text(MATRIX.replace(NAME, base))


def store_small_base(site: Path, home: Path) -> None:
    """Put the base of such a project into the store of a home, where a build looks for it."""
    base = load_project(site).bases[NAME]
    key = base_key(base, "x86_64", find_mirror())
    folder = home / "bases" / f"{NAME}-x86_64-{key[:12]}"
    folder.mkdir(parents=True)
    rootfs, archive = folder / "rootfs.tar", folder / f"{NAME}-x86_64.oci.tar"
    write_base(rootfs)
    digest = oci.write_archive(
        rootfs,
        archive,
        architecture=ARCHITECTURES["x86_64"].oci,
        environment={"PATH": PATH_IN_IMAGES},
        name=NAME,
    )
    rootfs.unlink()
    stored = StoredBase(
        name=NAME,
        arch="x86_64",
        key=key,
        archive=archive,
        digest=digest,
        made="2026-01-01T00:00:00+00:00",
    )
    (folder / "base.json").write_text(json.dumps(asdict(stored), default=str))
