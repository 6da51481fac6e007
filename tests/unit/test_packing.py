"""Packing: who takes the digest of what Apptainer writes."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from builder.artifacts.repack import Plain
from builder.cli.packing import Packer
from builder.cli.proving import _proven
from builder.cli.run import Timer
from builder.cli.workspace import Workspace
from builder.verify import FormatTree

CONTENT = b"a SIF"
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def packer(work: Path, *, verify: bool, monkeypatch: pytest.MonkeyPatch) -> Packer:
    """A packer whose Apptainer writes CONTENT."""

    def pack(_layout: Path, target: Path, *_: object, **__: object) -> None:
        target.write_bytes(CONTENT)

    monkeypatch.setattr("builder.cli.packing.apptainer.pack", pack)
    quiet = SimpleNamespace(step=lambda *_: None)
    stage = SimpleNamespace(about="")
    image = SimpleNamespace(
        identifier="x", stages=[stage], checks=(), cell=SimpleNamespace(arch="x86_64")
    )
    return Packer(
        run=cast("Any", SimpleNamespace(verify=verify, progress=quiet, tools=None)),
        image=cast("Any", image),
        work=Workspace(path=work),
        timer=Timer(),
    )


PLAIN = cast("Plain", SimpleNamespace(layout=SimpleNamespace(path=Path())))


def test_a_sif_that_is_to_be_proven_is_read_for_that_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = packer(tmp_path, verify=True, monkeypatch=monkeypatch)._sif(PLAIN)
    assert (made.digest, made.size) == ("", len(CONTENT))
    tree = dataclasses.replace(FormatTree.of({}), artifact=DIGEST)
    assert _proven(made, tree).digest == DIGEST
    assert _proven(made, None).digest == DIGEST, "its tree could not be read"


def test_a_sif_that_is_not_proven_has_its_digest_also_after_a_run_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packer(tmp_path, verify=True, monkeypatch=monkeypatch)._sif(PLAIN)
    kept = packer(tmp_path, verify=False, monkeypatch=monkeypatch)._sif(PLAIN)
    assert kept.digest == DIGEST
