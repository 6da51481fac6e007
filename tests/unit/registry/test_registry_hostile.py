"""Registries that try to get at secrets, or to break the client: refused, in a sentence."""

from __future__ import annotations

import base64
import email.utils
import json
import math
import socket
import time
from functools import partial
from pathlib import Path

import pytest
from fake_registry import LOGIN, Fake, Fault, challenge, digest, fake_registry, token
from fake_registry import client as client_of
from test_deadlines import serving

from builder.distribute.bundle.home import inputs_of
from builder.distribute.publish.mirror import found_release
from builder.distribute.pull.remote_image import find
from builder.model.errors import Refused
from builder.registry import (
    INDEX,
    MANIFEST,
    Credentials,
    Denied,
    Descriptor,
    Reference,
    RegistryFailed,
    WrongContent,
    connect,
)
from builder.sources.base_digests import Registries, RegistryFails
from builder.system.web import innermost, joined, next_page, origin, retry_after

CONTENT = b"some bytes"
BLOB = Descriptor(media_type="x", digest=digest(CONTENT), size=len(CONTENT))
SECRET = f"Basic {base64.b64encode(b'user:secret').decode()}"


client = partial(client_of, login=LOGIN)


@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
def test_a_challenge_of_another_host_is_not_answered(
    scheme: str, fake: Fake, tmp_path: Path
) -> None:
    with fake_registry() as content, fake_registry() as evil:
        realm = {"WWW-Authenticate": f'{scheme} realm="http://{evil.host}/token"'}
        content.faults = [Fault(pattern="blobs", status=401, headers=realm, times=9)]
        where = {"Location": f"http://{content.host}/v2/site/a/blobs/{BLOB.digest}"}
        fake.faults = [Fault(pattern="blobs", status=307, headers=where, times=9)]
        with pytest.raises(Denied, match=f"{content.host} answers 401"):
            client(fake).read_blob(BLOB, tmp_path / "blob")
        assert not evil.asked
        assert len(fake.asked + content.asked) == 3
        for _, headers in fake.asked + content.asked:
            assert "Authorization" not in headers


@pytest.mark.parametrize(
    "given",
    [
        "https://evil.example\\@registry.example/x",
        "//evil.example\\@registry.example/x",
        "https://registry.example@evil.example/x",
        "https://user:secret@registry.example/x",
        "https://[x",
        "https://registry.example:port/x",
        "https://regi\tstry.example/x",
        "ftp://registry.example/x",
        "file:///etc/passwd",
    ],
)
def test_an_address_that_can_be_read_in_two_ways_is_none(given: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        joined("https://registry.example", given)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("", 0, 0),
        (" 999999999 ", 999999999, 999999999),
        ("1000000000", math.inf, math.inf),
        ("-5", 0, 0),
        ("soon", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("IN 1000 SECONDS", 990, 1000),
        ("IN 1000 SECONDS" + "\t" * 33 + "+", 0, 0),
    ],
)
def test_when_a_server_says_to_come_again(header: str, least: float, most: float) -> None:
    date = email.utils.formatdate(time.time() + 1000)
    given = header.replace("IN 1000 SECONDS", date)
    assert least <= retry_after({"Retry-After": given}) <= most


@pytest.mark.parametrize(
    ("inner", "told"),
    [
        (OSError(111, "Connection refused"), "Connection refused"),
        (OSError("no\x1b\nand more"), r"no\x1b"),
        (ValueError("a" * 150), "a" * 120),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_the_innermost_error_is_told(inner: Exception, told: str) -> None:
    outer, middle = ValueError("outer"), ValueError("middle")
    outer.__cause__, middle.__context__ = middle, inner
    assert innermost(outer) == told


def test_addresses_and_links_may_have_8_kib() -> None:
    link = '<https://r.example/v2/>; rel="next"'.ljust(8192)
    address = "https://r.example/".ljust(8192, "x")
    assert (next_page(link), joined("", address)) == ("https://r.example/v2/", address)
    with pytest.raises(ValueError, match="a Link header of 8193 characters"):
        next_page(f"{link} ")
    with pytest.raises(ValueError, match="a URL of 8193 characters"):
        joined("", f"{address}x")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/v2/a?n=1@2", "https://registry.example/v2/a?n=1@2"),
        ("https://Registry.example:443/a@b", "https://Registry.example:443/a@b"),
        ("?last=x", "https://registry.example/v2/?last=x"),
    ],
)
def test_addresses_of_the_registry_itself(given: str, expected: str) -> None:
    assert joined("https://registry.example/v2/", given) == expected
    assert origin(expected) == ("https", "registry.example", 443)
    assert origin(joined("https://[::1]:5000", "/v2/")) == ("https", "[::1]", 5000)


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ('<https://registry.example/v2/_catalog?n=5&last=b>; rel="next"', "?n=5&last=b"),
        ("</v2/?last=b>;rel=next", "?last=b"),
        ('</v2/?last=a>; rel="prev", </v2/?last=b>; title="on"; Rel = "next"', "?last=b"),
        ('</v2/?last=a>; rel="prev"', ""),
        ("</v2/?last=b>; rel=nextish", ""),
        ("", ""),
        ("nothing", ""),
    ],
)
def test_the_next_page_of_a_list(link: str, expected: str) -> None:
    assert next_page(link).endswith(expected)
    assert bool(next_page(link)) == bool(expected)


