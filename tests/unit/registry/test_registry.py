"""The client of registries, against one in memory that fails as registries and networks do."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from fake_registry import (
    LOGIN,
    Fake,
    Fault,
    challenge,
    client,
    digest,
    fake_registry,
    manifest,
    token,
)
from samples import compare_with_golden

from builder.model.errors import BadInput, BuildImagesError, Interrupted
from builder.registry import (
    MANIFEST,
    Credentials,
    Denied,
    Descriptor,
    Login,
    NotFound,
    Reference,
    Registry,
    RegistryFailed,
    Unreachable,
    WrongContent,
    blobs,
    connect,
    namespace,
)
from builder.registry.failures import Retries, Transient
from builder.registry.references import read_descriptor

CONTENT = bytes(range(256)) * 4000
BLOB = Descriptor(media_type="x", digest=digest(CONTENT), size=len(CONTENT))
SECRET = base64.b64encode(b"user:secret").decode()


def test_manifests_are_written_and_read_by_tag_and_digest(fake: Fake) -> None:
    registry, content = client(fake), manifest()
    written = registry.write_manifest(content, MANIFEST, "1.0")
    assert registry.resolve("1.0") == written
    assert registry.manifest(written) == registry.manifest(written.digest) == content
    assert registry.document("1.0")[1]["schemaVersion"] == 2
    with pytest.raises(NotFound, match=r"site/a: manifests/2\.0"):
        registry.resolve("2.0")


@pytest.mark.parametrize("target", ["1.0", digest(manifest())])
def test_a_wrong_byte_in_a_manifest_is_refused(target: str, fake: Fake) -> None:
    registry = client(fake)
    written = registry.write_manifest(manifest(), MANIFEST, "1.0")
    fake.faults = [Fault(pattern="GET .*/manifests/", changed=True, times=9)]
    if target == "1.0":  # nobody knows what is under a tag
        assert registry.resolve(target).digest != written.digest
        return
    with pytest.raises(WrongContent, match="the registry sent sha256:") as caught:
        registry.manifest(target)
    assert caught.value.exit_code == 5
    with pytest.raises(WrongContent):
        registry.manifest(written)


@pytest.mark.parametrize("target", ["../../b/manifests/c", "a/b", "sha256:00", "x\x1b[2J", "?a"])
def test_what_is_no_tag_is_not_written_to(target: str, fake: Fake) -> None:
    with pytest.raises(BadInput, match="is neither a tag nor a digest"):
        client(fake).write_manifest(b"{}", MANIFEST, target)
    assert fake.asked == []


@pytest.mark.parametrize(
    ("fault", "size"),
    [
        (Fault(pattern="manifests", status=200, headers={"Content-Length": "5000000"}), "5000000"),
        (Fault(pattern="manifests", chunked=True), "more than 4194304"),
    ],
)
def test_a_manifest_is_read_to_the_limit_alone(fault: Fault, size: str, fake: Fake) -> None:
    fake.manifests["site/a", "1.0"] = (b" " * (5 << 20), MANIFEST)
    fake.faults = [fault]
    with pytest.raises(WrongContent, match=f"it has {size} bytes; the limit is 4194304"):
        client(fake).resolve("1.0")
    fake.faults, fake.manifests["site/a", "1.0"] = [], (b" " * (4 << 20), MANIFEST)
    assert client(fake).resolve("1.0").size == 4 << 20


def test_what_a_registry_says_to_be_packed_is_taken_as_it_is(fake: Fake) -> None:
    """Unpacked, it had another digest, and any size."""
    fake.faults = [
        Fault(pattern="manifests", status=200, body=b"packed", headers={"Content-Encoding": "gzip"})
    ]
    assert client(fake).resolve("1.0").size == len(b"packed")


@pytest.mark.parametrize(
    "content", [b"[]", b"{", b"null", b"[" * 100_000, b'{"mediaType": "text/html"}']
)
def test_a_manifest_that_is_none_is_refused(content: bytes, fake: Fake) -> None:
    fake.manifests["site/a", "1.0"] = (content, MANIFEST)
    with pytest.raises(WrongContent, match="site/a: sha256:"):
        client(fake).document("1.0")


def test_a_blob_is_sent_once_and_read_back(fake: Fake, tmp_path: Path) -> None:
    registry, file = client(fake), tmp_path / "blob"
    file.write_bytes(CONTENT)
    assert registry.write_blob(file, media_type="x") == BLOB
    assert registry.write_blob(file, media_type="x", digest=BLOB.digest) == BLOB
    assert len(fake.requests("PUT")) == 1
    registry.read_blob(BLOB, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == CONTENT
    assert registry.small_blob(BLOB) == CONTENT


def test_a_file_that_holds_something_else_is_not_sent(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(WrongContent, match=f"expected {BLOB.digest}"):
        client(fake).write_blob(tmp_path / "blob", digest=BLOB.digest)
    assert not fake.requests("POST")


def test_a_blob_is_mounted_where_another_repository_has_it(fake: Fake) -> None:
    registry = client(fake)
    registry.sibling("site/b").write_blob(CONTENT)
    assert registry.mount_blob(BLOB.digest, "site/b")
    assert registry.has_blob(BLOB.digest)
    assert not registry.mount_blob(digest(b"?"), "site/b")
    assert fake.requests("DELETE .*/uploads/"), "an upload that nobody goes on with stays open"


def test_a_blob_that_breaks_off_goes_on_where_it_was(fake: Fake, tmp_path: Path) -> None:
    waits: list[float] = []
    registry = client(fake, wait=waits.append)
    registry.write_blob(CONTENT)
    fake.faults = [Fault(pattern="GET .*/blobs/", after=300_000, times=2)]
    registry.read_blob(BLOB, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == CONTENT
    ranges = [one.get("Range", "") for one in fake.requests("GET .*/blobs/")]
    assert ranges[0] == ""
    assert all(one.startswith("bytes=") and one != "bytes=0-" for one in ranges[1:])
    assert len(ranges) == 3
    assert waits


@pytest.mark.parametrize(
    ("wrong", "reason", "requests"),
    [
        (CONTENT[:-1] + b"?", "the registry sent sha256:", 1),
        (CONTENT + b"?", "it has more than 1024000 bytes", 1),
        (CONTENT * 9, "it has more than 1024000 bytes", 1),
        (CONTENT[:1000], "it ends after 1000 of 1024000 bytes", 2),
        (b"", "transfer failed: received 0 of 1024000 bytes", 5),
    ],
)
def test_a_blob_of_other_bytes_is_refused_and_gone(
    wrong: bytes, reason: str, requests: int, fake: Fake, tmp_path: Path
) -> None:
    fake.blobs["site/a", BLOB.digest] = wrong
    with pytest.raises((WrongContent, Unreachable), match=reason):
        client(fake).read_blob(BLOB, tmp_path / "blob")
    assert len(fake.requests("GET .*/blobs/")) == requests
    assert not (tmp_path / "blob").exists() or not (tmp_path / "blob").read_bytes()


def test_what_lay_there_is_gone_on_with_or_replaced(fake: Fake, tmp_path: Path) -> None:
    registry, file = client(fake), tmp_path / "blob"
    registry.write_blob(CONTENT)
    for there in (CONTENT[:500], b"?" * 500, CONTENT + b"more", CONTENT, b""):
        file.write_bytes(there)
        registry.read_blob(BLOB, file)
        assert file.read_bytes() == CONTENT
    ranges = [one.get("Range") for one in fake.requests("GET .*/blobs/")]
    assert ranges == ["bytes=500-", "bytes=500-", None, None, None]


@pytest.mark.parametrize("kept", [0, 300_000])
def test_an_upload_that_breaks_off_goes_on_where_it_was(
    kept: int, fake: Fake, tmp_path: Path
) -> None:
    (tmp_path / "blob").write_bytes(CONTENT)
    fake.faults = [Fault(pattern=r"PUT .*/uploads/", after=kept)]
    registry = client(fake)
    registry.write_blob(tmp_path / "blob")
    assert fake.blobs["site/a", BLOB.digest] == CONTENT
    parts = [one.get("Content-Range") for one in fake.requests("PATCH")]
    assert parts == ([f"{kept}-{len(CONTENT) - 1}"] if kept else [])


def test_pieces_are_sent_where_requests_are_limited(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "_PART", 400_000)
    fake.most_bytes = 400_000
    client(fake).write_blob(CONTENT)
    assert fake.blobs["site/a", BLOB.digest] == CONTENT
    assert len(fake.requests("PATCH")) == 3
    fake.most_bytes = 10
    with pytest.raises(RegistryFailed, match="answers 413"):
        client(fake).write_blob(CONTENT + b"?")


def test_an_upload_may_be_answered_without_content(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "_PART", 400_000)
    here = {"Location": "/v2/site/a/blobs/uploads/0?state=x"}
    fake.faults = [
        Fault(pattern="PUT", status=413),
        *(Fault(pattern=one, status=204, headers=here, times=9) for one in ("PATCH", "PUT")),
    ]
    assert client(fake).write_blob(CONTENT).digest == BLOB.digest
    kinds = {one["Content-Type"] for one in fake.requests("PATCH|PUT")}
    assert kinds == {"application/octet-stream"}
    parts = [one["Content-Range"] for one in fake.requests("PATCH")]
    assert parts == ["0-399999", "400000-799999", "800000-1023999"]
    assert fake.asked[-1][0] == f"PUT {here['Location']}&digest={BLOB.digest}"


def test_an_upload_that_never_comes_through_ends(fake: Fake) -> None:
    fake.faults = [Fault(pattern=r"PUT .*/uploads/", after=0, times=99)]
    with pytest.raises(Unreachable, match="no response"):
        client(fake).write_blob(CONTENT)
    assert len(fake.requests("PUT")) == 5
    assert not fake.blobs


def test_what_is_stopped_ends_at_its_next_piece(fake: Fake, tmp_path: Path) -> None:
    registry = connect(
        Reference.parse(f"{fake.host}/site/a"),
        Credentials(files=()),
        wait=lambda _: registry.stop(),
    )
    registry.write_blob(CONTENT)
    fake.faults = [Fault(pattern="GET .*/blobs/", after=300_000)]
    with pytest.raises(Interrupted):
        registry.read_blob(BLOB, tmp_path / "blob")
    assert 0 < (tmp_path / "blob").stat().st_size < len(CONTENT)
    other = client(fake)
    fake.before = lambda request: other.transport.sleep.stop() if "uploads" in request else None
    with pytest.raises(Interrupted):
        other.write_blob(CONTENT + b"?")
    assert digest(CONTENT + b"?") not in {name for _, name in fake.blobs}


def test_a_limit_of_requests_is_waited_for_as_long_as_it_says(fake: Fake) -> None:
    waits: list[float] = []
    registry = client(fake, wait=waits.append)
    registry.write_manifest(manifest(), MANIFEST, "1.0")
    fake.faults = [Fault(pattern="manifests", status=429, headers={"Retry-After": "7"}, times=2)]
    registry.resolve("1.0")
    assert waits == [7.0, 7.0]
    fake.faults = [Fault(pattern="manifests", status=429, headers={"Retry-After": "3600"})]
    with pytest.raises(RegistryFailed, match="answers 429"):
        registry.resolve("1.0")
    assert len(waits) == 2, "an hour is not waited for"


def test_a_failing_registry_is_asked_a_bounded_number_of_times(fake: Fake) -> None:
    waits: list[float] = []
    fake.faults = [Fault(pattern="manifests", status=500, times=99)]
    with pytest.raises(RegistryFailed, match="answers 500") as caught:
        client(fake, wait=waits.append).resolve("1.0")
    assert waits == [0.5, 1.0, 2.0, 4.0]
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "log in with"), (403, "this login lacks the permission")]
)
def test_a_refusal_is_said_as_what_it_is_and_not_repeated(
    status: int, hint: str, fake: Fake
) -> None:
    body = b'{"errors": [{"code": "DENIED", "message": "no\\nentry: http://u:secret@x/"}]}'
    fake.faults = [Fault(pattern="manifests", status=status, body=body, times=99)]
    with pytest.raises(Denied, match=f"answers {status} .*DENIED: no entry: http://x/") as caught:
        client(fake).resolve("1.0")
    assert hint in str(caught.value)
    assert caught.value.exit_code == 4
    assert len(fake.requests("manifests")) == 1


def test_a_password_that_was_refused_is_not_sent_again(fake: Fake) -> None:
    basic = {"WWW-Authenticate": 'Basic realm="tests"'}
    fake.faults = [Fault(pattern="manifests", status=401, headers=basic, times=99)]
    registry = client(fake, LOGIN)
    for asked in (2, 3):
        with pytest.raises(Denied):
            registry.resolve("1.0")
        assert len(fake.requests("manifests")) == asked


def test_a_token_is_asked_for_with_the_scope_and_never_shown(fake: Fake) -> None:
    refused = Fault(pattern="manifests", status=403, body=b"", times=9)
    fake.faults = [challenge(fake), token(), refused]
    with pytest.raises(Denied) as caught:
        client(fake, LOGIN).write_manifest(manifest(), MANIFEST, "1.0")
    [request] = fake.requests("/token")
    assert request["Authorization"] == f"Basic {SECRET}"
    [asked] = [request for request, _ in fake.asked if "/token" in request]
    scope = "repository%3Asite%2Fa%3Apull%2Cpush"
    assert asked == f"GET /token?service=reg&scope={scope}"
    assert fake.requests("manifests")[1]["Authorization"] == "Bearer granted"
    for secret in ("secret", SECRET, "granted"):
        assert secret not in f"{caught.value}{LOGIN!r}"


def test_an_identity_token_is_posted_never_put_into_a_url(fake: Fake) -> None:
    fake.faults = [challenge(fake), token(b'{"access_token": "granted"}')]
    client(fake, Login(identity_token="secret")).write_manifest(manifest(), MANIFEST, "1.0")
    assert [request for request, _ in fake.asked if "token" in request] == ["POST /token"]
    assert dict(parse_qsl(fake.bodies[-1].decode())) == {
        "grant_type": "refresh_token",
        "service": "reg",
        "scope": "repository:site/a:pull,push",
        "client_id": "build-images",
        "refresh_token": "secret",
    }
    [request] = fake.requests("/token")
    assert request["Content-Type"] == "application/x-www-form-urlencoded"
    assert request["User-Agent"] == "build-images"


def test_a_token_that_has_expired_is_renewed(fake: Fake) -> None:
    registry = client(fake)
    for name in (b"first", b"second"):
        fake.faults = [challenge(fake), token(b'{"token": "%s"}' % name)]
        registry.write_manifest(manifest(), MANIFEST, "1.0")
    assert fake.requests("manifests")[-1]["Authorization"] == "Bearer second"


@pytest.mark.parametrize(
    "answer",
    [
        b"[]",
        b"{}",
        b"?",
        b'{"token": 3}',
        b'{"token": "a b"}',
        '{"token": "gr\u0142nted"}'.encode(),
    ],
)
def test_a_server_of_tokens_that_gives_none(answer: bytes, fake: Fake) -> None:
    fake.faults = [challenge(fake), token(answer)]
    with pytest.raises(Denied, match="its token server returned no token"):
        client(fake).resolve("1.0")


def test_another_host_sees_no_credentials(fake: Fake, tmp_path: Path) -> None:
    with fake_registry() as other:
        other.blobs["site/a", BLOB.digest] = CONTENT
        where = {"Location": f"http://{other.host}/v2/site/a/blobs/{BLOB.digest}"}
        fake.faults = [
            Fault(pattern="blobs", status=401, headers={"WWW-Authenticate": "Basic"}),
            Fault(pattern="blobs", status=307, headers=where),
        ]
        client(fake, LOGIN).read_blob(BLOB, tmp_path / "blob")
        assert fake.requests("blobs")[1]["Authorization"] == f"Basic {SECRET}"
        [asked] = other.requests("blobs")
        assert "Authorization" not in asked


def test_redirects_that_never_end(fake: Fake) -> None:
    fake.faults = [Fault(pattern="manifests", status=307, headers={"Location": ""}, times=99)]
    fake.faults[0].headers["Location"] = f"http://{fake.host}/v2/site/a/manifests/1.0"
    with pytest.raises(RegistryFailed, match="more than 5 redirects"):
        client(fake).resolve("1.0")


def test_tags_come_in_pages(fake: Fake) -> None:
    registry = client(fake)
    assert registry.tags() == []
    for tag in ("a", "b", "c", "d", "e"):
        registry.write_manifest(manifest(), MANIFEST, tag)
    assert registry.tags() == ["a", "b", "c", "d", "e"]
    for status in (400, 405):
        for ask in (registry.tags, lambda: registry.resolve("a")):
            fake.faults = [Fault(pattern="tags|manifests", status=status)]
            with pytest.raises(RegistryFailed, match=f"answers {status}"):
                ask()


def test_a_registry_that_keeps_something_else_is_told(fake: Fake) -> None:
    headers = {"Docker-Content-Digest": digest(b"?")}
    fake.faults = [Fault(pattern="PUT .*manifests", status=201, headers=headers)]
    with pytest.raises(WrongContent, match="the registry stored it as sha256:"):
        client(fake).write_manifest(manifest(), MANIFEST, "1.0")


def test_a_registry_that_is_away() -> None:
    waits: list[float] = []
    registry = connect(Reference.parse("127.0.0.1:9/a/b"), Credentials(files=()), wait=waits.append)
    with pytest.raises(Unreachable, match=r"127.0.0.1:9/a/b: manifests/1: no response: ") as caught:
        registry.resolve("1")
    assert caught.value.exit_code == 4
    assert len(waits) == 4


@pytest.mark.parametrize(
    "proxy",
    [
        *("socks5://user:hush@h:9", "http://h:abc", "http://user:hush@[::1", "user:hush@h:9"),
        *("http://user:hush/x@h:9", "http://user:hush@", "http:///hush"),
    ],
)
def test_a_faulty_proxy_is_no_fault_of_the_registry(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    registry = connect(Reference.parse("registry.example/a"), Credentials(files=()))
    with pytest.raises(BadInput, match=r"^the proxy in .* cannot be used\n.*SOCKS") as caught:
        registry.resolve("1")
    assert "hush" not in str(caught.value)


def test_the_server_that_does_not_answer_is_named(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"Location": "http://127.0.0.1:9/x?secret"}
    fake.faults = [Fault(pattern="manifests", status=307, headers=where, times=99)]
    with pytest.raises(
        Unreachable, match=r"manifests/1: 127\.0\.0\.1:9: no response: Conn"
    ) as caught:
        client(fake).resolve("1")
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("https_proxy", "http://user:secret@127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    registry = connect(
        Reference.parse("registry.example/a"), Credentials(files=()), wait=lambda _: None
    )
    through = r"^registry.example/a: manifests/1 through the proxy 127.0.0.1:9: no response: "
    with pytest.raises(Unreachable, match=through):
        registry.resolve("1")


def test_a_registry_without_tls_is_a_host() -> None:
    """A login was accepted, and had no effect."""
    named = partial(connect, Reference.parse("quay.io/a"), Credentials(files=()))
    assert named(plain_http=("quay.io", "127.0.0.1:5000", "[::1]:5000", "localhost"))
    for host in ("u:hush@quay.io", "http://u:hush@quay.io", "quay.io/hush", "hush:"):
        with pytest.raises(BadInput, match=r"^--plain-http: not HOST or HOST:PORT$"):
            named(plain_http=("quay.io", host))


def test_an_authority_that_is_not_there(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(BadInput) as caught:
        client(fake).resolve("1")
    assert str(caught.value).splitlines() == [
        "SSL_CERT_FILE: /nowhere/ca.pem: cannot read certificates",
        (
            "  hint: for a site's own certificate authority, set SSL_CERT_FILE or "
            "REQUESTS_CA_BUNDLE; for a registry without TLS, use --plain-http HOST"
        ),
    ]


@pytest.mark.parametrize(
    "entry",
    [
        3,
        {},
        {"mediaType": "x", "digest": "sha256:00", "size": 1},
        {"mediaType": "x", "digest": digest(b""), "size": -1},
        {"mediaType": "x", "digest": digest(b""), "size": True},
        {"mediaType": "x", "digest": digest(b"") + "\n", "size": 1},
        {"mediaType": 3, "digest": digest(b""), "size": 1},
    ],
)
def test_a_descriptor_of_another_shape_is_refused(entry: object) -> None:
    with pytest.raises(WrongContent, match="here"):
        read_descriptor(entry, "here")


@pytest.mark.parametrize(
    ("code", "times", "waits"),
    [
        ("DIGEST_INVALID", 2, 2),
        ("MANIFEST_BLOB_UNKNOWN", 2, 2),
        ("BLOB_UNKNOWN", 4, 4),
        ("BLOB_UNKNOWN", 5, None),
        ("MANIFEST_INVALID", 1, None),
    ],
)
def test_blobs_that_another_client_writes_are_waited_for(
    code: str, times: int, waits: int | None, fake: Fake
) -> None:
    """A registry refuses a manifest whose blobs it is only about to have."""
    body = json.dumps({"errors": [{"code": code, "message": "not yet"}]}).encode()
    fake.faults = [Fault(pattern="PUT .*/manifests/", status=400, body=body, times=times)]
    waited: list[float] = []
    registry = client(fake, wait=waited.append)
    if waits is None:
        with pytest.raises(RegistryFailed, match="not yet") as caught:
            registry.write_manifest(b"{}", MANIFEST, "1.0")
        assert caught.value.__cause__ is None  # not itself: who looks for the first would not end
        return
    registry.write_manifest(b"{}", MANIFEST, "1.0")
    assert len(waited) == waits
    assert fake.tags("site/a") == {"1.0"}


def test_attempts_with_progress_have_an_end() -> None:
    gaining = Retries(lambda _: None)
    for _ in range(39):
        gaining.wait(Transient(RegistryFailed("busy")), gained=64 << 10)
    with pytest.raises(RegistryFailed, match="busy"):
        gaining.wait(Transient(RegistryFailed("busy")), gained=64 << 10)


WHY = b'{"errors": [{"code": "%s", "message": "why"}]}'
TEXT = {"Content-Type": "text/plain"}
SAYS: dict[str, dict[str, Any]] = {
    "401": {"status": 401, "body": WHY % b"UNAUTHORIZED"},
    "401 without a body": {"status": 401},
    "401 of a scope": {"status": 401, "headers": {"WWW-Authenticate": "insufficient_scope"}},
    "401 of a long challenge": {"status": 401, "headers": {"WWW-Authenticate": "x" * 9999}},
    "401 of no URL": {"status": 401, "headers": {"WWW-Authenticate": 'Bearer realm="x:y"'}},
    "403": {"status": 403, "body": b'{"errors": [{"message": "why"}]}'},
    "404": {"status": 404, "body": WHY % (b"X" * 99)},
    "409": {"status": 409, "body": b'{"errors": []}'},
    "500": {"status": 500, "body": WHY % b"", "times": 9},
    "a length in words": {"status": 200, "headers": {"Content-Length": "two"}},
    "a redirect to nowhere": {"status": 307, "headers": {"Location": "http://[x"}},
    "another type": {"status": 200, "body": b'{"mediaType": "x"}', "headers": TEXT},
    "no JSON": {"status": 200, "body": b"?", "headers": TEXT},
    "no object": {"status": 200, "body": b"[]", "headers": TEXT},
}


def of(content: bytes, size: int) -> Descriptor:
    return Descriptor(media_type="x", digest=digest(content), size=size)


DOES: dict[str, Callable[[Registry], object]] = {
    "another digest": lambda one: one.manifest(digest(b"?")),
    "another size": lambda one: one.manifest(of(manifest(), 3)),
    "another blob": lambda one: one.small_blob(of(b"?", 1)),
    "a large blob": lambda one: one.small_blob(of(b"?", 2), 1),
}


def test_what_is_said_of_failures(fake: Fake) -> None:
    """All of it: the failure, the registry's own words, the hint, and the exit code."""
    said: list[str] = []

    def note(name: str, ask: Callable[[], object]) -> None:
        with pytest.raises(BuildImagesError) as caught:
            ask()
        error = caught.value
        code = getattr(error, "code", ""), getattr(error, "status", 0), error.exit_code
        said.append(f"== {name}: {code}\n{error}".replace(fake.host, "HOST"))

    for name, fault in SAYS.items():
        fake.faults = [Fault(pattern="manifests", **fault)]
        note(name, lambda: client(fake).document("1.0"))
    for name in (digest(b"?"), digest(manifest())):
        fake.manifests["site/a", name] = (manifest(), MANIFEST)
    fake.blobs["site/a", digest(b"?")] = b"!"
    for name, does in DOES.items():
        note(name, partial(does, client(fake)))
    for text in ("quay.io", "me@quay.io", "quay.io/a:1"):
        note(text, partial(namespace, text, ()))
    compare_with_golden("\n".join([*said, ""]), "registry-errors.txt")
