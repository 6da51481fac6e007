"""Whose login a registry is shown: files of Docker and Podman, helpers, variables."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from builder.model.errors import BadInput, MissingPrerequisite
from builder.registry import Credentials, Login
from builder.registry import credentials as module
from builder.registry.credentials import auth_files
from builder.registry.failures import LOGIN_HINT, PASSWORD, USER

HELPER = """\
#!/bin/sh
read -r server
echo "$@ $server" >> {log}
case $server in
  helped.example) echo '{{"ServerURL": "x", "Username": "me", "Secret": "hidden"}}' ;;
  token.example) echo '{{"Username": "<token>", "Secret": "hidden"}}' ;;
  https://index.docker.io/v1/) echo '{{"Username": "hub", "Secret": "hidden"}}' ;;
  unknown.example) echo '{{"ServerURL": "x", "Username": "", "Secret": ""}}' ;;
  none.example) echo "credentials not found in native keychain"; exit 1 ;;
  *) echo "the secret is hidden"; exit 3 ;;
esac
"""


def entry(user: str, password: str = "secret") -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials of this machine's user."""
    for name in (
        "BUILD_IMAGES_REGISTRY",
        "REGISTRY_AUTH_FILE",
        "DOCKER_CONFIG",
        "XDG_RUNTIME_DIR",
        USER,
        PASSWORD,
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def written(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def user(registry: str, repository: str = "site/a", own: str = "") -> str | None:
    login = Credentials(own=own).login(registry, repository)
    return login.user if login else None


def test_entries_as_docker_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    auths = {
        "https://index.docker.io/v1/": entry("hub"),
        "quay.io": entry("quay"),
        "https://ghcr.io": entry("github"),
        "empty.example": {},
        "token.example": {"identitytoken": "hidden"},
    }
    written(tmp_path / "docker" / "config.json", {"auths": auths})
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    assert user("docker.io") == "hub"
    assert user("quay.io") == "quay"
    assert user("ghcr.io") == "github"
    assert user("other.example") is None
    assert user("empty.example") is None
    assert Credentials().login("token.example", "a") == Login(identity_token="hidden")


def test_podmans_entries_may_be_of_a_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    auths = {"quay.io": entry("all"), "quay.io/site": entry("site"), "quay.io/site/a": entry("a")}
    written(tmp_path / "run/containers/auth.json", {"auths": auths})
    assert user("quay.io", "site/a") == "a"
    assert user("quay.io", "site/b") == "site"
    assert user("quay.io", "sites/b") == "all"


def test_the_first_file_that_has_an_entry_counts_and_a_named_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    written(tmp_path / "run/containers/auth.json", {"auths": {"a.example": entry("podman")}})
    both = {"a.example": entry("docker"), "b.example": entry("docker")}
    written(tmp_path / "home/.docker/config.json", {"auths": both})
    assert user("a.example") == "podman"
    assert user("b.example") == "docker"
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    assert [str(file.relative_to(tmp_path)) for file in auth_files()] == [
        *("docker/config.json", "run/containers/auth.json"),
        *("config/containers/auth.json", "docker/config.json"),
    ]
    monkeypatch.delenv("DOCKER_CONFIG")
    named = written(tmp_path / "named.json", {"auths": {"a.example": entry("named")}})
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(named))
    assert auth_files() == (named,)
    assert user("a.example") == "named"
    assert user("b.example") is None


def test_variables_are_for_the_commands_own_registry_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USER, "robot")
    monkeypatch.setenv(PASSWORD, "hidden")
    assert user("quay.io", own="quay.io") == "robot"
    assert user("docker.io", own="quay.io") is None
    assert user("quay.io") is None
    monkeypatch.delenv(PASSWORD)
    with pytest.raises(BadInput, match=f"set both {USER} and {PASSWORD}"):
        user("quay.io", own="quay.io")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "this credentials file is not a JSON object, or cannot be read"),
        ("[]", "this credentials file is not a JSON object, or cannot be read"),
        ({"auths": {"quay.io": {"auth": "c2VjcmV0"}}}, "the entry quay.io is not user:password"),
        ({"auths": {"quay.io": {"auth": "?"}}}, "the entry quay.io is not user:password"),
        ({"auths": {"quay.io": {"auth": 3}}}, "the entry quay.io is not user:password"),
    ],
)
def test_a_file_that_cannot_be_understood_is_named(
    content: object, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "auth.json", content)
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    with pytest.raises(BadInput, match=f"auth.json: {problem}") as caught:
        user("quay.io")
    assert "c2VjcmV0" not in str(caught.value)


