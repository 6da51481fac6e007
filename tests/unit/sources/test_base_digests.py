"""Digests from registries: a small one on loopback, with tokens, and others that are away."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import urllib3
from web_server import Answering, serving

from builder.registry import Credentials, Login
from builder.sources.base_digests import (
    Registries,
    RegistryFails,
    RegistryUnreachable,
    pin_references,
    unreachable,
)

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
PASSWORD = base64.b64encode(b"user:secret").decode()


def known(server: str) -> Credentials:
    return Credentials(logins={server: Login(user="user", password="secret")}, files=())


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def described(content: bytes, **more: object) -> dict[str, object]:
    return {"mediaType": MANIFEST, "digest": digest(content), "size": len(content), **more}


def image(arch: str) -> tuple[bytes, bytes]:
    """A config and a manifest of it."""
    config = json.dumps({"architecture": arch, "os": "linux"}).encode()
    manifest = {"mediaType": MANIFEST, "config": described(config), "layers": []}
    return config, json.dumps(manifest).encode()


CONFIG, SINGLE = image("amd64")
POWER = image("ppc64le")[1]
MANIFESTS = [
    described(b"!", platform={"os": "windows", "architecture": "amd64"}),
    described(SINGLE, platform={"os": "linux", "architecture": "amd64"}),
    described(POWER, platform={"os": "linux", "architecture": "ppc64le"}),
    described(b"?", platform={"os": "unknown", "architecture": "unknown"}),
]
BOTH = json.dumps({"mediaType": INDEX, "manifests": MANIFESTS}).encode()


@dataclass
class Told:
    """What the registry holds, by path; who may read it."""

    url: str = ""
    files: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    needs: str = ""
    token: object = field(default_factory=lambda: {"token": "granted"})
    asked: list[tuple[str, str]] = field(default_factory=list)
    busy: int = 0
    withheld: int = 0

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")


class Handler(Answering):
    told: Told

    def get(self) -> None:
        told, authorization = self.told, self.headers.get("Authorization", "")
        told.asked.append((self.path, authorization))
        if told.busy:
            told.busy -= 1
            self.send(429, b"")
        elif self.path.startswith("/token"):
            known = authorization == f"Basic {PASSWORD}"
            self.send(200 if known else 403, json.dumps(told.token).encode())
        elif told.needs and authorization != told.needs:
            scheme = told.needs.partition(" ")[0]
            where = f'{scheme} realm="{told.url}/token",service="reg",scope="repository:a:pull"'
            self.send(401, b"", WWW_Authenticate=where)
        elif self.path in told.files:
            content, kind = told.files[self.path]
            self.send(200, content, Content_Type=kind)
        else:
            self.send(404, b"{}")

    def send(self, status: int, content: bytes, **headers: str) -> None:
        length = str(len(content) + self.told.withheld)
        self.close_connection = bool(self.told.withheld)
        self.answer(content, status, Content_Length=length, **headers)


@pytest.fixture(name="registry")
def small_registry() -> Iterator[Told]:
    told = Told(
        files={
            "/v2/library/both/manifests/1": (BOTH, INDEX),
            "/v2/library/single/manifests/latest": (SINGLE, MANIFEST),
            f"/v2/library/single/blobs/{digest(CONFIG)}": (CONFIG, "application/octet-stream"),
            f"/v2/hub/library/both/manifests/{digest(BOTH)}": (BOTH, INDEX),
        }
    )
    with serving(Handler, told=told) as told.url:
        yield told


def test_an_index_is_resolved_for_each_architecture(registry: Told) -> None:
    registries = Registries(mirrors={"docker.io": registry.host})
    assert registries.digest("both:1", "x86_64") == digest(SINGLE)
    assert registries.digest("docker.io/library/both:1", "ppc64le") == digest(POWER)


def test_an_image_of_one_architecture_is_not_taken_for_another(registry: Told) -> None:
    registries = Registries()
    reference = f"{registry.host}/library/single"
    assert registries.digest(reference, "x86_64") == digest(SINGLE)
    with pytest.raises(RegistryFails, match=r"no image for ppc64le \(linux\); available: amd64"):
        registries.digest(reference, "ppc64le")


def test_an_answer_that_breaks_off(registry: Told) -> None:
    registry.withheld = 10
    registries = Registries(mirrors={"docker.io": registry.host}, wait=lambda _: None)
    with pytest.raises(RegistryUnreachable, match="both:1"):
        registries.digest("both:1", "x86_64")


def test_an_index_without_the_architecture_says_what_it_has(registry: Told) -> None:
    with pytest.raises(RegistryFails, match=r"no image for aarch64 .* available: amd64, ppc64le"):
        Registries().digest(f"{registry.host}/library/both:1", "aarch64")


def test_a_mirror_can_have_a_path_and_content_must_be_what_was_asked(registry: Told) -> None:
    registries = Registries(mirrors={"docker.io": f"{registry.host}/hub"})
    reference = f"both@{digest(BOTH)}"
    assert registries.digest(reference, "ppc64le") == digest(POWER)
    registry.files[f"/v2/hub/library/both/manifests/{digest(BOTH)}"] = (SINGLE, MANIFEST)
    with pytest.raises(RegistryFails, match=f"the registry sent {digest(SINGLE)}"):
        registries.digest(reference, "ppc64le")


def test_a_namespaces_mirror_is_asked_before_its_registrys(
    registry: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.registry.failures._FIRST_S", 0.01)
    registry.files["/v2/nv/cuda/manifests/1"] = (BOTH, INDEX)
    mirrors = {"docker.io": "127.0.0.1:9/hub", "docker.io/nvidia": f"{registry.host}/nv"}
    registries = Registries(mirrors=mirrors)
    assert registries.digest("docker.io/nvidia/cuda:1", "ppc64le") == digest(POWER)
    references, failures = pin_references(
        [("docker.io/nvidia/cuda:1", "x86_64"), ("docker.io/library/a:1", "x86_64")],
        {},
        registries,
        update=False,
    )
    assert references == {("docker.io/nvidia/cuda:1", "x86_64"): digest(SINGLE)}
    [failure] = failures
    assert "not requested: docker.io/library/a:1\n" in str(failure)
    assert "registries: {docker.io: mirror.example:5000} in site.yaml" in str(failure)
    lost = unreachable(["nvidia/cuda:1", "nvidiax/cuda:1"], registries)
    assert [one.server for one in lost] == ["127.0.0.1:9"]


@pytest.mark.parametrize("needs", ["Bearer granted", f"Basic {PASSWORD}"])
def test_credentials_are_used_and_never_shown(needs: str, registry: Told) -> None:
    registry.needs = needs
    reference = f"{registry.host}/library/both:1"
    registries = Registries(credentials=known(registry.host))
    assert registries.digest(reference, "x86_64") == digest(SINGLE)
    with pytest.raises(RegistryFails, match=r"answers 40[13]") as caught:
        Registries(credentials=known("other.example")).digest(reference, "x86_64")
    assert "log in with podman login" in str(caught.value)
    shown = f"{caught.value}{registries!r}{Login(user='user', password='secret')!r}"
    assert PASSWORD not in shown
    assert "secret" not in shown


def test_a_limit_of_requests_is_waited_for(registry: Told) -> None:
    waits: list[float] = []
    registry.busy = 3  # the first request asks whether the server wants TLS
    registries = Registries(wait=waits.append)
    assert registries.digest(f"{registry.host}/library/both:1", "x86_64") == digest(SINGLE)
    assert waits == [0.5, 1.0]
    registry.busy = 6
    with pytest.raises(RegistryFails, match="answers 429"):
        registries.digest(f"{registry.host}/library/both:1", "x86_64")


def test_an_image_that_is_not_there_is_told(registry: Told) -> None:
    with pytest.raises(RegistryFails, match=r"library/none:1: .* answers 404"):
        Registries().digest(f"{registry.host}/library/none:1", "x86_64")


def test_a_registry_that_is_away_is_named_with_what_to_do() -> None:
    registries = Registries(mirrors={"docker.io": "127.0.0.1:9"}, wait=lambda _: None)
    with pytest.raises(RegistryUnreachable) as caught:
        registries.digest("debian:13", "x86_64")
    text, hint = str(caught.value).splitlines()
    away = "the registry docker.io cannot be reached, through 127.0.0.1:9: "
    assert text.startswith(f"debian:13: {away}")
    assert caught.value.lost == text.removeprefix("debian:13: ")
    site = "registries: {docker.io: mirror.example:5000} in site.yaml"
    assert hint == f"  hint: name a mirror that this machine reaches: {site}"
    assert caught.value.exit_code == 4


NO_DIGEST = "a descriptor has no sha256 digest"
LINUX = {"os": "linux", "architecture": "amd64"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([], "it is not a JSON object"),
        ("x", "it is not a JSON object"),
        (None, "it is not a JSON object"),
        ({"mediaType": "text/html", "schemaVersion": 1}, "its media type differs"),
        ({"config": []}, "(a descriptor is missing|available: none)"),
        ({"config": {"digest": "../../x"}}, "(a descriptor has no sha256 digest|available: none)"),
        ({"manifests": 3}, "manifests is not a list"),
        ({"manifests": [3]}, "a descriptor is missing"),
        ({"manifests": [{"platform": 3}]}, NO_DIGEST),
        ({"manifests": [{"platform": None, **described(SINGLE)}]}, "available: none"),
        ({"manifests": [{"platform": LINUX}]}, NO_DIGEST),
        ({"manifests": [{"platform": LINUX, "digest": 3}]}, NO_DIGEST),
        ({"manifests": [{"platform": LINUX, "digest": "sha256:00"}]}, NO_DIGEST),
        ({"manifests": [{"platform": LINUX, "digest": f"{digest(b'')}\n"}]}, NO_DIGEST),
    ],
)
@pytest.mark.parametrize("kind", [INDEX, MANIFEST])
def test_an_answer_of_another_shape_is_told(
    answer: object, said: str, kind: str, registry: Told
) -> None:
    registry.files["/v2/library/odd/manifests/1"] = (json.dumps(answer).encode(), kind)
    with pytest.raises(RegistryFails, match=f"library/odd:1: .*{said}"):
        Registries().digest(f"{registry.host}/library/odd:1", "x86_64")


def test_json_that_is_too_deep_and_a_token_of_another_shape_are_told(registry: Told) -> None:
    reference = f"{registry.host}/library/odd:1"
    registry.files["/v2/library/odd/manifests/1"] = (b"[" * 100_000, INDEX)
    with pytest.raises(RegistryFails, match="is not valid JSON"):
        Registries().digest(reference, "x86_64")
    registry.needs, registry.token = "Bearer granted", []
    with pytest.raises(RegistryFails, match="its token server returned no token"):
        Registries(credentials=known(registry.host)).digest(reference, "x86_64")


def test_only_this_machine_is_asked_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def urlopen(_pool: object, _method: str, url: str, **_: object) -> None:
        asked.append(url)
        raise urllib3.exceptions.HTTPError("no network in unit tests")

    monkeypatch.setattr(urllib3.PoolManager, "urlopen", urlopen)
    mirrors = {"docker.io": "mirror.example:5000/hub"}
    with pytest.raises(RegistryUnreachable):
        Registries(mirrors=mirrors, wait=lambda _: None).digest("debian:13", "x86_64")
    assert {url.partition("/v2/")[0] for url in asked} == {"https://mirror.example:5000"}


def test_registries_without_an_answer_are_told_once(registry: Told) -> None:
    registry.needs = "Bearer granted"  # a refusal is an answer
    names = ["debian:13", "nvidia/cuda:1", "quay.io/a:1"]
    mirrors = {"docker.io": "127.0.0.1:9", "quay.io": registry.host}
    found = unreachable(names, Registries(mirrors=mirrors))
    assert [(one.registry, one.server) for one in found] == [("docker.io", "127.0.0.1:9")]
    assert unreachable([], Registries()) == []