def test_a_host_that_two_readers_take_for_two_gets_no_password(fake: Fake) -> None:
    with fake_registry() as evil:
        where = {"Location": f"http://{evil.host}\\@{fake.host}/v2/site/a/manifests/1.0"}
        fake.faults = [
            Fault(pattern="manifests", status=401, headers={"WWW-Authenticate": "Basic"}),
            Fault(pattern="manifests", status=307, headers=where),
        ]
        with pytest.raises(RegistryFailed, match="an invalid URL"):
            client(fake).resolve("1.0")
        assert not evil.asked
        assert fake.requests("manifests")[1]["Authorization"] == SECRET


def test_a_token_that_breaks_off_is_asked_for_again(fake: Fake) -> None:
    fake.manifests["site/a", "1.0"] = (b"{}", MANIFEST)
    broken, complete = token(), token()
    broken.after = 5
    fake.faults = [challenge(fake), broken, complete]
    assert client(fake).resolve("1.0").size == 2
    assert len(fake.requests("/token")) == 2


@pytest.mark.parametrize("realm", ["https://[x", "http://a\\@b/", "", "ftp://a/", "http://a:b/"])
def test_a_server_of_tokens_at_no_address(realm: str, fake: Fake) -> None:
    headers = {"WWW-Authenticate": f'Bearer realm="{realm}",service="reg"'}
    fake.faults = [Fault(pattern="manifests", status=401, headers=headers)]
    with pytest.raises(Denied, match="the URL of its token server is invalid"):
        client(fake).resolve("1.0")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(pattern="manifests", status=307, headers={"Location": "https://[x"}),
        Fault(pattern="manifests", status=307, headers={"Location": "http://a:99999999/"}),
        Fault(pattern="manifests", status=307, headers={"Location": "http://xn--\u00e9/"}),
        Fault(pattern="manifests", status=200, headers={"Content-Length": "9" * 5000}, times=9),
        Fault(pattern="manifests", status=200, headers={"Content-Length": "\u00b2"}, times=9),
        Fault(
            pattern="manifests",
            status=429,
            headers={"Retry-After": "Mon, 01 Jan 0001 00:00:00 +99999999"},
            times=9,
        ),
        Fault(pattern="manifests", status=429, headers={"Retry-After": "9" * 5000}, times=9),
    ],
)
def test_headers_that_break_clients(fault: Fault, fake: Fake) -> None:
    fake.faults = [fault]
    with pytest.raises(RegistryFailed, match="site/a"):
        client(fake).resolve("1.0")


@pytest.mark.parametrize(
    ("link", "body"),
    [
        ('<https://[x>; rel="next"', b'{"tags": ["a"]}'),
        ("", b'{"tags": 5}'),
        ("", b'{"tags": {"a": 1}}'),
        ("", b'{"tags": [' + b"9" * 5000 + b"]}"),
    ],
)
def test_lists_of_tags_that_are_none(link: str, body: bytes, fake: Fake) -> None:
    fake.faults = [Fault(pattern="tags/list", status=200, headers={"Link": link}, body=body)]
    with pytest.raises(RegistryFailed, match="site/a"):
        client(fake).tags()


