"""Servers of tokens as real ones are, and connections that end: what a registry's client does."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3.exceptions
from fake_registry import Fake, Fault, digest, fake_registry

from builder.registry import (
    MANIFEST,
    Credentials,
    Denied,
    Login,
    Reference,
    Registry,
    Unreachable,
    blobs,
    connect,
)
from builder.registry.failures import Transient
from builder.registry.responses import no_response

CONTENT = bytes(range(256)) * 4000


@pytest.fixture(name="fake")
def registry_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    with fake_registry() as fake:
        yield fake


def client(fake: Fake) -> Registry:
    login = Login(user="user", password="secret")
    credentials = Credentials(logins={fake.host: login}, files=())
    return connect(Reference.parse(f"{fake.host}/site/a"), credentials, wait=lambda _: None)


@pytest.mark.parametrize(
    "challenge",
    [
        'Bearer realm="{0}",service="reg", Basic realm="users"',
        'Basic realm="users", Bearer realm="{0}",service="reg"',
        'bearer Realm = "{0}" , service = reg',
    ],
)
def test_a_registry_that_names_two_ways_is_asked_for_a_token(challenge: str, fake: Fake) -> None:
    header = {"WWW-Authenticate": challenge.format(f"http://{fake.host}/token")}
    fake.faults = [
        Fault(pattern="manifests", status=401, headers=header),
        Fault(pattern="/token", status=200, body=b'{"token": "granted"}'),
    ]
    client(fake).write_manifest(b"{}", MANIFEST, "1.0")
    [asked] = [request for request, _ in fake.asked if "/token" in request]
    assert "service=reg&" in asked
    assert fake.requests("manifests")[1]["Authorization"] == "Bearer granted"


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_server_of_tokens_says_why_it_gives_none(status: int, fake: Fake) -> None:
    """404 of it is no list of tags that is not there: that would be an empty one."""
    realm = {"WWW-Authenticate": f'Bearer realm="http://{fake.host}/token"'}
    why = b'{"errors": [{"code": "UNAUTHORIZED", "message": "incorrect password"}]}'
    fake.faults = [
        Fault(pattern="tags", status=401, headers=realm),
        Fault(pattern="/token", status=status, body=why),
    ]
    with pytest.raises(Denied, match=f"tokens: {fake.host} answers {status} .*incorrect password"):
        client(fake).tags()


def test_a_server_of_tokens_may_lead_on_but_to_no_other_host(fake: Fake) -> None:
    realm = {"WWW-Authenticate": f'Bearer realm="http://{fake.host}/token"'}
    fake.manifests["site/a", "1.0"] = (b"{}", MANIFEST)
    with fake_registry() as evil:
        for where, status in ((f"http://{fake.host}/more", 200), (f"http://{evil.host}/x", 307)):
            fake.faults = [
                Fault(pattern="manifests", status=401, headers=realm),
                Fault(pattern="GET /token", status=307, headers={"Location": where}),
                Fault(pattern="GET /more", status=200, body=b'{"token": "granted"}'),
            ]
            with contextlib.nullcontext() if status == 200 else pytest.raises(Denied, match="307"):
                client(fake).resolve("1.0")
        assert not evil.asked


def test_a_login_that_has_too_few_rights_is_told_so(fake: Fake) -> None:
    realm = f'Bearer realm="http://{fake.host}/token"'
    fake.faults = [
        Fault(pattern="tags", status=401, headers={"WWW-Authenticate": realm}),
        Fault(pattern="/token", status=200, body=b'{"token": "granted"}'),
        Fault(
            pattern="tags",
            status=401,
            headers={"WWW-Authenticate": f'{realm},error="insufficient_scope"'},
        ),
    ]
    with pytest.raises(Denied) as refused:
        client(fake).tags()
    assert "this login may not do that" in refused.value.hint


def test_a_login_goes_to_no_other_machine_without_tls(fake: Fake) -> None:
    realm = {"WWW-Authenticate": 'Bearer realm="http://tokens.example/token"'}
    fake.faults = [Fault(pattern="manifests", status=401, headers=realm)]
    with pytest.raises(Denied, match="it names a server of tokens without TLS"):
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
