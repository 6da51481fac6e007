"""The catalogue: what a reader finds in it, and what an image's texts cannot do to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from catalog_samples import EVIL, add_contract, digest, image_folder, write
from html_pages import Page
from samples import ROOT, compare_page_with_golden, compare_with_golden

from builder.cli import main
from builder.reports.catalog.entries import Component

HPC = "hpc-base-1.0-debian13-openmpi5.0-x86_64"


def catalog(tmp_path: Path, *argv: str) -> Path:
    """The site over the images in `tmp_path/out`."""
    site = tmp_path / "site"
    words = [f"--images-in={tmp_path / 'out'}", f"--output={site}", *argv]
    assert main(["catalog", *words]) == 0
    return site


def page_at(path: Path) -> Page:
    return Page(path.read_text())


def image_page(site: Path, image: str = HPC) -> Page:
    return page_at(site / "images" / f"{image}.html")


def test_the_index_lists_every_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image_folder(tmp_path / "out")
    image_folder(tmp_path / "out", arch="ppc64le", result="WARNED")
    (tmp_path / "out" / "half-made").mkdir()
    site = catalog(tmp_path)
    assert capsys.readouterr().out == f"2 images: {site / 'index.html'}\n"
    page = page_at(site / "index.html")
    assert [each["data-architecture"] for each in page.all("tr", **{"class": "entry"})] == [
        "ppc64le",
        "x86_64",
    ]
    assert "2 verified" in page.text()
    assert HPC in page.text()


def test_there_is_a_filter_for_what_images_differ_in(tmp_path: Path) -> None:
    out = tmp_path / "out"
    image_folder(out)
    image_folder(out, recipe="pytorch", cuda="12.4", parents=("hpc-base", "cuda-base"))
    page = page_at(catalog(tmp_path) / "index.html")
    assert [each["name"] for each in page.all("select")] == ["framework", "cuda"]
    (row,) = (each for each in page.all("tr") if each.get("data-cuda") == "12.4")
    assert row["data-framework"] == "hpc-base cuda-base pytorch"


def test_links_lead_to_files(tmp_path: Path) -> None:
    image_folder(tmp_path / "out")
    site = catalog(tmp_path)
    for path in (site / "index.html", site / "images" / f"{HPC}.html"):
        page = page_at(path)
        for target in (*page.values("href"), *page.values("src")):
            if not target.startswith("data:"):
                assert ":" not in target
                assert (path.parent / unquote(target.partition("#")[0])).is_file(), target


def test_nothing_comes_from_elsewhere_and_every_page_says_so(tmp_path: Path) -> None:
    image_folder(tmp_path / "out")
    for path in catalog(tmp_path).rglob("*.html"):
        (policy,) = page_at(path).all("meta", **{"http-equiv": "Content-Security-Policy"})
        assert "default-src 'none'" in policy["content"]
        assert "script-src 'self'" in policy["content"]
        assert "http://" not in path.read_text()
        assert "https://" not in path.read_text()


def test_an_sbom_that_calls_itself_incomplete_is_shown_so(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "out")
    assert "incomplete" not in image_page(catalog(tmp_path)).text()
    document = json.loads((folder / "sbom.cdx.json").read_text())
    write(folder / "sbom.cdx.json", {**document, "compositions": [{"aggregate": "incomplete"}]})
    assert "it is incomplete" in image_page(catalog(tmp_path)).text()


def test_gpus_are_handed_over_where_there_is_cuda(tmp_path: Path) -> None:
    image_folder(tmp_path / "out", cuda="12.4")
    image_folder(tmp_path / "out")
    site = catalog(tmp_path, "--registry=quay.io/site")
    with_cuda = image_page(site, "hpc-base-1.0-debian13-cuda12.4-openmpi5.0-x86_64").text()
    for text in ("apptainer exec --nv", "--device nvidia.com/gpu=all", "--gpus all", "ch-fromhost"):
        assert text in with_cuda
        assert text not in image_page(site).text()


def test_without_a_registry_images_are_run_from_their_folder(tmp_path: Path) -> None:
    image_folder(tmp_path / "out")
    page = image_page(catalog(tmp_path))
    assert f"apptainer exec out/{HPC}/image.sif" in page.text()
    assert "build-images pull" not in page.text()


CONTRACT = {
    "schema": "build-images/host-contract/v1",
    "image": HPC,
    "architecture": "x86_64",
    "cpu": {"target": "generic"},
    "kernel": "3.2.0",
}


@pytest.mark.parametrize("contract", [json.dumps(CONTRACT), "", "{", "[]", '{"schema": 7}'])
def test_a_contract_is_told_in_words_if_it_can_be_read(tmp_path: Path, contract: str) -> None:
    folder = image_folder(tmp_path / "out")
    (folder / "files").mkdir()
    (folder / "files/host-contract.json").write_text(contract)
    text = image_page(catalog(tmp_path)).text()
    assert ("It needs x86_64, Linux 3.2.0 or newer." in text) == (HPC in contract)
    assert ("It needs" in text) == (HPC in contract)


@pytest.mark.parametrize(
    ("purl", "kind"),
    [
        ("pkg:rpm/rocky/bash@5", "RPM package"),
        ("pkg:pypi/numpy@1", "Python package"),
        ("pkg:generic/ucx@1", "source build"),
        ("pkg:conda/x@1", "conda"),
        ("", "library"),
    ],
)
def test_what_a_component_is_and_its_licences(purl: str, kind: str) -> None:
    licences = ({"expression": "MIT"}, {"license": {"id": "Zlib"}}, {"license": {"name": "own"}})
    component = Component(name="x", purl=purl, type="library", licenses=licences)
    assert (component.kind, component.licence) == (kind, "MIT, Zlib, own")


# How an image runs at a site

RECORDS = ROOT / "tests/data/hosts"
OPENMPI = {"family": "openmpi", "version": "5.0.7", "route": "package", "pmix": "4.2"}
CUDA = {"version": "12.4", "driver": "525.60.13", "capabilities": ["80"]}
HOST_MPI = {"family": "craympich", "version": "8.1", "route": "host", "abi": "mpich"}
FROM_HOST = {**HOST_MPI, "library": "libmpi.so.12"}
BUILT = f"out/{HPC}/image.sif"
PULLED = f"{HPC}-sif/image.sif"
PULL = "build-images pull quay.io/site/hpc-base:1.0-debian13-openmpi5.0 --arch x86_64 --format sif"


@pytest.mark.parametrize(
    ("record", "needs", "registry", "state", "lines"),
    [
        (
            *("dgx", {"mpi": OPENMPI}, "", "yes"),
            [f"apptainer exec {BUILT} mpirun --allow-run-as-root --oversubscribe -n 4 ./program"],
        ),
        ("dgx", {"cuda": CUDA}, "", "yes", [f"apptainer exec --nv {BUILT} ./program"]),
        ("dgx", {}, "quay.io/site", "yes", [PULL, f"apptainer exec {PULLED} ./program"]),
        ("satori", {}, "", "no", []),
        ("cray-ex", {"mpi": FROM_HOST}, "", "yes", []),
    ],
)
def test_the_commands_at_a_site(
    tmp_path: Path,
    record: str,
    needs: dict[str, Any],
    registry: str,
    state: str,
    lines: list[str],
) -> None:
    add_contract(image_folder(tmp_path / "out"), **needs)
    options = [f"--registry={registry}"] if registry else []
    site = catalog(tmp_path, f"--host={RECORDS / record}.json", *options)
    [shown] = json.loads((site / "catalog.json").read_text())["images"]
    assert shown["sites"] == {record: state}
    page = image_page(site).text("site")
    assert [line for line in lines if line not in page] == []
    assert ("./program" in page) == bool(lines)
    assert ("build-images site-files" in page) == (state == "yes" and not lines)
    assert ('its programs do not start ("Exec format error")' in page) == (record == "satori")


def test_the_folder_to_compare_is_quoted(tmp_path: Path) -> None:
    """In data.js, of which compare.html makes the command."""
    folder = tmp_path / "my images"
    image_folder(folder)
    catalog(tmp_path, f"--images-in={folder}")
    data = (tmp_path / "site/data.js").read_text()
    [image] = json.loads(data.removeprefix("var catalogData = ").removesuffix(";\n"))["images"]
    assert image["path"] == f"'my images/{HPC}'"


def test_hosts_of_the_project_are_known_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record without a name has that of its file; one name has one record."""
    monkeypatch.chdir(tmp_path)
    add_contract(image_folder(tmp_path / "out"))
    (tmp_path / "hosts").mkdir()
    record = json.loads((RECORDS / "dgx.json").read_text())
    write(tmp_path / "hosts/ours.json", {**record, "name": None})
    for name in ("dgx.json", "dgx.json~", "dgx.json.orig", "dgx.jsonl"):  # only one is a record
        write(tmp_path / "hosts" / name, record)
    (tmp_path / "matrix.yaml").write_text("inherit: false\n")
    [shown] = json.loads((catalog(tmp_path) / "catalog.json").read_text())["images"]
    assert shown["sites"] == {"dgx": "yes", "ours": "yes"}
    write(tmp_path / "hosts/more.json", record)
    code, errors = refused(tmp_path, capsys)
    assert (code, "the host dgx has two records" in errors) == (2, True)


