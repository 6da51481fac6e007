"""What nothing refers to: bases, stages, images, work, sources; and what stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from samples import ROOT

from builder.build import at_work, garbage
from builder.build.base_store import base_key
from builder.build.engines import Tools
from builder.build.engines.storage import Storage, StoredImage, read_storage
from builder.build.mirror import DebianMirror
from builder.build.planning import load_plan
from builder.cli import gc, main
from builder.compile.spec import COMPILER
from builder.model import Selection
from builder.plan.keys import declared_stages
from builder.sources.site_store import SiteStore
from builder.sources.site_store.places import FolderStore
from builder.system import files
from builder.system.home import Home
from builder.system.locks import shared_lock
from builder.system.process import Completed, Processes

MIRROR = DebianMirror(main="http://mirror.example.org/debian", security=None)
RECIPE = "core"
RECIPE_TEXT = """\
recipe: core
version: "1.0"
about: one step
development:
  - shell: {commands: ["true"]}
"""
MATRIX = "axes: {arch: [x86_64], base: [debian13], cuda: [none], mpi: [none]}\ninherit: false\n"
OLD = time.time() - 30 * 86400
Capture = pytest.CaptureFixture[str]


@pytest.fixture(name="home")
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(path=tmp_path / "home")
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(home.path))
    monkeypatch.setenv("STORAGE_DRIVER", "overlay")
    monkeypatch.setattr(garbage, "find_mirror", lambda: MIRROR)
    return home


@pytest.fixture(name="project")
def copied_project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in ("base-images", "tests/images"):
        shutil.copytree(ROOT / name, root / name)
    (root / "matrix.yaml").write_text(MATRIX)
    (root / "recipes").mkdir()
    (root / f"recipes/{RECIPE}.yaml").write_text(RECIPE_TEXT)
    return root


def put(path: Path, text: str = "x" * 5000, *, old: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if old:
        for one in (path, path.parent):
            os.utime(one, (OLD, OLD))
    return path


def said(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(["gc", *argv])
    return code, *capsys.readouterr()


def found(capsys: Capture, project: Path, *argv: str) -> dict[str, list[str]]:
    code, out, _ = said(capsys, f"--project={project}", "--json", *argv)
    assert code == 0
    kinds: dict[str, list[str]] = {}
    for one in json.loads(out)["garbage"]:
        kinds.setdefault(one["kind"], []).append(one["name"])
    return kinds


def put_base(home: Home, name: str, *, old: bool = True) -> Path:
    record = json.dumps({"name": f"localhost/{name}", "digest": "sha256:1", "made": "2"})
    return put(home.bases / name / "base.json", record, old=old)


def test_bases_of_other_keys(home: Home, project: Path, capsys: Capture) -> None:
    image = load_plan(project, Selection(everything=True)).images[0]
    key = base_key(image.base, image.cell.arch, MIRROR)[:12]
    put_base(home, f"{image.base.name}-{image.cell.arch}-{key}")
    put_base(home, "debian13-x86_64-000000000000")
    put_base(home, "debian13-x86_64-111111111111", old=False)
    assert found(capsys, project) == {"base": ["debian13-x86_64-000000000000"]}
    assert len(found(capsys, project, "--unused-for=0")["base"]) == 2


def put_stage(home: Home, name: str, key: str, *, old: bool = True) -> Path:
    record = json.dumps({"key": key, "tag": f"localhost/build-images/stage:{key}", "parts": {}})
    return put(home.stages / name / f"{key[:32]}.json", record, old=old)


def test_stages_of_other_keys(home: Home, project: Path, capsys: Capture) -> None:
    images = load_plan(project, Selection(everything=True)).images
    put_base(home, "made-here")
    base = home.bases / "made-here/base.json"
    base.write_text(json.dumps({"name": images[0].base_image, "digest": "sha256:1", "made": "2"}))
    noted = {"fake": {"program": [], "words": "fake 1"}}
    put(home.stages / "engines.json", json.dumps(noted))
    stage = declared_stages(images[0], COMPILER).keyed(base="sha256:1", engine="fake 1")[0]
    put_stage(home, stage.name, stage.key)
    put_stage(home, stage.name, "f" * 64)
    put_stage(home, stage.name, "e" * 64, old=False)
    assert found(capsys, project)["stage"] == [f"{stage.name} {'f' * 12}"]


def test_work_of_other_keys(home: Home, project: Path, capsys: Capture) -> None:
    image = load_plan(project, Selection(everything=True)).images[0]
    folder = home.work / f"{image.identifier}-buildah"
    put(folder / image.content_key[:16] / "steps.json")
    put(folder / ("0" * 16) / "steps.json")
    put(home.work / "verify-x" / "image.sif", old=False)
    put(home.work / "layers-x" / "packed", old=False)
    put(home.work / "stages" / "core" / "Dockerfile", old=False)
    put(home.path.parent / "scratch" / "file")
    for link in (folder / ("1" * 16), home.work / "verify-y"):  # somebody's, and no work of ours
        link.symlink_to(home.path.parent / "scratch")
    names = [f"{folder.name} {'0' * 12}", "layers-x", "stages", "verify-x"]
    assert sorted(found(capsys, project)["work"]) == sorted(names)


def write_lock(project: Path, *sums: str) -> None:
    sources = [
        {"url": f"https://e.org/{n}", "file": f"{n}", "sha256": one, "size": 1, "recipes": [RECIPE]}
        for n, one in enumerate(sums)
    ]
    lock = {"schema": "build-images/lock/v1", "sources": sources, "references": []}
    (project / "lock.yaml").write_text(json.dumps(lock))


def test_sources_that_no_lock_names(
    home: Home, project: Path, tmp_path: Path, capsys: Capture
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_lock(project, "a" * 64)
    write_lock(other, "b" * 64)
    put(home.path / "projects.json", json.dumps([str(other), str(tmp_path / "gone")]))
    for letter in "abc":
        put(home.sources / "sha256" / (letter * 64))
    put(home.sources / "sha256" / ("d" * 64), old=False)
    put(home.sources / f".{'e' * 64}.partial")
    os.link(home.sources / "sha256" / ("c" * 64), tmp_path / "c")  # removal frees no byte of it
    _, out, _ = said(capsys, f"--project={project}", "--json")
    partial = home.sources / f".{'e' * 64}.partial"
    size = partial.stat().st_blocks * 512
    listed = [("c" * 12, 0, "no lock.yaml names it"), (partial.name, size, "incomplete download")]
    assert json.loads(out) == {
        "schema": "build-images/gc/v1",
        "freed": False,
        "bytes": size,
        "garbage": [
            {"kind": "source", "name": name, "bytes": each, "why": why}
            for name, each, why in listed
        ],
    }
    (other / "site.yaml").write_text(f"layer: {tmp_path}/unmounted\n")  # may name any of them
    assert "source" not in found(capsys, project)
    (other / "site.yaml").unlink()
    (other / "lock.yaml").write_text("sources: [1]\n")  # so may this
    assert "source" not in found(capsys, project)


def test_what_was_used_long_ago(
    home: Home, project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home.packages / "ab" / "abc-old.deb")
    put(home.packages / "cd" / "cde-older.deb")
    put(home.packages / "ef" / "efg-new.deb", old=False)
    put(home.native / "bookworm-ppc64le-0123" / "native.json")
    put(home.native / "trixie-ppc64le-0123" / "native.json", old=False)
    put(home.pulls / "blobs" / ("a" * 64))
    put(home.pulls / "blobs" / f"{'b' * 64}.partial")
    put(home.pulls / "blobs" / ("c" * 64), old=False)
    put(home.pulls / "blobs" / f".{'a' * 64}.lock", "")
    put(home.pulls / "last" / "record.json")
    put(home.projects / ("a" * 32) / "matrix.yaml")
    put(home.projects / ("b" * 32) / "matrix.yaml", old=False)
    put(home.projects / f".{'a' * 32}.lock", "")
    put(home.projects / f".{'c' * 32}.partial" / "matrix.yaml")
    for folder in ("a" * 32, f".{'c' * 32}.partial"):
        os.utime(home.projects / folder, (0, 0))
    put(home.clusters / "build-images-x86-1-1.log")
    put(home.clusters / "build-images-x86-2-1.log", old=False)
    put(home.rehearsals / f"{'a' * 64}.json")
    put(home.rehearsals / f"{'b' * 64}.json", old=False)
    put(home.pulls / "layers" / ("a" * 64))
    _, out, _ = said(capsys, f"--project={project}", "--json")
    assert [(one["kind"], one["name"], one["why"]) for one in json.loads(out)["garbage"]] == [
        ("package", "2 packages", "no build downloaded it recently"),
        ("pull", "2 blobs", "no pull used it recently"),  # and not the record of the last pulls
        ("pull", "1 note", "no pull used it recently"),
        ("rehearsal", "1 record", "it is old"),
        ("project", "1 project", "no run on workers used it recently"),
        ("project", "1 project", "incomplete"),
        ("cluster", "1 file", "it is of an old run on workers"),
        ("native", "bookworm-ppc64le-0123", "no build used it recently"),
    ]
    with_processes(monkeypatch, FakeProcesses)
    assert "8 parts removed" in said(capsys, f"--project={project}", "--free")[1]
    left = sorted(path.name for path in home.path.rglob("[!.]*") if path.is_file())
    assert left == [
        *(f"{'b' * 64}.json", "build-images-x86-2-1.log", "c" * 64, "efg-new.deb"),
        *("matrix.yaml", "native.json", "record.json"),
    ]


IMAGES = [
    {"id": "1", "names": ["base"], "layer": "a", "created": "1970"},
    {"id": "2", "names": None, "layer": "b", "created": "2020"},
    {"id": "3", "names": ["stage"], "layer": "c", "created": "2020"},
    {"id": "4", "names": ["old", "older"], "layer": "d", "created": "2020"},
    {"id": "5", "names": None, "layer": "e", "created": "2020"},
    {"id": "6", "names": None, "layer": "f", "created": "2099"},
]
LAYERS = [
    {"id": "a", "diff-size": 1},
    {"id": "b", "parent": "a", "diff-size": 10},
    {"id": "c", "parent": "b", "diff-size": 100},
    {"id": "d", "parent": "b", "diff-size": 1000},
    {"id": "e", "parent": "d", "diff-size": 10000},
    {"id": "f", "parent": "a"},
]


@pytest.fixture(name="storage")
def storage_of_a_home(home: Home) -> Storage:
    put(home.storage / "overlay-images/images.json", json.dumps(IMAGES))
    put(home.storage / "overlay-layers/layers.json", json.dumps(LAYERS))
    return read_storage(home.storage, "overlay")


def ids(images: Sequence[StoredImage]) -> list[str]:
    return [one.id for one in images]


def test_images_that_nothing_needs(storage: Storage) -> None:
    unneeded = storage.garbage({"base", "stage"}, before="2021")
    assert ids(unneeded) == ["5", "4"]  # the topmost first; the step below `stage` stays
    assert storage.bytes_of(unneeded) == 11000
    assert ids(storage.garbage({"base", "old"}, before="2021")) == ["5", "3"]
    assert storage.garbage({"base"}, before="1999") == []


def test_no_storage_no_images(tmp_path: Path) -> None:
    assert read_storage(tmp_path, "overlay").images == {}


def test_layers_of_vfs_are_copies_of_those_below(home: Home, storage: Storage) -> None:
    for name in ("images", "layers"):
        text = (home.storage / f"overlay-{name}/{name}.json").read_text()
        put(home.storage / f"vfs-{name}/{name}.json", text)
    copied = read_storage(home.storage, "vfs")
    unneeded = copied.garbage({"base", "stage"}, before="2021")
    assert storage.bytes_of(unneeded) < copied.bytes_of(unneeded) == 12022  # e, d and what is below


def test_layers_are_freed_when_asked_for(
    home: Home, storage: Storage, project: Path, capsys: Capture
) -> None:
    """Of the project's present images, too: they lie in the output folder."""
    del storage
    record = {"parts": {}, "tag": "stage", "key": "k"}
    put(home.stages / "core/0123456789ab.json", json.dumps(record), old=False)
    _, out, _ = said(capsys, f"--project={project}")
    assert "core 0123456789ab" not in out
    _, out, _ = said(capsys, f"--project={project}", "--layers", "--json")
    found = [(one["kind"], one["name"]) for one in json.loads(out)["garbage"]]
    assert ("stage", "core 0123456789ab") in found
    assert {name for kind, name in found if kind == "image"} >= {"stage"}


