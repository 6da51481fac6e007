"""Scripts of the harness in an image are the builder's, byte for byte."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

import pytest
from samples import a_file, a_folder, tar_bytes
from test_check_outcomes import a_check, a_target

from builder.artifacts.flatten import entries_of_tar, flattened
from builder.artifacts.manifests import programs_in
from builder.artifacts.oci import Layout
from builder.artifacts.tree import comparable
from builder.model import FAILED, SKIPPED
from builder.model.digests import digest_of
from builder.verify.formats import FormatTree
from builder.verify.targets import altered_harness, carried_harness, harness_of

FILES = {
    "files/checks/10-mpi": "#!/bin/sh\nsh $SRC/quiet.sh mpi\n",
    "files/run-checks": "#!/bin/sh\n",
    "files/src/quiet.sh": "fails if anything is said\n",
    "files/host-contract.json": "{}",
}
OTHERS = {"Dockerfile": "FROM x\n", "files/environment.yaml": "of a recipe\n"}
SPECS = {name: digest_of(text.encode()) for name, text in (FILES | OTHERS).items()}
TARGET = a_target(a_check(), harness=harness_of(SPECS))


def tree(changes: Mapping[str, str | None], *folders: str) -> FormatTree:
    """An image with the harness and a compiled program, changed, and with further folders."""
    texts = {**FILES, "files/bin/mpi": "a program", **changes}
    members = [
        a_file(name.replace("files/", "opt/build-images/"), text)
        for name, text in texts.items()
        if text is not None
    ]
    members += [a_folder(f"opt/build-images/{name}") for name in folders]
    return FormatTree(entries=comparable(entries_of_tar(io.BytesIO(tar_bytes(*members)))))


def test_the_builders_bytes_are_no_finding() -> None:
    assert altered_harness(TARGET, {"oci": tree({}), "sif": tree({}, "src/more")}) == ()
    [outcome] = altered_harness(TARGET, {"sif": tree({}, "checks/more")})
    assert outcome.reason == "sif: /opt/build-images/checks/more differs from the builder's"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"files/src/quiet.sh": '"$@" 2>/dev/null\n'}, "src/quiet.sh differs from the builder's"),
        ({"files/run-checks": "echo all is well\n"}, "run-checks differs from the builder's"),
        ({"files/checks/10-mpi": "echo 4 ranks\n"}, "checks/10-mpi differs from the builder's"),
        ({"files/checks/20-more": "echo fine\n"}, "checks/20-more differs from the builder's"),
        ({"files/src/json.py": "a module"}, "src/json.py differs from the builder's"),
        ({"files/src/quiet.sh": None}, "src/quiet.sh is missing"),
        ({"files/host-contract.json": "[]"}, "host-contract.json differs from the builder's"),
    ],
)
def test_other_bytes_in_one_format_fail(changes: Mapping[str, str | None], fault: str) -> None:
    [outcome] = altered_harness(TARGET, {"oci": tree({}), "sif": tree(changes)})
    assert (outcome.check, outcome.outcome) == ("harness", FAILED)
    assert outcome.reason == f"sif: /opt/build-images/{fault}"


def test_all_faults_are_told() -> None:
    trees = {"oci": tree({"files/run-checks": "x"}), "sif": tree({"files/src/quiet.sh": None})}
    [outcome] = altered_harness(TARGET, trees)
    assert outcome.reason == (
        "oci: /opt/build-images/run-checks differs from the builder's; "
        "sif: /opt/build-images/src/quiet.sh is missing"
    )


def test_what_is_not_known_is_not_judged_and_said_to_be() -> None:
    other = {"oci": tree({"files/run-checks": "other"})}
    [outcome] = altered_harness(dataclasses.replace(TARGET, harness={}), other)
    assert (outcome.check, outcome.outcome) == ("harness", SKIPPED)
    assert outcome.reason.startswith("not compared: no record of the scripts")
    assert altered_harness(dataclasses.replace(TARGET, checks=()), other) == ()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"files/bin/mpi": "prints 4 ranks"}, "bin/mpi differs from the builder's"),
        ({"files/bin/mpi": None}, "bin/mpi is missing"),
        ({"files/bin/more": "x"}, "bin/more differs from the builder's"),
    ],
)
def test_programs_are_those_that_were_found_in_the_image_that_was_packed(
    changes: Mapping[str, str | None], fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "layer"
    path.write_bytes(tar_bytes(a_file("opt/build-images/bin/mpi", "a program")))
    layout = Layout(path=tmp_path, digest="", config={}, layers=(path,))
    programs = programs_in(flattened(layout))
    assert programs == {"files/bin/mpi": digest_of(b"a program")}
    harness = {**TARGET.harness, **harness_of(programs)}
    target = dataclasses.replace(TARGET, harness=harness)
    assert altered_harness(target, {"oci": tree({})}) == ()
    [outcome] = altered_harness(target, {"oci": tree(changes)})
    assert outcome.reason == f"oci: /opt/build-images/{fault}"


def test_programs_are_noted_with_the_scripts() -> None:
    found = carried_harness(tree({}))
    assert found["bin/mpi"] == hashlib.sha256(b"a program").hexdigest()
    assert found.keys() >= {"run-checks", "src/quiet.sh", "checks/10-mpi"}