@pytest.mark.parametrize("link", ["<" * 60_000, "<a>;" * 15_000, "<a>; rel=next" + " " * 60_000])
def test_a_link_header_takes_no_time(link: str, fake: Fake) -> None:
    """It took 25 s, in which Ctrl-C was not heard: each `<` was read to the end of the header."""
    fake.faults = [Fault(pattern="tags/list", status=200, headers={"Link": link}, body=b"{}")]
    start = time.process_time()
    with pytest.raises(RegistryFailed, match=r"site/a: tags/list: .* response is invalid"):
        client(fake).tags()
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (
            401,
            {"WWW-Authenticate": 'Bearer realm="' + 'x="' * 20_000},
            r"its authentication challenge is too long \(60\d\d\d characters",
        ),
        (307, {"Location": "/v2/" + "../" * 20_000}, "an invalid URL"),
    ],
)
def test_a_header_of_any_length_is_not_taken_apart(
    status: int, headers: dict[str, str], reason: str, fake: Fake
) -> None:
    fake.faults = [Fault(pattern="manifests", status=status, headers=headers)]
    with pytest.raises(RegistryFailed, match=reason):
        client(fake).resolve("1.0")


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [((2, 3), r"contradict each other: .* \(2, 3\)"), ((2, 2), "")],
)
def test_two_lengths_of_one_answer(lengths: tuple[int, int], reason: str) -> None:
    """The second one was told of as an invalid URL; the same one twice says one thing."""
    head = b"".join(b"Content-Length: %d\r\n" % one for one in lengths)

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n{}")

    with serving(answer) as host:
        registry = connect(Reference.parse(f"{host}/site/a"), Credentials(files=()))
        if not reason:
            assert registry.resolve("1.0").size == 2
            return
        with pytest.raises(RegistryFailed, match=reason):
            registry.resolve("1.0")


