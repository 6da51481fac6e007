"""A site's store: entries come back as they were put, or not at all; its failures stop no build."""

from __future__ import annotations

import datetime as dt
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_registry import Fake, Fault, fake_registry

from builder.model.errors import BuildImagesError, Interrupted
from builder.registry import MANIFEST, Denied, Descriptor
from builder.sources.site_store import SiteStore, unused_entries
from builder.sources.site_store.entries import StorePlace
from builder.sources.site_store.folder import FolderStore
from builder.sources.site_store.repository import repository_store
from builder.system.process import Processes

REPOSITORY = "site/build-cache"
NOW = dt.datetime.now(tz=dt.timezone.utc)


class Place:
    """A place of a store, as builders on several machines open it."""

    def __init__(self, folder: Path, fake: Fake | None = None) -> None:
        self.folder, self.fake, self.said = folder, fake, list[str]()
        self._scratch = folder.with_name("scratch")
        self._scratch.mkdir(exist_ok=True)

    def open(self) -> StorePlace:
        if self.fake:
            name = f"http://{self.fake.host}/{REPOSITORY}"
            return repository_store(name, Processes(), lambda _: None)
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
    place, said = FolderStore(tmp_path / "store"), list[str]()
    place.manifest = failing(error)  # type: ignore[method-assign]
    store = SiteStore(place, tmp_path / "scratch", said.append)
    assert not store.take("stage-1", taken)
    assert not store.take("stage-2", taken)
    store.put("stage-1", entry, "stage one")
    text = str(error).partition("\n")[0]
    assert said == [f"the site's store ({place.name}): {text}; this run goes on without it"]
    assert not store.is_used
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("error", [Denied("403 Forbidden"), OSError(28, "No space left on device")])
def test_a_store_that_only_can_be_read_is_read(
    tmp_path: Path, entry: Path, taken: Path, error: Exception
) -> None:
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
    place, said = FolderStore(tmp_path / "store"), list[str]()
    monkeypatch.setattr("builder.sources.site_store.folder.fsync", failing(OSError(28, "full")))
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
    tag = Descriptor.read(json.loads((folder / "tags/stage-1").read_text()), "tag")
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
    [unused] = unused_entries(opened, since)
    assert (unused.tag, unused.kind, unused.title) == ("stage-1", "stage", "one")
    assert unused.bytes == 30000 + len("{}#!/bin/sh\n")
    assert unused.why == "no builder used it recently"
    before = set(place.blobs())
    (place.folder / "blobs/sha256/new").write_text("of an entry that is being added")
    opened.remove([unused.tag])
    assert opened.tags() == ["stage-2"]
    needed = {b"[]", b"#!/bin/sh\n", b"layer " * 5000, opened.manifest("stage-2")}
    assert {blob for name, blob in place.blobs().items() if name in before} == needed
    assert "sha256:new" in place.blobs()
    assert opened.manifest("stage-2")


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
        [unused] = unused_entries(opened, NOW + dt.timedelta(days=1))
        assert unused.why.startswith("created 2")
        opened.remove([unused.tag, "stage-9"])
        [request] = [request for request, _ in fake.asked if request.startswith("DELETE")]
        assert "/manifests/sha256:" in request


def test_another_repository_is_not_cleaned(tmp_path: Path) -> None:
    place = FolderStore(tmp_path / "store")
    place.set_tag("latest", b'{"schemaVersion": 2, "layers": []}')
    with pytest.raises(BuildImagesError, match="latest: not an entry of the site's store"):
        unused_entries(place, NOW)
