"""Logins that other programs made or keep, and tokens of a real server: publishing with each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import PROJECT, TOOLS, need, passed, run_program
from publishing import publish
from real_registry import PASSWORD, USER, RealRegistry
from token_server import Tokens, registry_with_tokens

from builder.registry import Credentials, Denied, Login, Reference, blobs, connect

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("own_home", "nobody")]
LOGIN = Login(user=USER, password=PASSWORD)
_KEY = "%no-protection\nKey-Type: eddsa\nKey-Curve: ed25519\nSubkey-Type: ecdh\n"
_KEY += "Subkey-Curve: cv25519\nName-Email: tests@site.example\nExpire-Date: 0\n%commit\n"
_BELOW_RUN = """\
mount -t tmpfs none /run; skopeo login -u "$1" --password-stdin "$2" >&2; cd "$3"
"$4" -c "from builder.registry import Credentials; print(Credentials().login('$2', 'site/a'))"
"""


@pytest.fixture(name="nobody")
def a_user_without_logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "XDG_CONFIG_HOME", "GNUPGHOME"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "user"
    (home / "run").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    monkeypatch.setenv("PATH", TOOLS)
    return home


@pytest.fixture
def trusted(secured: RealRegistry, monkeypatch: pytest.MonkeyPatch) -> RealRegistry:
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.authority))
    return secured


def tags(host: str) -> list[str]:
    return connect(Reference.parse(f"{host}/site/tools")).tags()


@pytest.mark.parametrize(
    "login", ["skopeo login", "podman login", "crane auth login", "oras login"]
)
def test_a_login_that_another_program_made_is_found(login: str, trusted: RealRegistry) -> None:
    need(login.partition(" ")[0])
    with pytest.raises(Denied, match="401"):
        tags(trusted.host)
    words = (*login.split(), "-u", USER, "--password-stdin", trusted.host)
    passed(run_program(*words, stdin=PASSWORD))
    assert Credentials().login(trusted.host, "site/a") == LOGIN
    assert tags(trusted.host) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root has such a folder")
def test_without_a_folder_of_the_session_the_login_of_root_is_found(
    trusted: RealRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("skopeo")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    words = ["unshare", "-m", "sh", "-euc", _BELOW_RUN, "-", USER, trusted.host]
    done = passed(run_program(*words, PROJECT, sys.executable, stdin=PASSWORD))
    assert done.finding == repr(LOGIN)


def test_the_helper_that_keeps_logins_with_pass(
    made: Path, trusted: RealRegistry, nobody: Path
) -> None:
    need("docker-credential-pass", "pass", "gpg")
    config = nobody / ".docker/config.json"
    config.parent.mkdir()
    config.write_text(json.dumps({"credsStore": "pass"}))
    (nobody / ".gnupg").mkdir(mode=0o700)
    try:
        passed(run_program("gpg", "--batch", "--quiet", "--gen-key", stdin=_KEY))
        passed(run_program("pass", "init", "tests@site.example"))
        assert Credentials().login(trusted.host, "site/a") is None, "it knows of none"
        login = {"ServerURL": trusted.host, "Username": USER, "Secret": PASSWORD}
        passed(run_program("docker-credential-pass", "store", stdin=json.dumps(login)))
        done = publish(made, trusted.host, "--json")
        assert (done.status, PASSWORD in done.stdout + done.stderr) == (0, False), done.stderr
    finally:
        run_program("gpgconf", "--kill", "all")


@pytest.fixture(name="served")
def tokens_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[RealRegistry, Tokens]]:
    with registry_with_tokens(tmp_path / "tokens") as (registry, tokens):
        for name, text in registry.environment.items():
            monkeypatch.setenv(name, text)
        yield registry, tokens


def test_publishing_with_tokens_that_soon_expire(
    made: Path, served: tuple[RealRegistry, Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, tokens = served
    tokens.lasts_s = 2.0
    done = passed(publish(made, registry.host, "--json"))
    assert {user for user, _ in tokens.asked} == {USER}
    push, pull = "repository:site/app:pull,push", "repository:site/tools:pull"
    assert f"{push} {pull}" in {scopes for _, scopes in tokens.asked}, "to mount what is there"
    assert not [one for one in (PASSWORD, *tokens.given) if one in done.stdout + done.stderr]
    monkeypatch.delenv("BUILD_IMAGES_REGISTRY")
    assert "latest" in tags(registry.host), "everybody may read"
    with pytest.raises(Denied, match="401") as refused:
        connect(Reference.parse(f"{registry.host}/site/tools")).write_blob(b"x")
    assert "this login lacks the permission" in refused.value.hint
    monkeypatch.setenv("BUILD_IMAGES_REGISTRY", registry.host)
    monkeypatch.setenv("BUILD_IMAGES_REGISTRY_PASSWORD", "another secret")
    with pytest.raises(Denied, match="answers 401 Unauthorized: UNAUTHORIZED: wrong password"):
        tags(registry.host)


def test_a_token_that_is_refused_while_a_blob_is_sent_is_renewed(
    served: tuple[RealRegistry, Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry answers 401 and closes, with most of the blob to come."""
    begin, spoilt = blobs._Upload._begin, set[object]()

    def begun(upload: blobs._Upload) -> None:
        begin(upload)
        known = upload.registry.transport._authorization._known
        spoilt.update(known)
        known.update(dict.fromkeys(known, "Bearer over"))

    monkeypatch.setattr(blobs._Upload, "_begin", begun)
    there = connect(Reference.parse(f"{served[0].host}/site/large"))
    written = there.write_blob(os.urandom(64 << 20))
    assert spoilt
    assert there.has_blob(written.digest)
