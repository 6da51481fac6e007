"""Work folders: what is whole is kept, and nothing else is ever taken up again."""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from samples import check, image, recipe

from builder.build.at_work import store_in_use
from builder.build.workspace import ImageWorkspace, output_folder, workspace, write_spec
from builder.compile.spec import compile_spec
from builder.model import PlannedImage
from builder.model.manifest import FILES
from builder.system.files import write_atomically
from builder.system.home import Home


def writes(text: str, calls: list[Path]) -> Callable[[Path], str]:
    def make(target: Path) -> str:
        calls.append(target)
        target.write_text(text)
        return f"sha256:{text}"

    return make


def writes_folder(calls: list[Path]) -> Callable[[Path], str]:
    def make(target: Path) -> str:
        calls.append(target)
        (target / "blobs").mkdir(parents=True)
        (target / "blobs/a").write_text("12345")
        return "sha256:layout"

    return make


@pytest.fixture(name="work")
def work_folder(tmp_path: Path) -> ImageWorkspace:
    return ImageWorkspace(path=tmp_path)


def test_an_artifact_is_made_once(work: ImageWorkspace) -> None:
    calls: list[Path] = []
    first = work.artifact("sif", writes("text", calls))
    again = work.artifact("sif", writes("other", calls))
    assert first == again
    assert (first.format, first.digest, first.size) == ("sif", "sha256:text", 4)
    assert first.path == work.path / FILES["sif"]
    assert first.path.read_text() == "text"
    assert len(calls) == 1


def test_a_folder_is_an_artifact_too(work: ImageWorkspace) -> None:
    calls: list[Path] = []
    first = work.artifact("oci", writes_folder(calls))
    assert (first.size, first.path.is_dir()) == (5, True)
    assert work.artifact("oci", writes_folder(calls)) == first
    assert len(calls) == 1


def test_what_is_being_made_lies_under_another_name(work: ImageWorkspace) -> None:
    calls: list[Path] = []
    work.artifact("sif", writes("text", calls))
    assert calls[0] != work.path / FILES["sif"]
    assert not calls[0].exists()


@pytest.mark.parametrize("content", ["te", None])
def test_an_artifact_of_another_size_or_that_is_gone_is_made_anew(
    content: str | None, work: ImageWorkspace
) -> None:
    (work.path / FILES["sif"]).write_text("half, and not recorded")
    assert work.artifact("sif", writes("text", [])).path.read_text() == "text"
    (work.path / FILES["sif"]).unlink()
    if content:
        (work.path / FILES["sif"]).write_text(content)
    assert work.artifact("sif", writes("again", [])).path.read_text() == "again"


def test_half_made_leftovers_are_thrown_away(work: ImageWorkspace) -> None:
    partial = work.path / f"partial-{FILES['oci']}"
    partial.mkdir()
    (partial / "rubbish").write_text("x")
    artifact = work.artifact("oci", writes_folder([]))
    assert sorted(path.name for path in artifact.path.rglob("*")) == ["a", "blobs"]
    assert not partial.exists()


def test_a_making_that_fails_is_not_recorded(work: ImageWorkspace) -> None:
    def fails(target: Path) -> str:
        target.write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work.artifact("sif", fails)
    assert not (work.path / FILES["sif"]).exists()
    assert work.artifact("sif", writes("text", [])).path.read_text() == "text"


def test_building_again_forgets_the_rest(work: ImageWorkspace) -> None:
    calls: list[Path] = []
    work.artifact("oci", writes_folder(calls))
    work.artifact("sif", writes("text", calls))
    work.remember("sbom", lambda: {"n": 1})
    work.forget()
    work.artifact("oci", writes_folder(calls))
    assert work.artifact("sif", writes("new", calls)).digest == "sha256:new"
    assert work.remember("sbom", lambda: {"n": 2}) == {"n": 2}
    assert len(calls) == 4


def test_a_value_is_remembered(work: ImageWorkspace) -> None:
    assert work.remember("sbom", lambda: {"n": [1]}) == {"n": [1]}
    assert work.remember("sbom", lambda: {"n": [2]}) == {"n": [1]}
    work.artifact("sif", writes("text", []))
    assert work.remember("sbom", dict) == {"n": [1]}


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "null", '"x"'])
def test_records_that_cannot_be_read_are_none(text: str, work: ImageWorkspace) -> None:
    work.artifact("sif", writes("text", []))
    (work.path / "steps.json").write_text(text)
    calls: list[Path] = []
    assert work.artifact("sif", writes("new", calls)).path.read_text() == "new"
    assert len(calls) == 1


@pytest.fixture(name="home")
def home_folder(tmp_path: Path) -> Home:
    return Home(path=tmp_path / "home")


@pytest.fixture(name="planned")
def planned_image(tmp_path: Path) -> PlannedImage:
    return image(tmp_path / "project")


def in_workspace(home: Home, one: PlannedImage, *, engine: str = "e", fresh: bool = False) -> Path:
    with workspace(home, one, engine=engine, owner=None, fresh=fresh) as work:
        (work.path / "mark").touch()
        return work.path


