"""The report: what a person and a program read in it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
from html_pages import Page
from manifest_samples import record, write_report
from measure_samples import measured
from samples import compare_page_with_golden, image, recipe

from builder.model import Cell, LeftOut, Plan, Reason
from builder.model.records import read, write
from builder.reports.report import (
    BuildRun,
    LeftOutImage,
    ReportDocument,
    report_of_run,
)
from builder.reports.report.view import axes_of, card_of
from builder.reports.templates import human_moment, human_size, human_time

FORMATS = {"oci": "image.oci", "sif": "image.sif", "charliecloud": "image.tar.gz"}
BUILD = {
    "tool_version": "0.1.0",
    "command": "build-images --arch ppc64le",
    "started": "2026-01-01T09:12:40Z",
    "duration_s": 612.3,
    "host": {"arch": "x86_64", "kernel": "Linux 6.1", "cpu": "EPYC", "os": "Debian 12"},
}


def why(*texts: str) -> tuple[Reason, ...]:
    return tuple(Reason(layer="maintainer", text=text) for text in texts)


def cell(arch: str = "x86_64", mpi: str = "openmpi5.0", cuda: str = "none") -> Cell:
    return Cell(
        recipe="hpc-base", recipe_version="1.0", base="debian13", cuda=cuda, mpi=mpi, arch=arch
    )


def outcome(check: str, word: str = "passed", reason: str = "4 ranks") -> dict[str, Any]:
    return {"check": check, "outcome": word, "reason": reason, "duration_s": 2.0, "data": {}}


def manifest(sample: Cell, **changes: Any) -> dict[str, Any]:
    artifacts = {
        name: {
            "path": path,
            "digest": f"sha256:{name}-digest",
            "size": 118_403_221,
            "tree_digest": "sha256:tree",
            "duration_s": 4.2,
        }
        for name, path in FORMATS.items()
    }
    document: dict[str, Any] = {
        "schema": "build-images/manifest/v1",
        "image": sample.identifier,
        "cell": asdict(sample),
        "about": "Compilers and an MPI",
        "content_key": "c0ffee",
        "tree_digest": "sha256:tree",
        "engine": "buildah",
        "emulated": False,
        "inputs": {
            "recipes": [{"name": "hpc-base", "version": "1.0", "file": "f", "sha256": "0"}],
            "base": {"name": "debian13", "key": "k", "digest": "sha256:base"},
        },
        "tools": {"buildah": "1.28.2"},
        "artifacts": artifacts,
        "formats_equal": True,
        "checks": {name: [outcome("mpi")] for name in FORMATS},
        "outcome": "verified",
        "proven_on_gpu": None,
        "evidence": ["evidence/oci.json"],
        "sbom": "sbom.cdx.json",
        "packages": 212,
        "started": "2026-01-01T09:13:00Z",
        "durations_s": {"spec": 0.01, "build": 301.0, "verify": 6.0},
    }
    return {**document, **changes}


def render(
    tmp_path: Path,
    *manifests: dict[str, Any],
    left_out: tuple[LeftOut, ...] = (),
    failures: Mapping[str, str] | None = None,
    compiled: Mapping[str, str] | None = None,
    earlier: tuple[dict[str, Any], ...] = (),
) -> Page:
    out = tmp_path / "out"
    document = ReportDocument(
        build=read(BuildRun, BUILD),
        images=tuple(map(record, manifests)),
        failures=failures or {},
        left_out=tuple(map(LeftOutImage.of, left_out)),
        compiled=compiled or {},
        earlier=tuple(map(record, earlier)),
    )
    write_report(out, document)
    return Page((out / "report.html").read_text(encoding="utf-8"))


def failed_manifest(reason: str = "rank 0 of 1, four times") -> dict[str, Any]:
    checks = {name: [outcome("mpi")] for name in FORMATS}
    checks["sif"] = [outcome("mpi", "failed", reason)]
    return manifest(cell(mpi="mpich4.2"), checks=checks, outcome="failed")


def test_a_report_as_it_is_written(tmp_path: Path) -> None:
    """All of it but the style sheet and the scripts."""
    absent = LeftOut(cell=cell(mpi="openmpi4.1"), reasons=why("debian13 carries no openmpi4.1"))
    broken = cell("ppc64le", "mpich4.2").identifier
    emulated = manifest(cell("ppc64le"), emulated=True, emulated_runs=["oci"], outcome="built")
    index = {"archive": "debian", "suite": "trixie", "taken_as": "stable", "sha256": "1"}
    old = {**index, "date": "2025-12-01T00:00:00+00:00", "behind_days": 3}
    sample = manifest(cell())
    special = manifest(
        dataclasses.replace(cell(cuda="12.4"), flavour="development", cpu="x86_64_v3"),
        proven_on_gpu=True,
        inputs={**sample["inputs"], "indices": [old]},
        measured=json.loads(json.dumps(measured().as_json(with_runs=False))),
    )
    render(
        tmp_path,
        manifest(cell(), proven_on_gpu=False),
        failed_manifest(),
        emulated,
        special,
        left_out=(absent,),
        failures={broken: "apt-get: exit status 100"},
    )
    compare_page_with_golden(tmp_path / "out/report.html", "report.html", tmp_path)
    assert json.loads((tmp_path / "out/report.json").read_text())["totals"] == {
        "images": 5,
        "verified": 2,
        "built": 1,
        "failed": 2,
        "compiled": 0,
        "left_out": 1,
        "native": 3,
        "emulated": 1,
    }


def test_what_this_machine_lacks_the_means_for_is_compiled_and_not_built(tmp_path: Path) -> None:
    lacking = {
        cell("ppc64le", cuda="10.1").identifier: "docker.io cannot be reached\nhint: a mirror",
        cell(cuda="10.1").identifier: "docker.io cannot be reached\nhint: a mirror",
    }
    page = render(tmp_path, manifest(cell()), compiled=lacking)
    assert "◇ compiled, not built here" in page.text("matrix", "tile", "compiled")
    assert page.text("totals") == "1verified 0failed 2compiled, not built here 0left out"
    assert page.text("head").startswith("1 image verified")
    listed = page.text("absences")
    assert listed.startswith(
        "2 compiled, not built here, by reason docker.io cannot be reachedhpc-"
    )
    assert "hint" not in listed
    document = json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))
    assert (document["compiled"], document["outcome"], document["failures"]) == (
        lacking,
        "verified",
        {},
    )


def test_images_of_earlier_runs_are_listed_apart_and_do_not_count(tmp_path: Path) -> None:
    """Also those that this run was to build, and did not."""
    again, old = manifest(cell()), failed_manifest()
    page = render(tmp_path, compiled={cell().identifier: "no registry"}, earlier=(again, old))
    assert page.text("totals") == "0verified 0failed 1compiled, not built here 0left out"
    assert page.text("head").startswith("No image was built")
    listed = page.text("earlier")
    assert listed.startswith("2 images of earlier runs in this folder, not part of this run")
    assert f"{again['image']} ✓ verified, 2026-01-01 09:13 UTC" in listed
    assert f"{old['image']} ✗ check failed" in listed
    assert f"./{old['image']}/manifest.json" in page.values("href")
    document = json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))
    assert [one["image"] for one in document["earlier"]] == [again["image"], old["image"]]
    assert (document["images"], document["outcome"]) == ([], "failed")


def test_a_run_reports_on_the_images_that_it_was_asked_for(tmp_path: Path) -> None:
    asked = [image(tmp_path, recipes=[recipe(name)]) for name in ("one", "two", "three", "four")]
    plan = Plan(images=tuple(asked), left_out=())
    names = [one.identifier for one in asked]
    known = [record(manifest(cell(), image=name)) for name in ("other", *names)]
    document = report_of_run(known, plan, {names[1]: "broke"}, {names[2]: "no mirror"}, BuildRun())
    assert [one.image for one in document.images] == [names[0], names[3]]
    assert [one.image for one in document.earlier] == ["other", names[1], names[2]]


def test_thousands_of_cells_that_are_left_out_stay_out_of_the_way(tmp_path: Path) -> None:
    absent = tuple(
        LeftOut(cell=cell(arch, f"mpich{number}"), reasons=why(f"reason {number % 3}", "none"))
        for number in range(40)
        for arch in ("ppc64le", "x86_64")
    )
    page = render(tmp_path, manifest(cell(mpi="mpich0")), left_out=(*absent[:1], *absent[2:]))
    assert page.tags.count("tr") < 10, "only the row of the image"
    assert "⊘ left out" in page.text("matrix"), "its other architecture"
    assert not [
        shown for shown in page.all("details") if "open" in shown and shown["class"] != "how"
    ]
    assert page.text("absences").startswith("79 left out, by reason maintainer: none")
    assert "26 cells: mpi mpich1, mpich4" in page.text("absences")
    assert "mpich39-x86_64" not in page.text("absences")
    text = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert text.index('class="card"') < text.index('class="absences"')


def test_built_and_not_verified_is_neither_verified_nor_failed(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "checks": {},
        "outcome": "built",
        "formats_equal": None,
        "evidence": [],
    }
    sample = manifest(cell(), **changes)
    for artifact in sample["artifacts"].values():
        artifact["tree_digest"] = ""
    page = render(tmp_path, sample)
    assert "○ not verified" in page.text("matrix", "tile", "built")
    assert page.text("badge", "state") == "○ not verified"
    assert page.text("totals") == "0verified 1not verified 0failed 0left out"
    assert "native" not in page.text("run"), "no image ran"
    assert "nothing about this image is proven" in page.text("main")
    assert page.text("tree", "equal") == ""
    assert json.loads((tmp_path / "out/report.json").read_text())["outcome"] == "built"


def test_a_left_out_cell_says_why_on_hover_and_in_the_list(tmp_path: Path) -> None:
    absent = LeftOut(cell=cell("ppc64le"), reasons=why("not here", "nor there"))
    page = render(tmp_path, manifest(cell()), left_out=(absent,))
    assert "maintainer: not here; maintainer: nor there" in page.text("absences")
    assert absent.cell.identifier in page.text("absences")
    assert any(
        title.endswith("maintainer: not here; maintainer: nor there")
        for title in page.values("title")
    )


def test_a_reason_cannot_inject_markup(tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>"
    broken = {"hpc-base-1.0-debian13-ppc64le": attack}
    page = render(tmp_path, failed_manifest(attack), failures=broken)
    assert attack in page.text("finding", "failed")
    assert attack in page.text("error")
    assert page.tags.count("script") == 1


def test_skipped_is_never_shown_as_passed(tmp_path: Path) -> None:
    reason = "no NVIDIA driver on this machine"
    checks = {name: [outcome("mpi"), outcome("gpu", "skipped", reason)] for name in FORMATS}
    page = render(tmp_path, manifest(cell(), checks=checks, proven_on_gpu=False))
    assert page.text("finding", "skipped").count("○ skipped") == 3
    assert reason in page.text("finding", "skipped")
    assert "skipped" not in page.text("finding", "passed")
    assert reason not in page.text("finding", "passed")
    assert page.text("badge", "no-gpu") == "not proven on a GPU"


def test_ranks_that_a_launcher_started_are_shown_beside_the_images_own_checks(
    tmp_path: Path,
) -> None:
    """A launcher that fails makes no image unverified, and is seen all the same."""
    reason = "MPI started singletons: this process is rank 0 of 1"
    launched = {"sif": [outcome("mpi-hybrid-srun", "failed", reason)]}
    page = render(tmp_path, manifest(cell(), launched=launched))
    assert reason in page.text("finding", "failed")
    assert page.text("finding", "absent").count("not run") == 2
    assert page.text("badge", "state") == "✓ verified"


def test_a_further_runner_that_fails_is_seen(tmp_path: Path) -> None:
    reason = "rank 0 of 1"
    checks = {name: [outcome("mpi")] for name in FORMATS}
    checks["oci-docker"] = [outcome("mpi", "failed", reason)]
    page = render(tmp_path, manifest(cell(), checks=checks))
    assert reason in page.text("finding", "failed")
    assert "oci-docker" in page.text("list", "stack")
    assert page.text("badge", "state") == "✓ verified"


@pytest.mark.parametrize(
    ("names", "equal", "shown"),
    [
        (("oci", "sif"), True, "✓ The same root file system in all formats"),
        (("oci",), None, "✓ Root file system"),
        (("oci",), False, "✗ The root file system is not all: see formats-equal"),
        (("oci", "sif"), False, "✗ The root file system is not all: see formats-equal"),
    ],
)
def test_what_is_said_of_formats_whose_trees_are_equal(
    names: tuple[str, ...], equal: bool | None, shown: str, tmp_path: Path
) -> None:
    sample = manifest(cell())
    artifacts = {name: sample["artifacts"][name] for name in names}
    page = render(tmp_path, {**sample, "artifacts": artifacts, "formats_equal": equal})
    assert page.text("tree").startswith(shown)


def test_an_unknown_outcome_counts_as_failed(tmp_path: Path) -> None:
    page = render(tmp_path, manifest(cell(), checks={"oci": [outcome("mpi", "maybe", "odd")]}))
    assert "odd" in page.text("finding", "failed")
    assert page.text("finding", "absent").count("not run") == 2


@pytest.mark.parametrize(("proven", "text"), [(None, ""), (True, "proven on a GPU")])
def test_gpu_badge(tmp_path: Path, proven: bool | None, text: str) -> None:
    page = render(tmp_path, manifest(cell(), proven_on_gpu=proven))
    assert page.text("badge", "gpu") == text
    assert page.text("badge", "no-gpu") == ""


def test_emulated_is_never_shown_as_native(tmp_path: Path) -> None:
    tools = {"qemu": "11.1.3"}
    page = render(tmp_path, manifest(cell("ppc64le"), emulated=True, tools=tools))
    assert page.text("badge", "emulated") == "emulated · QEMU 11.1.3"
    assert page.text("badge", "native") == ""
    assert "emulated" in page.text("matrix", "tile")
    assert "native" not in page.text("matrix", "tile")
    assert "1 emulated" in page.text("run")


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"emulated_build": True}, "checked"),
        ({"emulated_build": False}, "built and checked"),
        ({"emulated_build": False, "checks": {}, "outcome": "built"}, "built"),
    ],
)
def test_what_was_native(changes: dict[str, Any], about: str) -> None:
    (badge,) = card_of(record(manifest(cell(), **changes))).badges
    assert (badge.kind, badge.about) == ("native", f"{about} on x86_64")


@pytest.mark.parametrize(("number", "shown"), [(40, "line 000 line 001"), (41, "… line 001")])
def test_the_last_40_lines_of_an_error_are_shown(number: int, shown: str, tmp_path: Path) -> None:
    text = "\n".join(f"line {one:03}" for one in range(number))
    page = render(tmp_path, failures={cell().identifier: text})
    assert page.text("error").startswith(shown)


def test_a_failed_build_shows_the_end_of_its_error(tmp_path: Path) -> None:
    text = "\n".join(f"line {number:03}" for number in range(100))
    image = cell().identifier
    page = render(tmp_path, manifest(cell()), failures={image: text})
    assert "line 099" in page.text("error")
    assert "line 059" not in page.text("error")
    assert "verified" not in page.text("matrix", "tile")
    assert f"./{image}/build.log" in page.values("href")


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    page = render(tmp_path, manifest(cell()), failed_manifest())
    assert page.values("src") == []
    for href in page.values("href"):
        assert href.startswith(("./", "#", "data:")), href
    targets = {href[1:] for href in page.values("href") if href.startswith("#")}
    assert targets <= set(page.values("id"))


def test_mpi_programs_are_those_of_the_current_folder_and_may_run_as_root(tmp_path: Path) -> None:
    lines = render(tmp_path, manifest(cell())).text("runtimes")
    assert "image.oci mpirun --allow-run-as-root --oversubscribe -n 4 ./program" in lines
    assert 'ch-run --set-env -w -b "$PWD:/mnt" --cd=/mnt ' in lines


def test_mpich_is_started_by_its_own_launcher_and_no_mpi_by_none(tmp_path: Path) -> None:
    lines = render(tmp_path, failed_manifest()).text("runtimes")
    assert "mpiexec -n 4 apptainer" in lines
    assert "allow-run-as-root" not in lines
    lines = render(tmp_path, manifest(cell(mpi="none"))).text("runtimes")
    assert "mpirun" not in lines
    assert "mpiexec" not in lines


@pytest.mark.parametrize(
    ("of_sif", "formats_equal"), [("other", False), ("other", True), ("tree", False)]
)
def test_trees_are_equal_only_if_digests_and_manifest_say_so(
    tmp_path: Path, of_sif: str, formats_equal: bool
) -> None:
    sample = manifest(cell(), formats_equal=formats_equal, outcome="failed")
    sample["artifacts"]["sif"]["tree_digest"] = f"sha256:{of_sif}"
    page = render(tmp_path, sample)
    assert f"sha256:{of_sif}" in page.text("tree", "differ")
    assert page.text("tree", "equal") == ""
    expected = "✗ failed" if formats_equal else "✗ formats differ"
    assert expected in page.text("matrix", "tile", "failed")


def test_steps_and_artifacts_are_in_the_order_of_the_build() -> None:
    steps = ("spec", "base", "stages", "build", "oci", "sif", "charliecloud", "verify", "other")
    made = card_of(record(manifest(cell(), durations_s=dict.fromkeys(reversed(steps), 2.0))))
    assert [(step, seconds) for step, seconds, _ in made.steps] == [(step, 2.0) for step in steps]
    assert [share for *_, share in made.steps] == pytest.approx([100 / 9] * 9)
    assert list(made.artifacts) == ["OCI layout", "SIF", "Charliecloud"]
    nothing = card_of(record(manifest(cell(), durations_s={"spec": 0.0})))
    assert nothing.steps == (("spec", 0.0, 0.0),)
    few = record(manifest(cell(), packages=0, tools={"buildah": "1.28.2", "qemu": ""}))
    assert dict(card_of(few).facts)["tools"] == "buildah 1.28.2"
    assert "packages" not in dict(card_of(few).facts)
    titles = [title for title, _ in card_of(dataclasses.replace(few, artifacts={})).checks["mpi"]]
    assert titles == ["OCI layout", "SIF", "Charliecloud"]


def test_a_report_with_gaps_can_be_read() -> None:
    run = BuildRun(tool_version="", command="", started="", duration_s=0, host={})
    assert read(ReportDocument, {"build": {}, "images": []}) == ReportDocument(
        build=run, images=(), failures={}, left_out=(), compiled={}, outcome="", totals={}
    )


def test_a_manifest_with_gaps_is_still_shown(tmp_path: Path) -> None:
    page = render(
        tmp_path, {"image": cell().identifier, "outcome": "failed", "cell": asdict(cell())}
    )
    assert "✗ failed" in page.text("matrix", "tile", "failed")


@pytest.mark.parametrize(
    ("number", "headline", "outcome"),
    [
        (0, "No image was built", "failed"),
        (1, "1 image verified", "verified"),
        (2, "Both images verified", "verified"),
        (3, "All 3 images verified", "verified"),
    ],
)
def test_how_many_images_are_verified(
    number: int, headline: str, outcome: str, tmp_path: Path
) -> None:
    page = render(tmp_path, *(manifest(cell(mpi=f"mpich4.{one}")) for one in range(number)))
    assert page.text("head").startswith(headline)
    assert json.loads((tmp_path / "out/report.json").read_text())["outcome"] == outcome


def test_report_json_holds_all_that_was_given(tmp_path: Path) -> None:
    sample = manifest(cell())
    absent = LeftOut(cell=cell(mpi="mpich4.0"), reasons=why("not carried"))
    failures = {cell("ppc64le").identifier: "it broke: ü"}
    render(tmp_path, sample, left_out=(absent,), failures=failures)
    document = json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))
    assert document["schema"] == "build-images/report/v1"
    assert document["images"] == [write(record(sample))]
    assert list(document["images"][0]) == sorted(document["images"][0]), "as in manifest.json"
    assert document["failures"] == failures
    assert document["build"] == BUILD
    assert document["outcome"] == "failed"
    expected = {"image": absent.cell.identifier, "cell": asdict(absent.cell)}
    assert document["left_out"] == [{**expected, "reasons": ["maintainer: not carried"]}]


def test_a_report_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    render(tmp_path, failed_manifest())
    page = render(tmp_path, manifest(cell()))
    assert page.text("head").startswith("1 image verified")
    remaining = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert remaining == ["report.html", "report.json"]


def test_a_report_that_cannot_be_written_leaves_the_older_one(tmp_path: Path) -> None:
    render(tmp_path, manifest(cell()))
    before = (tmp_path / "out/report.html").read_bytes()
    sample = dataclasses.replace(record(manifest(cell())), about=cast("str", object()))
    with pytest.raises(TypeError):
        write_report(
            tmp_path / "out", ReportDocument(build=read(BuildRun, BUILD), images=(sample,))
        )
    assert (tmp_path / "out/report.html").read_bytes() == before


@pytest.mark.parametrize(
    "sample",
    [
        cell(),
        cell(cuda="12.4"),
        cell(mpi="none"),
        cell("ppc64le", "none", "10.1"),
        dataclasses.replace(cell("ppc64le"), cpu="power9le"),
        dataclasses.replace(cell(), base="debian13-of-site"),
        dataclasses.replace(cell(cuda="12.4"), flavour="development", cpu="x86_64_v3"),
    ],
)
def test_an_identifier_can_be_taken_apart(sample: Cell) -> None:
    usual = {"cuda": "none", "mpi": "none", "flavour": "runtime", "cpu": "generic"}
    assert {**usual, **axes_of(sample.identifier)} == asdict(sample)
    assert axes_of("x86_64") == {"arch": "x86_64", "recipe": "", "recipe_version": "", "base": ""}


@pytest.mark.parametrize(
    ("size", "text"),
    [
        *((0, "0 B"), (999, "999 B"), (999.5, "1 kB"), (999_499, "999 kB"), (999_999, "1 MB")),
        *((63_100_000, "63.1 MB"), (1.5e9, "1.5 GB"), (2e12, "2 TB"), (3e15, "3e+03 TB")),
    ],
)
def test_human_size(size: float, text: str) -> None:
    assert human_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.01, "<0.1 s"),
        (0.05, "0.1 s"),
        (9.94, "9.9 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (1.25, "1.2 s"),
        (9.96, "10 s"),
        (59.7, "1 min 00 s"),
        (301, "5 min 01 s"),
        (3725, "1 h 02 min"),
    ],
)
def test_human_time(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


def test_human_moment() -> None:
    assert human_moment("2026-01-01T10:12:40+01:00") == "2026-01-01 09:12 UTC"
    assert human_moment("2026-01-01T09:12:40Z") == "2026-01-01 09:12 UTC"
    assert human_moment("2026-01-01T09:12:40") == "2026-01-01 09:12 UTC"
    assert human_moment("yesterday") == "yesterday"
