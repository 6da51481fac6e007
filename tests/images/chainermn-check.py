"""ChainerMN over the image's MPI: RANKS processes learn from parts what one learns from all.

Usage: chainermn-check.py RANKS

Its communicator `naive` needs no GPU. After one step of a multi-node optimizer, the weights have to
be those of one step on the points of all ranks.

Exit status: 0 on every rank passed, else failed. The last line of standard output is the finding,
printed by rank 0.

Python 3.6 has to run it: Ubuntu 18.04 has no newer one.
"""

import sys

RATE = 0.1
POINTS = 8  # of each rank


def points(np, rank):
    """The points of one rank: no two ranks have the same."""
    x = np.arange(1, POINTS + 1, dtype="float32") + rank * POINTS
    return (x / (8 * POINTS))[:, None], (3 * x / (8 * POINTS) - 1)[:, None]


def stepped(chainer, x, y, communicator=None):
    """The weights of a line after one step from 0."""
    model = chainer.links.Linear(1, 1, initialW=0)
    optimizer = chainer.optimizers.SGD(RATE)
    if communicator:
        import chainermn  # noqa: PLC0415

        optimizer = chainermn.create_multi_node_optimizer(optimizer, communicator)
    optimizer.setup(model)
    if communicator:
        # The first update only sends the weights of the first rank to all.
        optimizer.update(lambda: chainer.functions.mean_squared_error(model(x), y))
    optimizer.update(lambda: chainer.functions.mean_squared_error(model(x), y))
    return float(model.W.array[0, 0]), float(model.b.array[0])


def check(np, chainer, chainermn, expected):
    """The first fault of this rank, the number of ranks and the rank."""
    communicator = chainermn.create_communicator("naive")
    rank, size = communicator.rank, communicator.size
    if size != expected:
        return f"ChainerMN started {size} ranks, expected {expected}", rank
    every = [points(np, one) for one in range(size)]
    whole = stepped(chainer, *(np.concatenate([one[n] for one in every]) for n in (0, 1)))
    mine = stepped(chainer, *points(np, rank), communicator)
    off = max(abs(weight - mine[n]) for n, weight in enumerate(whole))
    return ("" if off < 1e-5 else f"rank {rank} learnt {mine}, all points teach {whole}"), rank


def main(arguments):
    if len(arguments) != 1 or not arguments[0].isdigit():
        print("usage: chainermn-check.py RANKS")
        return 2
    try:
        import chainer  # noqa: PLC0415 - a missing package is a finding, not a traceback
        import chainermn  # noqa: PLC0415
        import numpy as np  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        print(f"cannot import Chainer and ChainerMN: {str(error).splitlines()[0]}")
        return 1
    fault, rank = check(np, chainer, chainermn, int(arguments[0]))
    if fault or rank == 0:
        print(fault or f"{arguments[0]} ranks learn as one (Chainer {chainer.__version__})")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
