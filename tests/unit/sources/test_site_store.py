"""A site's store: entries come back as they were put, or not at all; its failures stop no build."""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_registry import Fake, Fault, fake_registry

from builder.model.errors import BuildImagesError, Interrupted
from builder.registry import MANIFEST, Denied
from builder.registry.references import read_descriptor
from builder.sources.site_store import SiteStore, unused_entries
from builder.sources.site_store.entries import StorePlace
from builder.sources.site_store.places import FolderStore, repository_store
from builder.system.process import Processes

REPOSITORY = "site/build-cache"
NOW = dt.datetime.now(tz=dt.timezone.utc)


class Place:
    """A place of a store, as builders on several machines open it."""

    def __init__(self, folder: Path, fake: Fake | None = None) -> None:
        self.folder, self.fake, self.said = folder, fake, list[str]()
        self._scratch = folder.with_name("scratch")
        self._scratch.mkdir(exist_ok=True)
        self.folder.mkdir(exist_ok=True)

    def open(self) -> StorePlace:
        if self.fake:
            name = f"http://{self.fake.host}/{REPOSITORY}"
            return repository_store(name, Processes())
        return FolderStore(self.folder)

    def store(self) -> SiteStore:
        return SiteStore(self.open(), self._scratch, self.said.append)

    def blobs(self) -> dict[str, bytes]:
        if self.fake:
            return {digest: blob for (_, digest), blob in self.fake.blobs.items()}
        paths = (self.folder / "blobs/sha256").glob("*")
        return {f"sha256:{path.name}": path.read_bytes() for path in paths}

    def change(self, digest: str, content: bytes | None) -> None:
        """Replace the content of a blob, or remove the blob."""
        if self.fake:
            self.fake.blobs[REPOSITORY, digest] = content or b""
            if content is None:
                del self.fake.blobs[REPOSITORY, digest]
        else:
            path = self.folder / "blobs/sha256" / digest.removeprefix("sha256:")
            path.unlink() if content is None else path.write_bytes(content)


@pytest.fixture(name="place", params=["folder", "registry"])
def both_places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield Place(tmp_path / "store")
        return
    with fake_registry() as fake:
        yield Place(tmp_path / "store", fake)


@pytest.fixture(name="entry")
def folder_of_an_entry(tmp_path: Path) -> Path:
    folder = tmp_path / "entry"
    (folder / "image/blobs").mkdir(parents=True)
    (folder / "record.json").write_text("{}")
    (folder / "image/blobs/layer").write_bytes(b"layer " * 5000)
    (folder / "image/program").write_text("#!/bin/sh\n")
    (folder / "image/program").chmod(0o755)
    return folder


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in files
    }


@pytest.fixture(name="taken")
def empty_folder(tmp_path: Path) -> Path:
    (tmp_path / "taken").mkdir()
    return tmp_path / "taken"


# ---- Entries ----


@pytest.mark.parametrize("packed", [False, True])
def test_an_entry_is_the_same_on_another_machine(
    place: Place, entry: Path, taken: Path, *, packed: bool
) -> None:
    assert not place.store().take("stage-1", taken)
    place.store().put("stage-1", entry, "stage one", packed=packed)
    assert place.store().take("stage-1", taken)
    assert content(taken) == content(entry)
    assert not place.store().take("stage-2", taken)
    assert place.said == []
    sizes = [len(blob) for blob in place.blobs().values()]
    assert (30000 in sizes) is not packed


def test_equal_files_are_stored_once(place: Place, entry: Path) -> None:
    place.store().put("stage-1", entry, "stage one")
    before = set(place.blobs())
    (entry / "record.json").write_text("[]")
    place.store().put("stage-2", entry, "stage two")
    added = set(place.blobs()) - before
    assert len(added) == (1 if place.fake else 2)  # a folder has manifests among its blobs


def test_an_entry_with_a_missing_blob_is_none_until_it_is_added_again(
    place: Place, entry: Path, taken: Path
) -> None:
    place.store().put("stage-1", entry, "stage one")
    layer = next(name for name, blob in place.blobs().items() if len(blob) == 30000)
    place.change(layer, None)
    assert not place.store().take("stage-1", taken)
    assert (list(taken.iterdir()), place.said) == ([], [])
    place.store().put("stage-1", entry, "stage one")
    assert place.store().take("stage-1", taken)