def test_what_vfs_left_goes_where_overlay_is_in_use(
    home: Home, project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home.storage / "vfs/dir/layer/file")
    put(home.storage / "vfs-images/images.json")
    os.utime(home.storage / "vfs-images")
    _, out, _ = said(capsys, f"--project={project}")
    assert "storage" not in out, "it may be in use on another host today"
    os.utime(home.storage / "vfs-images", (OLD, OLD))
    _, out, _ = said(capsys, f"--project={project}")
    assert re.search(r"^storage vfs +0\.0 MB  the driver in use is overlay$", out, re.MULTILINE)
    monkeypatch.setenv("STORAGE_DRIVER", "vfs")
    _, out, _ = said(capsys, f"--project={project}")
    assert "storage" not in out


class FakeProcesses(Processes):
    """Notes what Buildah was asked to remove."""

    asked: list[list[str]]

    def capture(self, argv: Sequence[Any], **_: Any) -> Completed:
        self.asked.append([str(one) for one in argv])
        return Completed(argv=(), returncode=0)


def with_processes(monkeypatch: pytest.MonkeyPatch, kind: type[Processes]) -> None:
    FakeProcesses.asked = []
    monkeypatch.setattr(gc, "Processes", kind)
    monkeypatch.setattr(gc, "clean", lambda _: None)
    monkeypatch.setattr("builder.build.engines.protocol.shutil.which", lambda name, **_: name)


