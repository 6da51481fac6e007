"""Folders that are there whole or not at all, and blobs that are kept."""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import hashlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from builder.distribute.pull.cache import BlobStore, place
from builder.distribute.pull.folders import atomic_folder
from builder.distribute.pull.receipts import Last, last_pulls
from builder.model.errors import BadInput, Refused
from builder.registry import Descriptor, Registry
from builder.trust.policy.records import Gathered, Image
from builder.trust.policy.site_policy import Policy

DATA = b"a blob"
WANTED = Descriptor.of(DATA, "application/octet-stream")
NAME = hashlib.sha256(DATA).hexdigest()
POLICY = Policy(keys=())
NOW = dt.datetime(2026, 11, 21, tzinfo=dt.timezone.utc)


def make(target: Path, text: str = "x") -> bool:
    """Make a folder with a file; whether it was made now."""
    with atomic_folder(target) as folder:
        if folder is None:
            return False
        assert list(folder.iterdir()) == []
        (folder / "file").write_text(text)
    return True


def test_a_folder_gets_its_name_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "a/b"
    with atomic_folder(target) as folder:
        assert folder is not None
        (folder / "file").write_text("x")
        assert not target.exists()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert [one.name for one in target.parent.iterdir()] == ["b"]
    assert target.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("target", ["/proc/x", "/proc/self/fd/x", "/", "//", "/usr/.."])
def test_where_no_folder_can_be_made(target: str) -> None:
    """In /proc it was tried for ever; a path without a name had a traceback."""
    with pytest.raises(
        BadInput, match=r"not a new folder\n  hint: name a folder to create$|cannot create a folder"
    ):
        make(Path(target))


def test_who_was_killed_after_the_name_leaves_no_lock(tmp_path: Path) -> None:
    lock = tmp_path / ".a.lock"
    (tmp_path / "a").mkdir()
    lock.touch()
    with lock.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not make(tmp_path / "a")
        assert lock.exists(), "somebody holds it"
    assert not make(tmp_path / "a")
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert not make(tmp_path / "a")
    (tmp_path / "link").symlink_to("nowhere")
    assert not make(tmp_path / "link")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "link"]


def make_half(target: Path, error: type[BaseException], wait_s: float = 0) -> None:
    """Fail after a file is there."""
    with atomic_folder(target) as folder:
        assert folder is not None
        (folder / "sub").mkdir()
        (folder / "sub/file").write_text("x")
        time.sleep(wait_s)
        raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_what_fails_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        make_half(tmp_path / "a", error)
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_while_the_folder_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "chmod", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_one_left_is_emptied(tmp_path: Path) -> None:
    left = tmp_path / ".a.partial"
    (left / "sub").mkdir(parents=True)
    (left / "sub/file").write_text("old")
    (left / "link").symlink_to("/etc")
    assert make(tmp_path / "a")
    assert [one.name for one in (tmp_path / "a").iterdir()] == ["file"]


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").write_text("mine")
    (tmp_path / ".a.partial").symlink_to("elsewhere")
    with pytest.raises((BadInput, OSError)):
        make(tmp_path / "a")
    assert (tmp_path / "elsewhere/file").read_text() == "mine"


def test_of_many_at_once_one_makes_it(tmp_path: Path) -> None:
    made: list[bool] = []
    start = threading.Barrier(8)

    def one(number: int) -> None:
        start.wait()
        with atomic_folder(tmp_path / "a") as folder:
            made.append(folder is not None)
            if folder is not None:
                (folder / "file").write_text(str(number))
                time.sleep(0.3)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 7 + [True]
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_the_next_one_goes_on_where_one_failed(tmp_path: Path) -> None:
    def fails() -> None:
        with pytest.raises(RuntimeError):
            make_half(tmp_path / "a", RuntimeError, wait_s=0.5)

    thread = threading.Thread(target=fails)
    thread.start()
    while not (tmp_path / ".a.partial/sub/file").exists():
        time.sleep(0.01)
    assert make(tmp_path / "a")
    thread.join()
    assert (tmp_path / "a/file").read_text() == "x"
    assert not (tmp_path / "a/sub").exists()


class FakeRegistry:
    """Gives blobs; `fails` is raised after some bytes of one."""

    def __init__(self, fails: BaseException | None = None) -> None:
        self.asked, self.fails, self.begun = 0, fails, b""

    def check(self) -> None:
        """Nothing stops it."""

    def read_blob(self, wanted: Descriptor, path: Path) -> None:
        self.asked += 1
        self.begun = path.read_bytes() if path.exists() else b""
        path.write_bytes(DATA[:3])
        if self.fails:
            raise self.fails
        assert wanted == WANTED
        path.write_bytes(DATA)


def get(store: BlobStore, registry: FakeRegistry) -> Path:
    return store.get(cast("Registry", registry), WANTED)


def blobs(store: BlobStore) -> list[str]:
    return sorted(one.name for one in store.folder.iterdir() if one.suffix != ".lock")


def test_a_blob_is_fetched_once(tmp_path: Path) -> None:
    store, registry = BlobStore(folder=tmp_path / "blobs"), FakeRegistry()
    assert get(store, registry).read_bytes() == DATA
    os.utime(store.folder / NAME, (0, 0))
    assert get(store, registry).name == NAME
    assert (store.folder / NAME).stat().st_mtime > 0  # it was used now
    assert registry.asked == 1
    (store.folder / NAME).write_bytes(b"changed")
    assert get(store, registry).read_bytes() == DATA
    assert registry.asked == 2
    assert (store.folder / NAME).stat().st_mode & 0o777 == 0o644
    (store.folder / NAME).chmod(0o664)
    (tmp_path / "other").hardlink_to(store.folder / NAME)  # so that its number is not given again
    assert not get(store, registry).samefile(tmp_path / "other"), "others could change it"
    assert registry.asked == 3
    assert blobs(store) == [NAME]