def test_a_damaged_entry_is_made_anew(place: Place, entry: Path, taken: Path) -> None:
    place.store().put("stage-1", entry, "stage one")
    layer = next(name for name, blob in place.blobs().items() if len(blob) == 30000)
    place.change(layer, b"LAYER " * 5000)
    store = place.store()
    assert not store.take("stage-1", taken)
    assert list(taken.iterdir()) == []
    [line] = place.said
    assert layer.removeprefix("sha256:") in line
    assert line.endswith("; it is made here")
    assert store.is_used
    if not place.fake:  # a registry checks what it stores: nothing is damaged there
        store.put("stage-1", entry, "stage one")
        assert store.take("stage-1", taken)


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        *(("../out", "644"), ("a/../../out", "644"), ("/out", "644"), ("", "644"), ("a\0b", "644")),
        *(("out", "4755"), ("out", "rw"), ("out", ""), ("out", "9")),
    ],
)
def test_a_path_or_mode_from_elsewhere_does_no_harm(
    tmp_path: Path, entry: Path, taken: Path, path: str, mode: str
) -> None:
    place = Place(tmp_path / "store")
    place.store().put("stage-1", entry, "stage one")
    opened = place.open()
    manifest = json.loads(opened.manifest("stage-1") or b"")
    changed = {"org.opencontainers.image.title": path, "build-images.mode": mode}
    manifest["layers"][0]["annotations"] = changed
    opened.set_tag("stage-1", json.dumps(manifest).encode())
    before = sorted(str(found) for found in tmp_path.rglob("*"))
    assert not place.store().take("stage-1", taken)
    assert [line for line in place.said if "not the path of a file" in line or "not a mode" in line]
    assert sorted(str(found) for found in tmp_path.rglob("*")) == before


def test_who_waits_for_the_store_is_interrupted(place: Place, entry: Path, taken: Path) -> None:
    place.store().put("stage-1", entry, "stage one")
    store = place.store()
    store.stop()
    with pytest.raises(Interrupted):
        store.take("stage-1", taken)
    assert list(taken.iterdir()) == []


def test_without_a_store_nothing_is_taken_or_put(entry: Path, taken: Path) -> None:
    store = SiteStore()
    store.put("stage-1", entry, "stage one")
    assert (store.is_used, store.take("stage-1", taken)) == (False, False)
    store.stop()


# ---- A store that fails ----


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [BuildImagesError("no response", hint="-"), OSError(5, "Input/output error")]
)
def test_a_run_goes_on_without_a_store_that_does_not_answer(
    tmp_path: Path, entry: Path, taken: Path, error: Exception
) -> None:
    (tmp_path / "store").mkdir()
    place, said = FolderStore(tmp_path / "store"), list[str]()
    place.manifest = failing(error)  # type: ignore[method-assign]
    store = SiteStore(place, tmp_path / "scratch", said.append)
    assert not store.take("stage-1", taken)
    assert not store.take("stage-2", taken)
    store.put("stage-1", entry, "stage one")
    text = str(error).partition("\n")[0]
    assert said == [f"the site's store ({place.name}): {text}; this run goes on without it"]
    assert not store.is_used
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize("error", [Denied("403 Forbidden"), OSError(28, "No space left on device")])
def test_a_store_that_only_can_be_read_is_read(
    tmp_path: Path, entry: Path, taken: Path, error: Exception
) -> None:
    (tmp_path / "store").mkdir()
    place, said = FolderStore(tmp_path / "store"), list[str]()
    SiteStore(place, tmp_path / "scratch").put("stage-1", entry, "stage one")
    place.set_tag = failing(error)  # type: ignore[method-assign]
    store = SiteStore(place, tmp_path / "scratch", said.append)
    store.put("stage-2", entry, "stage two")
    store.put("stage-3", entry, "stage three")
    assert said == [f"the site's store ({place.name}): {error}; this run adds nothing more"]
    assert store.take("stage-1", taken)
    assert place.tags() == ["stage-1"]


