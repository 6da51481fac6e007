"""What is published is found, whole, by clients of others, with TLS and a password."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from harness import TOOLS, Ended, need, passed, run_program
from made_releases import make_images, make_project
from publishing import BILL, PROVENANCE, TAG, TEST_RESULT, Pair, published, signed
from real_registry import PASSWORD, USER, RealRegistry

from builder.artifacts import flatten
from builder.artifacts.oci import read_layout
from builder.build.engines import Tools, apptainer

pytestmark = pytest.mark.engines
ARCH = "x86_64"


@pytest.fixture(name="whole")
def project_with_a_sif(tools: Tools, shared_folder: Path) -> Path:
    """A project whose one image has a SIF that Apptainer made."""

    def pack(layout: Path, target: Path) -> None:
        made = shared_folder / "image.sif"
        copy = Path(shutil.copytree(layout, shared_folder / "layout"))
        apptainer.pack(copy, made, [], arch=ARCH, tools=tools, log=shared_folder / "log")
        shutil.copy(made, target)

    project = make_project(shared_folder / "project", recipes=["tools"], architectures=[ARCH])
    make_images(project, pack=pack)
    return project


@pytest.fixture(name="client")
def environment(
    whole: Path, secured: RealRegistry, pair: Pair, shared_folder: Path, tmp_path: Path
) -> Mapping[str, str]:
    """Publishes, signed, and what clients need: their own ways of naming login and authority."""
    passed(signed(whole, secured.host, pair, env=secured.environment))
    assert secured.authority is not None
    authority = shutil.copy(secured.authority, shared_folder / "ca.pem")
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    auths = json.dumps({"auths": {secured.host: {"auth": login}}})
    (tmp_path / "config.json").write_text(auths)
    return {
        **os.environ,
        "PATH": TOOLS,
        "SSL_CERT_FILE": str(authority),
        "DOCKER_CONFIG": str(tmp_path),
        "REGISTRY_AUTH_FILE": str(tmp_path / "config.json"),
        "APPTAINER_DOCKER_USERNAME": USER,
        "APPTAINER_DOCKER_PASSWORD": PASSWORD,
    }


def run(client: Mapping[str, str], *words: str | Path) -> str:
    return passed(tried(client, *words)).stdout


def tried(client: Mapping[str, str], *words: str | Path) -> Ended:
    need(str(words[0]))
    return run_program(*words, env=client, inherit=False)


def digests_of(whole: Path, secured: RealRegistry, env: Mapping[str, str]) -> Mapping[str, str]:
    return published(whole, secured, "tools", env=dict(env))[ARCH]


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_skopeo_copies_it(
    whole: Path, secured: RealRegistry, client: Mapping[str, str], tmp_path: Path
) -> None:
    source = f"docker://{secured.host}/site/tools:{TAG}"
    raw = json.loads(run(client, "skopeo", "inspect", "--raw", source))
    digests = digests_of(whole, secured, secured.environment)
    assert [one["digest"] for one in raw["manifests"]] == [digests["oci"]]
    run(client, "skopeo", "copy", "--all", source, f"oci:{tmp_path / 'copy'}:x")


def test_crane_validates_every_layer(secured: RealRegistry, client: Mapping[str, str]) -> None:
    for tag in (TAG, "latest"):
        run(client, "crane", "validate", "--remote", f"{secured.host}/site/tools:{tag}")


@pytest.mark.parametrize("form", ["bundle", "classic"])
def test_cosign_verifies_signature_and_attestations(
    whole: Path, secured: RealRegistry, client: Mapping[str, str], pair: Pair, form: str
) -> None:
    """Over TLS and with the login, as a site has them: no option has cosign do with less."""
    digests = digests_of(whole, secured, secured.environment)
    image = f"{secured.host}/site/tools@{digests['oci']}"
    trust = ["--key", str(pair.public), "--insecure-ignore-tlog=true"]
    trust += ["--new-bundle-format=false"] if form == "classic" else []
    for one in (image, f"{secured.host}/site/tools:{TAG}"):
        run(client, "cosign", "verify", *trust, one)
    for kind in (TEST_RESULT, PROVENANCE, BILL):
        said = run(client, "cosign", "verify-attestation", "--type", kind, *trust, image)
        payloads = [json.loads(line)["payload"] for line in said.splitlines()]
        statements = [json.loads(base64.b64decode(one)) for one in payloads]
        assert {one["predicateType"] for one in statements} == {kind}
        assert all(digests["oci"][7:] in json.dumps(one["subject"]) for one in statements)


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ("DOCKER_CONFIG", "UNAUTHORIZED"),
        # On loopback cosign falls back to plain HTTP where it trusts no certificate.
        ("SSL_CERT_FILE", "Client sent an HTTP request to an HTTPS server"),
    ],
    ids=["no login", "no authority"],
)
def test_cosign_without_login_or_authority_verifies_nothing(
    whole: Path,
    secured: RealRegistry,
    client: Mapping[str, str],
    pair: Pair,
    lacking: str,
    said: str,
    tmp_path: Path,
) -> None:
    digests = digests_of(whole, secured, secured.environment)
    bare = {key: text for key, text in client.items() if key not in {lacking, "REGISTRY_AUTH_FILE"}}
    trust = ["--key", str(pair.public), "--insecure-ignore-tlog=true"]
    image = f"{secured.host}/site/tools@{digests['oci']}"
    env = {**bare, "HOME": str(tmp_path / "nobody")}
    for command in (["verify"], ["verify-attestation", "--type", TEST_RESULT]):
        done = tried(env, "cosign", *command, *trust, image)
        assert done.status != 0
        assert said in done.stderr, done.stderr


def test_oras_finds_and_pulls_the_tarball(
    whole: Path, secured: RealRegistry, client: Mapping[str, str], tmp_path: Path
) -> None:
    digests = digests_of(whole, secured, secured.environment)
    repository = f"{secured.host}/site/tools"
    assert digests["charliecloud"] in run(
        client, "oras", "discover", f"{repository}@{digests['oci']}"
    )
    run(client, "oras", "pull", "-o", tmp_path / "got", f"{repository}@{digests['charliecloud']}")
    [got] = (tmp_path / "got").iterdir()
    assert got.name == f"tools-{TAG}-{ARCH}.tar.gz"
    assert sha256(got) == sha256(whole / f"out/tools-{TAG}-{ARCH}/image.tar.gz")


def test_apptainer_pulls_the_sif(
    whole: Path,
    secured: RealRegistry,
    client: Mapping[str, str],
    tools: Tools,
    shared_folder: Path,
) -> None:
    digests = digests_of(whole, secured, secured.environment)
    got = shared_folder / "got.sif"
    tools.logged(
        [
            *(tools.program("apptainer"), "pull", str(got)),
            f"oras://{secured.host}/site/tools@{digests['sif']}",
        ],
        log=shared_folder / "log",
        what="apptainer pull",
        cwd=shared_folder,
        env={**client, **apptainer.environment(shared_folder)},
        user=tools.ordinary_user,
    )
    assert sha256(got) == sha256(whole / f"out/tools-{TAG}-{ARCH}/image.sif")


def test_charliecloud_pulls_the_image(
    whole: Path, secured: RealRegistry, client: Mapping[str, str], tmp_path: Path
) -> None:
    env = {
        **client,
        "PATH": "/usr/bin:/bin",  # ch-image needs the system's own python3
        "USER": os.environ.get("USER", "root"),
        "CH_IMAGE_STORAGE": str(tmp_path / "storage"),
        "CH_IMAGE_USERNAME": USER,
        "CH_IMAGE_PASSWORD": PASSWORD,
        "REQUESTS_CA_BUNDLE": client["SSL_CERT_FILE"],
    }
    image, folder = f"{secured.host}/site/tools:{TAG}", tmp_path / "rootfs"
    run(env, "ch-image", "pull", "--auth", image)
    run(env, "ch-convert", "-i", "ch-image", "-o", "dir", image, folder)
    layout = read_layout(whole / f"out/tools-{TAG}-{ARCH}/image.oci")
    files = [one for one in flatten.entries_of_layout(layout) if one.kind == "file"]
    assert files
    assert {one.path: sha256(folder / one.path) for one in files} == {
        one.path: one.content for one in files
    }
