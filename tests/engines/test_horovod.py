"""Recipe `horovod-pytorch`: its images pass under each launcher, and its check finds defects."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import FORMATS, PROJECT, build_images, manifest_of, need, passed
from launching import YIELD

from builder.build.engines import Tools
from builder.system.process import Completed
from builder.verify.ranks import launchers
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import DATA_AT, Around, Container, Runner

pytestmark = [
    pytest.mark.engines,
    pytest.mark.long(reason="compiles Horovod with PyTorch's headers, once for each MPI: minutes"),
]

CHECKS = PROJECT / "tests" / "images"
CHECK, NETWORK = "horovod-pytorch-check.py", "numpy_network.py"
OTHER = "weights are other than rank 0's"
TIMEOUT_S = 300
MPIS = {"openmpi": "openmpi4.1", "mpich": "mpich4.0"}
INSIDE = {
    "openmpi": ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"),
    "mpich": ("mpiexec", "-n", "2"),
}
# Slurm's own plugin starts MPICH, which has no PMIx. Ranks in containers of their own may not read
# each other's memory, which UCX below Debian's MPICH would do.
OF_THE_HOST = {
    ("openmpi", "mpirun"): ("mpirun.openmpi", "--oversubscribe", "-n", "2"),
    ("openmpi", "srun"): ("srun", "--mpi=pmix", "--nodes=2", "--ntasks=2"),
    ("mpich", "mpirun"): ("mpiexec.mpich", "-n", "2"),
    ("mpich", "srun"): ("srun", "--mpi=pmi2", "--nodes=2", "--ntasks=2"),
}
ARTIFACTS = {"image.sif": "apptainer", "image.tar.gz": "charliecloud"}
TUNING = {"openmpi": YIELD, "mpich": {"UCX_TLS": "tcp,self"}}


@pytest.fixture(scope="module")
def images(out: Path) -> dict[str, Path]:
    """The folders of the images, by the family of their MPI."""
    names = {mpi: f"horovod-pytorch-1.0-debian12-{MPIS[mpi]}-x86_64" for mpi in MPIS}
    for name in names.values():
        passed(build_images("--image", name, "--output", out))
    return {mpi: out / name for mpi, name in names.items()}


@pytest.fixture
def data(shared_folder: Path) -> Path:
    """The check, for a test to change; the image finds it in /mnt."""
    folder = shared_folder / "data"
    folder.mkdir()
    for name in (CHECK, NETWORK):
        shutil.copy(CHECKS / name, folder)
    return folder


@contextmanager
def opened(
    artifact: Path, data: Path, work: Path, tools: Tools, around: Around | None = None
) -> Iterator[Runner]:
    """An image by a site's runner, or one container a rank by a launcher `around` it."""
    container = Container(
        artifact=artifact, work=work, tools=tools, binds={DATA_AT: data}, around=around
    )
    with RUNNERS[ARTIFACTS[artifact.name]].open(container) as runner:
        yield runner


@pytest.fixture
def inside(
    images: dict[str, Path], data: Path, shared_folder: Path, tools: Tools
) -> Iterator[Runner]:
    with opened(images["openmpi"] / "image.sif", data, shared_folder, tools) as runner:
        yield runner


def finding(done: Completed) -> str:
    return (["", *done.stdout.strip().splitlines()])[-1]


@pytest.mark.parametrize("mpi", MPIS)
def test_the_image_passes_in_every_format(images: dict[str, Path], mpi: str) -> None:
    manifest = manifest_of(images[mpi])
    for name in FORMATS:
        outcome = {one["check"]: one for one in manifest["checks"][name]}["horovod-pytorch"]
        assert outcome["outcome"] == "passed", outcome
        assert outcome["data"]["ranks"] == 2
        assert outcome["data"]["difference"] <= 1e-10


@pytest.mark.parametrize("artifact", ARTIFACTS)
@pytest.mark.parametrize(("mpi", "launcher"), OF_THE_HOST)
def test_the_hosts_launcher_starts_a_container_for_each_rank(
    images: dict[str, Path],
    data: Path,
    shared_folder: Path,
    tools: Tools,
    request: pytest.FixtureRequest,
    mpi: str,
    launcher: str,
    artifact: str,
) -> None:
    command = OF_THE_HOST[mpi, launcher]
    need(command[0])
    slurm = request.getfixturevalue("two_nodes") if launcher == "srun" else {}
    environment = {**launchers.environment(tools), **slurm, **TUNING[mpi]}
    around = Around(command=command, environment=environment)
    with opened(images[mpi] / artifact, data, shared_folder, tools, around) as runner:
        done = runner.run(["python3", f"/mnt/{CHECK}", "2"], timeout_s=TIMEOUT_S)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert finding(done).startswith("2 ranks reduce, gather and broadcast; after training")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (CHECK, "op=hvd.Sum", "op=hvd.Average", "the sum of 1 float32 values is wrong"),
        (CHECK, "hvd.broadcast(index + rank, root_rank=size - 1)", "index + rank", "rank 0: the"),
        (CHECK, "hvd.DistributedOptimizer(optimizer, named_parameters=named)", "optimizer", OTHER),
        (CHECK, "hvd.broadcast_parameters(dict(named), root_rank=0)", "pass", OTHER),
        (CHECK, "one[rank::size]) for", "one[0::size]) for", "that of the averaged gradients by"),
        (NETWORK, "RATE = 0.5", "RATE = 0.0", "moved no weight by more than 0.0e+00"),
    ],
)
def test_defects_are_found(
    inside: Runner, data: Path, file: str, old: str, new: str, said: str
) -> None:
    text = (data / file).read_text()
    assert old in text
    (data / file).write_text(text.replace(old, new))
    done = inside.run([*INSIDE["openmpi"], "python3", f"/mnt/{CHECK}", "2"], timeout_s=TIMEOUT_S)
    assert done.returncode == 1, done.stdout
    assert said in finding(done)


@pytest.mark.parametrize(
    ("launcher", "ranks", "said"),
    [((), "2", "Horovod started 1 ranks"), (INSIDE["openmpi"], "3", "Horovod started 2 ranks")],
)
def test_lost_ranks_are_found(
    inside: Runner, launcher: tuple[str, ...], ranks: str, said: str
) -> None:
    done = inside.run([*launcher, "python3", f"/mnt/{CHECK}", ranks], timeout_s=TIMEOUT_S)
    assert done.returncode == 1
    assert finding(done) == f"{said}, expected {ranks}"
