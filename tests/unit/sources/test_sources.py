"""Sources: the store, and downloads from a real HTTP server on loopback that misbehaves."""

from __future__ import annotations

import hashlib
import io
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
from web_server import Answering, serving

from builder.model.errors import Interrupted
from builder.model.inputs import Lock, LockedSource
from builder.sources.download import ATTEMPTS, Downloader, Fetched, NotFetched, digest_of
from builder.sources.locking import Locking, SourceRequest, lock_sources
from builder.sources.store import Changed, SourceStore, Unfetched, fetch_all

CONTENT = bytes(range(256)) * 2000
OTHER = CONTENT[:-1] + b"!"


@dataclass
class Server:
    """What is served, by path. Each of `cuts` ends one answer after so many bytes."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    shift: int = 0  # of the next range that is sent
    retry_after: str = ""
    tag: str = ""
    conditions: list[str] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    clients: set[tuple[str, str]] = field(default_factory=set)


class Handler(Answering):
    """Serves what the test's `Server` says; answers ranges as RFC 9110 wants it."""

    protocol_version = "HTTP/1.0"
    told: Server

    def get(self) -> None:
        told = self.told
        told.asked.append((self.path, self.headers.get("Range", "")))
        told.conditions.append(self.headers.get("If-Range", ""))
        told.clients.add((self.headers["User-Agent"], self.headers.get("Accept-Encoding", "")))
        if statuses := told.statuses.get(self.path):
            self.answer(status=statuses.pop(0), Retry_After=told.retry_after)
        elif location := told.redirects.get(self.path):
            self.answer(status=302, Location=location)
        elif self.path in told.files:
            self._send(told.files[self.path], told)
        else:
            self.send_error(404)

    def _send(self, content: bytes, told: Server) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        end = len(content)
        if start and start >= end:
            self.answer(status=416, Content_Range=f"bytes */{end}")
            return
        part = content[start:] if told.ranges else content
        cut = told.cuts.pop(0) if told.cuts else len(part)
        length = {"Content_Length": str(len(part)), "ETag": told.tag}
        if start and told.ranges:
            length["Content_Range"] = f"bytes {start + told.shift}-{end - 1}/{end}"
            told.shift = 0
        self.answer(part[:cut], 206 if start and told.ranges else 200, **length)


@pytest.fixture(name="server")
def http_server() -> Iterator[Server]:
    told = Server()
    with serving(Handler, told=told) as told.url:
        yield told


def source(url: str, content: bytes = CONTENT, *, mirrors: tuple[str, ...] = ()) -> LockedSource:
    return LockedSource(
        url=url,
        file=url.rpartition("/")[2],
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        mirrors=mirrors,
    )


def downloader(waits: list[float] | None = None) -> Downloader:
    return Downloader(wait=(waits if waits is not None else []).append)


def ensured(server: Server, folder: Path, waits: list[float] | None = None) -> bytes:
    """The file of the server's /a.tgz, from a store."""
    wanted, store = source(f"{server.url}/a.tgz"), SourceStore(path=folder)
    return store.ensure(wanted, downloader=downloader(waits)).read_bytes()


def leftovers(store: Path) -> list[str]:
    return sorted(one.name for one in store.rglob("*") if one.is_file() and ".lock" not in one.name)


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    server.files["/a.tar.gz"] = CONTENT
    wanted, store = source(f"{server.url}/a.tar.gz"), SourceStore(path=tmp_path)
    seen: list[int] = []
    for _ in range(2):
        place = store.ensure(
            wanted, downloader=downloader(), on_progress=lambda _, size: seen.append(size)
        )
        assert place.read_bytes() == CONTENT
    assert len(server.asked) == 1
    # Compressed on the way, it has another checksum.
    assert server.clients == {("build-images", "identity")}
    assert place.stat().st_mode & 0o777 == 0o644
    assert seen[0] == 0
    assert seen[-1] == len(CONTENT)
    assert leftovers(tmp_path) == [wanted.sha256]


