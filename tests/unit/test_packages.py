"""The cache of packages: what it keeps, what it never keeps, and what clients see."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from builder.packages import PackageCache, package_cache

CONTENT = bytes(range(256)) * 1000


class Mirror(BaseHTTPRequestHandler):
    """Serves CONTENT under every name; names say what goes wrong."""

    protocol_version = "HTTP/1.1"
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if "whoami" in self.path:
            self.answer(self.headers.get("Authorization", "").encode())
            return
        if "missing" in self.path:
            self.send_error(404)
            return
        if self.headers.get("If-Modified-Since"):
            self.send_response(304)
            self.end_headers()
            return
        self.send_response(200)
        size = len(CONTENT)
        if "endless" in self.path:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(CONTENT[: size // 2] if "broken" in self.path else CONTENT)
        if "broken" in self.path:
            self.close_connection = True

    def do_POST(self) -> None:
        if length := self.headers.get("Content-Length"):
            self.answer(self.rfile.read(int(length)))
            return
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        self.answer(body)

    def answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def mirror(asked: list[str]) -> Iterator[str]:
    handler = type("Handler", (Mirror,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[PackageCache]:
    with package_cache(tmp_path / "packages") as cache:
        yield cache


def session_of(cache: PackageCache) -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    session.proxies = {"http": cache.url}
    return session


def get(cache: PackageCache, url: str, **headers: str) -> requests.Response:
    session = requests.Session()
    session.trust_env = False
    return session.get(url, proxies={"http": cache.url}, headers=headers, timeout=10)


@pytest.mark.parametrize("name", ["a_1.0_amd64.deb", "b-1.x86_64.rpm", "c-1-py3-none-any.whl"])
def test_a_package_is_fetched_once(
    name: str, cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    for _ in range(3):
        answer = get(cache, f"{mirror}/pool/{name}")
        assert (answer.status_code, answer.content) == (200, CONTENT)
    assert asked == [f"/pool/{name}"]
    assert (cache.fetched, cache.taken, cache.taken_bytes) == (1, 2, 2 * len(CONTENT))


def test_it_is_there_in_the_next_run(tmp_path: Path, mirror: str, asked: list[str]) -> None:
    for _ in range(2):
        with package_cache(tmp_path / "packages") as cache:
            assert get(cache, f"{mirror}/a.deb").content == CONTENT
    assert asked == ["/a.deb"]


def test_indices_are_always_the_mirror_s_own(
    cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    for _ in range(2):
        assert get(cache, f"{mirror}/dists/trixie/InRelease").content == CONTENT
    assert len(asked) == 2
    answer = get(cache, f"{mirror}/dists/x", **{"If-Modified-Since": "x"})
    assert answer.status_code == 304
    assert not [one for one in cache.folder.rglob("*") if one.is_file()]


@pytest.mark.parametrize("name", ["missing.deb", "broken.deb", "endless.deb"])
def test_what_is_not_whole_is_not_kept(
    name: str, cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    for _ in range(2):
        try:
            answer = get(cache, f"{mirror}/{name}")
        except requests.RequestException:
            assert name == "broken.deb"
        else:
            assert answer.status_code == (404 if "missing" in name else 200)
    assert len(asked) == 2
    assert not [one for one in cache.folder.rglob("*") if one.is_file()]


def test_two_who_want_one_file_fetch_it_once(
    cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: get(cache, f"{mirror}/a.deb").content, range(8)))
    assert answers == [CONTENT] * 8
    assert asked == ["/a.deb"]


def test_a_server_that_is_away_is_said_to_be(cache: PackageCache) -> None:
    assert get(cache, "http://127.0.0.1:9/a.deb").status_code == 502


def test_it_is_a_proxy_and_nothing_else(cache: PackageCache) -> None:
    session = requests.Session()
    session.headers["Proxy-Authorization"] = cache.key
    assert session.get(f"{cache.url}/etc/passwd", timeout=10).status_code == 400


def test_it_is_for_those_alone_who_were_told_of_it(cache: PackageCache, mirror: str) -> None:
    address = cache.url.rpartition("@")[2]
    session = requests.Session()
    session.trust_env = False
    answer = session.get(f"{mirror}/a.deb", proxies={"http": f"http://{address}"}, timeout=10)
    assert answer.status_code == 407


def test_bodies_are_passed_on(cache: PackageCache, mirror: str) -> None:
    for body in (b"some text", iter([b"some ", b"text"])):
        answer = session_of(cache).post(f"{mirror}/echo", data=body, timeout=10)
        assert answer.content == b"some text"


def test_the_user_s_own_credentials_are_not_added(
    cache: PackageCache, mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    assert get(cache, f"{mirror}/whoami").content == b""


def test_what_one_client_was_given_for_its_credentials_is_not_kept(
    cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    for _ in range(2):
        get(cache, f"{mirror}/a.deb", Authorization="Basic eDp5")
    assert len(asked) == 2


def test_what_a_killed_run_left_is_not_taken_for_whole(tmp_path: Path, mirror: str) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "partial-abc").write_text("half")
    os.utime(folder / "partial-abc", (0, 0))
    with package_cache(folder) as cache:
        assert not (folder / "partial-abc").exists()
        assert get(cache, f"{mirror}/a.deb").content == CONTENT


def test_a_full_disk_costs_the_copy_alone(
    cache: PackageCache, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile._TemporaryFileWrapper.write", full, raising=False)
    assert get(cache, f"{mirror}/a.deb").content == CONTENT
