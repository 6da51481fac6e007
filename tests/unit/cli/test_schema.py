"""The JSON Schemas: those in docs/schema are up to date, and they judge files as loading does.

UPDATE_GOLDEN=1 writes docs/schema anew.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from manifest_samples import record
from samples import ROOT

from builder.cli import main
from builder.cli.schema import FILE_KINDS, RESULT_KINDS, schema_of
from builder.load.document import Faults
from builder.load.recipes import check_toolkit
from builder.model import BlockUse, Where
from builder.model.manifest import manifest_text
from builder.reports.report import BuildRun, ReportDocument, report_files

DATA = ROOT / "tests/data"
FILES = {
    "recipe": ("recipes/*.yaml",),
    "base": ("base-images/*.yaml",),
    "matrix": ("matrix.yaml",),
    "checks": ("tests/images/checks.yaml",),
    "site": ("site.yaml",),
    "host": ("tests/data/hosts/*.json",),
    "host-contract": ("tests/golden/contract/*.json",),
    "policy": ("tests/data/policy/policies/*.yaml",),
    "policy-case": ("tests/data/policy/cases/*.yaml",),
}
GOOD = [
    pytest.param(kind, file, id=file.relative_to(ROOT).as_posix())
    for kind, patterns in FILES.items()
    for folder in (ROOT, DATA / "good")
    for pattern in patterns
    for file in sorted(folder.glob(pattern))
]
# Faults that the shape of one file shows; names, versions and templates are for loading.
BAD = {
    "bad-unknown-key": "recipe",
    "bad-unknown-key-nested": "base",
    "bad-unknown-key-matrix": "matrix",
    "bad-unknown-key-check": "checks",
    "bad-missing-key": "recipe",
    "bad-missing-axis": "matrix",
    "bad-wrong-type": "recipe",
    "bad-version-number": "recipe",
    "bad-identifier": "base",
    "bad-block-shape": "recipe",
    "bad-architecture": "matrix",
    "bad-axis-unknown": "matrix",
    "bad-axis-unknown-recipe": "recipe",
    "bad-base-both-sources": "base",
    "bad-base-no-source": "base",
    "bad-base-pocket": "base",
    "bad-hpccm-distro": "base",
    "bad-mpi-family-base": "base",
    "bad-check-needs": "checks",
    "bad-check-timeout": "checks",
    "bad-empty-axis": "matrix",
    "bad-environment": "recipe",
    "bad-exclude-no-reason": "matrix",
    "bad-not-a-mapping": "base",
    "bad-pattern-number": "matrix",
}


@functools.cache
def validator(kind: str) -> jsonschema.Draft7Validator:
    made = schema_of(kind)
    jsonschema.Draft7Validator.check_schema(made)
    return jsonschema.Draft7Validator(made)


def content(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def test_there_is_a_schema_for_each_kind() -> None:
    assert tuple(FILES) == FILE_KINDS


@pytest.mark.parametrize("kind", [*FILE_KINDS, *RESULT_KINDS])
def test_docs_hold_the_schema(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "docs/schema" / f"{kind}.json"
    assert main(["schema", kind]) == 0
    text = capsys.readouterr().out
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text, f"write it anew: build-images schema {kind} > {path}"


def undescribed(part: Any, path: str = "") -> list[str]:
    """Keys that a file may have, and whose readers say neither what they are nor their kind."""
    found = []
    if isinstance(part, list):
        return [key for inner in part for key in undescribed(inner, path)]
    for name, value in part.items() if isinstance(part, dict) else ():
        if name == "properties":
            found += [f"{path}.{key}" for key, one in value.items() if not is_described(one)]
        if name not in {"if", "then"}:  # conditions on keys that are described elsewhere
            found += undescribed(value, f"{path}.{name}")
    return found


def is_described(value: dict[str, Any]) -> bool:
    kind = value.keys() - {"description"}
    return bool(value.get("description", "").strip() and kind)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_every_key_is_described(kind: str) -> None:
    assert undescribed(schema_of(kind)) == []


@pytest.mark.parametrize(("kind", "file"), GOOD)
def test_good_files_are_valid(kind: str, file: Path) -> None:
    problems = [
        f"{list(error.absolute_path)}: {error.message[:200]}"
        for error in validator(kind).iter_errors(content(file))
    ]
    assert problems == []


SHIPPED = [one for one in GOOD if "tests/data" not in str(one.id) and "golden" not in str(one.id)]


@pytest.mark.parametrize(("kind", "file"), SHIPPED)
def test_shipped_files_name_their_schema(kind: str, file: Path) -> None:
    first = file.read_text().splitlines()[0]
    path = first.removeprefix("# yaml-language-server: $schema=")
    assert (file.parent / path).resolve() == ROOT / "docs/schema" / f"{kind}.json", first


def plan_of(capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    argv = ["plan", "--json", f"--project={ROOT}", "--recipe=hpc-base", "--base=debian13"]
    assert main([*argv, *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_results_fit_their_schemas(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Engine tests do the same with the files of real builds."""
    plan = plan_of(capsys, "--mpi=openmpi5.0", "--mpi=mpich")
    assert plan["images"]
    assert plan["left_out"]
    cell, launched = (
        plan["images"][0]["cell"],
        {"sif-mpi": [{"check": "ring", "outcome": "failed"}]},
    )
    manifest = record({"cell": cell, "launched": launched, "packages": 3})
    run = BuildRun(host={"arch": "x86_64"})
    document = ReportDocument(build=run, images=(manifest,), failures={"x": "broke"})
    results = {
        "plan": plan,
        "manifest": json.loads(manifest_text(manifest)),
        "report": json.loads(report_files(document, tmp_path.name)["report.json"]),
    }
    for kind, result in results.items():
        validator(kind).validate(result)
        result["unknown"] = 1
        assert validator(kind).is_valid(result) is (kind == "manifest")  # it keeps what is newer
        del result["schema" if kind == "plan" else "images" if kind == "report" else "cell"]
        assert not validator(kind).is_valid(result)