@pytest.mark.parametrize("fresh", [True, False])
def test_a_rerun_goes_on_in_the_same_folder_unless_it_is_to_be_fresh(
    fresh: bool, home: Home, planned: PlannedImage
) -> None:
    path = in_workspace(home, planned)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    with workspace(home, planned, engine="e", owner=None, fresh=fresh) as work:
        assert work.path == path
        names = sorted(path.name for path in work.path.iterdir())
        assert names == (["build.log"] if fresh else ["build.log", "mark"])


def test_work_for_another_content_key_is_thrown_away(home: Home, planned: PlannedImage) -> None:
    old = in_workspace(home, planned)
    new = in_workspace(home, dataclasses.replace(planned, content_key="f" * 64))
    assert new != old
    assert not old.exists()


def test_engines_and_images_do_not_meet(home: Home, planned: PlannedImage) -> None:
    cell = dataclasses.replace(planned.cell, arch="ppc64le")
    paths = [
        in_workspace(home, planned),
        in_workspace(home, planned, engine="other"),
        in_workspace(home, dataclasses.replace(planned, cell=cell)),
    ]
    assert len(set(paths)) == 3
    assert all((path / "mark").exists() for path in paths)


def test_a_spec_is_written_whole(tmp_path: Path) -> None:
    one = image(tmp_path / "p", recipes=[recipe(checks=("hello",))], checks=[check()])
    spec = compile_spec(one, run_checks="#!/bin/sh\n")
    folder = tmp_path / "out"
    (folder / "files/checks").mkdir(parents=True)
    (folder / "files/checks/90-old").touch()
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        write_spec(spec, tmp_path / name, folder, "base.oci.tar")
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()
    )
    assert names == [
        ".dockerignore",
        "Dockerfile",
        "Singularity.def",
        "base.oci.tar",
        "files/checks/10-hello",
        "files/host-contract.json",
        "files/run-checks",
        "files/src/hello.c",
    ]
    assert (folder / "Dockerfile").read_text() == spec.dockerfile
    assert (folder / "base.oci.tar").read_text() == "two"
    assert not (folder / "base.oci.tar").is_symlink()
    modes = {name: stat.S_IMODE((folder / name).lstat().st_mode) for name in names}
    assert modes["files/checks/10-hello"] == modes["files/run-checks"] == 0o755
    assert modes["files/src/hello.c"] == modes["Dockerfile"] == 0o644
    write_spec(spec, None, folder, "base.oci.tar")  # as if from a registry
    assert not (folder / "base.oci.tar").exists()


def test_two_may_write_a_spec_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that one is about to write is not another's file to the other."""
    planned = image(tmp_path / "p", recipes=[recipe(checks=("hello",))], checks=[check()])
    spec = compile_spec(planned, run_checks="#!/bin/sh\n")

    writing = threading.Event()

    def write_slowly(file: Path, text: str) -> None:
        partial = file.with_name(f".{os.urandom(4).hex()}.partial")
        partial.write_text(text)
        if "files" in file.parts:
            writing.set()
            time.sleep(0.05)
        partial.rename(file)

    monkeypatch.setattr("builder.build.workspace.write_atomically", write_slowly)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(write_spec, spec, None, tmp_path / "out", "base.oci.tar")
        assert writing.wait(10)
        write_spec(spec, None, tmp_path / "out", "base.oci.tar")
        first.result()


def test_a_spec_is_written_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", flock)
    spec = compile_spec(image(tmp_path / "p"), run_checks="#!/bin/sh\n")
    write_spec(spec, None, tmp_path / "out", "base.oci.tar")
    assert (tmp_path / "out/Dockerfile").read_text() == spec.dockerfile


def test_writing_replaces_at_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with (tmp_path / "a").open() as reader:
        write_atomically(tmp_path / "a", "new ü")
        assert reader.read() == "old"
    assert (tmp_path / "a").read_text(encoding="utf-8") == "new ü"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    write_atomically(tmp_path / ("b" * 255), "a name as long as it may be")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "a", "\udcff")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b" * 255}


def test_what_was_made_from_another_base_is_not_taken_up(work: ImageWorkspace) -> None:
    calls: list[Path] = []
    work.start_from("sha256:old")
    work.artifact("oci", writes("old", calls))
    work.forget()
    work.artifact("oci", writes("older", calls))
    work.start_from("sha256:old")
    work.artifact("oci", writes("not again", calls))
    assert len(calls) == 2
    work.start_from("sha256:new")
    assert work.artifact("oci", writes("new", calls)).path.read_text() == "new"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_same_modes_whatever_the_umask(mask: int, tmp_path: Path) -> None:
    """Copies of them get into images; the output is as open as the folder that the user made."""
    (tmp_path / "out").mkdir(mode=0o700)
    before = os.umask(mask)
    try:
        with store_in_use(Home(path=tmp_path / "home"), tmp_path, lambda _: None):
            (tmp_path / "home/some").mkdir()
            (tmp_path / "home/file").touch()
            output_folder(tmp_path / "out/image")
        assert os.umask(mask) == mask, "as the user has it"
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "home/some").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "home/file").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "out/image").stat().st_mode) == 0o700
