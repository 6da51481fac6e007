"""Publishing with a key in a PKCS#11 token, where there is one: no Debian cosign reaches it.

    BUILD_IMAGES_TOKEN='pkcs11:token=…;object=…' COSIGN_PKCS11_PIN=… COSIGN_PKCS11_MODULE_PATH=…

names a P-256 key, with a cosign on PATH that was built with the tag pkcs11key.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from published import under
from publishing import publish, repository, unproven
from real_registry import RealRegistry

from builder.system.process import Processes
from builder.trust.proof.attestations import signature_tag
from builder.trust.proof.cosign import signer_of
from builder.trust.proof.keys import PublicKey

URI = os.environ.get("BUILD_IMAGES_TOKEN", "")
pytestmark = [
    pytest.mark.engines,
    pytest.mark.usefixtures("own_home"),
    pytest.mark.skipif(not URI, reason="a token is named by BUILD_IMAGES_TOKEN, and none is"),
]


@pytest.fixture
def key() -> PublicKey:
    return signer_of(URI, os.environ, Processes()).public


def test_several_images_are_signed_and_once_more_adds_nothing(
    made: Path, registry: RealRegistry, key: PublicKey
) -> None:
    app, found = repository(registry.host, "app"), set()
    for _ in range(3):
        done = publish(made, registry.host, "--key", URI)
        assert done.status == 0, done.stderr
        assert os.environ["COSIGN_PKCS11_PIN"] not in done.stdout + done.stderr
        assert unproven(registry.host, key=key) == []
        index, parsed = app.document("latest")
        found.add(under(app, index.digest))
        named = [index.digest, *(one["digest"] for one in parsed["manifests"])]
        tagged = [app.document(signature_tag(one))[1]["layers"] for one in named]
        assert [len(layers) for layers in tagged] == [1, 1, 1]
    assert len(found) == 1


@pytest.mark.parametrize(
    ("uri", "pin", "said"),
    [
        (URI, "", "put the PIN into the environment variable COSIGN_PKCS11_PIN"),
        ("pkcs11:token=none;object=none", "1234", "'cosign pkcs11-tool list-tokens'"),
    ],
    ids=["pin", "token"],
)
def test_a_token_that_cannot_be_used(
    made: Path, registry: RealRegistry, uri: str, pin: str, said: str
) -> None:
    done = publish(made, registry.host, "--key", uri, env={"COSIGN_PKCS11_PIN": pin})
    assert (done.status, len(done.stderr.strip().splitlines())) == (1, 2), done.stderr
    assert said in done.stderr
    assert not list(registry.store.rglob("_manifests"))
