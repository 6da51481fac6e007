"""Flavours and CPU targets: what they do to identifiers, plans and specs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from samples import EVERYTHING, block, project, recipe, where

from builder.compile.spec import compile_spec
from builder.model import BlockUse, Plan, Selection, Spec
from builder.model.errors import EmptySelection
from builder.plan import make_plan


def planned(root: Path, selection: Selection = EVERYTHING, **parts: Any) -> Plan:
    return make_plan(project(root, **parts), selection, compiler="hpccm 1", may_be_empty=True)


def variant(*, flavour: str = "runtime", cpu: str = "generic") -> Selection:
    return Selection(everything=True, flavours=(flavour,), cpu_targets=(cpu,))


def compiled(root: Path, selection: Selection, **parts: Any) -> Spec:
    return compile_spec(planned(root, selection, **parts).images[0], run_checks="#!/bin/sh\n")


LIBRARY = recipe(
    development=(
        block("gnu"),
        block("generic_autotools", url="https://example.org/lib-1.0.tar.gz", prefix="/opt/lib"),
    ),
    runtime=(block(ospackages=["less"]),),
    environment={"LIB": "/opt/lib"},
)


@pytest.mark.parametrize(
    ("selection", "identifier"),
    [
        (variant(), "core-1.0-debian13-x86_64"),
        (variant(flavour="development"), "core-1.0-debian13-development-x86_64"),
        (variant(cpu="x86_64_v3"), "core-1.0-debian13-x86_64_v3-x86_64"),
        (
            variant(flavour="development", cpu="zen3"),
            "core-1.0-debian13-development-zen3-x86_64",
        ),
    ],
)
def test_what_is_not_usual_is_in_the_identifier(
    tmp_path: Path, selection: Selection, identifier: str
) -> None:
    assert [one.identifier for one in planned(tmp_path, selection).images] == [identifier]


def test_variants_differ_in_their_content_keys(tmp_path: Path) -> None:
    selections = [variant(), variant(flavour="development"), variant(cpu="zen3")]
    keys = {planned(tmp_path, one).images[0].content_key for one in selections}
    assert len(keys) == len(selections)


def test_a_target_of_another_architecture_is_left_out_with_the_reason(tmp_path: Path) -> None:
    plan = planned(tmp_path, variant(cpu="power9le"), arch=("x86_64", "ppc64le"))
    assert [one.identifier for one in plan.images] == ["core-1.0-debian13-power9le-ppc64le"]
    [left] = plan.left_out
    assert str(left.reasons[0]).startswith(
        "world: unknown CPU target for x86_64: power9le; valid: generic, "
    )


def test_an_unknown_target_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(EmptySelection, match=r"did you mean power9le\?"):
        planned(tmp_path, variant(cpu="power9"))


def test_the_development_image_keeps_what_it_was_made_with(tmp_path: Path) -> None:
    spec = compiled(tmp_path, variant(flavour="development"), recipes=[LIBRARY])
    last = spec.dockerfile.rpartition("\nFROM ")[2]
    assert last.startswith("core-development AS development\n")
    assert "less" in last
    assert "ENV LIB=/opt/lib" in last
    assert "COPY --from" not in spec.dockerfile
    assert spec.singularity.count("BootStrap:") == 1  # no stage of a definition starts from another
    for part in ("lib-1.0.tar.gz", "less", "export LIB=/opt/lib", "%runscript"):
        assert part in spec.singularity


def test_the_image_for_running_has_what_was_installed_alone(tmp_path: Path) -> None:
    spec = compiled(tmp_path, variant(), recipes=[LIBRARY])
    last = spec.dockerfile.rpartition("\nFROM ")[2]
    assert "COPY --from=core-development /opt/lib /opt/lib" in last
    assert "g++" not in last


@pytest.mark.parametrize(
    ("arch", "cpu", "flag"),
    [("ppc64le", "power9le", "-mcpu=power9"), ("x86_64", "x86_64_v3", "-march=x86-64-v3")],
)
def test_a_target_gets_into_what_is_built_from_source(
    tmp_path: Path, arch: str, cpu: str, flag: str
) -> None:
    with_fftw = recipe(development=(block("gnu"), block("fftw", version="3.3.10", toolchain="gnu")))
    parts = {"recipes": [with_fftw], "arch": (arch,)}
    assert flag in compiled(tmp_path, variant(cpu=cpu), **parts).dockerfile
    assert flag not in compiled(tmp_path, variant(), **parts).dockerfile


def test_a_copy_from_the_development_stage(tmp_path: Path) -> None:
    """Both formats name the stage as it is called there; one flavour has a single stage."""
    taken = BlockUse(
        name="copy",
        arguments={"from": "development", "src": ["/opt/a", "/opt/b"], "dest": "/usr/local/"},
        where=where("recipes/core.yaml", 9, "runtime[0].copy"),
    )
    made = recipe(development=(block("shell", commands=["make"]),), runtime=(taken,))
    spec = compiled(tmp_path / "a", variant(), recipes=[made])
    assert "COPY --from=core-development /opt/a \\\n    /opt/b \\\n    /usr/local/" in (
        spec.dockerfile
    )
    assert "%files from development\n    /opt/a /usr/local/\n    /opt/b /usr/local/" in (
        spec.singularity
    )
    whole = compiled(tmp_path / "b", variant(flavour="development"), recipes=[made])
    for text in (whole.dockerfile, whole.singularity):
        assert "mkdir -p /usr/local/ && cp -r /opt/a /opt/b /usr/local/" in text.replace(
            " && \\\n   ", " &&"
        ).replace("\n    cp -r", " && cp -r")