@pytest.fixture(name="asked")
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A credential helper on PATH; the file that notes what it was asked."""
    log = tmp_path / "asked"
    program = written(tmp_path / "bin/docker-credential-tests", HELPER.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    config = {"credsStore": "tests", "credHelpers": {"absent.example": "nowhere"}}
    file = written(tmp_path / "auth.json", {"auths": {"quay.io": entry("file")}, **config})
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    return log


def test_a_helper_is_asked_by_standard_input(asked: Path) -> None:
    credentials = Credentials()
    assert credentials.login("helped.example", "a") == Login(user="me", password="hidden")
    assert credentials.login("helped.example", "a") == Login(user="me", password="hidden")
    assert credentials.login("token.example", "a") == Login(identity_token="hidden")
    assert credentials.login("none.example", "a") is None
    assert user("docker.io") == "hub"
    assert user("quay.io") == "file"
    assert asked.read_text().splitlines() == [
        "get helped.example",
        "get token.example",
        "get none.example",
        "get https://index.docker.io/v1/",
    ]


def test_what_a_failing_helper_prints_is_not_repeated(asked: Path) -> None:
    del asked
    texts = []
    for registry in ("broken.example", "absent.example"):
        with pytest.raises(MissingPrerequisite) as one:
            user(registry)
        texts.append(str(one.value))
    program = "docker-credential-tests"
    assert texts == [
        (
            f"{program} returned no credentials for broken.example: exit status 3\n"
            f"  hint: {LOGIN_HINT}"
        ),
        (
            "cannot run the credential helper docker-credential-nowhere: program not found\n"
            f"  hint: install it, or {LOGIN_HINT}"
        ),
    ]


@pytest.mark.parametrize(
    ("named", "expected"),
    [("", None), ("own.example", "me"), ("own.example/site", "me"), ("other.example/site", None)],
)
def test_without_a_registry_of_its_own_a_command_needs_it_named(
    named: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(USER, "me")
    monkeypatch.setenv(PASSWORD, "hidden")
    monkeypatch.setenv("BUILD_IMAGES_REGISTRY", named)
    assert user("own.example") == expected


def test_a_helper_that_knows_nothing_leaves_us_nobody(asked: Path, tmp_path: Path) -> None:
    """As docker-credential-pass 0.6.4 says it: an empty login would be refused, none is not."""
    del asked
    assert Credentials().login("unknown.example", "a") is None
    first = tmp_path / "auth.json"
    second = written(tmp_path / "more.json", {"auths": {"unknown.example": entry("file")}})
    found = Credentials(files=(first, second)).login("unknown.example", "a")
    assert found == Login(user="file", password="secret")


def test_a_helper_is_asked_once_for_all_repositories_also_if_it_fails(asked: Path) -> None:
    credentials = Credentials()
    for repository in ("site/a", "site/b"):
        assert credentials.login("helped.example", repository) == Login(
            user="me", password="hidden"
        )
        with pytest.raises(MissingPrerequisite, match="exit status 3"):
            credentials.login("broken.example", repository)
    assert asked.read_text().splitlines() == ["get helped.example", "get broken.example"]


@pytest.mark.parametrize(
    "key",
    [
        *("docker.io", "index.docker.io", "https://index.docker.io/v1/"),
        "https://registry-1.docker.io/v2/",
    ],
)
def test_docker_hub_has_several_names_in_front_of_helpers(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    text = '#!/bin/sh\nread -r server\n[ $server = docker.io ] || exec echo \'{"Secret": ""}\'\n'
    text += 'echo \'{"Username": "podman", "Secret": "hidden"}\'\n'
    written(tmp_path / "docker-credential-hub", text).chmod(0o755)
    file = written(tmp_path / "auth.json", {"credHelpers": {key: "hub"}})
    found = Credentials(files=(file,)).login("docker.io", "library/a")
    assert found == Login(user="podman", password="hidden")


def test_a_helper_that_cannot_be_run_is_missing(asked: Path) -> None:
    (asked.parent / "bin/docker-credential-tests").chmod(0o644)
    with pytest.raises(MissingPrerequisite, match=r"docker-credential-tests: Permission"):
        user("helped.example")


def test_without_a_folder_of_the_session_podman_login_writes_below_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SHARED", tmp_path / "shared")
    monkeypatch.setattr("os.getuid", lambda: 7)
    written(tmp_path / "shared/7/auth.json", {"auths": {"a.example": entry("podman")}})
    assert user("a.example") == "podman"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    assert user("a.example") is None


ME = Login(user="me", password="secret")


@pytest.mark.parametrize(
    ("entry", "login"),
    [
        ({"username": "me", "password": "secret"}, ME),
        ({"auth": base64.encodebytes(b"me:secret").decode()}, ME),
        ({"auth": base64.b64encode(b"me:secret\0\0").decode()}, ME),
        ({"username": "me"}, None),
        ({"password": "secret"}, None),
    ],
)
def test_entries_as_others_write_them(
    entry: dict[str, str], login: Login | None, tmp_path: Path
) -> None:
    file = written(tmp_path / "auth.json", {"auths": {"a.example": entry}})
    empty = written(tmp_path / "empty.json", "\n")
    assert Credentials(files=(tmp_path / "gone", empty, file)).login("a.example", "b") == login


def test_a_user_without_a_name_and_a_home_has_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container of OpenShift, which chooses a user id."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: {0: "root"}[1])
    assert Path("/.docker/config.json") in auth_files()