# What is not proven is not shown so


def not_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of the one image, whose manifest calls it verified."""
    site = catalog(tmp_path)
    index, page = page_at(site / "index.html"), image_page(site)
    assert "0 verified" in index.text()
    assert "✗ not proven" in index.text()
    assert "does not prove it" in page.text()
    shown = json.loads((site / "catalog.json").read_text())["images"]
    assert [each["state"] for each in shown] == ["failed"]
    return capsys.readouterr().err


OTHERS = {"oci": digest("1"), "sif": digest("2"), "charliecloud": digest("3")}


def test_evidence_of_other_artifacts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image_folder(tmp_path / "out", digests=OTHERS)
    errors = not_proven(tmp_path, capsys)
    assert f"{HPC}: the evidence sif is for other artifacts\n" in errors
    assert f"{HPC}: the SBOM is for another image\n" in errors


@pytest.mark.parametrize("text", ["{}", "[1]", '{"metadata": 7}', '{"components": [{}]}', "{"])
def test_an_sbom_of_another_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    folder = image_folder(tmp_path / "out")
    (folder / "sbom.cdx.json").write_text(text)
    assert f"{HPC}: the SBOM is for another image\n" in not_proven(tmp_path, capsys)


@pytest.mark.parametrize(("result", "said"), [("FAILED", "FAILED"), ("", "nothing")])
def test_evidence_that_failed(
    result: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image_folder(tmp_path / "out", result=result)
    assert f"the evidence oci says {said}\n" in not_proven(tmp_path, capsys)


def without_evidence(folder: Path) -> None:
    for path in (folder / "evidence").iterdir():
        path.unlink()


def test_evidence_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_evidence(image_folder(tmp_path / "out"))
    assert "it has no evidence" in not_proven(tmp_path, capsys)


def test_evidence_of_one_run_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What report and `publish` refuse is not shown as verified here."""
    (image_folder(tmp_path / "out") / "evidence/sif.json").unlink()
    assert "evidence/sif.json: this evidence is missing" in not_proven(tmp_path, capsys)


