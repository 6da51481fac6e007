"""Recipes of locked wheels, `jax` and others: their images pass, and their checks find defects."""

from __future__ import annotations

import json
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
    pytest.mark.long(
        reason="builds images of JAX, TensorFlow and ml-stack: minutes, and 0.8 GB of packages"
    ),
]

CHECKS = PROJECT / "tests" / "images"
TIMEOUT_S = 900
JAX, TENSORFLOW, STACK = "jax", "tensorflow-release", "ml-stack"
PARALLEL, WORKERS = "jax-parallel-check.py", "tensorflow-workers-check.py"
TRAINING = "tensorflow-training-check.py"
# For each package of the stack, a change to what the check does with it, and the finding.
DEFECTS_OF_STACK = {
    "NumPy and SciPy": ("scipy.fft.fft(", "scipy.fft.ifft(", "the Fourier transform"),
    "OpenCV": ("BORDER_CONSTANT", "BORDER_REFLECT", "the filter is not the weighted sum"),
    "Keras": ('activation="tanh"', 'activation="relu"', "weights after training differ"),
    "Protobuf": ("number=-300", "number=-301", "the message is"),
    "Numba": ("njit(longest)", "njit(lambda limit: (0, 0))", "the compiled function has (0, 0)"),
    "pandas": ('agg(["sum", "mean"])', 'agg(sum="max", mean="mean")', "sums of groups"),
    "scikit-learn": ("Ridge(alpha=2.5)", "Ridge(alpha=2.4)", "the ridge is not that of the"),
    "JupyterLab": ('"n = 0"', '"n = 1"', "the notebook's last cell has ['5051'], not 5050"),
}


@pytest.fixture(scope="module")
def images(python_mpi: dict[str, Path], out: Path) -> dict[str, Path]:
    """The folders of the images, by recipe."""
    del python_mpi  # built first: its layers are shared
    names = {
        recipe: f"{recipe}-1.0-debian13-openmpi5.0-x86_64" for recipe in (JAX, TENSORFLOW, STACK)
    }
    for name in names.values():
        passed(build_images("--image", name, "--output", out))
    return {recipe: out / name for recipe, name in names.items()}


@pytest.fixture
def data(shared_folder: Path) -> Path:
    """The checks, for a test to change; the image finds them in /mnt."""
    folder = shared_folder / "data"
    folder.mkdir()
    for name in ("jax*.py", "tensorflow*.py", "ml-stack*.py", "numpy_network.py"):
        for file in CHECKS.glob(name):
            shutil.copy(file, folder)
    return folder


@pytest.fixture
def inside(
    request: pytest.FixtureRequest,
    images: dict[str, Path],
    data: Path,
    shared_folder: Path,
    tools: Tools,
) -> Iterator[Runner]:
    """The image of the recipe that the test names, by Apptainer."""
    container = Container(
        artifact=images[request.param] / "image.sif",
        work=shared_folder,
        tools=tools,
        binds={DATA_AT: data},
    )
    with RUNNERS["apptainer"].open(container) as runner:
        yield runner


def finding(done: Completed) -> str:
    return (["", *done.stdout.strip().splitlines()])[-1]


@pytest.mark.parametrize(
    ("recipe", "check", "key", "most"),
    [
        (JAX, "jax", "gradient_difference", 1e-13),
        (JAX, "jax-parallel", "difference", 1e-10),
        (TENSORFLOW, "tensorflow-training", "difference", 1e-13),
        (TENSORFLOW, "tensorflow-workers", "difference", 1e-10),
    ],
)
def test_the_image_passes_in_every_format(
    images: dict[str, Path], recipe: str, check: str, key: str, most: float
) -> None:
    manifest = manifest_of(images[recipe])
    for name in FORMATS:
        outcome = {one["check"]: one for one in manifest["checks"][name]}[check]
        assert outcome["outcome"] == "passed", outcome
        assert outcome["data"][key] <= most


