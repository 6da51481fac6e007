"""`build-images pull` before it asks a registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.cli import main
from builder.proof.keys import generated


@pytest.mark.parametrize(
    "keys",
    [
        ["a.pub", {"file": "a.pub", "until": "2027-12-31"}],
        [{"file": "a.pub", "until": "2027-12-31"}, "a.pub"],
        ["a.pub", "b.pub"],
    ],
    ids=["plain first", "dated first", "another name"],
)
def test_a_key_that_is_named_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: list[Any]
) -> None:
    """Listed plain as well, it would be trusted beyond its day."""
    for name in ("a.pub", "b.pub"):
        (tmp_path / name).write_bytes(PEM)
    policy = tmp_path / "policy.yaml"
    policy.write_text(json.dumps({"schema": "build-images/policy/v1", "keys": keys}))
    words = ["pull", "127.0.0.1:1/site/tool:1", "--format", "sif", "--policy", str(policy)]
    assert main(words) == 2
    assert "the same key as a.pub" in capsys.readouterr().err


def test_all_references_that_are_none_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pull", "Not A Reference", "quay.io/site/tool:1", "quay.io/site/tool@sha256:1"]
    assert main([*words, "--format", "sif"]) == 2
    said = capsys.readouterr().err
    assert "Not A Reference" in said
    assert "sha256:1" in said


PEM = generated().public.pem