def test_a_manifest_that_says_more_than_its_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = image_folder(tmp_path / "out", result="WARNED")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["checks"]["oci"][-1]["outcome"] = "passed"
    write(folder / "manifest.json", manifest)
    assert "the manifest has different outcomes for verbs" in not_proven(tmp_path, capsys)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", '{"predicate": [], "subject": 7}', "[" * 100_000, '{"predicate": 1e999}'],
)
def test_evidence_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    folder = image_folder(tmp_path / "out")
    (folder / "evidence/oci.json").write_text(text)
    assert "the evidence oci is for other artifacts" in not_proven(tmp_path, capsys)


def test_an_image_that_is_only_built_says_so(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "out")
    manifest = json.loads((folder / "manifest.json").read_text())
    without_evidence(folder)
    write(folder / "manifest.json", {**manifest, "outcome": "built", "checks": {}})
    site = catalog(tmp_path)
    assert "○ not verified" in page_at(site / "index.html").text()
    assert "nothing about this image is proven" in image_page(site).text()


# Texts of images are text


def test_no_text_becomes_a_tag(tmp_path: Path) -> None:
    image_folder(tmp_path / "out", about=EVIL, text=EVIL, packages=(EVIL, "bash"))
    site = catalog(tmp_path, "--registry=quay.io/site")
    for path in site.rglob("*.html"):
        page = page_at(path)
        assert all("src" in each for each in page.all("script")), path
        assert page.all("img") == []
        assert not [
            each for _, each in page.elements if any(name.startswith("on") for name in each)
        ]
        assert "49" not in page.text().replace("167941640", "")
    assert EVIL in image_page(site).text()


def test_only_regular_files_of_the_image_are_copied(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "out")
    (tmp_path / "secret").write_text("secret")
    (folder / "Singularity.def").symlink_to(tmp_path / "secret")
    (folder / "evidence/link.xml").symlink_to(tmp_path / "secret")
    (folder / "image.sif").write_text("a SIF")
    site = catalog(tmp_path)
    names = sorted(path.name for path in (site / "images" / HPC).rglob("*") if path.is_file())
    assert names == [
        "Dockerfile",
        "charliecloud.json",
        "manifest.json",
        "oci.json",
        "sbom.cdx.json",
        "sif.json",
    ]


