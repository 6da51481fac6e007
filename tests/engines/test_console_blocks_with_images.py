"""Console blocks of docs/ that need engines, images or a registry; the others are in tests/unit."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from harness import PROJECT, TOOLS, Ended, copy_of, need, passed, run_program
from projects import copy_of_project
from published import SIGNING, made_key
from real_registry import real_registry

from builder.build.engines import Tools

sys.path.append(str(PROJECT / "tests/unit"))
from console_blocks import ConsoleBlock, ConsoleCommand, console_blocks, missing_lines

pytestmark = pytest.mark.engines
BLOCKS = [block for block in console_blocks() if block.place == "images"]
AS_USER = ("apptainer",)  # as a site's users start containers
PROGRAMS = {"build-images": "builder", "pytest": "pytest"}
OF_PAGES, IDENTIFIER = "registry.site.example", "hpc-base-1.0-debian13-openmpi5.0-x86_64"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A project with finished images, keys and a registry."""

    folder: Path
    registry: str
    user: str | None

    def real(self, text: str) -> str:
        """Replace the names that stand for others."""
        return text.replace(OF_PAGES, self.registry).replace("IDENTIFIER", IDENTIFIER)

    def run(self, text: str, user: str | None = None) -> Ended:
        path = f"{self.folder / 'bin'}:{TOOLS}"
        env = {**SIGNING, "PATH": path, "PYTHONPATH": str(PROJECT), "COLUMNS": "200"}
        home = ["env", f"PATH={path}", "HOME=/tmp"]
        argv = [*(["runuser", "-u", user, "--"] if user else []), *(home if user else [])]
        return run_program(*argv, "bash", "-c", self.real(text), cwd=self.folder, env=env)


@pytest.fixture(name="place", scope="module")
def project_with_images(
    tools: Tools, hpc_base: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    need("docker-registry")
    with (
        tempfile.TemporaryDirectory(dir=tools.home.work, prefix="console-") as name,
        real_registry(tmp_path_factory.mktemp("registry"), in_memory=True) as registry,
    ):
        folder = copy_of_project(Path(name))
        for program, module in PROGRAMS.items():
            file = folder / "bin" / program
            file.parent.mkdir(exist_ok=True)
            file.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
            file.chmod(0o755)
        for image in hpc_base.values():
            copy_of(image, folder / "out" / image.name)
        made_key(folder)
        (folder / "policy.yaml").write_text("schema: build-images/policy/v1\nkeys: [site.pub]\n")
        folder.chmod(0o777)
        yield Place(folder=folder, registry=registry.host, user=tools.ordinary_user)


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in BLOCKS])
def test_commands_do_as_the_page_says(block: ConsoleBlock, place: Place) -> None:
    if block.before:
        passed(place.run(block.before))
    for command in block.run_commands:
        done = place.run(command.text, place.user if command.name in AS_USER else None)
        printed = done.stdout + done.stderr
        assert done.status == block.status, printed
        assert not missing_lines(_real(command, place), printed, exact=False), printed


def _real(command: ConsoleCommand, place: Place) -> ConsoleCommand:
    return replace(command, output=tuple(map(place.real, command.output)))