def test_only_free_removes_anything(
    home: Home, storage: Storage, project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    del storage
    base = put_base(home, "base").parent
    with_processes(monkeypatch, FakeProcesses)
    _, out, _ = said(capsys, f"--project={project}")
    assert "gc --free' removes them" in out
    assert base.exists()
    assert FakeProcesses.asked == []
    code, out, _ = said(capsys, f"--project={project}", "--free")
    assert code == 0
    assert "removed, " in out
    assert not base.exists()
    removed = [one[one.index("rmi") + 1 :] for one in FakeProcesses.asked]
    assert ["old", "older"] in removed


@pytest.mark.parametrize(
    ("said_by_buildah", "code"),
    [("Error: 1: image not known", 0), ("Error: image used by c1: image is in use", 1)],
)
def test_what_stays_is_told(
    said_by_buildah: str,
    code: int,
    home: Home,
    storage: Storage,
    project: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refuses(Processes):
        def capture(self, argv: Sequence[Any], **_: Any) -> Completed:
            return Completed(argv=tuple(argv), returncode=1, stderr=said_by_buildah)

    del home, storage
    with_processes(monkeypatch, Refuses)
    found, _, err = said(capsys, f"--project={project}", "--free")
    assert found == code
    assert ("could not be removed" in err) is bool(code)


def test_what_a_killed_build_left_mounted_is_unmounted_and_the_rest_goes_on(
    home: Home, project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, stays = home.work / "reproduce-1", home.work / "reproduce-2"
    for folder in (here, stays):
        put(folder / "storage/overlay/file")
    put(home.work / "verify-3/file")
    asked: list[str] = []

    class OneIsBusy(Processes):
        def capture(self, argv: Sequence[Any], **_: Any) -> Completed:
            if argv[0] == "umount":
                asked.append(str(argv[1]))
            busy = str(argv[-1]).startswith(str(stays))
            error = f"umount: {argv[-1]}: target is busy." if busy else ""
            return Completed(argv=tuple(argv), returncode=32 * busy, stderr=error)

    mounted = {folder: [folder / "storage/overlay"] for folder in (here, stays)}
    monkeypatch.setattr(files, "mounted_below", lambda path: mounted.get(path, []))
    with_processes(monkeypatch, OneIsBusy)
    code, _, err = said(capsys, f"--project={project}", "--free")
    assert code == 1
    assert sorted(asked) == [str(folder / "storage/overlay") for folder in (here, stays)]
    assert [one.name for one in home.work.iterdir()] == ["reproduce-2"]
    assert (stays / "storage/overlay/file").exists()
    assert "1 thing could not be removed; the rest was removed:" in err
    assert "target is busy" in err


def test_nothing_to_free() -> None:
    text = "nothing to free: everything in the store is in use or was used recently"
    assert garbage.as_text([], freed=False) == text


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("", "this project has no site's store"),
        (
            "registry.site.example/team/cache",
            "registry.site.example/team/cache: a registry does not record when entries are used",
        ),
    ],
)
def test_entries_of_a_sites_store_that_cannot_be_named(
    named: str, problem: str, project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_STORE", named)
    code, out, err = said(capsys, f"--project={project}", "--store")
    assert (code, out, err.splitlines()[0]) == (2, "", f"build-images: {problem}")


def test_entries_of_a_sites_store_go_once_nobody_used_them(
    project: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_STORE", str(tmp_path / "store"))
    place = FolderStore(tmp_path / "store")
    (tmp_path / "store").mkdir()
    for number in (5, 8):
        record = put(tmp_path / f"entry-{number}/record.json", f"{number}")
        SiteStore(place, tmp_path).put(f"stage-{number}", record.parent, f"stage of {number} days")
    for path in (tmp_path / "store").rglob("*"):
        used = time.time() - (5 if path.name == "stage-5" else 8) * 86400
        os.utime(path, (used, used))
    asked = (f"--project={project}", "--store")
    entry = "stage   of 8 days        0.0 MB  no builder used it recently"
    told = f"{entry}\n1 part, 0.0 MB; 'build-images gc --store --free' removes them\n"
    assert said(capsys, *asked, "--unused-for=9")[1].startswith("nothing to free")
    assert said(capsys, *asked) == (0, told, "")
    assert place.tags() == ["stage-5", "stage-8"]
    assert said(capsys, *asked, "--free") == (0, f"{entry}\n1 part removed, 0.0 MB freed\n", "")
    assert place.tags() == ["stage-5"]


@pytest.mark.parametrize("is_mounted", [True, False])
def test_what_killed_builders_left_is_removed_unless_it_is_mounted(
    is_mounted: bool, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = put(home.temporary / "storage-x/overlay/file")
    with_processes(monkeypatch, FakeProcesses)
    monkeypatch.setattr(at_work, "mounted_below", lambda _: [left.parent] if is_mounted else [])
    unmounted: list[Path] = []
    monkeypatch.setattr(at_work, "unmount_below", lambda path, _: unmounted.append(path))
    at_work.clean(Tools(processes=FakeProcesses(), home=home))
    storages = [home.storage, home.temporary / "storage-x"]  # killed as it starts, too
    assert (unmounted, left.exists()) == (storages, is_mounted)


@pytest.mark.parametrize(
    ("is_clean", "stops", "cleanings"),
    [(False, False, 1), (False, True, 2), (True, False, 0), (True, True, 1)],
)
def test_a_stopped_builder_cleans_up_though_its_work_only_reported_failures(
    home: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_clean: bool,
    stops: bool,
    cleanings: int,
) -> None:
    """The builds of a stopped order fail: buildah is ended by SIGTERM, and leaves its mount."""
    cleaned: list[Tools] = []
    monkeypatch.setattr(at_work, "clean", cleaned.append)
    tools = Tools(processes=Processes(), home=home)
    with at_work.at_work(tools, tmp_path, print, is_clean=is_clean):
        if stops:
            tools.processes.stop()
    assert cleaned == [tools] * cleanings


def test_each_project_that_uses_a_store_is_remembered(home: Home, tmp_path: Path) -> None:
    for name in ("b", "a", "b"):
        with at_work.store_in_use(home, tmp_path / name, print):
            pass
    assert at_work.projects(home) == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_not_while_a_builder_works(home: Home, project: Path, capsys: Capture) -> None:
    with shared_lock(home.path, "builder"):
        code, out, err = said(capsys, f"--project={project}")
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        f"build-images: another build-images is using the store ({home.path}); nothing was removed",
        "  hint: run build-images gc after it has finished",
    ]
