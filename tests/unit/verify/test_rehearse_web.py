"""What servers answer a rehearsal, and what that proves: nothing, where one does not answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from builder.verify.rehearse import servers
from builder.verify.rehearse.servers import (
    Answer,
    Index,
    NotOnServer,
    Servers,
    Unavailable,
    read_url,
    served,
)

NOWHERE = "http://127.0.0.1:9"  # nobody listens at the port of `discard`


@dataclass
class Web:
    """A server on loopback: what it has by path, the status of other paths, what it was asked."""

    host: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  # that are announced, if they are wrong

    @property
    def url(self) -> str:
        return f"http://{self.host}"


@pytest.fixture
def web() -> Iterator[Web]:
    served = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(f"{self.command} {self.path}")
            served.accepted.append(self.headers.get("Accept", ""))
            content = served.files.get(self.path, b"")
            known = 200 if self.path in served.files else 404
            self.send_response(served.statuses.get(self.path, known))
            self.send_header("Content-Length", str(served.sizes.get(self.path, len(content))))
            self.send_header("Location", "/elsewhere")  # browsers follow it where the status asks
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


# Which servers answer.


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, Answer(has=True)),
        (204, Answer(has=True)),
        (404, Answer(has=False, text="HOST has no such file (404)")),
        (410, Answer(has=False, text="HOST has no such file (410)")),
        (403, Answer(has=None, text="HOST answers with status 403")),
        (503, Answer(has=None, text="HOST answers with status 503")),
    ],
)
def test_a_server_that_refuses_proves_nothing(web: Web, status: int, answer: Answer) -> None:
    web.statuses["/a"] = status
    response = Servers().ask(f"{web.url}/a")
    assert (response.has, response.text.replace(web.host, "HOST")) == (answer.has, answer.text)
    assert web.asked == ["HEAD /a"]


@pytest.mark.parametrize("has", [True, False])
def test_a_redirect_is_followed(web: Web, has: bool) -> None:
    web.statuses["/a"] = 302
    web.files |= {"/elsewhere": b"x"} if has else {}
    assert Servers().ask(f"{web.url}/a").has is has
    assert web.asked == ["HEAD /a", "HEAD /elsewhere"]


def test_a_server_is_asked_once_for_a_file_and_never_again_when_it_is_silent(web: Web) -> None:
    web.files["/a"] = b""
    web_servers = Servers()
    assert [web_servers.ask(f"{web.url}/a").has for _ in range(2)] == [True, True]
    assert web.asked == ["HEAD /a"]
    first = web_servers.ask(f"{NOWHERE}/a")
    assert first == Answer(has=None, text="127.0.0.1:9 cannot be reached: Connection refused")
    assert web_servers.ask(f"{NOWHERE}/b") is first


# Files of package repositories.


def test_a_file_of_a_repository_is_read(web: Web, tmp_path: Path) -> None:
    web.files["/dists/Packages"] = b"Package: a\n" * 200_000
    assert read_url(f"{web.url}/dists/Packages") == web.files["/dists/Packages"]
    (tmp_path / "a b").write_bytes(b"text")
    assert read_url(f"file://{tmp_path}/a%20b") == b"text"


@pytest.mark.parametrize(
    ("status", "is_gone", "reason"),
    [
        (404, True, r"it has no Packages \(404\)"),
        (410, True, r"it has no Packages \(410\)"),
        (403, False, "Packages cannot be read: 403 Client Error"),
        (500, False, "Packages cannot be read: 500 Server Error"),
    ],
)
def test_a_file_that_a_repository_lacks_is_told_from_one_that_cannot_be_read(
    web: Web, status: int, is_gone: bool, reason: str
) -> None:
    web.statuses["/dists/Packages"] = status
    with pytest.raises(Unavailable, match=f"^{reason}") as raised:
        read_url(f"{web.url}/dists/Packages")
    assert isinstance(raised.value, NotOnServer) == is_gone


def test_a_repository_that_does_not_answer_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        Unavailable, match=r"^127\.0\.0\.1:9 cannot be reached: Connection refused$"
    ):
        read_url(f"{NOWHERE}/a")
    with pytest.raises(NotOnServer, match=r"^it has no a$"):
        read_url(f"file://{tmp_path}/a")


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_a_file_may_be_as_large_as_the_limit(
    web: Web, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "LARGEST", 1 << 20)
    url = f"{web.url}/a" if scheme == "http" else f"file://{tmp_path}/a"
    for size, fits in [(1 << 20, True), ((1 << 20) + 1, False)]:
        web.files["/a"] = bytes(size)
        (tmp_path / "a").write_bytes(bytes(size))
        if fits:
            assert len(read_url(url)) == size
        else:
            with pytest.raises(Unavailable, match=r"^a is larger than 1 MiB$"):
                read_url(url)
    if scheme == "http":
        with pytest.raises(Unavailable, match=r"^a is larger than 0 MiB$"):
            read_url(url, limit=1)
        web.files["/a"], web.sizes["/a"] = b"", 2 << 20  # what is announced is enough to refuse it
        with pytest.raises(Unavailable, match=r"^a is larger than 1 MiB$"):
            read_url(url)


# An index of Python packages.


def test_an_index_is_asked_for_json(web: Web) -> None:
    row = {"filename": "a-1.0-py3-none-any.whl", "url": "../../a.whl"}
    web.files["/simple/a/"] = json.dumps({"files": [row]}).encode()
    web.files["/a.whl"] = b"wheel"
    index = Index(f"{web.url}/simple/")
    for _ in range(2):
        [file] = index.files("a")
        assert index.read(file.url) == b"wheel"
    assert index.files("b") == ()
    assert web.asked == ["GET /simple/a/", "GET /a.whl", "GET /simple/b/"]
    of_pages = "application/vnd.pypi.simple.v1+json"
    assert web.accepted == [of_pages, "*/*", of_pages]


def test_pages_that_are_served_here_are_answers_and_others_are_not_found() -> None:
    with served({"/a": b"page"}.get) as url:
        page, head, lost = requests.get(f"{url}a"), requests.head(f"{url}a"), requests.get(url)
    kind = "application/vnd.pypi.simple.v1+json"
    assert (page.status_code, page.content, page.headers["Content-Type"]) == (200, b"page", kind)
    assert (head.status_code, head.headers["Content-Length"]) == (200, "4")
    assert (lost.status_code, lost.content) == (404, b"")


def test_an_index_without_an_answer_of_use_proves_nothing(web: Web) -> None:
    web.files["/simple/html/"] = b"<html></html>"
    web.statuses["/simple/down/"] = 503
    index = Index(f"{web.url}/simple")
    with pytest.raises(Unavailable, match=f"^{web.host} has no JSON page of html$"):
        index.files("html")
    with pytest.raises(Unavailable, match=r"^down cannot be read: 503 Server Error"):
        index.files("down")
    with pytest.raises(Unavailable, match=r"^it has no a.whl \(404\)"):
        index.read(f"{web.url}/a.whl")
    with pytest.raises(
        Unavailable, match=r"^127\.0\.0\.1:9 cannot be reached: Connection refused$"
    ):
        Index(f"{NOWHERE}/simple").files("a")