# The folder


def test_a_new_catalogue_replaces_the_old_one(tmp_path: Path) -> None:
    image_folder(tmp_path / "out")
    catalog(tmp_path)
    (tmp_path / "out" / HPC / "manifest.json").unlink()
    image_folder(tmp_path / "out", arch="ppc64le")
    site = catalog(tmp_path)
    assert [path.name for path in site.glob("images/*.html")] == [
        "hpc-base-1.0-debian13-openmpi5.0-ppc64le.html"
    ]
    assert not [path for path in (site / "images" / HPC).rglob("*") if path.is_file()]


def test_the_pages_as_they_are_written(tmp_path: Path) -> None:
    """All of them but the style sheet and the scripts, which are files of their own here, too."""
    image_folder(tmp_path / "out", cuda="12.4", parents=("base",))
    image_folder(tmp_path / "out", arch="ppc64le", result="FAILED")
    site = catalog(tmp_path, "--registry=registry.example/site")
    for path in sorted(site.rglob("*.html")):
        compare_page_with_golden(path, f"catalogue/{path.name}", tmp_path)
    compare_with_golden((site / "catalog.json").read_text(), "catalogue/catalog.json")


def test_the_same_images_give_the_same_bytes(tmp_path: Path) -> None:
    image_folder(tmp_path / "out")
    image_folder(tmp_path / "out", arch="ppc64le")
    site = catalog(tmp_path)
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    catalog(tmp_path)
    assert before == {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}


def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *argv: str, source: str = "out"
) -> tuple[int, str]:
    """The exit code, and what is said of the images in a folder."""
    words = [f"--images-in={tmp_path / source}", f"--output={tmp_path / 'site'}", *argv]
    return main(["catalog", *words]), capsys.readouterr().err


def test_a_folder_with_other_things_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image_folder(tmp_path / "out")
    (tmp_path / "site/images").mkdir(parents=True)
    (tmp_path / "site/images/mine.html").write_text("mine")
    code, errors = refused(tmp_path, capsys)
    hint = "name a folder that is new, empty, or contains an earlier catalogue"
    wrong = f"has files that do not belong to a catalogue\n  hint: {hint}\n"
    assert (code, wrong in errors) == (2, True)
    assert (tmp_path / "site/images/mine.html").read_text() == "mine"
    code, errors = refused(tmp_path, capsys, f"--output={tmp_path / 'out'}")
    assert (code, "contains images" in errors) == (2, True)


def test_an_older_catalogue_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    image_folder(tmp_path / "out")
    site = catalog(tmp_path)
    (tmp_path / "mine").write_text("mine")
    document = json.loads((site / "catalog.json").read_text())
    document["images"][0]["files"] = ["../mine", "images/../../mine", "index.html"]
    write(site / "catalog.json", document)
    catalog(tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"


def test_no_image_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, errors = refused(tmp_path, capsys, source="")
    assert (code, "no image in" in errors) == (3, True)
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    "change",
    [{"cell": {}}, {"cell": []}, {"cell": {"recipe": "x", "arch": "vax"}}, {"checks": [1]}],
    ids=str,
)
def test_every_manifest_of_another_shape_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    image_folder(tmp_path / "out")
    bad = [image_folder(tmp_path / "out", arch=arch) for arch in ("ppc64le", "aarch64")]
    for folder in bad:
        manifest = json.loads((folder / "manifest.json").read_text())
        write(folder / "manifest.json", {**manifest, **change})
    code, errors = refused(tmp_path, capsys)
    assert code == 2
    problem = "manifest.json:1: its format differs from the one that this version writes"
    assert all(f"{each.name}/{problem}" in errors for each in bad)
    assert "; no catalog was written." in errors
    assert not (tmp_path / "site").exists()


def test_commands_are_quoted(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "out")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["cell"]["recipe"] = "x; touch y #"
    write(folder / "manifest.json", manifest)
    text = image_page(catalog(tmp_path, "--registry=quay.io/site")).text()
    assert f"podman pull --arch=amd64 'quay.io/site/x; touch y #@{digest('a')}'" in text


def test_what_is_no_registry_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image_folder(tmp_path / "out")
    code, errors = refused(tmp_path, capsys, "--registry=quay.io")
    assert (code, "is not HOST/NAMESPACE" in errors) == (2, True)
