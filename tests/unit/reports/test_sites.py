"""What a site gets with an image: every value is the plan's, and no text leaves its quotes."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifest_samples import CELL
from samples import GOLDEN, ROOT, image, recipe, shipped_images

from builder.cli import main
from builder.model import PlannedImage
from builder.model.errors import BadInput
from builder.reports.sites import SiteImage, SitePlace, kubernetes_name, lua, site_files

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
PLACE = SitePlace(registry="quay.io/site", folder="/opt/images")
DIGEST = "sha256:" + "a" * 64
SHOWN = {
    "hpc-base-1.0-debian13-openmpi5.0-x86_64": True,
    "cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le": False,
}


@functools.cache
def planned() -> dict[str, PlannedImage]:
    return {each.identifier: each for each in shipped_images()}


def at_site(identifier: str, place: SitePlace = PLACE, *, built: bool = False) -> SiteImage:
    digest = DIGEST if built else ""
    return SiteImage(planned=planned()[identifier], place=place, digest=digest)


def texts(identifier: str, place: SitePlace = PLACE, *, built: bool = False) -> dict[str, str]:
    """The files of one image, by name without its folder."""
    files = site_files([at_site(identifier, place, built=built)])
    return {path.removeprefix(f"{identifier}/"): text for path, text in files.items()}


def identifiers(**axes: str) -> Iterator[str]:
    for identifier, each in planned().items():
        if all(each.cell.axis(name).startswith(value) for name, value in axes.items()):
            yield identifier


def first(**axes: str) -> str:
    return next(identifiers(**axes))


@pytest.mark.parametrize(("identifier", "built"), SHOWN.items(), ids=list(SHOWN))
def test_files_are_those_that_were_looked_at(identifier: str, built: bool) -> None:
    for name, text in texts(identifier, built=built).items():
        golden = GOLDEN / "sites" / identifier / Path(name).name
        if os.environ.get("UPDATE_GOLDEN"):
            golden.parent.mkdir(parents=True, exist_ok=True)
            golden.write_text(text)
        assert text == golden.read_text(), name


def test_every_shipped_image_gets_all_files() -> None:
    images = [at_site(identifier) for identifier in planned()]
    files = site_files(images)
    with_mpi = sum(each.contract.mpi is not None for each in images)
    of_cray = sum(each.binds_cray for each in images)  # without Charliecloud's two scripts
    assert len(files) == len(images) * 7 + with_mpi - 2 * of_cray
    assert files == site_files(images)
    for path, text in files.items():
        assert text.endswith("\n"), path
        assert "None" not in text, path
        assert "{{" not in text, path
        if path.endswith(".yaml"):
            assert yaml.load(text, LOADER)["kind"] in {"Pod", "Job", "Template"}


# Values


def test_gpus_are_asked_for_where_there_is_cuda() -> None:
    files = texts(first(recipe="cuda-base", arch="ppc64le"), dataclasses.replace(PLACE, gpus=6))
    assert "#SBATCH --gres=gpu:6\n" in files["slurm-apptainer.sh"]
    assert "apptainer exec --nv" in files["slurm-apptainer.sh"]
    assert "--device nvidia.com/gpu=all" in files["podman.sh"]
    assert limits(files["openshift-pod.yaml"])["nvidia.com/gpu"] == 6
    assert limits(files["openshift-job.yaml"])["nvidia.com/gpu"] == 6


def test_no_gpus_are_asked_for_where_there_is_none() -> None:
    for name, text in texts(first(recipe="hpc-base")).items():
        assert "gpu" not in text, name
        assert "nvidia" not in text, name


def limits(text: str) -> Any:
    return pod_spec(text)["containers"][0]["resources"]["limits"]


def pod_spec(text: str) -> Any:
    document = yaml.safe_load(text)
    return document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("mpi", "slurm", "mpiexec"),
    [
        ("openmpi5.0", "srun --mpi=pmix", "--map-by"),
        ("openmpi4.1", "srun --mpi=pmix", "--map-by"),
        ("mpich4.2", "srun --mpi=pmi2", "-ppn"),
        ("intelmpi", "srun --mpi=pmi2", "-ppn"),
        ("openmpi1.10", "mpiexec -n", "--map-by"),
    ],
)
def test_ranks_are_started_as_their_mpi_can_be(mpi: str, slurm: str, mpiexec: str) -> None:
    files = texts(first(mpi=mpi))
    last = files["slurm-apptainer.sh"].splitlines()[-1]
    assert last.startswith(f"exec {slurm}")
    assert f'exec mpiexec -n "$SLURM_NTASKS" {mpiexec}' in files["mpiexec-charliecloud.sh"]
    assert 'ch-run "${options[@]}" -w "$image" -- "$@"' in files["mpiexec-charliecloud.sh"]
    assert ("PMIX_MCA_gds" in files["slurm-charliecloud.sh"]) == (slurm == "srun --mpi=pmix")


def test_cray_mpich_is_started_by_its_own_kind_of_pmi() -> None:
    files = texts(first(mpi="craympich"))
    script = files["slurm-apptainer.sh"]
    assert script.splitlines()[-1].startswith("exec srun --mpi=cray_shasta apptainer exec")
    assert "#SBATCH --nodes=2\n" in script
    assert not [name for name in files if "charliecloud" in name]


def test_an_mpi_of_the_hosts_is_bound_in() -> None:
    files = texts(first(mpi="intelmpi"))
    for name in ("slurm-apptainer.sh", "slurm-charliecloud.sh", "mpiexec-charliecloud.sh"):
        assert "${HOST_MPI:?" in files[name], name
        assert "libraries+=:$folder" in files[name], name
        assert 'set -- /opt/build-images/bin/mpi "$SLURM_NTASKS" single\n' in files[name], name
    assert "HOST_MPI" not in "".join(texts(first(mpi="mpich")).values())


def test_without_mpi_tasks_are_single(tmp_path: Path) -> None:
    each = SiteImage(planned=image(tmp_path), place=PLACE)
    files = site_files([each])
    assert not [path for path in files if "mpiexec" in path]
    script = files[f"{each.cell.identifier}/slurm-apptainer.sh"]
    assert "#SBATCH --nodes=1\n" in script
    assert "exec srun apptainer exec " in script
    assert "set -- /opt/build-images/run-checks\n" in script


def test_an_image_that_is_built_is_named_by_its_digest() -> None:
    identifier = "hpc-base-1.0-debian13-openmpi5.0-x86_64"
    built, planned_only = texts(identifier, built=True), texts(identifier)
    assert f"quay.io/site/hpc-base@{DIGEST}" in built["openshift-pod.yaml"]
    assert f"image=${{IMAGE:-quay.io/site/hpc-base@{DIGEST}}}" in built["podman.sh"]
    assert "quay.io/site/hpc-base:1.0-debian13-openmpi5.0" in planned_only["podman.sh"]
    entry = yaml.safe_load(built["shpc/x86_64/quay.io/site/hpc-base/container.yaml"])
    assert entry["tags"] == {"1.0-debian13-openmpi5.0": DIGEST}
    assert not [path for path in planned_only if path.startswith("shpc/")]


def test_shpc_has_one_entry_for_a_recipe_and_an_architecture() -> None:
    names = list(identifiers(recipe="hpc-base", base="debian13"))
    digests = {name: f"sha256:{number:064}" for number, name in enumerate(names)}
    files = site_files(
        [
            SiteImage(planned=planned()[name], place=PLACE, digest=digest)
            for name, digest in digests.items()
        ]
    )
    entries = {path: yaml.safe_load(files[path]) for path in files if path.startswith("shpc/")}
    assert {path.split("/")[1] for path in entries} == {planned()[each].cell.arch for each in names}
    tags = [digest for each in entries.values() for digest in each["tags"].values()]
    assert sorted(tags) == sorted(digests.values())
    for each in entries.values():
        assert list(each["tags"].items())[-1:] == list(each["latest"].items())


# Names and quotes

EVIL = "a ]] \" ' $(touch x) `id` \\ {{ 7 }} # -- <b>\n\nsecond: line"


def test_no_text_breaks_out_of_its_quotes(tmp_path: Path) -> None:
    each = image(tmp_path, recipes=[recipe(about=EVIL)])
    place = SitePlace(registry="quay.io/site", folder="/opt/my $(images) 'x'")
    site = SiteImage(planned=each, place=place, digest=DIGEST)
    files = site_files([site])
    script = files[f"{each.cell.identifier}/slurm-apptainer.sh"]
    assert f"image=${{IMAGE:-{shlex.quote(site.sif)}}}\n" in script
    module = files[f"modulefiles/core/{site.cell.tag}-x86_64.lua"]
    assert "]] \\\" '" in module
    assert all("second: line" in line for line in module.splitlines() if "touch x" in line)
    entry = yaml.safe_load(files["shpc/x86_64/quay.io/site/core/container.yaml"])
    assert entry["description"] == " ".join(EVIL.split())


def test_lua_strings_hold_what_they_are_given() -> None:
    assert lua('a"b\\c\nd\re') == '"a\\"b\\\\c\\nd\\re"'


def test_names_in_kubernetes_are_labels_and_stay_different() -> None:
    assert kubernetes_name("core-1.0-x86_64") == "core-1-0-x86-64"
    names = [kubernetes_name(f"{'long-' * 20}{end}") for end in ("a", "b")]
    assert names[0] != names[1]
    assert max(map(len, names)) <= 57
    assert "--" not in kubernetes_name(f"{'a' * 47}-{'b' * 20}")


@pytest.mark.parametrize(
    ("registry", "folder"),
    [
        ("quay.io", "/opt/images"),
        ("https://quay.io/site", "/opt/images"),
        ("quay.io/Site", "/opt/images"),
        ("quay.io/site", "images"),
        ("quay.io/site", "/opt/a:b"),
        ("quay.io/site", "/opt/a\nb"),
    ],
)
def test_what_is_no_place_is_refused(registry: str, folder: str) -> None:
    with pytest.raises(BadInput, match="is not"):
        SitePlace(registry=registry, folder=folder)


# The command


def test_the_command_writes_and_prints_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    identifier = "hpc-base-1.0-debian13-openmpi5.0-x86_64"
    argv = ["site-files", f"--project={ROOT}", "--registry=quay.io/site", f"--image={identifier}"]
    assert main([*argv, f"--output={tmp_path}", f"--images-in={tmp_path}"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / identifier}\n"
    assert err == "1 image not built here: named by tag, and without an shpc entry\n"
    script = tmp_path / identifier / "slurm-apptainer.sh"
    assert script.stat().st_mode & 0o777 == 0o755
    built(tmp_path / identifier, planned()[identifier].content_key)
    assert main([*argv, f"--output={tmp_path}", f"--images-in={tmp_path}"]) == 0
    assert DIGEST in (tmp_path / identifier / "podman.sh").read_text()
    built(tmp_path / identifier, "of other inputs")
    assert main([*argv, f"--output={tmp_path}", f"--images-in={tmp_path}"]) == 0
    assert DIGEST not in (tmp_path / identifier / "podman.sh").read_text()


def built(folder: Path, content_key: str) -> None:
    """A manifest as the main job leaves it."""
    oci = {"format": "oci", "path": "image.oci", "digest": DIGEST, "size": 1}
    manifest = {
        "schema": "build-images/manifest/v1",
        "image": folder.name,
        "cell": CELL,
        "content_key": content_key,
        "engine": "buildah",
        "artifacts": {"oci": oci},
        "checks": {},
        "outcome": "verified",
        "in_image_checks": [],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
