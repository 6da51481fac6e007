"""The files for sites, before the programs that they are for."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import manifest_samples
import pytest
import yaml
from command_line import build_images_here
from harness import Ended, passed, run_program, tool_of_tests
from site_schemas import kubernetes_faults, openshift_faults

CRAY = "hpc-base-1.0-rockylinux9-craympich8.1-x86_64"
# One of each kind of script: Open MPI with and without PMIx, MPICH, an MPI of the host's; GPUs.
IMAGES = (
    "hpc-base-1.0-debian13-openmpi5.0-x86_64",
    "hpc-base-1.0-debian13-mpich4.2-x86_64",
    "hpc-base-1.0-rockylinux9-intelmpi2021.13-x86_64",
    CRAY,
    "hpc-base-1.0-centos7-openmpi1.10-ppc64le",
    "cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le",
)
MODULE = "hpc-base/1.0-debian13-openmpi5.0-x86_64"
KUBERNETES = ("1.25", "1.37")
RULES = "avoid-nullary-conditions,deprecate-which,quote-safe-variables,require-double-brackets"
READ_ENTRY = """
import sys
from shpc.main.container.config import ContainerConfig
from shpc.main.registry.filesystem import Filesystem
entry = ContainerConfig(Filesystem(sys.argv[1]).find("quay.io/site/hpc-base"))
entry.set_tag(sys.argv[2])
print(entry.docker, entry.tag.digest, entry.features["gpu"])
"""
LMOD = Path("/usr/share/lmod/lmod/init/bash")  # Debian's


@pytest.fixture(scope="module", name="site")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files; the folder of images has a name that has to be quoted."""
    folder = tmp_path_factory.mktemp("a site's")
    chosen = [f"--image={name}" for name in IMAGES]
    write(folder, *chosen, "--folder", str(folder / "images"))
    return folder


def write(folder: Path, *argv: str) -> None:
    words = ("--registry=quay.io/site", f"--output={folder}", f"--images-in={folder / 'out'}")
    env = {"BUILD_IMAGES_HOME": str(folder / "home")}
    passed(build_images_here("site-files", *words, *argv, env=env))


def manifests(site: Path, kind: str) -> Iterator[Any]:
    for path in sorted(site.glob(f"*/openshift-{kind}.yaml")):
        yield yaml.safe_load(path.read_text())


def test_shellcheck_finds_nothing(site: Path) -> None:
    scripts = sorted(map(str, site.glob("*/*.sh")))
    assert len(scripts) == 4 * len(IMAGES) - 2  # Charliecloud binds no single files
    done = run_program(tool_of_tests("shellcheck"), f"--enable={RULES}", *scripts)
    assert (done.status, done.stdout) == (0, "")


def test_cray_mpich_comes_with_what_it_is_linked_to_but_the_c_library(
    site: Path, tmp_path: Path
) -> None:
    """ldd, srun and apptainer stand in: no Cray was at hand."""
    for name, body in (
        ("ldd", f"cat {tmp_path}/linked"),
        ("srun", 'printf "%s\\n" "$@"; env | grep ^APPTAINER'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "linked").write_text(
        "\tlinux-vdso.so.1 (0x1)\n"
        "\tlibfabric.so.1 => /opt/cray/libfabric/1.15.2.0/lib64/libfabric.so.1 (0x1)\n"
        "\tlibpmi.so.0 => /opt/cray/pe/lib64/libpmi.so.0 (0x1)\n"
        "\tlibcxi.so.1 => /usr/lib64/libcxi.so.1 (0x1)\n"
        "\tlibjson-c.so.3 => /usr/lib64/libjson-c.so.3 (0x1)\n"
        "\tlibm.so.6 => /lib64/libm.so.6 (0x1)\n\tlibc.so.6 => /lib64/libc.so.6 (0x1)\n"
    )
    mpi = tmp_path / "mpich/lib-abi-mpich"
    mpi.mkdir(parents=True)
    (mpi / "libmpi.so.12").touch()
    (tmp_path / "image.sif").touch()
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "IMAGE": str(tmp_path / "image.sif"),
        "CRAY_MPICH_DIR": str(mpi.parent),
    }
    command = ("bash", site / CRAY / "slurm-apptainer.sh", "./program")
    printed = passed(run_program(*command, env=variables, inherit=False)).stdout.splitlines()
    assert printed[:3] == ["--mpi=cray_shasta", "apptainer", "exec"]
    assert printed[printed.index("--bind") + 1] == "/opt/cray"
    folders = "/opt/cray/libfabric/1.15.2.0/lib64:/opt/cray/pe/lib64"
    assert f"APPTAINERENV_LD_LIBRARY_PATH={mpi}:{folders}:/.singularity.d/libs" in printed
    files = "/usr/lib64/libcxi.so.1,/usr/lib64/libjson-c.so.3"
    assert f"APPTAINER_CONTAINLIBS={files}" in printed
    done = run_program(*command, env={**variables, "CRAY_MPICH_DIR": ""}, inherit=False)
    assert done.status
    assert "load the module cray-mpich-abi" in done.stderr


# Kubernetes and OpenShift


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("kind", ["pod", "job"])
def test_kubernetes_takes_the_manifests(site: Path, kind: str, version: str) -> None:
    documents = list(manifests(site, kind))
    assert len(documents) == len(IMAGES)
    for document in documents:
        assert kubernetes_faults(document, version) == []


