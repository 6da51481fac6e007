"""`build-images pull` before it asks a registry."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from builder.cli import main
from builder.distribute.pull import images
from builder.distribute.pull.request import Judged, NotProven, PullRequest
from builder.model.errors import BadInput
from builder.trust.policy.records import not_asked, passed, refused
from builder.trust.proof.keys import generated


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


def pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *tags: str) -> int:
    """Pull images of a registry that is not there, by a policy with one key."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    (tmp_path / "a.pub").write_bytes(PEM)
    policy = tmp_path / "policy.yaml"
    policy.write_text(json.dumps({"schema": "build-images/policy/v1", "keys": ["a.pub"]}))
    names = [f"127.0.0.1:1/site/tool:{tag}" for tag in tags]
    return main(["pull", *names, "--format", "sif", "--policy", str(policy)])


def test_a_disk_that_is_full_ends_one_image_of_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one may be smaller; all are told, and the highest exit code is the command's."""

    def full(request: PullRequest, *_: object) -> Judged:
        if request.reference.tag == "bad":
            raise BadInput("no such image")
        raise OSError(errno.ENOSPC, "No space left on device", f"/big/{request.reference.tag}")

    monkeypatch.setattr(images, "look", full)
    assert pull(tmp_path, monkeypatch, "1", "bad", "2") == 4
    assert capsys.readouterr().err.splitlines() == [
        "build-images: /big/1: No space left on device",
        "  hint: free disk space, or name another folder: --output, BUILD_IMAGES_HOME",
        "build-images: no such image",
        "build-images: /big/2: No space left on device",
        "  hint: free disk space, or name another folder: --output, BUILD_IMAGES_HOME",
    ]


def test_a_reader_that_goes_away_ends_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object) -> Judged:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(images, "look", look)
    assert pull(tmp_path, monkeypatch, "1", "2") == 141
    assert capsys.readouterr().err == ""


def test_what_a_policy_refuses_is_told_and_nothing_else() -> None:
    rulings = (
        passed("identity", "it is tools 1.0"),
        refused("age", "proven 100 days ago", "ask for it to be verified again"),
        not_asked("rollback", "nothing was pulled before"),
    )
    error = NotProven("registry.example/tools:1.0", rulings)
    assert str(error).splitlines() == [
        "registry.example/tools:1.0: refused",
        "  ✗ refused    age  proven 100 days ago",
        "                   fix: ask for it to be verified again",
    ]
    assert (error.exit_code, error.rulings) == (5, rulings)


PEM = generated().public.pem
