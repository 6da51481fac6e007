"""`verify` on a host with a GPU, as far as it and the programs in the image can tell.

The host's /proc/driver is a folder of the test's, in a namespace of mounts. The driver's library is
tests/engines/fakes/libcuda.c, which a stand-in for `ch-fromhost` copies into the unpacked image;
below $GPU_ROOT are the device nodes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jsonschema
import pytest
from check_programs import FAKES, SOURCES, compiled
from harness import PROJECT, Ended, manifest_of, run_program
from made_formats import Node
from small_images import Check, Maker, sound

from builder.build.engines import Tools
from builder.cli.schema import schema_of

pytestmark = pytest.mark.engines

PROGRAM = "/opt/build-images/bin/gpu"
LEAST = "418.39 10.1"
KERNEL = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  418.87.00  Thu Aug  8 15:14:21 UTC\n"
IN_A_NAMESPACE = 'mount --bind "$0" /proc/driver && exec "$@"'
FROMHOST = '#!/bin/sh\ncp "{library}" "$2/usr/lib/x86_64-linux-gnu/libcuda.so.1"\n'

Outcomes = dict[str, tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Host:
    """A V100 with driver 418.87, in a folder that containers see, and programs spoil."""

    folder: Path
    images: Maker

    @property
    def gpu(self) -> str:
        """The image's program, in front of the stand-ins."""
        return f"GPU_ROOT={self.folder} FAKE_CUDA=$(cat {self.folder}/answers) {PROGRAM}"

    def image(self, *checks: Check, **programs: str) -> Path:
        """An image with these checks; `programs` are further scripts, by their names."""
        source = PROJECT / "tests/images/gpu-control.sh"
        things = {
            PROGRAM.lstrip("/"): Node(data=(self.folder / "gpu").read_bytes(), mode=0o755),
            "opt/build-images/src/gpu-control.sh": Node(data=source.read_bytes()),
            **{
                f"opt/build-images/bin/{name}": Node(data=text.encode(), mode=0o755)
                for name, text in programs.items()
            },
        }
        made = sound("x86_64", 3, random.Random(3)).with_everywhere(things)
        return self.images.make(dataclasses.replace(made, identifier="gpus", checks=checks))

    def verify(self, image: Path) -> tuple[int, Outcomes]:
        """The exit code of `verify` on this host, and each check's outcome and reason."""
        command = (sys.executable, "-m", "builder", "verify", image, "--runner", "charliecloud")
        env = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        done = in_a_namespace(self.folder, *command, env=env)
        assert done.status in {0, 1}, done.stderr
        statement = json.loads((image / "evidence/charliecloud.json").read_text())
        jsonschema.Draft7Validator(schema_of("evidence")).validate(statement)
        run = statement["predicate"]["configuration"][0]["annotations"]
        assert run["gpu"] == {"handed_over": True, "reason": ""}
        assert (run["host"]["driver"], run["host"]["gpus"]) == ("418.87.00", ["Tesla V100"])
        rows = manifest_of(image)["checks"]["charliecloud"]
        return done.status, {row["check"]: (row["outcome"], row["reason"]) for row in rows}


def in_a_namespace(folder: Path, *command: object, env: Mapping[str, str] | None = None) -> Ended:
    """Run a command that sees a folder's /proc/driver."""
    words = ("unshare", "--mount", "sh", "-c", IN_A_NAMESPACE, folder / "proc/driver", *command)
    return run_program(*words, env=env, cwd=PROJECT)


@pytest.fixture
def host(small_images: Maker, tools: Tools) -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="gpu-host-", dir="/tmp") as name:
        folder = Path(name)
        for path in ("proc/driver/nvidia/gpus/0004:04:00.0", "dev", "bin"):
            (folder / path).mkdir(parents=True)
        (folder / "proc/driver/nvidia/version").write_text(KERNEL)
        gpu = folder / "proc/driver/nvidia/gpus/0004:04:00.0/information"
        gpu.write_text("Model: \t\t Tesla V100\n")
        for node in ("nvidiactl", "nvidia-uvm", "nvidia0"):
            (folder / f"dev/{node}").symlink_to("/dev/null")
        (folder / "answers").write_text("")
        compiled(SOURCES / "gpu.c", folder / "gpu", "-ldl")
        options = ("-shared", "-fPIC", '-DVERSION="418.87.00"')
        compiled(FAKES / "libcuda.c", folder / "libcuda.so", *options)
        script(folder / "bin/ch-fromhost", FROMHOST.format(library=folder / "libcuda.so"))
        script(folder / "bin/nvidia-container-cli", "#!/bin/sh\n")
        for file in (folder, *folder.rglob("*")):
            if tools.ordinary_user and not file.is_symlink():
                shutil.chown(file, tools.ordinary_user)
        folder.chmod(0o755)
        if in_a_namespace(folder, "true").status:
            pytest.skip("this user cannot mount a folder over /proc/driver")
        yield Host(folder=folder, images=small_images)