def test_a_file_that_could_not_be_written_leaves_no_part(
    tmp_path: Path, entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    place, said = FolderStore(tmp_path / "store"), list[str]()
    monkeypatch.setattr("builder.system.files.fsync", failing(OSError(28, "full")))
    SiteStore(place, tmp_path / "scratch", said.append).put("stage-1", entry, "stage one")
    assert len(said) == 1
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_registry_is_asked_again_after_a_hiccup(entry: Path, taken: Path, tmp_path: Path) -> None:
    with fake_registry() as fake:
        place = Place(tmp_path / "store", fake)
        place.store().put("stage-1", entry, "stage one")
        fake.faults = [Fault("GET .*/manifests/stage-1", status=503)]
        assert place.store().take("stage-1", taken)
        assert place.said == []


# ---- The folder ----


def test_the_folder_is_an_oci_layout_without_an_index_of_entries(
    tmp_path: Path, entry: Path
) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o770)
    folder.chmod(0o2770)
    Place(folder).store().put("stage-1", entry, "stage one")
    Place(folder).store().put("stage-1", entry, "stage one")
    assert json.loads((folder / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    assert json.loads((folder / "index.json").read_text()) == {"schemaVersion": 2, "manifests": []}
    tag = read_descriptor(json.loads((folder / "tags/stage-1").read_text()), "tag")
    assert tag.media_type == MANIFEST
    manifest = (folder / "blobs/sha256" / tag.digest.removeprefix("sha256:")).read_bytes()
    assert tag.size == len(manifest)
    about = json.loads(manifest)
    assert about["artifactType"] == "application/vnd.build-images.store-entry.v1"
    assert about["annotations"]["org.opencontainers.image.title"] == "stage one"
    for name in ("tags", "blobs", "blobs/sha256"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o2770, name


# ---- Expiry ----


def test_only_unused_entries_and_their_own_blobs_are_removed(tmp_path: Path, entry: Path) -> None:
    place = Place(tmp_path / "store")
    place.store().put("stage-1", entry, "stage one")
    (entry / "record.json").write_text("[]")
    place.store().put("stage-2", entry, "stage two")
    old = NOW.timestamp() - 30 * 86400
    for path in [place.folder / "tags/stage-1", *(place.folder / "blobs/sha256").iterdir()]:
        os.utime(path, (old, old))
    opened = place.open()
    since = NOW - dt.timedelta(days=7)
    [(unused, size)] = unused_entries(opened, since)
    assert (unused.tag, unused.kind, unused.title) == ("stage-1", "stage", "one")
    assert size == len("{}")  # the other entry needs the rest
    assert sum(unused.blobs.values()) == 30000 + len("{}#!/bin/sh\n")
    assert unused.why == "no builder used it recently"
    before = set(place.blobs())
    (place.folder / "blobs/sha256/new").write_text("of an entry that is being added")
    opened.remove([unused.tag])
    assert opened.tags() == ["stage-2"]
    needed = {b"[]", b"#!/bin/sh\n", b"layer " * 5000, opened.manifest("stage-2")}
    assert {blob for name, blob in place.blobs().items() if name in before} == needed
    assert "sha256:new" in place.blobs()
    assert opened.manifest("stage-2")


def test_a_store_that_holds_nothing_is_cleaned(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    place = FolderStore(tmp_path / "store")
    assert unused_entries(place, NOW) == []
    place.remove([])
    assert list((tmp_path / "store").iterdir()) == []


def test_use_keeps_an_entry(tmp_path: Path, entry: Path, taken: Path) -> None:
    place = Place(tmp_path / "store")
    place.store().put("stage-1", entry, "stage one")
    os.utime(place.folder / "tags/stage-1", (0, 0))
    assert place.store().take("stage-1", taken)
    assert unused_entries(place.open(), NOW - dt.timedelta(days=7)) == []


def test_entries_in_a_registry_count_from_their_creation(tmp_path: Path, entry: Path) -> None:
    with fake_registry() as fake:
        place = Place(tmp_path / "store", fake)
        place.store().put("stage-1", entry, "stage one")
        opened = place.open()
        assert unused_entries(opened, NOW - dt.timedelta(days=1)) == []
        [(unused, size)] = unused_entries(opened, NOW + dt.timedelta(days=1))
        assert unused.why.startswith("created 2")
        assert size == 30000 + len("{}#!/bin/sh\n")
        opened.remove([unused.tag, "stage-9"])
        [request] = [request for request, _ in fake.asked if request.startswith("DELETE")]
        assert "/manifests/sha256:" in request


def test_what_is_no_entry_is_left_alone_and_what_is_damaged_is_not(
    tmp_path: Path, entry: Path
) -> None:
    place = Place(tmp_path / "store")
    place.store().put("image-1", entry, "image one")
    opened = place.open()
    created = {"annotations": {"org.opencontainers.image.created": "2020-01-01T00:00:00Z"}}
    for tag in ("latest", "image-of-others"):
        opened.set_tag(tag, json.dumps({"schemaVersion": 2, "layers": [], **created}).encode())
    (place.folder / "tags/image-2").write_text("")
    (place.folder / "tags/lost+found").mkdir()
    since = NOW + dt.timedelta(days=1)
    found = {unused.tag: unused.why for unused, _ in unused_entries(opened, since)}
    assert found == {"image-1": "no builder used it recently", "image-2": "damaged"}
    opened.remove([*found])
    assert opened.tags() == ["image-of-others", "latest"]
    assert not place.store().take("latest", entry)
    assert "latest: not an entry of a site's store; it is made here" in place.said[0]


def test_a_blob_that_many_unused_entries_have_counts_once(tmp_path: Path, entry: Path) -> None:
    place = Place(tmp_path / "store")
    for number in range(3):
        place.store().put(f"stage-{number}", entry, f"stage {number}")
    sizes = [size for _, size in unused_entries(place.open(), NOW + dt.timedelta(days=1))]
    assert sizes == [30000 + len("{}#!/bin/sh\n"), 0, 0]


def test_a_group_shares_a_folder(tmp_path: Path, entry: Path) -> None:
    """Else nobody could note the use of what others added."""
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(0o2775)
    Place(folder).store().put("stage-1", entry, "stage one")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}
    assert modes == {0o664}


# ---- Entries and places that are odd ----


def test_a_folder_that_is_missing_is_not_made(tmp_path: Path, entry: Path, taken: Path) -> None:
    """It may be a file system that is not mounted."""
    said = list[str]()
    for use in ("take", "put"):
        store = SiteStore(FolderStore(tmp_path / "store"), tmp_path / "scratch", said.append)
        store.take("stage-1", taken) if use == "take" else store.put("stage-1", entry, "one")
    assert not (tmp_path / "store").exists()
    rest = ("this run goes on without it", "this run adds nothing more")
    text = f"the site's store: {tmp_path}/store: no such folder"
    assert said == [f"{text}; {end}" for end in rest]
    with pytest.raises(BuildImagesError, match="no such folder"):
        FolderStore(tmp_path / "store").tags()


@pytest.mark.parametrize("number", [errno.ENAMETOOLONG, errno.ENOTDIR])
def test_one_odd_entry_does_not_end_the_use_of_the_store(
    tmp_path: Path, entry: Path, taken: Path, number: int
) -> None:
    place = Place(tmp_path / "store")
    place.store().put("stage-1", entry, "stage one")
    (place.folder / "tags/stage-2").mkdir()
    opened = place.open()
    manifest = json.loads(opened.manifest("stage-1") or b"")
    title = "x" * 300 if number == errno.ENAMETOOLONG else "record.json/below"
    manifest["layers"][0]["annotations"]["org.opencontainers.image.title"] = title
    opened.set_tag("stage-3", json.dumps(manifest).encode())
    store = place.store()
    assert [store.take(f"stage-{tag}", taken) for tag in (3, 2, 1)] == [False, False, True]
    assert all(line.endswith("; it is made here") for line in place.said)
    assert len(place.said) == 2


def test_an_entry_of_too_many_files_is_not_added(
    tmp_path: Path, entry: Path, taken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "store")
    store = place.store()
    with monkeypatch.context() as patch:
        patch.setattr("builder.sources.site_store.entries.LARGEST_MANIFEST", 800)
        store.put("stage-1", entry, "stage one")
    assert place.said == ["the site's store: stage one has too many files: it is not added"]
    assert not store.take("stage-1", taken)
    store.put("stage-2", entry, "stage two")
    assert store.take("stage-2", taken)


def test_only_named_files_are_added(tmp_path: Path, entry: Path, taken: Path) -> None:
    (entry / "id_rsa").write_text("of the user")
    (entry / "image/link").symlink_to("/etc/hostname")
    place = Place(tmp_path / "store")
    place.store().put("image-1", entry, "image one", names={"image", "no-such"})
    assert place.store().take("image-1", taken)
    assert {*content(taken)} == {"image/blobs/layer", "image/program"}


def test_who_may_not_read_may_still_add(tmp_path: Path, entry: Path, taken: Path) -> None:
    """Some registries answer so before the first push."""
    with fake_registry() as fake:
        fake.faults = [Fault("GET .*/manifests/", status=403, times=9)]
        place = Place(tmp_path / "store", fake)
        store = place.store()
        assert not store.take("stage-1", taken)
        store.put("stage-1", entry, "stage one")
        fake.faults = []
        assert place.store().take("stage-1", taken)
        [line] = place.said
        assert line.endswith("; this run goes on without it")


def test_interruptions_reach_a_store_that_was_given_up(tmp_path: Path) -> None:
    place, stopped = FolderStore(tmp_path / "store"), list[bool]()
    place.stop = lambda: stopped.append(True)  # type: ignore[method-assign]
    store = SiteStore(place, tmp_path / "scratch")
    assert not store.take("stage-1", tmp_path)
    assert not store.is_used
    store.stop()
    assert stopped == [True]


def test_a_registry_without_deletion_is_named(tmp_path: Path, entry: Path) -> None:
    with fake_registry() as fake:
        place = Place(tmp_path / "store", fake)
        place.store().put("stage-1", entry, "stage one")
        fake.faults = [Fault("DELETE", status=405, times=9)]
        with pytest.raises(BuildImagesError, match="the registry does not allow deletion") as error:
            place.open().remove(["stage-1"])
        assert "its configuration can allow that" in error.value.hint