@pytest.mark.parametrize(
    ("inside", "script", "file", "old", "new", "said"),
    [
        (JAX, "jax-check.py x86_64", "jax_network.py", "tanh", "sin", "as it is, differs from"),
        (JAX, "jax-check.py x86_64", "jax-check.py", "* by for", "* 0 * by for", "loss from"),
        (JAX, "jax-check.py aarch64", "jax-check.py", "", "", "no aarch64 ELF"),
        (JAX, PARALLEL, PARALLEL, "count={DEVICES}", "count=1", "made 1 devices of the host"),
        (JAX, PARALLEL, PARALLEL, "lax.pmean", "lax.psum", "devices differ from one with"),
        (JAX, PARALLEL, PARALLEL, 'spec("data"), spec("data"))', "spec(), spec())", "devices saw"),
        (JAX, PARALLEL, "numpy_network.py", "RATE = 0.5", "RATE = 0.0", "moved no weight"),
        (TENSORFLOW, TRAINING, "tensorflow_network.py", "tf.tanh", "tf.sin", "as it is, differs"),
        (TENSORFLOW, TRAINING, TRAINING, "SGD(network.RATE)", "SGD(0.0)", "took the loss from"),
        (TENSORFLOW, WORKERS, WORKERS, "one[rank::", "one[0::", "differ from one with the whole"),
        (TENSORFLOW, WORKERS, WORKERS, "tf.distribute.MultiWorkerM", "tf.distribute.M", "worker 0"),
        (TENSORFLOW, WORKERS, WORKERS, "numpy() for", "numpy() + rank for", "other than worker 0"),
        (TENSORFLOW, WORKERS, "numpy_network.py", "RATE = 0.5", "RATE = 0.0", "moved no weight"),
    ],
    indirect=["inside"],
)
def test_defects_are_found(
    inside: Runner, data: Path, script: str, file: str, old: str, new: str, said: str
) -> None:
    text = (data / file).read_text()
    assert old in text
    (data / file).write_text(text.replace(old, new))
    name, *arguments = script.split()
    done = inside.run(["python3", f"/mnt/{name}", *arguments], timeout_s=TIMEOUT_S)
    assert done.returncode == 1, done.stdout
    assert said in finding(done)


@pytest.mark.parametrize(
    ("inside", "prefix"),
    [(JAX, "/usr/local/jax"), (TENSORFLOW, "/usr/local/tensorflow")],
    indirect=["inside"],
)
def test_ranks_have_the_python_of_the_image(inside: Runner, prefix: str) -> None:
    """Apptainer starts the launcher by its path; Open MPI 4.1 then changes the ranks' PATH."""
    launcher = ("mpirun", "--oversubscribe", "-n", "2")
    program = ("python3", "-c", "import sys; print(sys.prefix)")
    done = inside.run([*launcher, *program], timeout_s=TIMEOUT_S)
    assert done.stdout.splitlines() == [prefix, prefix], done.stdout


@pytest.mark.parametrize("inside", [JAX], indirect=True)
def test_jax_on_gpus_wants_its_plugin(inside: Runner) -> None:
    done = inside.run(["python3", "/mnt/jax-gpu-check.py"], timeout_s=TIMEOUT_S)
    assert done.returncode == 1
    assert "has no jax_cuda13_plugin" in finding(done)


def test_the_stack_passes_in_every_format(images: dict[str, Path]) -> None:
    manifest = manifest_of(images[STACK])
    for name in FORMATS:
        outcome = {one["check"]: one for one in manifest["checks"][name]}[STACK]
        assert outcome["outcome"] == "passed", outcome
        assert (len(outcome["data"]["ok"]), outcome["data"]["wrong"]) == (len(DEFECTS_OF_STACK), [])


@pytest.mark.parametrize("inside", [STACK], indirect=True)
def test_each_package_of_the_stack_is_judged(inside: Runner, data: Path) -> None:
    check = data / "ml-stack-check.py"
    text = check.read_text()
    for old, new, _ in DEFECTS_OF_STACK.values():
        assert old in text
        text = text.replace(old, new)
    check.write_text(text)
    done = inside.run(["python3", f"/mnt/{check.name}"], timeout_s=TIMEOUT_S)
    assert done.returncode == 1, done.stdout
    wrong = json.loads(done.stdout.strip().splitlines()[-2].removeprefix("data: "))["wrong"]
    assert len(wrong) == len(DEFECTS_OF_STACK)
    for line, (name, (_, _, said)) in zip(wrong, DEFECTS_OF_STACK.items(), strict=True):
        assert line.startswith(f"{name}: ")
        assert said in line


@pytest.mark.parametrize("inside", [STACK], indirect=True)
def test_a_server_that_everyone_may_enter_is_found(inside: Runner, data: Path) -> None:
    check = data / "ml-stack-check.py"
    text = check.read_text()
    assert '"--allow-root",' in text
    open_to_all = '"--allow-root", "--IdentityProvider.token=",'
    check.write_text(text.replace('"--allow-root",', open_to_all))
    done = inside.run(["python3", f"/mnt/{check.name}"], timeout_s=TIMEOUT_S)
    assert done.returncode == 1, done.stdout
    assert finding(done) == "wrong: JupyterLab: /api/status answers 200 to another token"


@pytest.mark.parametrize("inside", [STACK], indirect=True)
def test_the_stack_on_gpus_wants_cupy(inside: Runner) -> None:
    done = inside.run(["python3", "/mnt/ml-stack-gpu-check.py"], timeout_s=TIMEOUT_S)
    assert done.returncode == 1
    assert "cannot import CuPy" in finding(done)
