"""The checks of training, in the image of recipe `pytorch`: sound code passes, defects are found.

BigGAN's own code comes from the network; a stand-in of its shape (tests/data/biggan) is what the
check `biggan` is tried on here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import FORMATS, PROJECT, build_images, manifest_of, passed

from builder.build.engines import Tools
from builder.system.process import Completed
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import DATA_AT, Container, Runner

pytestmark = [
    pytest.mark.engines,
    pytest.mark.long(reason="builds PyTorch's image, which takes minutes and 1.2 GB"),
]

CHECKS = PROJECT / "tests" / "images"
STAND_IN = PROJECT / "tests" / "data" / "biggan"
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def pytorch(hpc_base: dict[str, Path], out: Path) -> Path:
    """The folder of the image of recipe `pytorch`, for the CPU."""
    del hpc_base  # built first: its layers are shared
    image = "pytorch-1.0-debian13-openmpi5.0-x86_64"
    passed(build_images("--image", image, "--output", out))
    return out / image


@pytest.fixture
def data(shared_folder: Path) -> Path:
    """The checks and the stand-in, for a test to change; the image finds them in /mnt."""
    folder = shared_folder / "data"
    folder.mkdir()
    for name in ("pytorch-parallel-check.py", "biggan-check.py"):
        shutil.copy(CHECKS / name, folder)
    shutil.copytree(STAND_IN, folder / "biggan", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def inside(pytorch: Path, data: Path, shared_folder: Path, tools: Tools) -> Iterator[Runner]:
    """The image, by Apptainer."""
    container = Container(
        artifact=pytorch / "image.sif", work=shared_folder, tools=tools, binds={DATA_AT: data}
    )
    with RUNNERS["apptainer"].open(container) as runner:
        yield runner


def finding(done: Completed) -> str:
    return (["", *done.stdout.strip().splitlines()])[-1]


def changed(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_the_image_passes_in_every_format(pytorch: Path) -> None:
    manifest = manifest_of(pytorch)
    for name in FORMATS:
        found = {one["check"]: one for one in manifest["checks"][name]}
        one = found["pytorch-parallel"]
        assert one["outcome"] == "passed", one
        assert one["data"]["backend"] == "gloo"
        assert one["data"]["difference"] <= 1e-10


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("DistributedDataParallel(network, device_ids=devices)", "DataParallel(network)", "rank 1"),
        ("trained(torch, parallel, ", "trained(torch, network, ", "wrong: rank 1 has 1100 of 1100"),
        ("slice(rank, None, RANKS)", "slice(0, None, RANKS)", "differ from one with the whole"),
        ("lr=0.1", "lr=0.0", "moved no weight"),
        ("dist.destroy_process_group()", "sys.exit('no fabric')", "rank 0 of 2: no fabric"),
    ],
    ids=["not parallel", "not synchronised", "same half", "no step", "a rank that fails"],
)
def test_defects_of_parallel_training(
    inside: Runner, data: Path, old: str, new: str, said: str
) -> None:
    changed(data / "pytorch-parallel-check.py", old, new)
    done = inside.run(["python3", "/mnt/pytorch-parallel-check.py", "cpu"], timeout_s=TIMEOUT_S)
    assert done.returncode == 1, done.stdout
    assert said in finding(done)


def test_parallel_training_on_gpus_wants_a_pytorch_with_cuda(inside: Runner) -> None:
    done = inside.run(["python3", "/mnt/pytorch-parallel-check.py", "gpu"], timeout_s=TIMEOUT_S)
    assert done.returncode == 1
    assert "was built without CUDA" in finding(done)


def biggan(inside: Runner) -> Completed:
    return inside.run(["python3", "/mnt/biggan-check.py", "/mnt/biggan"], timeout_s=TIMEOUT_S)


def test_biggan_trains(inside: Runner) -> None:
    done = biggan(inside)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all weights moved" in finding(done)


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("losses", "1.0 - real", "1.0 + real", "takes real pictures for made ones"),
        ("losses", "-made.mean()", "made.mean() * float('nan')", "step 1: G_loss is not finite"),
        ("train_fns", "D.optim.step()", "pass", "weights of the discriminator that did not move"),
        ("train_fns", "G.optim.step()", "pass", "weights of the generator that did not move"),
        ("utils", "kept[name].copy_", "(lambda _: 0)", "weights of the average that did not move"),
        ("BigGAN", "cat([z, y], 1)", "cat([z, 0 * y], 1)", "did not move: shared.weight"),
        ("BigGAN", "torch.tanh(flat)", "(2 * flat)", "pictures beyond -1 to 1"),
        ("train", "import json", "import torchvision_gone", "No module named 'torchvision_gone'"),
    ],
)
def test_defects_of_biggan(
    inside: Runner, data: Path, file: str, old: str, new: str, said: str
) -> None:
    changed(data / "biggan" / f"{file}.py", old, new)
    done = biggan(inside)
    assert done.returncode == 1, done.stdout
    assert said in finding(done)