def test_kubernetes_does_not_take_everything(site: Path) -> None:
    document = next(manifests(site, "pod"))
    document["spec"]["nodeSelektor"] = {}
    assert kubernetes_faults(document, KUBERNETES[-1])


def test_openshift_takes_the_templates_and_their_objects(site: Path) -> None:
    documents = list(manifests(site, "build"))
    assert len(documents) == len(IMAGES)
    for document in documents:
        for part in (document, *document["objects"]):
            assert openshift_faults(part) == []


def test_openshift_does_not_take_everything(site: Path) -> None:
    build = next(manifests(site, "build"))["objects"][-1]
    build["spec"]["strategy"]["dockerStrategy"]["form"] = {}
    assert openshift_faults(build)


# Lmod


@pytest.fixture(name="images")
def _images(site: Path) -> Iterator[Path]:
    """The folder of images, with something in the place of one."""
    folder = site / "images"
    folder.mkdir(exist_ok=True)
    put_sif(folder, IMAGES[0])
    yield folder
    shutil.rmtree(folder)


def put_sif(folder: Path, image: str) -> None:
    """Where `pull` puts it."""
    (folder / f"{image}-sif").mkdir()
    (folder / f"{image}-sif/image.sif").write_text("a SIF\n")


def lmod(site: Path, script: str) -> Ended:
    """A script in a shell that has Lmod, and a program `apptainer` that prints its arguments."""
    if not LMOD.exists():
        pytest.skip("missing on this machine: lmod")
    apptainer = site / "bin" / "apptainer"
    apptainer.parent.mkdir(exist_ok=True)
    apptainer.write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    apptainer.chmod(0o755)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LMOD")},
        "SITE": str(site),
        "HOME": str(site / "home"),
        "PATH": f"{apptainer.parent}:{os.environ['PATH']}",
    }
    start = f'. {LMOD}; module use "$SITE/modulefiles"; '
    return run_program("bash", "-c", start + script, env=environment, inherit=False)


def test_lmod_loads_and_unloads_the_module(site: Path, images: Path) -> None:
    sif = images / f"{IMAGES[0]}-sif/image.sif"
    done = lmod(
        site,
        f"module load {MODULE} || exit 1\n"
        "echo \"$BUILD_IMAGES_IMAGE\"; hpc-base-exec python3 -c 'a b'; echo\n"
        'hpc-base-check mpi; echo; module unload hpc-base; echo "<$BUILD_IMAGES_IMAGE>"\n'
        "type hpc-base-exec 2>/dev/null\n",
    )
    assert done.stdout.splitlines() == [
        str(sif),
        f"<exec><{sif}><python3><-c><a b>",
        f"<exec><{sif}></opt/build-images/run-checks><mpi>",
        "<>",
    ], done.stderr


def test_lmod_tells_of_an_image_that_is_not_there(site: Path) -> None:
    done = lmod(site, f'module load {MODULE} && echo loaded; echo "<$BUILD_IMAGES_IMAGE>"')
    assert done.stdout == "<>\n"
    assert "build-images pull quay.io/site/hpc-base:1.0-debian13-openmpi5.0" in flat(done.stderr)


def test_lmod_refuses_nodes_of_another_architecture(site: Path, images: Path) -> None:
    image = "cuda-base-1.0-debian12-cuda11.8-openmpi4.1-ppc64le"
    put_sif(images, image)
    done = lmod(site, f"module load {image.replace('base-', 'base/', 1)} && echo loaded")
    assert done.stdout == ""
    assert "the image is for ppc64le" in flat(done.stderr)


def test_lmod_shows_help_and_versions(site: Path) -> None:
    done = lmod(site, f"module help {MODULE}; module whatis {MODULE}; module -t avail")
    shown = flat(done.stdout + done.stderr)
    assert "hpc-base-exec PROGRAM" in shown
    assert "Open MPI 5.0.7, PMIx 5.0" in shown
    assert "Version: 1.0-debian13-openmpi5.0-x86_64" in shown
    assert "cuda-base/1.0-debian12-cuda11.8-openmpi4.1-ppc64le" in shown


def flat(text: str) -> str:
    """Lmod breaks lines."""
    return " ".join(text.split())


# shpc


def test_shpc_takes_the_entry(tmp_path: Path) -> None:
    pytest.importorskip("shpc", reason="missing on this machine: singularity-hpc")
    write_built(tmp_path / "out" / IMAGES[0])
    write(tmp_path, f"--image={IMAGES[0]}")
    words = ("-c", READ_ENTRY, tmp_path / "shpc/x86_64", "1.0-debian13-openmpi5.0")
    done = run_program(sys.executable, *words, cwd=tmp_path)
    assert done.stdout == f"quay.io/site/hpc-base sha256:{'b' * 64} False\n", done.stderr


def write_built(folder: Path) -> None:
    """A manifest of an image that is built of what the project holds now."""
    plan = passed(build_images_here("plan", "--json", f"--image={folder.name}"))
    key = json.loads(plan.stdout)["images"][0]["content_key"]
    oci = {"digest": "sha256:" + "b" * 64}
    manifest = manifest_samples.document(
        {"image": folder.name, "content_key": key, "artifacts": {"oci": oci}}
    )
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
