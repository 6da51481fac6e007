"""A registry in memory, on loopback, that does what a fault says instead of what it should."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from builder.registry import INDEX, MANIFEST, Credentials, Login, Reference, Registry, connect

LOGIN = Login(user="user", password="secret")


@dataclass
class Fault:
    """What goes wrong, `times` times, with requests whose `METHOD PATH` a pattern matches.

    `status` answers so; `after` resets the connection after so many bytes of the answer's body, or
    of the request's; `cut` ends it there as if that were all; `changed` changes its last byte;
    `chunked` does not say how long it is.
    """

    pattern: str
    times: int = 1
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    after: int = -1
    cut: int = -1
    changed: bool = False
    chunked: bool = False
    body: bytes = b""


@dataclass
class Fake:
    """What the registry holds, what it was asked, and what is to go wrong."""

    host: str = ""
    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[bytes, str]] = field(default_factory=dict)
    uploads: dict[str, bytearray] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)  # of requests that a fault answered
    faults: list[Fault] = field(default_factory=list)
    referrers: bool = False
    notes_subjects: bool = True
    mounts: bool = True
    started: int = 0
    most_bytes: int = 1 << 40
    before: Callable[[str], object] = lambda _: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def requests(self, pattern: str) -> list[dict[str, str]]:
        """The headers of the requests that a pattern matches."""
        return [headers for request, headers in self.asked if re.search(pattern, request)]

    def tags(self, repository: str) -> set[str]:
        """The tags of a repository."""
        names = {name for held, name in self.manifests if held == repository}
        return {name for name in names if ":" not in name}

    def take(self, request: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and re.search(fault.pattern, request):
                    fault.times -= 1
                    return fault
        return None


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait 40 ms for its headers

    @property
    def fake(self) -> Fake:
        found: Fake = self.server.fake  # type: ignore[attr-defined]
        return found

    def _serve(self) -> None:
        request = f"{self.command} {self.path}"
        self.fake.asked.append((request, dict(self.headers.items())))
        self.fake.before(request)
        self.fault = self.fake.take(request)
        if self.fault and self.fault.status:
            self.fake.bodies.append(self._content())
            self._send(self.fault.status, self.fault.body, self.fault.headers)
            return
        path = urlsplit(self.path).path
        for pattern, serve in _ROUTES:
            if found := re.fullmatch(pattern, path):
                serve(self, *found.groups())
                return
        self._content()
        self._send(404, b"")

    def _content(self, into: bytearray | None = None) -> bytes:
        """The body of the request; the part before a reset is kept in `into`."""
        length = int(self.headers.get("Content-Length") or 0)
        fault = getattr(self, "fault", None)
        if fault and fault.after >= 0 and self.command in {"PUT", "PATCH"}:
            data = self.rfile.read(min(length, fault.after))
            if into is not None:
                into.extend(data)
            self._reset()
        data = self.rfile.read(length)
        if into is not None:
            into.extend(data)
        return data

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.rfile.close()
        self.wfile.close()
        self.connection.close()
        raise ConnectionResetError

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        fault = getattr(self, "fault", None)
        if fault and fault.changed and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if fault and fault.cut >= 0:
            body = body[: fault.cut]
        self.send_response(status)
        length = {"Content-Length": str(len(body))}
        if fault and fault.chunked:
            length = {"Transfer-Encoding": "chunked"}
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        for name, value in {**length, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault and 0 <= fault.after < len(body):
            self.wfile.write(body[: fault.after])
            self.wfile.flush()
            time.sleep(0.1)  # a reset takes with it what the client has not read
            self._reset()
        self.wfile.write(body)

    def _blob(self, repository: str, name: str) -> None:
        body = self.fake.blobs.get((repository, name))
        if body is None:
            self._send(404, b"{}")
            return
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not found:
            self._send(200, body)
        elif int(found[1]) >= len(body):
            self._send(416, b"")
        else:
            start = int(found[1])
            part = f"bytes {start}-{len(body) - 1}/{len(body)}"
            self._send(206, body[start:], {"Content-Range": part})

    def _start_upload(self, repository: str) -> None:
        query = parse_qs(urlsplit(self.path).query)
        self._content()
        if "mount" in query and self.fake.mounts:
            body = self.fake.blobs.get((query["from"][0], query["mount"][0]))
            if body is not None:
                self.fake.blobs[repository, query["mount"][0]] = body
                self._send(201, b"")
                return
        with self.fake.lock:
            name = str(self.fake.started)
            self.fake.started += 1
            self.fake.uploads[name] = bytearray()
        self._send(202, b"", {"Location": f"/v2/{repository}/blobs/uploads/{name}"})

    def _upload(self, repository: str, name: str) -> None:
        there = self.fake.uploads.get(name)
        if there is None or self.command == "DELETE":
            self._content()
            self.fake.uploads.pop(name, None)
            self._send(404 if there is None else 204, b"")
            return
        location = {"Location": f"/v2/{repository}/blobs/uploads/{name}"}
        if self.command == "GET":
            self._send(204, b"", {**location, "Range": f"0-{max(len(there) - 1, 0)}"})
            return
        if int(self.headers.get("Content-Length") or 0) > self.fake.most_bytes:
            self._content()
            self._send(413, b"")
            return
        self._content(there)
        if self.command == "PATCH":
            self._send(202, b"", {**location, "Range": f"0-{len(there) - 1}"})
            return
        wanted = parse_qs(urlsplit(self.path).query)["digest"][0]
        if digest(bytes(there)) != wanted:
            self._send(400, b'{"errors": [{"code": "DIGEST_INVALID", "message": "wrong"}]}')
            return
        self.fake.blobs[repository, wanted] = bytes(there)
        self._send(201, b"")

    def _manifest(self, repository: str, name: str) -> None:
        if self.command == "PUT":
            body = self._content()
            kind = self.headers["Content-Type"]
            for key in (name, digest(body)):
                self.fake.manifests[repository, key] = (body, kind)
            noted = self.fake.notes_subjects and self.fake.referrers and b'"subject"' in body
            self._send(201, b"", {"OCI-Subject": "yes"} if noted else {})
            return
        if self.command == "DELETE":
            there = self.fake.manifests.pop((repository, name), None)
            self._send(202 if there else 404, b"")
            return
        body, kind = self.fake.manifests.get((repository, name), (b"", ""))
        self._send(200 if kind else 404, body or b"{}", {"Content-Type": kind} if kind else {})

    def _tags(self, repository: str) -> None:
        tags = sorted(self.fake.tags(repository))
        query = parse_qs(urlsplit(self.path).query)
        last = query.get("last", [""])[0]
        rest = [tag for tag in tags if tag > last]
        more = len(rest) > 2
        link = {"Link": f'</v2/{repository}/tags/list?last={rest[1]}>; rel="next"'} if more else {}
        body = json.dumps({"name": repository, "tags": rest[:2]}).encode()
        self._send(200 if tags else 404, body, link)

    def _referrers(self, repository: str, name: str) -> None:
        if not self.fake.referrers:
            self._send(404, b"{}")
            return
        found: dict[str, Any] = {}
        for (held, _), (body, kind) in self.fake.manifests.items():
            parsed = json.loads(body)
            if held == repository and parsed.get("subject", {}).get("digest") == name:
                found[digest(body)] = {
                    "mediaType": kind,
                    "digest": digest(body),
                    "size": len(body),
                    "artifactType": parsed.get("artifactType", ""),
                }
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(found.values())}
        self._send(200, json.dumps(index).encode(), {"Content-Type": INDEX})

    def _ping(self) -> None:
        self._send(200, b"{}")

    def log_message(self, *_: object) -> None:
        pass


for _method in ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._serve)

_ROUTES: list[tuple[str, Callable[..., None]]] = [
    (r"/v2/", _Handler._ping),
    (r"/v2/(.+)/blobs/uploads/", _Handler._start_upload),
    (r"/v2/(.+)/blobs/uploads/(\w+)", _Handler._upload),
    (r"/v2/(.+)/blobs/(sha256:\w+)", _Handler._blob),
    (r"/v2/(.+)/manifests/([^/]+)", _Handler._manifest),
    (r"/v2/(.+)/tags/list", _Handler._tags),
    (r"/v2/(.+)/referrers/(sha256:\w+)", _Handler._referrers),
]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A reset that was asked for."""


@contextlib.contextmanager
def fake_registry() -> Iterator[Fake]:
    """A registry that is there for a block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    fake = Fake(host=f"127.0.0.1:{server.server_address[1]}")
    server.fake = fake  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def client(
    fake: Fake,
    login: Login | None = None,
    *,
    wait: Callable[[float], object] | None = lambda _: None,
) -> Registry:
    """A client of the repository site/a."""
    credentials = Credentials(logins={fake.host: login} if login else {}, files=())
    return connect(Reference.parse(f"{fake.host}/site/a"), credentials, wait=wait)


def manifest(**more: object) -> bytes:
    return json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, **more}).encode()


def challenge(fake: Fake, pattern: str = "manifests", **more: Any) -> Fault:
    """Answer 401 once, and name the registry's own server of tokens."""
    realm = {"WWW-Authenticate": f'Bearer realm="http://{fake.host}/token",service="reg"'}
    return Fault(pattern=pattern, status=401, headers=realm, **more)


def token(answer: bytes = b'{"token": "granted"}', pattern: str = "/token") -> Fault:
    """The answer of the server of tokens."""
    return Fault(pattern=pattern, status=200, body=answer)