def script(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


# ---- A GPU that disappears ----


def test_a_gpu_that_disappears_between_two_checks(host: Host) -> None:
    """What was skipped as there was none any more has failed, and the run goes on."""
    falls = f"rm -r {host.folder}/proc/driver/nvidia/gpus/* {host.folder}/dev/nvidia0"
    image = host.image(
        Check(name="gpu-found", text=f"{host.gpu} found {LEAST}", needs=("gpu",)),
        Check(name="gpu-falls", text=f"{falls}; echo it fell off the bus", needs=("gpu",)),
        Check(name="gpu-devices", text=f"{host.gpu} devices {LEAST}", needs=("gpu",)),
        Check(name="gpu-version", text=f"{host.gpu} version {LEAST}", needs=("gpu",)),
        Check(name="comes-last", text="echo all is well"),
    )
    status, found = host.verify(image)
    assert status == 1
    assert found["gpu-found"] == ("passed", '1 GPU: Tesla "V100", compute capability 7.0')
    outcome, reason = found["gpu-devices"]
    assert outcome == "failed"
    assert reason.endswith("CUDA error 100 (CUDA_ERROR_NO_DEVICE) would follow")
    outcome, reason = found["gpu-version"]
    assert outcome == "failed"
    assert reason.startswith(
        "a GPU disappeared during the run: Tesla V100 before, none after; "
        "check output: not judged, since gpu-devices failed: "
    )
    assert found["comes-last"] == ("passed", "all is well")


def test_a_driver_that_begins_to_fail_between_two_checks(host: Host) -> None:
    """As one does whose GPU has fallen off the bus, and which still lists it."""
    fails = f"echo init=999 > {host.folder}/answers; echo it does not answer any more"
    image = host.image(
        Check(name="gpu-found", text=f"{host.gpu} found {LEAST}", needs=("gpu",)),
        Check(name="gpu-fails", text=fails, needs=("gpu",)),
        Check(name="gpu-library", text=f"{host.gpu} library {LEAST}", needs=("gpu",)),
        Check(name="comes-last", text="echo all is well"),
    )
    status, found = host.verify(image)
    assert status == 1
    assert found["gpu-found"][0] == "passed"
    outcome, reason = found["gpu-library"]
    assert outcome == "failed"
    assert reason.startswith("cuInit: CUDA error 999 (CUDA_ERROR_UNKNOWN)")
    assert found["comes-last"] == ("passed", "all is well")


# ---- The negative control ----

LOOKS_AT_NONE = "#!/bin/sh\necho every sum is exact\n"


@pytest.fixture
def controlled(host: Host) -> Callable[..., tuple[int, Outcomes]]:
    """Verifies an image with the control, and with what takes the place of nvcc's program."""

    def run(**programs: str) -> tuple[int, Outcomes]:
        control = host.gpu.replace(PROGRAM, "sh /opt/build-images/src/gpu-control.sh")
        image = host.image(
            Check(name="gpu-found", text=f"{host.gpu} found {LEAST}", needs=("gpu",)),
            Check(name="gpu-control", text=f"{control} hidden {LEAST}", needs=("gpu",)),
            **programs,
        )
        return host.verify(image)

    return run


def test_the_program_fails_in_a_container_that_was_given_no_gpu(
    controlled: Callable[..., tuple[int, Outcomes]],
) -> None:
    status, found = controlled()
    assert status == 0, found
    assert found["gpu-found"][0] == "passed"
    assert found["gpu-control"] == (
        "passed",
        (
            "without a GPU gpu none fails as it has to: cuInit: CUDA error 100 "
            "(CUDA_ERROR_NO_DEVICE): the driver is there, but no GPU was given to this container"
        ),
    )
    outcome, reason = found["gpu-withheld"]
    assert outcome == "passed"
    assert reason.startswith("without a GPU gpu none fails as it has to: libcuda.so.1: cannot open")


def test_a_program_that_looks_at_no_gpu_is_caught(
    controlled: Callable[..., tuple[int, Outcomes]],
) -> None:
    status, found = controlled(**{"cuda-compute": LOOKS_AT_NONE})
    assert status == 1
    reason = "without a GPU cuda-compute passes: it does not look at one (every sum is exact)"
    assert found["gpu-control"] == found["gpu-withheld"] == ("failed", reason)
