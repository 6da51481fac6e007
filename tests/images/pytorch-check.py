"""PyTorch on the CPU: right results, gradients, and two processes that reduce over gloo.

Usage: pytorch-check.py MACHINE [VERSION]. MACHINE is what `uname -m` has to say; VERSION is how
PyTorch's version has to begin.

Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
`data: {JSON}` stands before it.

Python 3.6 has to run it: Ubuntu 18.04 and CentOS 7 have no other.
"""

import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

MACHINES = {"x86_64": 62, "ppc64le": 21, "aarch64": 183}  # e_machine of ELF
RANKS = 2
TIMEOUT_S = 300


class Wrong(Exception):
    """A result is not what it has to be."""


def expect(condition: object, problem: str) -> None:
    if not condition:
        raise Wrong(problem)


def check_machine(torch, machine: str) -> None:
    """The extension module is built for the machine, and so is what runs here."""
    with Path(torch._C.__file__).open("rb") as file:
        head = file.read(20)
    (found,) = struct.unpack_from("<H", head, 18)
    expect(head[:4] == b"\x7fELF" and found == MACHINES[machine], f"torch._C is no {machine} ELF")
    expect(platform.machine() == machine, f"uname says {platform.machine()}, expected {machine}")


def check_operations(torch, np) -> None:
    """Products, convolutions, sums and sorting agree with NumPy's, beyond one cache line."""
    random = np.random.default_rng(20)
    for dtype, tolerance in (("float32", 2e-4), ("float64", 1e-11)):
        a = random.standard_normal((129, 257)).astype(dtype)
        b = random.standard_normal((257, 65)).astype(dtype)
        product = (torch.from_numpy(a) @ torch.from_numpy(b)).numpy()
        expect(np.allclose(product, a @ b, rtol=tolerance, atol=tolerance), f"{dtype} product")
        total = torch.from_numpy(a).exp().sum(dim=0).numpy()
        expect(np.allclose(total, np.exp(a).sum(axis=0), rtol=tolerance), f"{dtype} sum of exp")
        signal, kernel = a[0], b[:7, 0]
        convolved = torch.nn.functional.conv1d(
            torch.from_numpy(signal)[None, None], torch.from_numpy(kernel.copy())[None, None]
        )
        wanted = np.correlate(signal, kernel, mode="valid")
        close = np.allclose(convolved[0, 0].numpy(), wanted, rtol=tolerance, atol=tolerance)
        expect(close, f"{dtype} convolution")
    order = random.permutation(10_000)
    expect(bool((torch.from_numpy(order).sort()[0] == torch.arange(10_000)).all()), "sort")


def check_gradients(torch) -> None:
    """A derivative with a closed form; then a line is found by gradient descent."""
    x = torch.linspace(-2, 2, 41, dtype=torch.float64, requires_grad=True)
    (x.sin() * x.exp()).sum().backward()
    wanted = (x.cos() + x.sin()) * x.exp()
    expect(torch.allclose(x.grad, wanted.detach(), 1e-12, 1e-12), "the derivative of sin x exp x")

    torch.manual_seed(20)
    inputs = torch.linspace(-1, 1, 64)[:, None]
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs - 2)
        loss.backward()
        optimizer.step()
    found = (model.weight.item(), model.bias.item())
    near = abs(found[0] - 3) < 1e-2 and abs(found[1] + 2) < 1e-2
    expect(near, f"training found y = {found[0]:.3f} x + {found[1]:.3f}, not 3 x - 2")


def reduce_as(rank: int, meeting: str) -> None:
    """One of the processes: a sum and a broadcast over gloo, compared with closed forms."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    url = f"file://{meeting}"
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=RANKS)
    for count in (1, 1000, 65537):
        index = torch.arange(count, dtype=torch.float64)
        summed = index * (rank + 1)
        dist.all_reduce(summed)
        expect(bool((summed == index * (RANKS * (RANKS + 1) // 2)).all()), f"sum of {count}")
        sent = index + 0.5 if rank == 0 else torch.full_like(index, -1)
        dist.broadcast(sent, src=0)
        expect(bool((sent == index + 0.5).all()), f"broadcast of {count}")
    dist.destroy_process_group()


def check_processes(torch) -> None:
    """Starts this program again for each rank; they meet in a file and talk over loopback."""
    expect(torch.distributed.is_available(), "torch.distributed is not in this PyTorch")
    variables = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder, "meeting"))
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(rank), meeting],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                universal_newlines=True,
            )
            for rank in range(RANKS)
        ]
        try:
            said = [process.communicate(timeout=TIMEOUT_S)[0] for process in ranks]
        except subprocess.TimeoutExpired:
            ended = [rank for rank, process in enumerate(ranks) if process.poll()]
            raise Wrong(f"gloo: no result after {TIMEOUT_S} s; ranks that died: {ended}") from None
        finally:
            for process in ranks:
                process.kill()
    for rank, process in enumerate(ranks):
        if process.returncode:
            print(said[rank], file=sys.stderr)
            last = [*said[rank].strip().splitlines(), f"exit status {process.returncode}"]
            raise Wrong(f"gloo, rank {rank} of {RANKS}: {last[-2] if len(last) > 1 else last[0]}")


def check(machine: str, version: str) -> str:
    import numpy as np  # noqa: PLC0415 - a missing package is a finding, not a traceback
    import torch  # noqa: PLC0415

    torch.set_num_threads(min(2, os.cpu_count() or 1))
    expect(torch.__version__.startswith(version), f"PyTorch {torch.__version__}, not {version}")
    check_machine(torch, machine)
    check_operations(torch, np)
    check_gradients(torch)
    check_processes(torch)
    built = torch.version.cuda or "no CUDA"
    print("data: " + json.dumps({"pytorch": torch.__version__, "numpy": np.__version__}))
    return (
        f"PyTorch {torch.__version__} ({built}): operations agree with NumPy {np.__version__}, "
        f"gradients are right, {RANKS} processes reduce over gloo"
    )


def main(arguments: "list[str]") -> int:
    if len(arguments) == 3 and arguments[0] == "--rank":
        reduce_as(int(arguments[1]), arguments[2])
        return 0
    if len(arguments) not in (1, 2) or arguments[0] not in MACHINES:
        print(f"usage: pytorch-check.py {'|'.join(MACHINES)} [VERSION]")
        return 2
    try:
        print(check(arguments[0], "".join(arguments[1:])))
    except ImportError as error:
        print(f"cannot import PyTorch and NumPy: {str(error).splitlines()[0]}")
        return 1
    except Wrong as error:
        print(f"wrong: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
