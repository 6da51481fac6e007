"""What README.md and docs/ show is what happens: their console blocks are run.

Those that need engines or images run in tests/engines/test_console_blocks_with_images.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from console_blocks import (
    PAGES,
    PLACES,
    ConsoleBlock,
    ConsoleCommand,
    blocks_of,
    console_blocks,
    missing_lines,
)
from projects import copy_of_project
from samples import ROOT

from builder.cli import main

BLOCKS = console_blocks()
FILES = [block for page in PAGES for block in blocks_of(page) if block.file]
PARTS = [block for page in PAGES for block in blocks_of(page) if block.note == "part of a recipe"]
HEAD = "recipe: example\nversion: '1'\nabout: an example\nparent: hpc-base\n"


def named(blocks: list[ConsoleBlock]) -> list[object]:
    return [pytest.param(block, id=block.name) for block in blocks]


@pytest.fixture(name="project")
def copy_of_the_shipped_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = copy_of_project(tmp_path / "project")
    shutil.copy(ROOT / "lock.yaml", project)
    monkeypatch.chdir(project)
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COSIGN_PASSWORD", "of a test")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("CLONE", str(ROOT))
    return project


def run_command(command: ConsoleCommand) -> tuple[int, str]:
    """Run a command in this process if it is ours; the exit status and both streams."""
    argv = shlex.split(command.text, comments=True)
    if argv[0] != "build-images":
        done = subprocess.run(
            ["bash", "-c", command.text], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr
    argv, target = (argv[:-2], Path(argv[-1])) if ">" in argv else (argv, Path(os.devnull))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = main(argv[1:])
    target.write_text(printed.getvalue())
    return status, printed.getvalue()


def test_files_of_pages_have_names_of_their_own() -> None:
    names = [block.file for block in FILES]
    assert len(set(names)) == len(names), names


def test_each_block_is_run_or_has_the_reason_why_not() -> None:
    silent = [block.name for block in BLOCKS if not (block.place or block.reason)]
    assert not silent, "no comment `run: PLACE` or `not run: REASON` above the block"
    places = {block.place for block in BLOCKS if block.place}
    assert places <= set(PLACES)
    for block in BLOCKS:
        assert not block.place or block.run_commands, f"{block.name} runs nothing"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_and_headings_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]*(?:#[^)\s]*)?)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        headings = re.findall(r"(?m)^#+ (.*)", file.read_text()) if anchor else []
        slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert not anchor or anchor in slugs, target


def test_no_block_with_commands_is_of_another_kind() -> None:
    """A block without a language is not looked at: it holds output or a file."""
    others = [block for page in PAGES for block in blocks_of(page) if not block.language]
    for block in others:
        assert not re.search(r"(?m)^[$#] ", block.text), f"{block.name}: make it ```console"


@pytest.mark.parametrize("block", named(FILES))
def test_files_are_valid(block: ConsoleBlock, project: Path) -> None:
    file = project / block.file
    file.parent.mkdir(exist_ok=True)
    file.write_text(block.text)
    status, printed = run_command(ConsoleCommand(text="build-images plan", output=()))
    assert status == 0, printed


@pytest.mark.parametrize("block", named(PARTS))
def test_parts_of_recipes_are_valid(block: ConsoleBlock, project: Path) -> None:
    (project / "recipes/example.yaml").write_text(HEAD + block.text)
    command = "build-images spec --recipe example --base debian13 --mpi openmpi --output specs"
    status, printed = run_command(ConsoleCommand(text=command, output=()))
    assert status == 0, printed


@pytest.mark.parametrize("block", named([each for each in BLOCKS if each.place == "project"]))
def test_commands_do_as_the_page_says(block: ConsoleBlock, project: Path) -> None:
    for each in FILES:
        if each.file in block.files:
            (project / each.file).write_text(each.text)
    if block.before:
        subprocess.run(["bash", "-c", block.before], check=True)
    status = 0
    for command in block.run_commands:
        assert status == 0, command
        status, printed = run_command(command)
        assert not missing_lines(command, printed, exact=True), printed
    assert status == block.status, printed


@pytest.mark.parametrize(
    ("line", "printed", "exact"),
    [
        ("oci  166.9 MB  sha256:73c3102c95c4", "oci  9.1 MB  sha256:1836859fe3fa", True),
        ("8 passed, 1 day ago", "9 passed, 12 days ago", False),
        ("valid: architecture, …", "    valid: architecture, libraries", True),
        ("public key  /home/me/site.pub", "public key   /tmp/site.pub", True),
    ],
)
def test_what_varies_is_not_compared(line: str, printed: str, exact: bool) -> None:
    command = ConsoleCommand(text="build-images", output=(line,))
    assert not missing_lines(command, printed, exact=exact)


@pytest.mark.parametrize("printed", ["9 of 8 passed", "8 of 8 failed", "", "passed 8 of 8"])
def test_another_number_or_word_is_missing(printed: str) -> None:
    command = ConsoleCommand(text="build-images", output=("8 of 8 passed",))
    assert missing_lines(command, printed, exact=True) == ["8 of 8 passed"]
