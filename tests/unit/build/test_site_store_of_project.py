"""The site's store that a project names, and what builders on two machines share by it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from manifest_samples import record
from test_native_files import put_tools
from test_stages import ALL, Site, made_site  # noqa: F401 - a fixture
from test_store import FakeProcesses, ensured, fake_processes, own_keyrings  # noqa: F401 - fixtures

from builder.artifacts.manifests import read_manifest, write_manifest
from builder.build.engines import Tools
from builder.build.mirror import DebianMirror
from builder.build.native.files import digest_of, entries_of, fold, unfold
from builder.build.run import BuildSettings, Run
from builder.build.site_store import place_of, site_store
from builder.build.stages import RunStages
from builder.model.errors import BadInput, MissingPrerequisite
from builder.sources.site_store import SiteStore
from builder.sources.site_store.places import FolderStore
from builder.system.home import Home
from builder.system.locks import locked
from builder.system.process import Processes
from builder.verify import shared_images
from builder.verify.shared_images import (
    find_packed,
    put_image,
    share_image,
    take_image,
    take_images,
)

BASE = "debian13-ppc64le"


# ---- Which store ----


def test_the_environment_names_it_before_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place_of(tmp_path, Processes()) is None
    (tmp_path / "site.yaml").write_text(f"store: {tmp_path}/cache\n")
    place = place_of(tmp_path, Processes())
    assert place
    assert place.name == f"{tmp_path}/cache"
    monkeypatch.setenv("BUILD_IMAGES_STORE", "registry.site.example/team/cache")
    place = place_of(tmp_path, Processes())
    assert place
    assert place.name == "registry.site.example/team/cache"
    monkeypatch.setenv("BUILD_IMAGES_STORE", "")
    assert place_of(tmp_path, Processes()) is None


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("cache", "cache: neither an absolute path nor a repository"),
        ("ftp://host/cache", "ftp://host/cache: neither"),
        ("registry.site.example/cache:1", "registry.site.example/cache:1: neither"),
        ("cache/builds", "cache/builds: neither"),  # of Docker Hub, if anything
        ("https://joe:secret@registry.example/cache", "https://registry.example/cache: neither"),
    ],
)
def test_neither_a_folder_nor_a_repository_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, problem: str
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_STORE", named)
    with pytest.raises(BadInput, match=f"the site's store: {problem}") as caught:
        place_of(tmp_path, Processes())
    assert "set store: in site.yaml, or BUILD_IMAGES_STORE" in caught.value.hint


@pytest.mark.parametrize("offline", [False, True])
def test_an_offline_run_asks_no_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, offline: bool
) -> None:
    said = list[str]()
    for named, is_used in ((f"{tmp_path}/cache", True), ("registry.example/cache", not offline)):
        monkeypatch.setenv("BUILD_IMAGES_STORE", named)
        tools = Tools(processes=Processes(), home=Home(path=tmp_path / "home"))
        store = site_store(tmp_path, tools, said.append, offline=offline)
        assert store.is_used is is_used
    text = "--offline: the site's store (registry.example/cache) is not used"
    assert said == ([text] if offline else [])


# ---- Bases and native tools ----


def test_a_base_is_made_on_one_machine(processes: FakeProcesses, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = SiteStore(FolderStore(tmp_path / "store"), tmp_path / "scratch")
    first = ensured(processes, tmp_path / "first", shared=store)
    second = ensured(processes, tmp_path / "second", shared=store)
    assert len(processes.commands) == 1
    assert (
        second.archive == tmp_path / "second/bases" / first.archive.parent.name / first.archive.name
    )
    assert second.archive.read_bytes() == first.archive.read_bytes()
    assert dataclasses.replace(second, archive=first.archive) == first
    refreshed = ensured(processes, tmp_path / "second", shared=store, not_before="9999")
    assert len(processes.commands) == 2
    third = ensured(processes, tmp_path / "third", shared=store)
    assert (len(processes.commands), third.digest) == (2, refreshed.digest)


def test_a_base_that_was_here_before_the_store_is_added(
    processes: FakeProcesses, tmp_path: Path
) -> None:
    first = ensured(processes, tmp_path / "first")
    (tmp_path / "store").mkdir()
    place = FolderStore(tmp_path / "store")
    ensured(processes, tmp_path / "first", shared=SiteStore(place, tmp_path / "scratch"))
    assert [tag.partition("-")[0] for tag in place.tags()] == ["base"]
    store = SiteStore(place, tmp_path / "scratch")
    assert ensured(processes, tmp_path / "second", shared=store).digest == first.digest
    assert len(processes.commands) == 1


@pytest.mark.parametrize("change", ["", '"key": "', '"arch": "', '"digest": "'])
def test_a_damaged_base_is_made_anew(processes: FakeProcesses, tmp_path: Path, change: str) -> None:
    (tmp_path / "store").mkdir()
    place = FolderStore(tmp_path / "store")
    ensured(processes, tmp_path / "first", shared=SiteStore(place, tmp_path / "scratch"))
    [tag] = place.tags()
    store, entry = SiteStore(place, tmp_path / "scratch"), tmp_path / "entry"
    entry.mkdir()
    store.take(tag, entry)
    text = (entry / "base.json").read_text()
    changed = text.replace(change, f"{change}x") if change else ""
    (entry / "base.json").write_text(changed.replace('"digest"', '"digests"'))
    store.put(tag, entry, "base")
    ensured(processes, tmp_path / "second", shared=store)
    assert len(processes.commands) == 2


def test_a_clock_that_is_ahead_makes_no_base_too_new(
    processes: FakeProcesses, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    store = SiteStore(FolderStore(tmp_path / "store"), tmp_path / "scratch")
    first = ensured(processes, tmp_path / "first", shared=store)
    entry = tmp_path / "entry"
    entry.mkdir()
    store.take(f"base-{first.key}", entry)
    record = entry / "base.json"
    record.write_text(record.read_text().replace(first.made, "2099-01-01T00:00:00+00:00"))
    store.put(f"base-{first.key}", entry, "base")
    assert ensured(processes, tmp_path / "second", shared=store).made < "2099"


def test_native_tools_have_the_same_digest_after_the_way(tmp_path: Path) -> None:
    tools, folder = put_tools(tmp_path), tmp_path / "folded"
    folder.mkdir()
    fold(tools.root, folder, entries_of(tools.root))
    assert sorted(path.name for path in folder.iterdir()) == ["contents.tar", "entries.json"]
    assert unfold(folder, folder / "root") == tools.digest == digest_of(entries_of(folder / "root"))
    assert [path.name for path in folder.iterdir()] == ["root"]


# ---- Stages and images ----


def on_another_machine(site: Site, name: str) -> Site:
    other = Site(site.root)
    other.home = Home(path=site.root / name)
    shutil.copytree(site.home.bases, other.home.bases)
    return other


def with_store(site: Site) -> SiteStore:
    (site.root / "store").mkdir(exist_ok=True)
    store = SiteStore(FolderStore(site.root / "store"), site.root / "scratch", print)
    run = site.run
    site.run = lambda settings: dataclasses.replace(run(settings), shared=store)  # type: ignore[method-assign]
    return store


def test_stages_are_built_on_one_machine(site: Site) -> None:
    with_store(site)
    assert site.job().exit_code == 0
    assert site.built() == ALL
    other = on_another_machine(site, "second")
    with_store(other)
    assert other.job(out="out2").exit_code == 0
    assert other.built() == [stage for stage in ALL if stage.startswith("runtime")]
    assert "core-development from the site's store" in other.said.getvalue()
    third = on_another_machine(site, "third")
    with_store(third)
    assert third.job(out="out3", cache=False).exit_code == 0
    assert third.built() == ALL


def test_a_stage_whose_record_is_of_another_text_is_built(site: Site) -> None:
    store = with_store(site)
    site.job()
    for tag in FolderStore(site.root / "store").tags():
        folder = site.root / tag
        folder.mkdir()
        store.take(tag, folder)
        for file in folder.glob("*.json"):
            file.write_text(file.read_text().replace('"text": "', '"text": "0'))
        store.put(tag, folder, "changed")
    other = on_another_machine(site, "second")
    with_store(other)
    assert other.job(out="out2").exit_code == 0
    assert other.built() == ALL


@pytest.fixture(autouse=True)
def _key_of_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of the bases that `made_site` stores."""
    monkeypatch.setattr(shared_images, "base_key", lambda *_: "k")
    monkeypatch.setattr(shared_images, "find_mirror", lambda: None)


