"""Servers of tokens as real ones are, and connections that end: what a registry's client does."""

from __future__ import annotations

import contextlib
import ssl
from functools import partial

import pytest
import urllib3.exceptions
from fake_registry import LOGIN, Fake, Fault, challenge, digest, fake_registry, token
from fake_registry import client as client_of

from builder.registry import MANIFEST, Denied, Unreachable, blobs
from builder.registry.failures import Transient, no_response

CONTENT = bytes(range(256)) * 4000


client = partial(client_of, login=LOGIN)


@pytest.mark.parametrize(
    "header",
    [
        'Bearer realm="{0}",service="reg", Basic realm="users"',
        'Basic realm="users", Bearer realm="{0}",service="reg"',
        'bearer Realm = "{0}" , service = reg',
    ],
)
def test_a_registry_that_names_two_ways_is_asked_for_a_token(header: str, fake: Fake) -> None:
    headers = {"WWW-Authenticate": header.format(f"http://{fake.host}/token")}
    fake.faults = [Fault(pattern="manifests", status=401, headers=headers), token()]
    client(fake).write_manifest(b"{}", MANIFEST, "1.0")
    [asked] = [request for request, _ in fake.asked if "/token" in request]
    assert "service=reg&" in asked
    assert fake.requests("manifests")[1]["Authorization"] == "Bearer granted"


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_server_of_tokens_says_why_it_gives_none(status: int, fake: Fake) -> None:
    """404 of not a list of tags that is not there: that would be an empty one."""
    why = b'{"errors": [{"code": "UNAUTHORIZED", "message": "incorrect password"}]}'
    fake.faults = [challenge(fake, "tags"), Fault(pattern="/token", status=status, body=why)]
    with pytest.raises(Denied, match=f"token server: .* answers {status} .*incorrect password"):
        client(fake).tags()


def test_a_server_of_tokens_may_lead_on_but_to_no_other_host(fake: Fake) -> None:
    fake.manifests["site/a", "1.0"] = (b"{}", MANIFEST)
    with fake_registry() as evil:
        for where, status in ((f"http://{fake.host}/more", 200), (f"http://{evil.host}/x", 307)):
            fake.faults = [
                challenge(fake),
                Fault(pattern="GET /token", status=307, headers={"Location": where}),
                token(pattern="GET /more"),
            ]
            with contextlib.nullcontext() if status == 200 else pytest.raises(Denied, match="307"):
                client(fake).resolve("1.0")
        assert not evil.asked


def test_a_login_that_has_too_few_rights_is_told_so(fake: Fake) -> None:
    realm = f'Bearer realm="http://{fake.host}/token"'
    lacking = {"WWW-Authenticate": f'{realm},error="insufficient_scope"'}
    refused = Fault(pattern="tags", status=401, headers=lacking)
    fake.faults = [challenge(fake, "tags"), token(), refused]
    with pytest.raises(Denied) as caught:
        client(fake).tags()
    assert "this login lacks the permission" in caught.value.hint


def test_a_login_goes_to_no_other_machine_without_tls(fake: Fake) -> None:
    realm = {"WWW-Authenticate": 'Bearer realm="http://tokens.example/token"'}
    fake.faults = [Fault(pattern="manifests", status=401, headers=realm)]
    with pytest.raises(Denied, match="its token server has no TLS"):
        client(fake).resolve("1.0")


def test_tls_that_ends_in_the_middle_is_a_connection_that_broke_off() -> None:
    ended = urllib3.exceptions.SSLError(ssl.SSLEOFError(8, "EOF occurred"))
    wrong = urllib3.exceptions.SSLError(ssl.SSLCertVerificationError(1, "self-signed"))
    assert [type(no_response(error, "a")) for error in (ended, wrong)] == [Transient, Unreachable]


def test_a_piece_of_which_nothing_came_is_all_that_is_sent_again(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "_PART", 400_000)
    fake.most_bytes = 400_000
    fault = Fault(pattern=r"PATCH .*/uploads/", after=0)

    def second(request: str) -> None:
        fake.faults = [fault] if len(fake.requests("PATCH")) == 2 else []
        del request

    fake.before = second
    client(fake).write_blob(CONTENT)
    assert fake.blobs["site/a", digest(CONTENT)] == CONTENT
    parts = [one["Content-Range"].partition("-")[0] for one in fake.requests("PATCH")]
    assert parts == ["0", "400000", "400000", "800000"]