def test_a_mirror_with_another_file_is_passed_over(server: Server, tmp_path: Path) -> None:
    server.files.update({"/site/a.tgz": OTHER, "/a.tgz": CONTENT})
    store = SourceStore(path=tmp_path, mirrors=(f"{server.url}/site",))
    store.ensure(source(f"{server.url}/a.tgz"), downloader=downloader())
    assert [path for path, _ in server.asked] == ["/site/a.tgz", "/a.tgz"]


def test_another_file_everywhere_is_an_error_with_both_checksums(
    server: Server, tmp_path: Path
) -> None:
    server.files["/a.tgz"] = OTHER
    wanted = source(f"{server.url}/a.tgz", mirrors=(f"{server.url}/gone.tgz",) * 2)
    with pytest.raises(Changed) as caught:
        fetch_all(SourceStore(path=tmp_path), [wanted], downloader=downloader())
    host = server.url.removeprefix("http://")
    assert str(caught.value).splitlines() == [
        f"{server.url}/a.tgz: the file differs from the locked one:",
        f"  locked: sha256 {wanted.sha256}, {len(CONTENT)} bytes",
        f"  found:  sha256 {hashlib.sha256(OTHER).hexdigest()}, {len(OTHER)} bytes",
        f"  {server.url}/gone.tgz: {host} answers 404 Not Found",
        (
            "  hint: if the new file is correct, build-images lock --update writes it to "
            "lock.yaml; else name a mirror that has the old one (sources: in site.yaml)"
        ),
    ]
    assert caught.value.exit_code == 5
    assert [path for path, _ in server.asked] == ["/a.tgz", "/gone.tgz"]
    assert leftovers(tmp_path) == []


def test_a_longer_file_is_another_file(server: Server, tmp_path: Path) -> None:
    server.files["/a.tgz"] = CONTENT + b"more"
    with pytest.raises(Changed, match=f"{len(CONTENT) + 4} bytes"):
        ensured(server, tmp_path)


@pytest.mark.parametrize(("tag", "condition"), [("", ""), ('"1"', '"1"'), ('W/"1"', "")])
def test_what_breaks_off_is_resumed_if_it_has_not_changed(
    tag: str, condition: str, server: Server, tmp_path: Path
) -> None:
    server.files["/a.tgz"] = CONTENT
    server.cuts, server.tag = [300_000, 100_000], tag
    ensured(server, tmp_path)
    assert [asked for _, asked in server.asked] == ["", "bytes=300000-", "bytes=400000-"]
    assert server.conditions == ["", condition, condition]


@pytest.mark.parametrize(("part", "shift"), [(len(CONTENT) + 1, 0), (1000, 1)])
def test_a_part_that_does_not_go_on_is_dropped(
    part: int, shift: int, server: Server, tmp_path: Path
) -> None:
    """The server has fewer bytes, or sends another range."""
    server.files["/a.tgz"], server.shift = CONTENT, shift
    (tmp_path / "a").write_bytes(b"x" * part)
    downloader().fetch(f"{server.url}/a.tgz", tmp_path / "a", limit=len(CONTENT))
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [f"bytes={part}-", ""]


def test_no_more_than_the_limit_is_fetched(server: Server, tmp_path: Path) -> None:
    server.files["/a.tgz"] = CONTENT
    with pytest.raises(NotFetched, match=r"127\.0\.0\.1:.* sends more than 1000 bytes"):
        downloader().fetch(f"{server.url}/a.tgz", tmp_path / "a", limit=1000)


def test_a_server_without_ranges_starts_anew(server: Server, tmp_path: Path) -> None:
    server.files["/a.tgz"] = CONTENT
    server.cuts, server.ranges = [300_000], False
    assert ensured(server, tmp_path) == CONTENT