def run_of(site: Site, out: str, **changes: object) -> Run:
    settings = BuildSettings(
        project=site.root / "project", engine="fake", out=site.root / out, formats=("oci",)
    )
    return site.run(dataclasses.replace(settings, verify=False, **changes))  # type: ignore[arg-type]


def test_a_verified_image_comes_with_its_evidence(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_store(site)
    site.job()
    spec = site.specs()[0]
    image = spec.image
    folder = site.root / "out" / image.identifier
    manifest = read_manifest(folder)
    assert manifest
    share_image(run_of(site, "out"), spec, manifest)
    run = run_of(site, "out2")
    run.settings.out.mkdir()
    assert not take_image(run, image)  # it is built, and not verified
    (folder / "link").symlink_to("/etc/hostname")
    (folder / "evidence").mkdir()
    (folder / "evidence/oci.json").write_text("{}")
    share_image(run_of(site, "out"), spec, dataclasses.replace(manifest, outcome="verified"))
    old = run.settings.out / image.identifier
    (old / "evidence").mkdir(parents=True)
    (old / "evidence/sif.json").write_text("of another image")
    for changes in ({"epoch": 5}, {"native_tools": False}, {"formats": ("oci", "sif")}):
        assert not take_image(run_of(site, "out2", **changes), image)
    with monkeypatch.context() as other_version:
        other_version.setattr(shared_images, "program_digest", lambda: "sha256:other")
        assert not take_image(run, image)
    with monkeypatch.context() as other_mirror:  # one without security updates, say
        other_mirror.setattr(shared_images, "base_key", lambda *_: "another")
        assert not take_image(run, image)
    with monkeypatch.context() as no_mirror:
        no_mirror.setattr(shared_images, "find_mirror", raising(MissingPrerequisite("no mirror")))
        assert take_images(run, [spec], jobs=1) == [spec]
        assert find_packed(run, image) == ""
        mirror = DebianMirror(main="http://mirror.example/debian", security="")
        assert take_image(dataclasses.replace(run, mirror=mirror), image)
    assert take_image(run, image)
    assert read_manifest(old) == manifest
    assert [path.name for path in (old / "evidence").iterdir()] == ["oci.json"]
    assert not os.path.lexists(old / "link")
    assert site.job(out="out2", jobs=1).manifests[image.identifier] == manifest
    assert f"{image.identifier}: unchanged, built" in site.said.getvalue()


def test_an_image_on_a_registrys_base_has_no_base_of_this_machine(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_store(site)
    site.base = dataclasses.replace(
        site.base, bootstrap=None, references={"x86_64": "a@sha256:1", "ppc64le": "a@sha256:1"}
    )
    spec = site.specs()[0]
    run, kept = run_of(site, "out2"), site.root / "out" / spec.image.identifier
    shared = ["Dockerfile", "files/run-checks", "manifest.json"]
    for name in (*shared, "of/nobody"):
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).touch()
    manifest = record({"image": spec.image.identifier})
    run.settings.out.mkdir()
    put_image(run_of(site, "out"), spec, manifest, "image")
    assert not take_image(run, spec.image), "without a manifest it is no image"
    write_manifest(kept, manifest, ())
    packed = put_image(run_of(site, "out"), spec, manifest, "packed")
    assert find_packed(run, spec.image) == packed != ""
    put_image(run_of(site, "out"), spec, manifest, "image")
    folders, take = list[Path](), SiteStore.take
    moved, move = list[str](), shutil.move

    def noting(store: SiteStore, tag: str, folder: Path) -> bool:
        folders.append(folder)
        return take(store, tag, folder)

    def moving(path: Path, to: Path) -> None:
        moved.append(path.name)
        move(path, to)

    monkeypatch.setattr(SiteStore, "take", noting)
    monkeypatch.setattr(shared_images, "shutil", SimpleNamespace(move=moving))
    shutil.rmtree(site.home.path)
    assert take_image(run, spec.image)
    assert (len(moved), moved[-1]) == (3, "manifest.json")
    taken = run.settings.out / spec.image.identifier
    files = (path for path in taken.rglob("*") if path.is_file())
    assert sorted(str(path.relative_to(taken)) for path in files) == shared
    assert [(one.parent, one.name[:11]) for one in folders] == [(site.home.work, "site-store-")]


def test_finished_images_are_taken_before_anything_is_built(site: Site) -> None:
    with_store(site)
    site.job()
    site.built()
    for spec in site.specs():
        manifest = read_manifest(site.root / "out" / spec.image.identifier)
        assert manifest
        verified = dataclasses.replace(manifest, outcome="verified")
        share_image(run_of(site, "out"), spec, verified)
    other = on_another_machine(site, "second")
    without, specs = run_of(other, "out2"), other.specs()
    assert take_images(without, specs, jobs=2) == specs
    share_image(without, specs[0], verified)
    assert other.said.getvalue() == "", "nothing is said of a store that there is not"
    with_store(other)
    run = run_of(other, "out2")
    run.settings.out.mkdir()
    assert take_images(dataclasses.replace(run, settings=uncached(run)), specs, jobs=2) == specs
    held = specs[0].image.identifier
    with locked(other.home.work, f"{held}-fake"):  # another builder is at work on it
        assert take_images(run, specs, jobs=2) == specs[:1]
    (run.settings.out / held).write_text("where a folder is to be")
    assert take_images(run, specs, jobs=2) == specs
    assert f"{held}: not taken from the site's store: " in other.said.getvalue()
    (run.settings.out / held).unlink()
    assert take_images(run, specs[:1], jobs=2) == []
    results = other.job(out="out2")
    assert (results.exit_code, len(results.manifests), other.built()) == (0, 3, [])
    assert other.said.getvalue().count(": from the site's store") == 3


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def uncached(run: Run) -> BuildSettings:
    return dataclasses.replace(run.settings, cache=False)


@pytest.mark.parametrize("native", ["", "sha256:tools"])
def test_emulated_stages_are_shared_with_native_tools_only(
    site: Site, monkeypatch: pytest.MonkeyPatch, native: str
) -> None:
    """A native machine has the same keys for stages without them, and would call them native."""
    monkeypatch.setattr(RunStages, "native_of", lambda _stages, _image: native)
    site.host = dataclasses.replace(site.host, arch="aarch64")
    with_store(site)
    assert site.job().exit_code == 0
    assert bool(FolderStore(site.root / "store").tags()) is bool(native)
