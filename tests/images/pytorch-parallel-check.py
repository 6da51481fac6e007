"""Data-parallel training of PyTorch: two ranks learn what one learns from the whole batch.

Usage: pytorch-parallel-check.py cpu|gpu. On the CPU the ranks reduce gradients over gloo. On GPUs
they do over NCCL, with a GPU each; if there is one GPU, both are on it and use gloo, as NCCL takes
no GPU twice.

Each rank begins with weights of its own and sees a half of each batch. After some steps, all ranks
must have the same weights to the bit, and those of one rank that saw the whole batches, but for
rounding.

Exit status: 0 passed, 77 skipped as there is no GPU, else failed. The last line of standard output
is the finding; a line `data: {JSON}` stands before it.

Python 3.6 and PyTorch 1.1 have to run it: Ubuntu 18.04 has no newer Python.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RANKS = 2
STEPS = 5
BATCH = 16
TIMEOUT_S = 300
SKIPPED = 77
# In double precision, sums in another order differ by some units of 2^-53, and steps multiply that.
TOLERANCE = 1e-10
LEAST_CHANGE = 1e-3  # of a weight: a step that does nothing would make everything equal


class Wrong(Exception):
    """The weights are not what they have to be."""


def made(torch, seed: int):
    """A small network of convolutions, without what looks at a whole batch (normalisation)."""
    torch.manual_seed(seed)
    nn = torch.nn
    layers = [nn.Conv2d(3, 8, 3, stride=2), nn.Tanh(), nn.Conv2d(8, 8, 3, stride=2), nn.Tanh()]
    features, classes = nn.Sequential(*layers), nn.Linear(8 * 3 * 3, 4)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.classes = features, classes

        def forward(self, pictures):
            return self.classes(self.features(pictures).flatten(1))

    return Network().double()


def batches(torch):
    """The same for everyone: pictures with their classes."""
    torch.manual_seed(99)
    for _ in range(STEPS):
        yield torch.randn(BATCH, 3, 15, 15).double(), torch.arange(BATCH) % 4


def trained(torch, network, share: slice, device: str):
    """Steps of stochastic gradient descent on a share of each batch; the mean loss of each."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for pictures, classes in batches(torch):
        optimizer.zero_grad()
        found = network(pictures[share].to(device))
        loss = torch.nn.functional.cross_entropy(found, classes[share].to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(torch, network):
    """All weights as one vector on the CPU."""
    return torch.cat([one.detach().cpu().reshape(-1) for one in network.parameters()])


def device_of(rank: int, backend: str, kind: str) -> str:
    if kind == "cpu":
        return "cpu"
    return "cuda:{}".format(rank if backend == "nccl" else 0)


def train_as(rank: int, backend: str, kind: str, folder: str) -> None:
    """One of the ranks: its weights go into a file."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    device = device_of(rank, backend, kind)
    if kind == "gpu":
        torch.cuda.set_device(device)
    url = f"file://{folder}/meeting"
    dist.init_process_group(backend, init_method=url, rank=rank, world_size=RANKS)
    network = made(torch, seed=20 + rank).to(device)
    devices = None if kind == "cpu" else [device]
    parallel = torch.nn.parallel.DistributedDataParallel(network, device_ids=devices)
    trained(torch, parallel, slice(rank, None, RANKS), device)
    torch.save(weights(torch, network), str(Path(folder, f"rank-{rank}")))
    dist.destroy_process_group()


def run_ranks(backend: str, kind: str, folder: str) -> None:
    """Starts this program again for each rank; they meet in a file and talk over loopback."""
    names = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, __file__, "--rank", backend, kind, folder]
    ranks = [
        subprocess.Popen(
            [*words, str(rank)],
            env={**os.environ, **names},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [process.communicate(timeout=TIMEOUT_S)[0] for process in ranks]
    except subprocess.TimeoutExpired:
        raise Wrong(f"{backend}: no result after {TIMEOUT_S} s") from None
    finally:
        for process in ranks:
            process.kill()
    for rank, process in enumerate(ranks):
        if process.returncode:
            print(said[rank], file=sys.stderr)
            last = said[rank].strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
            raise Wrong(f"{backend}, rank {rank} of {RANKS}: {last[0]}")


def compare(torch, folder: str, kind: str) -> "tuple[float, list[float]]":
    """The ranks with each other, and with one that saw everything; their difference, its losses."""
    device = "cpu" if kind == "cpu" else "cuda:0"
    found = [torch.load(str(Path(folder, f"rank-{rank}"))) for rank in range(RANKS)]
    for rank, one in enumerate(found[1:], start=1):
        apart = int((one != found[0]).sum())
        if apart:
            raise Wrong(f"rank {rank} has {apart} of {len(one)} weights other than rank 0")
    network = made(torch, seed=20).to(device)
    before = weights(torch, network)
    losses = trained(torch, network, slice(None), device)
    alone = weights(torch, network)
    moved = float((alone - before).abs().max())
    if moved < LEAST_CHANGE:
        raise Wrong(f"{STEPS} steps moved no weight by more than {moved:.1e}")
    difference = float((found[0] - alone).abs().max())
    if not difference <= TOLERANCE:  # NaN as well
        raise Wrong(f"{RANKS} ranks differ from one with the whole batch by {difference:.1e}")
    return difference, losses


def backend_of(torch, kind: str) -> str:
    if kind == "gpu" and torch.cuda.device_count() >= RANKS:
        return "nccl"
    return "gloo"


def check(kind: str) -> "tuple[int, str]":
    import torch  # noqa: PLC0415 - a missing package is a finding, not a traceback

    if kind == "gpu":
        if torch.version.cuda is None:
            return 1, f"PyTorch {torch.__version__} was built without CUDA"
        if not torch.cuda.is_available():
            if Path("/dev/nvidiactl").exists():
                return 1, "/dev/nvidiactl is there, but PyTorch finds no GPU"
            return SKIPPED, "no GPU: /dev/nvidiactl is absent"
    torch.set_num_threads(1)
    backend = backend_of(torch, kind)
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(backend, kind, folder)
        difference, losses = compare(torch, folder, kind)
    data = {"backend": backend, "difference": difference, "losses": losses}
    print("data: " + json.dumps(data))
    where = "the CPU" if kind == "cpu" else f"{min(RANKS, torch.cuda.device_count())} GPU"
    return 0, (
        f"{RANKS} ranks over {backend} on {where}: after {STEPS} steps the same weights to the bit,"
        f" and within {difference:.0e} of one rank with the whole batch"
    )


def main(arguments: "list[str]") -> int:
    if len(arguments) == 5 and arguments[0] == "--rank":
        train_as(int(arguments[4]), *arguments[1:4])
        return 0
    if arguments not in (["cpu"], ["gpu"]):
        print("usage: pytorch-parallel-check.py cpu|gpu")
        return 2
    try:
        status, said = check(arguments[0])
    except ImportError as error:
        status, said = 1, f"cannot import PyTorch: {str(error).splitlines()[0]}"
    except Wrong as error:
        status, said = 1, f"wrong: {error}"
    except RuntimeError as error:  # of CUDA: its first line names the error
        status, said = 1, f"PyTorch: {str(error).splitlines()[0]}"
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
