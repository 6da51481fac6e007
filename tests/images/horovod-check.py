"""Horovod over the image's MPI: RANKS processes average what each has, and learn as one.

Usage: horovod-check.py RANKS

Each rank has a part of a line's points. With the gradients averaged by Horovod, a step on the parts
has to change the weights as a step on all points does.

Exit status: 0 on every rank passed, else failed. The last line of standard output is the finding,
printed by rank 0.
"""

import sys

RATE = 0.0625  # Keras keeps it in single precision, in which this is exact
POINTS = 8  # of each rank


def points(np, rank):
    """The points of one rank: no two ranks have the same."""
    x = np.arange(1, POINTS + 1, dtype="float64") + rank * POINTS
    return x / (8 * POINTS), 3 * x / (8 * POINTS) - 1


def gradient(np, x, y):
    """Of the mean squared error of 0x + 0, by both weights."""
    return np.array([np.mean(-2 * y * x), np.mean(-2 * y)])


def stepped(tf, hvd, x, y):
    """Both weights after one step of a rank's own part."""
    slope, offset = tf.Variable(0.0, dtype="float64"), tf.Variable(0.0, dtype="float64")
    optimizer = tf.keras.optimizers.legacy.SGD(RATE)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((slope * x + offset - y) ** 2)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, [slope, offset])
    optimizer.apply_gradients([(gradients[0], slope), (gradients[1], offset)])
    return slope.numpy(), offset.numpy()


def check(np, tf, hvd, expected):
    """The first fault of this rank; empty if there is none."""
    rank, size = hvd.rank(), hvd.size()
    if size != expected:
        return f"Horovod started {size} ranks, expected {expected}"
    total = hvd.allreduce(tf.constant([float(rank + 1)]), op=hvd.Sum).numpy()[0]
    if total != size * (size + 1) / 2:
        return f"the ranks sum up to {total}"
    every = [points(np, one) for one in range(size)]
    whole = -RATE * gradient(np, *(np.concatenate([one[n] for one in every]) for n in (0, 1)))
    mine = stepped(tf, hvd, *points(np, rank))
    off = float(np.max(np.abs(whole - np.array(mine))))
    return "" if off < 1e-12 else f"rank {rank} learnt {mine}, all points teach {tuple(whole)}"


def main(arguments):
    if len(arguments) != 1 or not arguments[0].isdigit():
        print("usage: horovod-check.py RANKS")
        return 2
    try:
        import horovod  # noqa: PLC0415 - a missing package is a finding, not a traceback
        import horovod.tensorflow as hvd  # noqa: PLC0415
        import numpy as np  # noqa: PLC0415
        import tensorflow as tf  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        print(f"cannot import Horovod and TensorFlow: {str(error).splitlines()[0]}")
        return 1
    hvd.init()
    if not hvd.mpi_built():
        print("Horovod was built without MPI")
        return 1
    fault = check(np, tf, hvd, int(arguments[0]))
    rank, size = hvd.rank(), hvd.size()
    hvd.shutdown()
    if fault or rank == 0:
        print(fault or f"{size} ranks learn as one (Horovod {horovod.__version__})")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
