"""Registries that try to get at secrets, or to break the client: refused, in a sentence."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_registry import Fake, Fault, digest, fake_registry

from builder.registry import (
    Credentials,
    Denied,
    Descriptor,
    Login,
    Reference,
    Registry,
    RegistryFailed,
    connect,
)
from builder.registry.addresses import joined, origin

CONTENT = b"some bytes"
BLOB = Descriptor(media_type="x", digest=digest(CONTENT), size=len(CONTENT))
SECRET = f"Basic {base64.b64encode(b'user:secret').decode()}"


@pytest.fixture(name="fake")
def registry_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    with fake_registry() as fake:
        yield fake


def client(fake: Fake) -> Registry:
    login = Login(user="user", password="secret")
    credentials = Credentials(logins={fake.host: login}, files=())
    return connect(Reference.parse(f"{fake.host}/site/a"), credentials, wait=lambda _: None)


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


def test_an_ipv6_address_is_one() -> None:
    assert origin(joined("https://[::1]:5000", "/v2/")) == ("https", "[::1]", 5000)


def test_a_host_that_two_readers_take_for_two_gets_no_password(fake: Fake) -> None:
    with fake_registry() as evil:
        where = {"Location": f"http://{evil.host}\\@{fake.host}/v2/site/a/manifests/1.0"}
        fake.faults = [
            Fault(pattern="manifests", status=401, headers={"WWW-Authenticate": "Basic"}),
            Fault(pattern="manifests", status=307, headers=where),
        ]
        with pytest.raises(RegistryFailed, match="an address that is none"):
            client(fake).resolve("1.0")
        assert not evil.asked
        assert fake.requests("manifests")[1]["Authorization"] == SECRET