def test_what_broke_off_is_kept_and_what_found_no_space_is_not(tmp_path: Path) -> None:
    store = BlobStore(folder=tmp_path / "blobs")
    for error, left in (
        (KeyboardInterrupt(), [f"{NAME}.partial"]),
        (OSError(errno.ENOSPC, "full"), []),
    ):
        with pytest.raises(type(error)):
            get(store, FakeRegistry(error))
        assert blobs(store) == left


@pytest.mark.parametrize(("mode", "begun"), [(0o600, b"a b"), (0o660, b"")])
def test_what_others_could_have_begun_is_not_continued(
    mode: int, begun: bytes, tmp_path: Path
) -> None:
    store, registry = BlobStore(folder=tmp_path / "blobs"), FakeRegistry()
    store.folder.mkdir(mode=0o700)
    (store.folder / f"{NAME}.partial").write_bytes(b"a b")
    (store.folder / f"{NAME}.partial").chmod(mode)
    assert get(store, registry).read_bytes() == DATA
    assert registry.begun == begun


def test_where_no_link_can_be_made_a_blob_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    blob, link, copy = (tmp_path / name for name in ("blob", "link", "copy"))
    blob.write_bytes(DATA)
    blob.chmod(0o600)
    place(blob, link)
    assert link.samefile(blob)
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    place(blob, copy)
    assert (copy.read_bytes(), copy.stat().st_mode & 0o777) == (DATA, 0o644)
    assert not copy.samefile(blob)


def test_a_blob_that_two_take_away_has_an_owner_each(tmp_path: Path) -> None:
    """The second one waits for the first, and fetches it again."""
    store, registry = BlobStore(folder=tmp_path / "blobs"), FakeRegistry()

    def take(name: str) -> None:
        with store.held(cast("Registry", registry), WANTED) as blob:
            time.sleep(0.1)
            blob.rename(tmp_path / name)

    with ThreadPoolExecutor() as pool:
        list(pool.map(take, ("one", "two")))
    assert blobs(store) == []
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes() == DATA


def test_the_last_pull_of_each_reference_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path))
    last = last_pulls()
    assert last == Last(folder=tmp_path / "pulls/last")
    assert last.read("x:1", "x86_64") is None
    last.write("x:1", pulled("sha256:1", NOW), POLICY)
    found = last.read("x:1", "x86_64")
    assert found is not None
    assert (found.digest, found.times) == ("sha256:1", {"created": NOW})
    assert last.read("x:1", "ppc64le") is last.read("x:2", "x86_64") is None
    [file] = [one for one in last.folder.iterdir() if one.suffix == ".json"]
    text = file.read_text()
    times = {"created": "2026-11-21T00:00:00+00:00"}
    assert json.loads(text) == {"reference": "x:1", "digest": "sha256:1", "times": times}
    file.write_text(text.ljust(64 << 10))
    assert last.read("x:1", "x86_64") == found
    for odd in ('{"digest": 1}', text.ljust((64 << 10) + 1)):
        file.write_text(odd)
        with pytest.raises(Refused, match="cannot be read"):
            last.read("x:1", "x86_64")


def test_of_two_pulls_at_once_the_newer_one_is_remembered(tmp_path: Path) -> None:
    last = Last(folder=tmp_path / "last")
    older, newer = (pulled(f"sha256:{day}", NOW + dt.timedelta(days=day)) for day in (0, 1))
    last.write("x:1", newer, POLICY)
    last.write("x:1", older, POLICY)
    found = last.read("x:1", "x86_64")
    assert found is not None
    assert found.digest == "sha256:1"
    bare = pulled("sha256:1", None)
    last.write("x:1", bare, POLICY)  # the same image, and less is said of it
    assert last.read("x:1", "x86_64") == found
    last.write("x:1", older, replace(POLICY, rollback=False))
    found = last.read("x:1", "x86_64")
    assert found is not None
    assert found.digest == "sha256:0"


def pulled(digest: str, created: dt.datetime | None) -> Gathered:
    image = Image(digest=digest, architecture="x86_64", asked="x86_64", created=created)
    return Gathered(reference="x:1", format="oci", now=NOW, image=image)


def test_what_somebody_else_prepared_is_not_gone_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".a.partial").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BadInput, match=r"not a folder of this user\n  hint: remove it$"):
        make(tmp_path / "a")
    assert [one.name for one in tmp_path.iterdir()] == [".a.partial"]


def test_a_lock_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of all users, this one may not open it."""
    (tmp_path / ".a.lock").touch()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builder.distribute.pull.folders.locked", refused)
    owner = (
        rf"^{tmp_path}/\.a\.lock belongs to user {os.getuid()}, who makes a or was interrupted\n"
    )
    with pytest.raises(BadInput, match=rf"{owner}  hint: name another .* \.a\.partial$"):
        make(tmp_path / "a")


def test_the_lock_is_of_a_file_that_is_open_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS passes on no other: a folder's would stay on its node."""
    seen, flock = list[int](), fcntl.flock

    def noted(handle: int, how: int) -> None:
        seen.append(fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE)
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", noted)
    assert make(tmp_path / "a")
    assert seen == [os.O_RDWR]
