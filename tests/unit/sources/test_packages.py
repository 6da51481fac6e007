"""The cache of packages: what it keeps, what it never keeps, and what clients see."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from requests.auth import _basic_auth_str
from web_server import Answering, client, serving

from builder.model.errors import Interrupted, StepFailed
from builder.sources import upstream
from builder.sources.package_cache import PackageCache
from builder.sources.package_proxy import package_cache, pip_configuration, rewrite_links, via
from builder.system.host_facts import own_index
from builder.system.process import Completed, Processes

CONTENT = bytes(range(256)) * 1000
HOPS = (  # of one connection alone: https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1
    *("Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization"),
    *("Proxy-Connection", "TE", "Trailer", "Upgrade"),
)


class Mirror(Answering):
    """Serves CONTENT under every name; names say what goes wrong."""

    asked: list[str]

    def get(self) -> None:
        self.asked.append(self.path)
        if "whoami" in self.path:
            self.answer(self.headers.get("Authorization", "").encode())
        elif "headers" in self.path:
            hops = {name.replace("-", "_"): "1" for name in HOPS}
            self.answer(json.dumps(dict(self.headers)).encode(), 200, ETag='"1"', **hops)
        elif "portal" in self.path:
            self.answer(b"Log in", Content_Type="text/html")
        elif "missing" in self.path:
            self.send_error(404)
        elif self.headers.get("If-Modified-Since"):
            self.send_response(304)
            self.end_headers()
        elif "endless" in self.path:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(CONTENT)
        elif "broken" in self.path:
            self.close_connection = True
            self.answer(CONTENT[: len(CONTENT) // 2], Content_Length=str(len(CONTENT)))
        else:
            self.answer(CONTENT)

    def post(self) -> None:
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def mirror(asked: list[str]) -> Iterator[str]:
    with serving(Mirror, asked=asked) as url:
        yield url


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[PackageCache]:
    with package_cache(tmp_path / "packages") as cache:
        yield cache


def get(cache: PackageCache, url: str, **headers: str) -> requests.Response:
    return client(cache.url).get(url, headers=headers, timeout=10)


@pytest.mark.parametrize(
    "name",
    ["a_1.0_amd64.deb", "a.udeb", "b-1.x86_64.rpm", "c-1-py3-none-any.whl", "d.tar.gz", "e.zip"],
)
def test_a_package_is_fetched_once(
    name: str, cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    """An archive of source, which may change under its name elsewhere, from an index only."""
    url = f"{mirror}/pool/{name}"
    for _ in range(3):
        if name.endswith((".tar.gz", ".zip")):
            answer = client().get(via(url, cache.url), timeout=10)
        else:
            answer = get(cache, url)
        assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert asked == [f"/pool/{name}"]
    place = cache.place(url, listed=True)
    assert place
    assert place.stat().st_mode & 0o777 == 0o644
    assert (cache.fetched, cache.taken, cache.taken_bytes) == (1, 2, 2 * len(CONTENT))


def test_it_is_there_in_the_next_run(tmp_path: Path, mirror: str, asked: list[str]) -> None:
    """Its last use is noted, for gc."""
    for _ in range(2):
        with package_cache(tmp_path / "packages") as cache:
            assert get(cache, f"{mirror}/a.deb").content == CONTENT
        [file] = cache.folder.glob("*/*a.deb")
        used = file.stat().st_mtime
        os.utime(file, (0, 0))
    assert asked == ["/a.deb"]
    assert used > time.time() - 3600


def test_indices_are_always_the_mirror_s_own(
    cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    for path in ("dists/trixie/InRelease", "a.tar.gz") * 2:
        assert get(cache, f"{mirror}/{path}").content == CONTENT
    assert len(asked) == 4
    answer = get(cache, f"{mirror}/dists/x", **{"If-Modified-Since": "x"})
    assert answer.status_code == 304
    assert not [one for one in cache.folder.rglob("*") if one.is_file()]


@pytest.mark.parametrize("name", ["missing.deb", "broken.deb", "endless.deb", "portal.deb"])
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


def install(cache: PackageCache, urls: Sequence[str], error: Exception) -> None:
    """A step that downloads and then fails."""
    with cache.step():
        for url in urls:
            get(cache, url)
        raise error


def test_what_a_failed_step_was_given_is_fetched_anew(
    cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    """The package manager may have refused it; what was given before the step stays."""
    get(cache, f"{mirror}/before.deb")
    get(cache, f"{mirror}/taken.deb")
    names = [f"{mirror}/{name}.deb" for name in ("taken", "fetched")]
    with pytest.raises(StepFailed, match="refused"):
        install(cache, names, StepFailed("refused"))
    assert cache.suspected == 2
    for name in ("before", "taken", "fetched"):
        get(cache, f"{mirror}/{name}.deb")
    counted = [asked.count(f"/{name}.deb") for name in ("before", "taken", "fetched")]
    assert counted == [1, 2, 2]


def test_a_failed_step_takes_nothing_from_others(
    cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    """What it was given stays until it was fetched anew, and offline for good."""
    get(cache, f"{mirror}/need.deb")
    get(cache, f"{mirror}/need.deb")  # which waits until it is kept
    [kept] = cache.folder.glob("*/*need.deb")
    for offline in (True, False):
        cache.offline = offline
        with pytest.raises(StepFailed):
            install(cache, [f"{mirror}/need.deb"], StepFailed("a compiler's error"))
        assert kept.read_bytes() == CONTENT
        assert cache.is_good(kept) == offline
    cache.offline = True
    assert get(cache, f"{mirror}/need.deb").content == CONTENT
    assert len(asked) == 1
    cache.offline = False
    assert get(cache, f"{mirror}/need.deb").content == CONTENT
    assert get(cache, f"{mirror}/need.deb").content == CONTENT
    assert len(asked) == 2
    assert cache.is_good(kept)


def test_what_is_on_its_way_when_a_step_fails_is_kept_and_suspected(
    cache: PackageCache, tmp_path: Path
) -> None:
    place, partial = cache.folder / "aa" / "x.deb", tmp_path / "partial"
    partial.write_bytes(b"x")

    def fails() -> None:
        with cache.step():
            cache.begin(place)
            raise StepFailed("beside it")

    with pytest.raises(StepFailed):
        fails()
    cache.keep(partial, place)
    assert place.read_bytes() == b"x"
    assert not cache.is_good(place)


def test_a_step_that_ends_well_or_is_interrupted_drops_nothing(
    cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    with cache.step():
        get(cache, f"{mirror}/a.deb")
    with pytest.raises(Interrupted):
        install(cache, [f"{mirror}/a.deb"], Interrupted("Ctrl-C"))
    get(cache, f"{mirror}/a.deb")
    assert asked == ["/a.deb"]
    assert cache.suspected == 0


def test_clients_are_told_how_to_send_the_key(cache: PackageCache, mirror: str) -> None:
    """dnf's sends nothing before it is asked: https://www.rfc-editor.org/rfc/rfc9110#section-11.7.1"""
    url = via(f"{mirror}/simple/x/", cache.address)
    for answer in (
        client(cache.address).get(f"{mirror}/a.deb", timeout=10),
        client(cache.address).get(f"{mirror}/a.deb", auth=("run", cache.secret), timeout=10),
        requests.get(url, timeout=10),
        requests.get(url, auth=("run", "guessed"), timeout=10),
        requests.get(url, headers={"Authorization": "Basic a"}, timeout=10),
    ):
        refusal = answer.status_code, answer.headers["Proxy-Authenticate"]
        assert refusal == (407, 'Basic realm="one run"')
        assert (answer.headers["Content-Length"], answer.headers["Connection"]) == ("0", "close")


