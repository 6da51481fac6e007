"""Data-parallel training of TensorFlow: two workers learn what one learns from the whole batch.

Usage: tensorflow-workers-check.py

The workers are processes of a MultiWorkerMirroredStrategy that talk over loopback. Each begins with
weights of its own and sees a half of each batch. After some steps, both must have the same weights
to the bit, and those that NumPy learns from the whole batches, but for rounding.

Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
`data: {JSON}` stands before it.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKERS = 2
TIMEOUT_S = 300
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


class Wrong(Exception):
    """The weights are not what they have to be."""


def train_as(rank: int, folder: str) -> None:
    """One of the workers: its weights go into a file."""
    import numpy as np  # noqa: PLC0415
    import numpy_network as network  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415
    from tensorflow_network import loss_and_gradient  # noqa: PLC0415

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if strategy.num_replicas_in_sync != WORKERS:
        raise Wrong(f"the strategy has {strategy.num_replicas_in_sync} workers, not {WORKERS}")
    with strategy.scope():  # which gives to all what the first has
        own = [one + rank for one in network.made(np)]
        weights = [tf.Variable(one, aggregation=tf.VariableAggregation.MEAN) for one in own]

    def step(pictures, classes):
        _, by_weight = loss_and_gradient(weights, pictures, classes)
        for one, by in zip(weights, by_weight):  # noqa: B905 - Python 3.9 has no strict
            one.assign_sub(network.RATE * by)  # by the mean over the workers

    run = tf.function(lambda *batch: strategy.run(step, args=batch))
    for batch in network.batches(np):
        run(*(tf.constant(one[rank::WORKERS]) for one in batch))
    learnt = [one.numpy() for one in weights]
    save(np, Path(folder, f"rank-{rank}.npz"), learnt)
    until_all_have_saved(folder)


def save(np, path: Path, weights) -> None:
    """The file is there when it is whole."""
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, *weights)
    partial.rename(path)


def until_all_have_saved(folder: str) -> None:
    """The first worker holds the others' connections: it must not end before them."""
    end = time.monotonic() + TIMEOUT_S
    while len(list(Path(folder).glob("rank-?.npz"))) < WORKERS and time.monotonic() < end:
        time.sleep(0.1)


def addresses() -> "list[str]":
    """Free ports of loopback, one for each worker."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(WORKERS)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def run_workers(folder: str) -> None:
    """Starts this program again for each worker."""
    cluster = {"worker": addresses()}
    workers = []
    for rank in range(WORKERS):
        config = {"cluster": cluster, "task": {"type": "worker", "index": rank}}
        names = {"TF_CONFIG": json.dumps(config), "OMP_NUM_THREADS": "1", "no_proxy": "127.0.0.1"}
        workers.append(
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(rank), folder],
                env={**os.environ, **names},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        said = [process.communicate(timeout=TIMEOUT_S)[0] for process in workers]
    except subprocess.TimeoutExpired:
        raise Wrong(f"no result after {TIMEOUT_S} s") from None
    finally:
        for process in workers:
            process.kill()
    for rank, process in enumerate(workers):
        if process.returncode:
            print(said[rank], file=sys.stderr)
            last = said[rank].strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
            raise Wrong(f"worker {rank} of {WORKERS}: {last[0]}")


def compare(np, network, folder: str) -> "tuple[float, list[float]]":
    """The workers with each other, and with NumPy; their difference, and NumPy's losses."""
    learnt = []
    for rank in range(WORKERS):
        with np.load(Path(folder, f"rank-{rank}.npz")) as file:
            learnt.append([file[name] for name in file.files])
    first, *others = learnt
    for rank, other in enumerate(others, start=1):
        pairs = zip(first, other)  # noqa: B905 - Python 3.9 has no strict
        unequal = sum(int((ours != theirs).sum()) for ours, theirs in pairs)
        if unequal:
            total = sum(one.size for one in other)
            raise Wrong(f"worker {rank} has {unequal} of {total} weights other than worker 0")
    by_numpy, losses = network.trained(np)
    moved = network.apart(np, first, network.made(np))
    if not moved >= network.LEAST_CHANGE:  # NaN as well
        raise Wrong(f"{network.STEPS} steps moved no weight by more than {moved:.1e}")
    difference = network.apart(np, first, by_numpy)
    if not difference <= network.TOLERANCE:
        raise Wrong(f"{WORKERS} workers differ from one with the whole batch by {difference:.1e}")
    return difference, losses


def check() -> str:
    import importlib.util  # noqa: PLC0415

    import numpy as np  # noqa: PLC0415 - a missing package is a finding, not a traceback
    import numpy_network  # noqa: PLC0415

    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError("No module named 'tensorflow'")
    with tempfile.TemporaryDirectory() as folder:
        run_workers(folder)
        difference, losses = compare(np, numpy_network, folder)
    print("data: " + json.dumps({"workers": WORKERS, "difference": difference, "losses": losses}))
    return (
        f"{WORKERS} workers of a MultiWorkerMirroredStrategy: after {numpy_network.STEPS} steps the"
        f" same weights to the bit, and within {difference:.0e} of NumPy with the whole batch"
    )


def main(arguments: "list[str]") -> int:
    if len(arguments) == 3 and arguments[0] == "--rank":
        train_as(int(arguments[1]), arguments[2])
        return 0
    if arguments:
        print("usage: tensorflow-workers-check.py")
        return 2
    try:
        print(check())
    except ImportError as error:
        print(f"cannot import TensorFlow and NumPy: {str(error).splitlines()[0]}")
        return 1
    except Wrong as error:
        print(f"wrong: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
