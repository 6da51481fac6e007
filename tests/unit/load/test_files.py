"""The project's own files that recipes copy into images."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from samples import alone, base, block, image, recipe

from builder.compile.spec import compile_spec
from builder.load.document import Faults
from builder.load.recipes import with_files
from builder.model import BlockUse, Recipe


def read(root: Path, use: BlockUse) -> tuple[Recipe, list[str]]:
    faults = Faults()
    found = with_files(alone(root), {"core": recipe(development=(use,))}, faults)
    return found["core"], [str(fault) for fault in faults.found]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "files/sub").mkdir(parents=True)
    (tmp_path / "files/app.conf").write_text("a = 1\n")
    (tmp_path / "files/sub/more.conf").write_text("b = 2\n")
    (tmp_path / "files/binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "files/out.conf").symlink_to("/etc/hostname")
    (tmp_path / "secret").write_text("secret\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "given", "files"),
    [
        ("copy", {"src": "app.conf", "dest": "/etc/"}, {"app.conf"}),
        (
            "copy",
            {"src": ["app.conf", "sub/more.conf"], "dest": "/etc/"},
            {"app.conf", "sub/more.conf"},
        ),
        ("copy", {"files": {"sub/more.conf": "/etc/b.conf"}}, {"sub/more.conf"}),
        ("pip", {"requirements": "app.conf"}, {"app.conf"}),
        ("conda", {"environment": "app.conf"}, {"app.conf"}),
        ("packages", {"ospackages": ["app.conf"]}, set()),
    ],
)
def test_the_files_that_a_block_names_are_read(
    name: str, given: dict[str, Any], files: set[str], root: Path
) -> None:
    made, faults = read(root, block(name, **given))
    assert faults == []
    assert set(made.development[0].files) == files
    if "app.conf" in files:
        assert made.development[0].files["app.conf"] == "a = 1\n"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("missing.conf", "file not found: files/missing.conf\n    in the same folder: app.conf"),
        ("no/such.conf", "file not found: files/no/such.conf\n    did you mean "),
        ("../secret", '"../secret" is not below the project\'s files/'),
        ("sub/../../secret", "is not below"),
        ("/etc/passwd", '"/etc/passwd" is not below'),
        ("./app.conf", '"./app.conf" is not below'),
        ("out.conf", "files/out.conf is a link that leaves files/"),
        ("sub", "files/sub cannot be read: Is a directory\n    valid: a file, not a folder"),
        (
            "binary",
            "is not UTF-8 text, and specs can only contain text\n    install binary files",
        ),
        (
            "{{ arch }}.conf",
            "cannot be a template: files are read before there are cells\n    write one",
        ),
        ("", '"" is not below'),
    ],
)
def test_what_is_no_file_of_the_project_is_a_fault(source: str, problem: str, root: Path) -> None:
    made, [fault] = read(root, block("copy", src=source, dest="/etc/"))
    assert fault.startswith("recipes/core.yaml:6: development[0].copy.src: ")
    assert problem in fault
    assert made.development[0].files == {}


def test_they_come_with_the_spec(root: Path) -> None:
    files = ["app.conf", "sub/more.conf"]
    made, _ = read(root, block("copy", src=files, dest="/etc/app/"))
    spec = compile_spec(image(root, recipes=[made]), run_checks="#!/bin/sh\n")
    assert spec.files["files/project/sub/more.conf"] == "b = 2\n"
    assert "COPY files/project/app.conf \\\n    files/project/sub/more.conf \\\n    /etc/app/" in (
        spec.dockerfile
    )
    assert "    files/project/sub/more.conf /etc/app/\n" in spec.singularity


@pytest.mark.parametrize("name", ["pip", "conda"])
def test_other_blocks_copy_them_to_where_both_formats_can(name: str, root: Path) -> None:
    given: dict[str, Any] = {
        "pip": {"requirements": "app.conf"},
        "conda": {
            "environment": "app.conf",
            "version": "25.1.1-2",
            "python_subversion": "py312",
            "eula": True,
        },
    }
    made, _ = read(root, block(name, **given[name]))
    spec = compile_spec(image(root, recipes=[made]), run_checks="#!/bin/sh\n")
    assert "COPY files/project/app.conf /usr/local/src/app.conf" in spec.dockerfile
    assert "files/project/app.conf /usr/local/src/app.conf" in spec.singularity
    assert spec.files["files/project/app.conf"] == "a = 1\n"


def test_another_text_gives_another_image(root: Path) -> None:
    def key() -> str:
        made, _ = read(root, block("copy", src="app.conf", dest="/etc/"))
        return image(root, recipes=[made], bases=[base()]).content_key

    before = key()
    assert key() == before
    (root / "files/app.conf").write_text("a = 2\n")
    assert key() != before


def test_a_project_without_such_a_folder_says_so(root: Path) -> None:
    shutil.rmtree(root / "files")
    _, [fault] = read(root, block("copy", src="app.conf", dest="/etc/"))
    assert "file not found: files/app.conf" in fault