def shown_valid(name: str, kind: str) -> bool:
    files = [file for pattern in FILES[kind] for file in (DATA / name).glob(pattern)]
    assert files, f"{name} has no {kind}"
    return all(validator(kind).is_valid(content(file)) for file in files)


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_not(name: str) -> None:
    assert not shown_valid(name, BAD[name])


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        ("host", {}),
        ("host", {"schema": "build-images/host/v2"}),
        ("host", {"schema": "build-images/host/v1", "kernel": 5.4}),
        ("host", {"schema": "build-images/host/v1", "gpu": {"devices": [{"capability": "70"}]}}),
        ("host", {"schema": "build-images/host/v1", "mpi": [{"version": "4.1"}]}),
        ("host-contract", {"schema": "build-images/host-contract/v1"}),
    ],
)
def test_records_and_contracts_are_judged_too(kind: str, document: dict[str, Any]) -> None:
    assert not validator(kind).is_valid(document)


def test_an_empty_record_is_one() -> None:
    assert validator("host").is_valid({"schema": "build-images/host/v1", "gpu": None})


RECIPE = {"recipe": "a", "version": "1.0", "about": "a"}


@pytest.mark.parametrize(
    ("block", "is_valid"),
    [
        ({"gnu": None}, True),
        ({"gnu": {"fortran": True}}, True),
        ({"gnu": {"fortran": "{{ cuda.version != 'none' }}"}}, True),
        ({"gnu": {"fortran": "yes"}}, False),
        ({"gnu": {"fortrna": True}}, False),
        ({"gun": {}}, False),
        ({"gnu": {}, "cmake": {}}, True),  # the block beside it is no `when`: loading says so
        ({"gnu": {}, "when": {"arch": "ppc64le"}}, True),
        ({"gnu": {}, "when": {"machine": "ppc64le"}}, False),
        ({"when": {"arch": "ppc64le"}}, False),
        ({"hdf5": {"version": "1.14.3", "enable_parallel": True}}, True),
        ({"hdf5": {"version": 1.14}}, False),
        ({"packages": {"ospackages": ["make", "{{ mpi.development }}"]}}, True),
        ({"packages": {"ospackages": "make"}}, False),
        ({"packages": {"ospackages": "{{ mpi.development }}"}}, True),
        ({"openmpi": {"version": "5.0.7", "toolchain": "gnu"}}, True),
        ({"openmpi": {"version": "5.0.7", "toolchain": {"CC": "gcc"}}}, True),
        ({"openmpi": {"version": "5.0.7", "toolchain": {"CCC": "gcc"}}}, False),
    ],
)
def test_blocks(block: dict[str, Any], is_valid: bool) -> None:
    assert validator("recipe").is_valid({**RECIPE, "development": [block]}) is is_valid


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cuda", {"capabilities": ["70"]}),
        ("cuda", {"capabilities": [70]}),
        ("cuda", {"capabilities": ["sm_70"]}),
        ("cuda", {"capabilities": []}),
        ("cuda", {"cudnn": True, "nccl": "optional"}),
        ("cuda", {"cudnn": "maybe"}),
        ("cuda", {"routes": ["package"]}),
        ("mpi", {"routes": ["package", "source"]}),
        ("mpi", {"routes": ["parcel"]}),
        ("mpi", {"routes": "package"}),
        ("mpi", {"source": {"ucx": "/usr/local/ucx"}}),
        ("mpi", {"source": "/usr/local"}),
    ],
)
def test_toolkits_are_judged_as_loading_judges_them(name: str, arguments: dict[str, Any]) -> None:
    use = BlockUse(name=name, arguments=arguments, where=Where(file="a.yaml", line=1))
    is_valid = validator("recipe").is_valid({**RECIPE, "development": [{name: arguments}]})
    faults = Faults()
    check_toolkit(use, faults)
    assert is_valid is (not faults.found)