def test_a_killed_download_is_never_taken_for_whole(server: Server, tmp_path: Path) -> None:
    server.files["/a.tgz"] = CONTENT
    wanted, store = source(f"{server.url}/a.tgz"), SourceStore(path=tmp_path)

    def killed(_: LockedSource, size: int) -> None:
        if size > 200_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.ensure(wanted, downloader=downloader(), on_progress=killed)
    assert store.holds(wanted) is None
    assert leftovers(tmp_path) == [f".{wanted.sha256}.partial"]
    assert store.ensure(wanted, downloader=downloader()).read_bytes() == CONTENT
    assert server.asked[1][1].startswith("bytes=")
    assert leftovers(tmp_path) == [wanted.sha256]


def test_a_part_of_another_file_does_no_harm(server: Server, tmp_path: Path) -> None:
    server.files["/a.tgz"] = CONTENT
    wanted = source(f"{server.url}/a.tgz")
    for stale in (b"x" * 1000, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 1)):
        (tmp_path / f".{wanted.sha256}.partial").write_bytes(stale)
        assert ensured(server, tmp_path) == CONTENT
        SourceStore(path=tmp_path).place(wanted.sha256).unlink()


def test_a_whole_file_whose_end_was_not_seen_is_not_fetched_again(
    server: Server, tmp_path: Path
) -> None:
    server.files["/a.tgz"] = CONTENT
    wanted = source(f"{server.url}/a.tgz")
    (tmp_path / f".{wanted.sha256}.partial").write_bytes(CONTENT)
    ensured(server, tmp_path)
    assert [asked for _, asked in server.asked] == [f"bytes={len(CONTENT)}-"]


def test_a_folder_of_this_machine_can_be_a_mirror(server: Server, tmp_path: Path) -> None:
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "a.tgz").write_bytes(CONTENT)
    store = SourceStore(path=tmp_path / "store", mirrors=((tmp_path / "near").as_uri(),))
    seen: list[int] = []
    store.ensure(
        source(f"{server.url}/a.tgz"),
        downloader=downloader(),
        on_progress=lambda _, size: seen.append(size),
    )
    assert seen == [len(CONTENT)]
    with pytest.raises(Unfetched, match="No such file or directory"):
        store.ensure(source(f"{server.url}/b.tgz", OTHER), downloader=downloader())
    assert [path for path, _ in server.asked] == ["/b.tgz"]


@pytest.mark.parametrize(
    ("least", "expected"), [("", [0.5, 1.0]), ("3", [3.0, 3.0]), ("99", [30.0, 30.0])]
)
def test_what_may_pass_is_tried_again_with_growing_waits(
    least: str, expected: list[float], server: Server, tmp_path: Path
) -> None:
    server.files["/a.tgz"], server.retry_after = CONTENT, least
    server.statuses["/a.tgz"] = [503, 429]
    waits: list[float] = []
    ensured(server, tmp_path, waits)
    assert waits == expected


