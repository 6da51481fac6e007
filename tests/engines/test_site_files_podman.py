"""`podman.sh`, by Podman itself, with the default images in a registry on loopback."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from harness import (
    ARCHITECTURES,
    Ended,
    build_images,
    manifest_of,
    need,
    passed,
    run_program,
    sample,
)
from real_registry import real_registry

from builder.build.engines import Tools

pytestmark = pytest.mark.engines
Script = Callable[..., Ended]


@pytest.fixture(scope="module", name="script")
def podman_script(hpc_base: dict[str, Path], out: Path, tools: Tools) -> Iterator[Script]:
    """Runs an image's script with arguments, in a folder of its own."""
    need("podman", "runc")
    images = [f"--image={folder.name}" for folder in hpc_base.values()]
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="podman-") as name:
        folder = Path(name)
        with real_registry(folder / "registry") as registry:
            archs = [f"--arch={arch}" for arch in hpc_base]
            to = f"{registry.host}/site"
            passed(build_images("publish", *images, *archs, "--output", out, "--to", to, "-q"))
            words = (*images, "--images-in", out, "--output", folder / "site")
            passed(build_images("site-files", *words, "--registry", to))
            env = environment(folder, registry.host)

            def run(arch: str, *words: str) -> Ended:
                (folder / "here").mkdir(exist_ok=True)
                path = folder / "site" / hpc_base[arch].name / "podman.sh"
                return run_program("bash", path, *words, env=env, cwd=folder / "here")

            yield run
            shutil.rmtree(folder / "here", ignore_errors=True)
            run_program("podman", "system", "reset", "--force", env=env)


def environment(folder: Path, host: str) -> Mapping[str, str]:
    """A Podman of the test's own, with limits and a runtime that any kernel of CI lets it have."""
    files = {
        "REGISTRIES_CONF": f'[[registry]]\nlocation = "{host}"\ninsecure = true\n',
        "STORAGE_CONF": (
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\n'
            f'runroot = "{folder}/run"\n'
        ),
        "CONF": (
            '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        ),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return {f"CONTAINERS_{name}": str(folder / name) for name in files}


@pytest.mark.campaign
@pytest.mark.parametrize("arch", sample(ARCHITECTURES, 1))
def test_a_program_runs_in_this_folder(script: Script, arch: str) -> None:
    """Of the image's architecture, and what it writes is here."""
    done = script(arch, "sh", "-c", "uname -m; pwd; echo written > file; exit 3")
    assert done.status == 3, done.stderr
    assert done.stdout.split() == [arch, "/work"]
    again = script(arch, "cat", "file")
    assert again.stdout == "written\n", again.stderr


def test_the_image_checks_itself(script: Script, hpc_base: dict[str, Path]) -> None:
    done = passed(script("x86_64"))
    number = len(manifest_of(hpc_base["x86_64"])["in_image_checks"])
    assert number
    assert f"{number} passed, 0 failed, 0 skipped" in done.stdout
    assert "mpi: passed - 5 ranks on 1 host" in done.stdout