def test_two_who_want_one_file_fetch_it_once(
    cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: get(cache, f"{mirror}/a.deb").content, range(8)))
    assert answers == [CONTENT] * 8
    assert asked == ["/a.deb"]


def test_a_server_is_sent_what_concerns_it(cache: PackageCache, mirror: str) -> None:
    """Not the run's key; nor are pages asked for whose links would not lead through the cache."""
    of_hops = dict.fromkeys({*HOPS} - {"Connection", "Proxy-Authorization"}, "x")
    answer = get(cache, f"{mirror}/headers", **{"X-Own": "1", "Accept": "a/b", **of_hops})
    sent = {"Host": urlsplit(mirror).netloc, "Accept-Encoding": "identity", "X-Own": "1"}
    assert answer.json().items() >= {**sent, "Accept": "a/b"}.items()
    assert not answer.json().keys() & {*HOPS} - {"Connection"}
    assert not answer.headers.keys() & {*HOPS}
    assert answer.headers["ETag"] == '"1"'
    assert "," not in answer.headers["Server"], "the cache's own, and not the server's, too"
    listed = json.loads(by_index(cache, f"{mirror}/headers"))
    assert listed["Accept"] == "text/html, */*;q=0.1"
    assert "Authorization" not in listed


def test_a_head_is_answered_without_a_body_and_not_kept(
    cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    with client(cache.url) as session:
        for name in ("a.deb", "portal"):
            url = f"{mirror}/{name}"
            head = session.head(url if name == "a.deb" else via(url, cache.url), timeout=10)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["Content-Length"] == str(6 if name == "portal" else len(CONTENT))
        assert session.get(f"{mirror}/a.deb", timeout=10).content == CONTENT
    assert asked == ["/a.deb", "/portal", "/a.deb"]


def test_the_place_of_a_file_has_a_name_that_every_disk_takes(cache: PackageCache) -> None:
    place = cache.place(f"http://mirror.example/pool/{'a' * 300}_1%3a2.0_all.deb")
    assert place
    assert place.parent == cache.folder / place.name[:2]
    assert (len(place.name), place.name[24:27]) == (185, "-aa")
    assert place.name.endswith("a_1_2.0_all.deb")


def test_a_server_that_is_away_is_said_to_be(cache: PackageCache) -> None:
    answer = get(cache, "http://127.0.0.1:9/a.deb")
    assert (answer.status_code, answer.reason) == (502, "ConnectionError at the server")


def test_it_is_a_proxy_and_nothing_else(cache: PackageCache) -> None:
    session = requests.Session()
    session.headers["Proxy-Authorization"] = _basic_auth_str("run", cache.secret)
    answer = session.get(f"{cache.url}/etc/passwd", timeout=10)
    assert (answer.status_code, answer.reason) == (400, "this proxy supports only http:// URLs")


def test_a_body_of_known_length_is_passed_on(cache: PackageCache, mirror: str) -> None:
    for body, status in ((b"some text", 200), (iter([b"some ", b"text"]), 411)):
        answer = client(cache.url).post(f"{mirror}/echo", data=body, timeout=10)
        assert answer.status_code == status
        assert status == 411 or answer.content == b"some text"


def test_a_body_that_breaks_off_reaches_no_end(cache: PackageCache, mirror: str) -> None:
    at = urlsplit(cache.address)
    request = (
        f"POST {mirror}/echo HTTP/1.1\r\nHost: {urlsplit(mirror).netloc}\r\n"
        f"Proxy-Authorization: {_basic_auth_str('run', cache.secret)}\r\n"
        "Content-Length: 90\r\n\r\nsome"
    )
    with socket.create_connection((at.hostname or "", at.port or 0), timeout=10) as caller:
        caller.sendall(request.encode())
        caller.shutdown(socket.SHUT_WR)
        assert b"200 OK" not in b"".join(iter(lambda: caller.recv(1 << 16), b""))


def peak_of(work: Callable[[], object]) -> int:
    """The most memory, in bytes, that Python held while something was done."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Endless(Answering):
    """Takes a body of any length, and gives a page of the length that its path says."""

    def get(self) -> None:
        size = int(self.path.rpartition("/")[2])
        self.answer(Content_Type="text/html", Content_Length=str(size))
        for _ in range(size >> 16):
            self.wfile.write(b" " * (1 << 16))

    def post(self) -> None:
        remaining = total = int(self.headers["Content-Length"])
        while remaining:
            remaining -= len(self.rfile.read(min(remaining, 1 << 16)))
        self.answer(str(total).encode())


@pytest.fixture
def endless() -> Iterator[str]:
    with serving(Endless) as url:
        yield url


def test_no_body_is_held_whole(cache: PackageCache, endless: str, tmp_path: Path) -> None:
    size = 32 << 20
    with (tmp_path / "body").open("w+b") as body:
        body.truncate(size)

        def post() -> None:
            answer = client(cache.url).post(f"{endless}/", data=body, timeout=30)
            assert answer.content == str(size).encode()

        assert peak_of(post) < size >> 1


def test_a_page_that_is_too_long_is_an_error(
    cache: PackageCache, endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "_MOST_PAGE", 1 << 20)
    assert len(by_index(cache, f"{endless}/{1 << 20}")) == 1 << 20
    url = via(f"{endless}/{(1 << 20) + (1 << 16)}", cache.url)
    answer = client().get(url, timeout=10)
    assert (answer.status_code, answer.reason) == (502, "the server's page is too long")


def test_the_user_s_own_credentials_are_not_added(
    cache: PackageCache, mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    assert get(cache, f"{mirror}/whoami").content == b""


class Leading(Mirror):
    """A mirror that also leads elsewhere: /to/URL."""

    def get(self) -> None:
        if self.path.startswith("/to/"):
            self.answer(b"gone", 302, Location=self.path.removeprefix("/to/"))
        else:
            super().get()


@pytest.fixture
def leading() -> Iterator[str]:
    with serving(Leading, asked=[]) as url:
        yield url


def by_index(cache: PackageCache, url: str) -> bytes:
    """What is got as pip gets it: by the cache's own address."""
    return client().get(via(url, cache.url), timeout=10).content


BASIC = b"Basic " + base64.b64encode(b"me:secret")


def test_an_index_s_login_is_for_its_origin_alone(
    cache: PackageCache, mirror: str, leading: str
) -> None:
    host = mirror.removeprefix("http://")
    cache.logins["https", host] = "me", "secret"
    assert get(cache, f"{mirror}/whoami").content == b""
    assert by_index(cache, f"{mirror}/whoami") == b""
    cache.logins["http", host] = "me", "secret"
    assert get(cache, f"{mirror}/whoami").content == b""  # no index's request
    assert by_index(cache, f"{mirror}/whoami") == BASIC
    cache.logins.clear()
    cache.logins["http", leading.removeprefix("http://")] = "me", "secret"
    assert by_index(cache, f"{leading}/whoami") == BASIC
    assert by_index(cache, f"{leading}/to/{mirror}/whoami") == b""


def test_a_redirect_is_sent_no_login_of_the_user_s(
    cache: PackageCache, mirror: str, leading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("machine localhost login someone password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    there = mirror.replace("127.0.0.1", "localhost")
    assert requests.get(f"{leading}/to/{there}/whoami", timeout=10).content.startswith(b"Basic")
    assert by_index(cache, f"{leading}/to/{there}/whoami") == b""


def test_an_index_s_refusal_stays_one(cache: PackageCache, mirror: str) -> None:
    answer = client().get(via(f"{mirror}/missing", cache.url), timeout=10)
    assert (answer.status_code, answer.headers["Content-Type"][:9]) == (404, "text/html")
    assert answer.reason == "Not Found"  # which apt shows


class Verbose(Mirror):
    """A server whose redirects have a body that is longer than any page."""

    def get(self) -> None:
        if self.path != "/a":
            super().get()
            return
        self.close_connection = True
        self.send_response(302)
        self.send_header("Location", "/b")
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(2000):
                self.wfile.write(bytes(1 << 16))
            self.asked.append("all of it")


def test_the_body_of_a_redirect_is_not_read(cache: PackageCache, asked: list[str]) -> None:
    with serving(Verbose, asked=asked) as url:
        assert by_index(cache, f"{url}/a") == CONTENT
    assert asked == ["/b"]


def test_redirects_come_to_an_end(cache: PackageCache, leading: str) -> None:
    for redirects, status in ((10, 200), (11, 502)):
        url = via(leading + f"/to/{leading}" * redirects + "/whoami", cache.url)
        assert client().get(url, timeout=10).status_code == status


def test_a_redirect_of_a_mirror_is_passed_on_whole(cache: PackageCache, leading: str) -> None:
    url = f"{leading}/to/{leading}/a.deb"
    answer = client(cache.url).get(url, allow_redirects=False, timeout=10)
    assert (answer.status_code, answer.content) == (302, b"gone")


@pytest.mark.parametrize("name", ["Authorization", "Cookie", "Range"])
def test_what_one_client_was_given_for_itself_is_not_kept(
    name: str, cache: PackageCache, mirror: str, asked: list[str]
) -> None:
    for _ in range(2):
        get(cache, f"{mirror}/a.deb", **{name: "a=b"})
    assert len(asked) == 2


def test_what_a_killed_run_left_is_not_taken_for_whole(tmp_path: Path, mirror: str) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "partial-abc").write_text("half")
    os.utime(folder / "partial-abc", (0, 0))
    (folder / "partial-new").touch()  # another run may be writing it
    with package_cache(folder) as cache:
        assert [one.name for one in folder.iterdir()] == ["partial-new"]
        assert get(cache, f"{mirror}/a.deb").content == CONTENT


def test_a_full_disk_costs_the_copy_alone(
    cache: PackageCache, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile._TemporaryFileWrapper.write", full, raising=False)
    assert get(cache, f"{mirror}/a.deb").content == CONTENT


# pip: an index that is led through the cache.


def wheel() -> bytes:
    """A package with nothing in it: https://packaging.python.org/en/latest/specifications/binary-distribution-format/"""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("tiny.py", "")
        file.writestr(
            "tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
        )
        file.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr("tiny-1.0.dist-info/RECORD", "")
    return buffer.getvalue()


class Index(Answering):
    """Serves one package, whose page has a link of the kind that `links` says, for a login."""

    asked: list[str]
    links: str
    content = wheel()
    sha256 = hashlib.sha256(content).hexdigest()

    def get(self) -> None:
        self.asked.append(self.path)
        if self.headers.get("Authorization") != BASIC.decode():
            self.send_error(401)
        elif self.path.endswith(".whl"):
            self.answer(self.content, Content_Type="application/octet-stream")
        elif self.path == "/simple/tiny/":
            here = {"absolute": f"http://{self.headers['Host']}", "rooted": ""}
            link = f"{here.get(self.links, '../..')}/files/tiny-1.0-py3-none-any.whl"
            page = f'<a href="{link}#sha256={self.sha256}">tiny</a>'
            self.answer(page.encode(), Content_Type="text/html; charset=utf-8")
        else:
            self.send_error(404)


class OwnIndex(Processes):
    """A pip that says which its index is."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def capture(self, argv: Sequence[Any], **_: Any) -> Completed:
        return Completed(argv=tuple(argv), returncode=0, stdout=f"global.index-url='{self.url}'\n")


def download(config: Path, target: Path, **environment: str) -> str:
    """What pip says as it downloads the package, as a build step would."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "tiny"],
        env={"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": str(config), **environment},
        cwd=target,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("links", "by_proxy"), [("absolute", True), ("rooted", False), ("relative", True)]
)
def test_pip_downloads_a_wheel_once(
    links: str, by_proxy: bool, asked: list[str], cache: PackageCache, tmp_path: Path
) -> None:
    environment = {"http_proxy": cache.url} if by_proxy else {}
    with serving(Index, asked=asked, links=links) as url:
        index = OwnIndex(f"{url.replace('//', '//me:secret@')}/simple")
        with pip_configuration(cache, tmp_path / "tmp", index) as folder:
            config = Path(folder) / "pip.conf"
            assert "secret" not in config.read_text()
            for name in ("one", "two"):
                (tmp_path / name).mkdir()
                said = download(config, tmp_path / name, **environment)
                assert "Successfully downloaded tiny" in said
                assert (tmp_path / name / "tiny-1.0-py3-none-any.whl").read_bytes() == Index.content
            assert cache.journals.index == f"{url}/simple"
            secret = cache.url.partition("run:")[2].partition("@")[0]
            assert secret not in said  # it is in the log of the build
    assert [one.rpartition("/")[2] for one in asked].count("tiny-1.0-py3-none-any.whl") == 1
    assert (cache.taken, cache.fetched) == (1, 1)
    assert not Path(folder).exists()


def test_pip_refuses_a_wheel_of_another_checksum(
    asked: list[str], cache: PackageCache, tmp_path: Path
) -> None:
    with serving(Index, asked=asked, links="rooted", sha256="0" * 64) as url:
        index = OwnIndex(f"{url.replace('//', '//me:secret@')}/simple")
        with pip_configuration(cache, tmp_path / "tmp", index) as folder:
            said = download(Path(folder) / "pip.conf", tmp_path, http_proxy=cache.url)
    assert "DO NOT MATCH THE HASHES" in said


@pytest.mark.parametrize("path", ["/via/ftp/host/x", "/via/", "/other", "/via/file//etc/passwd"])
def test_nothing_else_leads_through(path: str, cache: PackageCache) -> None:
    url = cache.url + path
    assert requests.get(url, timeout=10).status_code in {400, 407}


def test_without_pip_there_is_no_configuration(cache: PackageCache, tmp_path: Path) -> None:
    """Offline, the index that was used last is as good."""
    with pip_configuration(cache, tmp_path, OwnIndex("")) as folder:
        assert folder == ""
    with pip_configuration(cache, tmp_path, OwnIndex("https://token@own.example/simple")):
        assert cache.logins == {("https", "own.example"): ("token", "")}
    cache.journals.note_index("http://index.example/simple")
    cache.offline = True
    with pip_configuration(cache, tmp_path, OwnIndex("http://other.example/")) as folder:
        config = (Path(folder) / "pip.conf").read_text()
    index = f"{cache.url}/via/http/index.example/simple"
    assert config == f"[global]\nindex-url = {index}\n"


def test_this_machine_s_pip_has_an_index() -> None:
    assert own_index(Processes()).startswith("http")


@pytest.mark.parametrize(
    ("config", "usage", "index"),
    [
        (":env:.index-url='https://a.example/x'\n", "", "https://a.example/x"),
        ("global.timeout='9'\nsite.index-url='https://b.example'", "", "https://b.example"),
        (
            "wheel.index-url='https://c.example'",
            "(default\n https://d.example)",
            "https://d.example",
        ),
        ("", "(default d)", ""),
    ],
)
def test_the_index_is_the_one_that_pip_is_configured_for(
    config: str, usage: str, index: str
) -> None:
    class Pip(Processes):
        def capture(self, argv: Any, **_: object) -> Completed:
            said = {("config", "list"): config, ("install", "--help"): usage}
            assert argv[:3] == [sys.executable, "-m", "pip"]
            return Completed(argv=argv, returncode=0, stdout=said[tuple(argv[3:])])

    assert own_index(Pip()) == index


def test_a_page_of_anchors_without_an_end_is_read_in_one_pass() -> None:
    """Of a hostile index; read again from each of them, it would take hours."""
    page = b"<a " * 500_000
    assert rewrite_links(page, "https://index.example/simple/") == page