def test_a_list_whose_pages_never_end_is_none(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.registry.repository._MOST_PAGES", 3)
    link = {"Link": '</v2/site/a/tags/list?n=1>; rel="next"'}
    fake.faults = [Fault(pattern="tags", status=200, headers=link, body=b"{}", times=99)]
    with pytest.raises(WrongContent, match="a list of more than 3 pages"):
        client(fake).tags()


def test_a_place_for_uploads_of_any_length_is_not_repeated(fake: Fake) -> None:
    where = {"Location": "/" + "a" * 60_000}
    fake.faults = [Fault(pattern="POST", status=202, headers=where)]
    with pytest.raises(RegistryFailed) as caught:
        client(fake).write_blob(CONTENT, media_type="x")
    assert len(str(caught.value)) < 500


def test_an_upload_whose_progress_is_no_number(fake: Fake) -> None:
    fake.faults = [
        Fault(pattern="PUT .*uploads", after=3),
        Fault(pattern="GET .*uploads", status=204, headers={"Range": f"0-{'9' * 5000}"}),
    ]
    assert client(fake).write_blob(CONTENT, media_type="x") == BLOB


def test_what_a_registry_says_cannot_steer_a_terminal(fake: Fake) -> None:
    body = b'{"errors": [{"code": "X\\u001b[2J", "message": "\\u001b]0;evil\\u0007"}]}'
    fake.faults = [Fault(pattern="manifests", status=400, body=body)]
    with pytest.raises(RegistryFailed, match="evil") as caught:
        client(fake).resolve("1.0")
    assert str(caught.value).isprintable()
    kept = {"Docker-Content-Digest": "\x1b[31mred"}
    fake.faults = [Fault(pattern="PUT .*manifests", status=201, headers=kept)]
    with pytest.raises(RegistryFailed, match="stored it as") as caught:
        client(fake).write_manifest(b"{}", MANIFEST)
    assert str(caught.value).isprintable()


def test_what_has_a_key_twice_is_refused(fake: Fake) -> None:
    fake.manifests["site/a", "1.0"] = (b'{"layers": [], "layers": [1]}', MANIFEST)
    with pytest.raises(RegistryFailed, match="not valid JSON"):
        client(fake).document("1.0")
    fake.faults = [Fault(pattern="tags/list", status=200, body=b'{"tags": [], "tags": ["1.0"]}')]
    with pytest.raises(RegistryFailed, match="tags/list: it is not valid JSON"):
        client(fake).tags()


@pytest.mark.parametrize("config", [b'{"os": "a", "os": "b"}', b'{"a": 1e999}', b'{"a": NaN}'])
def test_a_configuration_that_two_would_read_differently_is_refused(
    config: bytes, fake: Fake
) -> None:
    registry = client(fake)
    blob = registry.write_blob(config, media_type="application/vnd.oci.image.config.v1+json")
    content = {"mediaType": MANIFEST, "config": blob.as_json(), "layers": []}
    registry.write_manifest(json.dumps(content).encode(), MANIFEST, "1.0")
    with pytest.raises(Refused, match="its configuration is invalid"):
        find(registry, "1.0", "x86_64")
    asked = Registries(credentials=Credentials(files=()))
    with pytest.raises(RegistryFails, match="it is not valid JSON"):
        asked.digest(f"{fake.host}/site/a:1.0", "x86_64")


DIFF_ID = "sha256:" + "00" * 32


@pytest.mark.parametrize(
    ("rootfs", "reason"),
    [
        ({}, "diff_ids"),
        ({"diff_ids": [DIFF_ID]}, "its diff_ids do not match its 2 layers"),
        ({"diff_ids": [DIFF_ID, "x"]}, "its diff_ids do not match its 2 layers"),
        ({"diff_ids": [DIFF_ID, DIFF_ID.replace("0", "1")]}, "two diff_ids for one layer"),
        (["diff_ids"], "TypeError|indices"),
    ],
)
def test_a_configuration_names_what_layers_unpack_to(
    rootfs: object, reason: str, fake: Fake
) -> None:
    registry = client(fake)
    about = json.dumps({"architecture": "amd64", "config": {}, "rootfs": rootfs}).encode()
    blob = registry.write_blob(about, media_type="application/vnd.oci.image.config.v1+json")
    content = {"mediaType": MANIFEST, "config": blob.as_json(), "layers": [BLOB.as_json()] * 2}
    registry.write_manifest(json.dumps(content).encode(), MANIFEST, "1.0")
    with pytest.raises(Refused, match=reason):
        find(registry, "1.0", "x86_64")


@pytest.mark.parametrize("about", [b"?", b"[]", b'{"name": "a", "name": "b"}', b'{"a": 1e999}'])
def test_what_an_archive_says_of_an_input_is_one_thing_or_refused(about: bytes, fake: Fake) -> None:
    source = client(fake)
    config = source.write_blob(about, media_type="x/y")
    content = {"mediaType": MANIFEST, "config": config.as_json(), "layers": []}
    entry = source.write_manifest(json.dumps(content).encode(), MANIFEST)
    index = source.write_manifest(json.dumps({"manifests": [entry.as_json()]}).encode(), INDEX)
    with pytest.raises(WrongContent, match=config.digest):
        inputs_of(source, index)


def test_an_input_without_a_document_is_none(fake: Fake) -> None:
    source = client(fake)
    entry = source.write_manifest(json.dumps({"mediaType": MANIFEST}).encode(), MANIFEST)
    index = source.write_manifest(json.dumps({"manifests": [entry.as_json()]}).encode(), INDEX)
    with pytest.raises(WrongContent, match="not an input artifact"):
        inputs_of(source, index)


def test_a_list_of_referrers_without_end_is_not_kept(fake: Fake) -> None:
    entries = [{"mediaType": "x", "digest": BLOB.digest, "size": 1}] * 600
    body = json.dumps({"manifests": entries}).encode()
    link = {"Link": f'</v2/site/a/referrers/{BLOB.digest}>; rel="next"', "Content-Type": INDEX}
    fake.faults = [Fault(pattern="referrers", status=200, body=body, headers=link, times=99)]
    with pytest.raises(RegistryFailed, match="more than 1000 referrers"):
        client(fake).referrers(BLOB.digest)
    assert len(fake.requests("referrers")) == 2


def test_a_fallbacks_list_may_be_null(fake: Fake) -> None:
    image = client(fake).write_manifest(b"{}", MANIFEST)
    tag = image.digest.replace(":", "-")
    fake.manifests["site/a", tag] = (b'{"manifests": null}', INDEX)
    content = json.dumps({"subject": image.as_json(), "artifactType": "a/b"}).encode()
    assert client(fake).attach(content) in client(fake).referrers(image.digest)


STEERING = "\x1b]0;title\x07\x9b31mred\u202e\ud800"


def test_an_architecture_that_steers_a_terminal_is_none(fake: Fake) -> None:
    """Those of a mirrored index are shown, on standard output as well."""
    source = client(fake)
    image = source.write_manifest(b'{"layers": []}', MANIFEST).as_json()
    entry = {**image, "platform": {"os": "linux", "architecture": f"amd64{STEERING}"}}
    source.write_manifest(json.dumps({"manifests": [entry]}).encode(), INDEX, "1.0")
    release, reasons = found_release(source, "a", ["1.0"], ["amd64"])
    assert release is not None
    assert list(release.images) == ["unknown"]
    assert all(one.isprintable() for one in reasons)
