"""Horovod with PyTorch over the image's MPI: RANKS processes exchange tensors, and train as one.

Usage: horovod-pytorch-check.py RANKS

Tensors of several types and lengths are reduced, gathered and broadcast; each result has a closed
form. Then each rank trains a network on its share of each batch. It begins with weights of its own,
which rank 0 replaces. All ranks must have the same weights to the bit. The first step must be that
of the gradients of all shares, computed by NumPy and averaged; all steps together must agree with
NumPy's on whole batches.

Exit status: 0 on every rank passed, else failed, on every rank. The last line of standard output is
the finding, printed by rank 0; a line `data: {JSON}` stands before it.
"""

import json
import sys

COUNTS = (1, 7, 1000, 65536)
TYPES = ("float32", "float64", "int64")


def check_collectives(torch, hvd) -> str:
    """Reductions, a gathering and a broadcast of known values; the first fault of this rank."""
    rank, size = hvd.rank(), hvd.size()
    total, fault = size * (size + 1) // 2, ""
    for name in TYPES:
        for count in COUNTS:
            index = torch.arange(1, count + 1, dtype=getattr(torch, name)) % 1000
            label = f"{count} {name} values"
            results = {
                "sum": (hvd.allreduce(index * (rank + 1), op=hvd.Sum), index * total),
                "maximum": (hvd.allreduce(index * (rank + 1), op=hvd.Max), index * size),
                "gathering": (hvd.allgather(index + rank), gathered(torch, index, size)),
                "broadcast": (hvd.broadcast(index + rank, root_rank=size - 1), index + size - 1),
            }
            wrong = [what for what, (found, due) in results.items() if not torch.equal(found, due)]
            fault = fault or (wrong and f"the {wrong[0]} of {label} is wrong") or ""
    return fault


def gathered(torch, index, size):
    return torch.cat([index + rank for rank in range(size)])


def loss_of(torch, weights, pictures, classes):
    """The mean loss of the network of numpy_network."""
    first, first_offset, second, second_offset = weights
    hidden = torch.tanh(pictures @ first + first_offset)
    logarithms = torch.log_softmax(hidden @ second + second_offset, dim=1)
    return -(logarithms * classes).sum(dim=1).mean()


def trained(torch, np, hvd, network):
    """The weights of this rank after the first step, and after all steps."""
    rank, size = hvd.rank(), hvd.size()
    weights = [torch.nn.Parameter(torch.from_numpy(one + rank)) for one in network.made(np)]
    named = [(f"weight {number}", one) for number, one in enumerate(weights)]
    hvd.broadcast_parameters(dict(named), root_rank=0)
    optimizer = torch.optim.SGD(weights, lr=network.RATE)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named)
    after = []
    for pictures, classes in network.batches(np):
        share = [torch.from_numpy(one[rank::size]) for one in (pictures, classes)]
        optimizer.zero_grad()
        loss_of(torch, weights, *share).backward()
        optimizer.step()
        after.append([one.detach().numpy().copy() for one in weights])
    return after[0], after[-1]


def first_step(np, network, size):
    """The weights after a step by the gradients of all shares, averaged; all by NumPy."""
    weights = network.made(np)
    pictures, classes = next(network.batches(np))
    shares = [(pictures[rank::size], classes[rank::size]) for rank in range(size)]
    slopes = [network.gradient(np, weights, *share)[1] for share in shares]
    return [old - network.RATE * sum(by) / size for old, *by in zip(weights, *slopes)]  # noqa: B905


def check_training(torch, np, hvd, network) -> "tuple[str, float]":
    """The first fault of this rank, and the difference of its weights from NumPy's."""
    first, last = trained(torch, np, hvd, network)
    flat = torch.from_numpy(np.concatenate([one.reshape(-1) for one in last]))
    every = hvd.allgather(flat.reshape(1, -1))
    unequal = int((every != every[0]).sum())
    one_step = network.apart(np, first, first_step(np, network, hvd.size()))
    difference = network.apart(np, last, network.trained(np)[0])
    moved = network.apart(np, last, network.made(np))
    if unequal:
        return f"{unequal} of {every.numel()} weights are other than rank 0's", difference
    if not moved >= network.LEAST_CHANGE:  # NaN as well
        return f"{network.STEPS} steps moved no weight by more than {moved:.1e}", difference
    if not one_step <= network.GRADIENT_TOLERANCE:
        return f"a step differs from that of the averaged gradients by {one_step:.1e}", difference
    if not difference <= network.TOLERANCE:
        return f"the ranks differ from one with whole batches by {difference:.1e}", difference
    return "", difference


def check(torch, np, hvd, network, expected: int) -> "tuple[str, float]":
    """The first fault of any rank, the same on all ranks. All ranks run all checks."""
    if hvd.size() != expected:
        return f"Horovod started {hvd.size()} ranks, expected {expected}", 0
    collectives = check_collectives(torch, hvd)
    training, difference = check_training(torch, np, hvd, network)
    faults = hvd.allgather_object(collectives or training)
    named = [f"rank {rank}: {fault}" for rank, fault in enumerate(faults) if fault]
    return "".join(named[:1]), difference


def report(torch, horovod, ranks: int, fault: str, difference: float) -> None:
    versions = {"horovod": horovod.__version__, "torch": torch.__version__}
    print("data: " + json.dumps({"ranks": ranks, "difference": difference, **versions}))
    print(
        fault
        or f"{ranks} ranks reduce, gather and broadcast; after training they have the same weights"
        f" to the bit, within {difference:.0e} of NumPy's with whole batches (Horovod"
        f" {versions['horovod']}, PyTorch {versions['torch']})"
    )
    sys.stdout.flush()


def main(arguments: "list[str]") -> int:
    if len(arguments) != 1 or not arguments[0].isdigit():
        print("usage: horovod-pytorch-check.py RANKS")
        return 2
    try:
        import horovod  # noqa: PLC0415 - a missing package is a finding, not a traceback
        import horovod.torch as hvd  # noqa: PLC0415
        import numpy as np  # noqa: PLC0415
        import numpy_network  # noqa: PLC0415
        import torch  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        print(f"cannot import Horovod and PyTorch: {str(error).splitlines()[0]}")
        return 1
    if not hvd.mpi_built():
        print("Horovod was built without MPI")
        return 1
    torch.set_num_threads(1)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    fault, difference = check(torch, np, hvd, numpy_network, int(arguments[0]))
    hvd.shutdown()
    if rank == 0:
        report(torch, horovod, size, fault, difference)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