@pytest.mark.parametrize(("error", "tries"), [(socket.EAI_NONAME, 1), (socket.EAI_AGAIN, ATTEMPTS)])
def test_a_host_that_does_not_exist_is_looked_up_once(
    error: int, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []

    def getaddrinfo(host: str, *_: object, **__: object) -> None:
        looked_up.append(host)
        raise socket.gaierror(error, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(NotFetched, match=r"^gone\.example cannot be reached: no such name"):
        downloader().fetch("http://gone.example/a.tgz", tmp_path / "a")
    assert looked_up == ["gone.example"] * tries


def test_a_server_whose_tls_fails_is_asked_once(server: Server, tmp_path: Path) -> None:
    waits: list[float] = []
    url = server.url.replace("http:", "https:")
    with pytest.raises(NotFetched, match=r"^127\.0\.0\.1:[0-9]+: TLS fails: "):
        downloader(waits).fetch(f"{url}/a.tgz", tmp_path / "a")
    assert waits == []


def test_a_definitive_no_is_not_tried_again(server: Server, tmp_path: Path) -> None:
    with pytest.raises(Unfetched, match="answers 404 Not Found"):
        ensured(server, tmp_path)
    assert len(server.asked) == 1


def test_a_server_that_stays_away_is_tried_once_more_only(server: Server, tmp_path: Path) -> None:
    server.statuses.update({"/a.tgz": [503] * 9, "/b.tgz": [503] * 9})
    both = [source(f"{server.url}/a.tgz"), source(f"{server.url}/b.tgz", OTHER)]
    shared, store = downloader(), SourceStore(path=tmp_path)
    for wanted in both:
        with pytest.raises(Unfetched, match="answers 503"):
            store.ensure(wanted, downloader=shared)
    assert len(server.asked) == ATTEMPTS + 1


def test_redirects_are_followed(server: Server, tmp_path: Path) -> None:
    server.files["/real.tgz"] = CONTENT
    server.redirects["/a.tgz"] = "/real.tgz"
    ensured(server, tmp_path)


def test_redirects_end(server: Server, tmp_path: Path) -> None:
    server.redirects["/a.tgz"] = "/a.tgz"
    with pytest.raises(NotFetched, match="redirects more than 10 times"):
        downloader().fetch(f"{server.url}/a.tgz", tmp_path / "a")


def test_https_is_never_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:

    def get(_self: requests.Session, _url: str, **_: object) -> requests.Response:
        answer = requests.Response()
        answer.status_code, answer.raw = 302, io.BytesIO()
        answer.headers["location"] = "http://plain.example/a.tgz"
        return answer

    monkeypatch.setattr(requests.Session, "get", get)
    with pytest.raises(NotFetched, match=r"secure\.example redirects from https to http"):
        downloader().fetch("https://secure.example/a.tgz", tmp_path / "a")


def test_other_schemes_are_not_fetched(tmp_path: Path) -> None:
    with pytest.raises(NotFetched, match="unsupported scheme ftp"):
        downloader().fetch("ftp://old.example/a.tgz", tmp_path / "a")


def test_offline_names_each_missing_file(server: Server, tmp_path: Path) -> None:
    server.files["/a.tgz"] = CONTENT
    store = SourceStore(path=tmp_path)
    there = source(f"{server.url}/a.tgz")
    [place] = fetch_all(store, [there], downloader=downloader()).values()
    assert fetch_all(store, [there], downloader=downloader(), offline=True) == {there.url: place}
    assert place.read_bytes() == CONTENT
    missing = [source(f"{server.url}/{name}.tgz", name.encode()) for name in ("b", "c")]
    with pytest.raises(Unfetched) as caught:
        fetch_all(store, [there, *missing], downloader=downloader(), offline=True)
    assert str(caught.value).splitlines() == [
        "2 sources are not in the store, and --offline forbids downloads:",
        *(f"{one.file} ({one.url}), sha256 {one.sha256}" for one in missing),
        (
            "  hint: run build-images fetch here without --offline, or on a machine with a "
            f"network, and copy its store to {store.path}"
        ),
    ]
    assert caught.value.exit_code == 4
    assert len(server.asked) == 1


def test_a_damaged_file_in_the_store_is_fetched_anew(server: Server, tmp_path: Path) -> None:
    server.files["/a.tgz"] = CONTENT
    ensured(server, tmp_path)
    store = SourceStore(path=tmp_path)
    place = store.place(source("").sha256)
    for damaged in (OTHER, CONTENT[:-1]):
        place.write_bytes(damaged)
        assert (store.holds(source("")) is None) == (len(damaged) < len(CONTENT))
        assert ensured(server, tmp_path) == CONTENT


def test_an_interrupted_run_ends_its_downloads(server: Server, tmp_path: Path) -> None:
    server.files["/a.tgz"] = CONTENT
    shared, store = downloader(), SourceStore(path=tmp_path)

    def interrupted(_: LockedSource, size: int) -> None:
        raise KeyboardInterrupt(size)

    with pytest.raises(KeyboardInterrupt):
        fetch_all(
            store, [source(f"{server.url}/a.tgz")], downloader=shared, on_progress=interrupted
        )
    with pytest.raises(Interrupted):
        shared.fetch(f"{server.url}/a.tgz", tmp_path / "a")


def test_user_names_and_passwords_are_not_shown(server: Server, tmp_path: Path) -> None:
    secret = server.url.replace("://", "://user:secret@")
    server.files["/site/a.tgz"] = OTHER
    store = SourceStore(path=tmp_path, mirrors=(f"{secret}/site", f"{secret}/gone"))
    with pytest.raises(Changed) as changed:
        fetch_all(store, [source(f"{secret}/a.tgz")], downloader=downloader())
    with pytest.raises(Unfetched) as missing:
        fetch_all(store, [source(f"{secret}/b.tgz")], downloader=downloader())
    text = f"{changed.value}{missing.value}"
    assert f"{server.url}/site/a.tgz: the file differs from the locked one" in text
    assert f"{server.url}/gone/b.tgz: 127.0.0.1" in text
    assert "secret" not in text


@pytest.mark.parametrize("login", ["user:hush/x@h", "user:hush#x@h", "user:hush@h:99999"])
def test_the_password_of_an_invalid_proxy_is_not_shown(
    login: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("https_proxy", f"http://{login}")
    with pytest.raises(NotFetched, match=r"^h\.example: .*proxy.*is invalid$") as raised:
        downloader().fetch("https://h.example/f", tmp_path / "f")
    assert "hush" not in str(raised.value)


def test_the_name_of_a_debian_mirror_is_not_shown(server: Server, tmp_path: Path) -> None:
    wanted = LockedSource(
        url="debian-source:hello/1.0",
        file="hello_1.0.orig.tar.xz",
        sha256="0" * 64,
        size=1,
        path="pool/main/h/hello/hello_1.0.orig.tar.xz",
    )
    store = SourceStore(path=tmp_path, debian=f"{server.url}/debian")
    with pytest.raises(Unfetched) as caught:
        store.ensure(wanted, downloader=downloader())
    assert server.asked[0][0] == f"/debian/{wanted.path}"
    assert "/debian/pool" not in str(caught.value)
    assert server.url.removeprefix("http://") not in str(caught.value)
    with pytest.raises(Unfetched) as caught:
        fetch_all(SourceStore(path=tmp_path), [wanted], downloader=downloader())
    assert str(caught.value).splitlines() == [
        "1 source is not available:",
        f"hello_1.0.orig.tar.xz ({wanted.url}), sha256 {wanted.sha256}",
        "  no URL to fetch it from",
        (
            "  hint: name a mirror (sources: [URL] in site.yaml), or run build-images fetch on a "
            f"machine that reaches them, and copy its store to {tmp_path}"
        ),
    ]


class SlowDownloader(Downloader):
    """Writes in two pieces, and waits between them until another download has begun, or a while."""

    def __init__(self, begun: threading.Semaphore, content: bytes) -> None:
        super().__init__()
        self.begun, self.content = begun, content

    def fetch(self, url: str, target: Path, **_: Any) -> Fetched:  # noqa: ARG002
        with target.open("ab") as file:
            file.write(self.content)
            file.flush()
            self.begun.release()
            for _one in range(2):
                self.begun.acquire(timeout=0.2)
            file.write(self.content)
        return digest_of(target)


def test_two_runs_that_lock_one_source_do_not_mix(tmp_path: Path) -> None:
    begun = threading.Semaphore(0)
    url = "https://up.example/a.tgz"

    def run(content: bytes) -> list[LockedSource]:
        slow, store = SlowDownloader(begun, content), SourceStore(path=tmp_path)
        how = Locking(store=store, downloader=slow, resolve=lambda _: source(url))
        return lock_sources([SourceRequest(urls=(url,), recipes=())], Lock(), how)[0]

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(run, [b"1", b"2"]))
    assert found == [[source(url, b"11")], [source(url, b"22")]]
