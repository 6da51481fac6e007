"""`build-images init`: what it makes is a project that everything else accepts."""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
from pathlib import Path

import jsonschema
import pytest
import yaml

from builder.cli import main
from builder.model.errors import BadInput
from builder.system.files import write_new

Capture = pytest.CaptureFixture[str]
FILES = {
    *("matrix.yaml", "recipes/climate.yaml", "tests/images/checks.yaml", "files/hello.c"),
    *(".github/workflows/images.yaml", ".gitignore", "README.md"),
    *(f"schema/{kind}.json" for kind in ("recipe", "base", "matrix", "checks", "site")),
}
pytestmark = pytest.mark.skipif(
    platform.machine() not in {"x86_64", "aarch64", "ppc64le"}, reason="no image is for it"
)


@pytest.fixture(name="folder")
def new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BUILD_IMAGES_SITE", raising=False)
    return tmp_path / "climate"


def files_in(folder: Path) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix() for path in paths}


def test_it_says_what_it_makes_and_what_comes_next(folder: Path, capsys: Capture) -> None:
    assert main(["init", str(folder), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [*sorted(f"{folder}/{name}" for name in FILES), "dry run, nothing was written"]
    assert not folder.exists()
    assert main(["init", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *lines[:-1],
        "recipe: climate",
        "next:",
        f"  build-images plan --project {folder}",
        f"  build-images --project {folder}",
    ]
    assert files_in(folder) == FILES


def test_what_it_makes_is_clean(folder: Path, capsys: Capture) -> None:
    main(["init", str(folder)])
    image = f"climate-1.0-debian13-openmpi5.0-{platform.machine()}"
    for command in ("plan", "spec", "lint", "explain"):
        capsys.readouterr()
        assert main([command, "--project", str(folder)]) == 0
        printed = "".join(capsys.readouterr())
        assert (image if command != "lint" else "1 spec linted") in printed
        assert "0 errors, 0 warnings" in printed or command not in {"lint", "spec"}
    assert "from project: recipe climate; axis arch, base, cuda, mpi; check hello" in printed
    assert "mpicc -O2" in (folder / "out" / image / "Dockerfile").read_text()


def test_editors_find_the_schema_that_each_file_names(folder: Path) -> None:
    main(["init", str(folder)])
    checked = 0
    for path in folder.rglob("*.yaml"):
        header, text = path.read_text().split("\n", 1)
        found = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", header)
        assert found, path
        if not found[1].startswith("https://"):
            schema = json.loads((path.parent / found[1]).read_text())
            jsonschema.validate(yaml.safe_load(text), schema)
            checked += 1
    assert checked == 3


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("My Model", "my-model"),
        ("hpc-base", "own-hpc-base"),
        ("_", "app"),
        ("ünï-2", "uni-2"),
        ("a" * 39 + "-b", "a" * 39),
    ],
)
def test_the_recipe_is_named_after_the_folder(
    folder: Path, capsys: Capture, name: str, recipe: str
) -> None:
    folder = folder.with_name(name)
    main(["init", str(folder)])
    plan = capsys.readouterr().out.splitlines()[-2]
    assert main(shlex.split(plan)[1:]) == 0
    assert f" {recipe}-1.0-debian13-openmpi5.0-" in capsys.readouterr().out


def test_a_folder_with_content_is_refused(folder: Path, capsys: Capture) -> None:
    (folder / ".git").mkdir(parents=True)
    assert main(["init", str(folder)]) == 0  # `git init` came first
    capsys.readouterr()
    assert main(["init", str(folder)]) == 2
    named = ".github, .gitignore, README.md, files, matrix.yaml, ..."
    expected = f"build-images: {folder}: not empty: {named}\n  hint: name a new folder\n"
    assert capsys.readouterr().err == expected
    assert main(["init", str(folder / "README.md")]) == 2
    expected = f"build-images: {folder}/README.md: not a folder\n  hint: name a new folder\n"
    assert capsys.readouterr().err == expected
    assert main(["init", str(folder / "README.md/sub")]) == 2
    assert capsys.readouterr().err == expected
    (folder / "link").symlink_to("nowhere")
    assert main(["init", str(folder / "link")]) == 2
    assert capsys.readouterr().err == expected.replace("README.md", "link")
    with pytest.raises(BadInput, match=r"not empty: x\n"):
        write_new(one_file(folder.with_name("other")), {"y": ""}, dry_run=True)


def one_file(folder: Path) -> Path:
    folder.mkdir()
    (folder / "x").touch()
    return folder


@pytest.mark.parametrize("system", ["github", "gitlab"])
def test_its_pipelines_install_the_program(folder: Path, capsys: Capture, system: str) -> None:
    main(["init", str(folder)])
    capsys.readouterr()
    assert main(["ci", system, "--keyless", "--project", str(folder)]) == 0
    text = capsys.readouterr().out
    steps = [line for line in text.splitlines() if "pip install build-images==0.1.0" in line]
    assert [line.endswith("build-images setup --with-cosign") for line in steps] == [False, True]
    assert "ci/" not in text.replace("docs/ci.md", "")
    assert steps[0].partition("apt-get")[2] in (
        (folder / ".github/workflows/images.yaml").read_text()
    )


def test_without_its_own_recipes_the_shipped_ones_are_built(folder: Path, capsys: Capture) -> None:
    main(["init", str(folder)])
    shutil.rmtree(folder / "recipes")
    (folder / "matrix.yaml").write_text("inherit: true\n")
    capsys.readouterr()
    assert main(["plan", "--project", str(folder)]) == 0
    assert "hpc-base-1.0-debian13-openmpi5.0-ppc64le" in capsys.readouterr().out
