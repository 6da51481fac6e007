"""A step of training by TensorFlow on the CPU, whose gradient is NumPy's.

Usage: tensorflow-training-check.py

Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
`data: {JSON}` stands before it.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class Wrong(Exception):
    """A result is not what it has to be."""


def check_step(tf, np, network, differentiate) -> float:
    """A step, as it is and in a compiled graph; returns the largest difference from NumPy's."""
    pictures, classes = next(network.batches(np))
    loss, by_weight = network.gradient(np, network.made(np), pictures, classes)
    largest = 0.0
    for name, slope in (("as it is", differentiate), ("compiled", tf.function(differentiate))):
        weights = [tf.Variable(one) for one in network.made(np)]
        found, found_by = slope(weights, pictures, classes)
        difference = max(network.apart(np, found_by, by_weight), abs(float(found) - loss))
        if not difference <= network.GRADIENT_TOLERANCE:  # NaN as well
            raise Wrong(f"the gradient, {name}, differs from NumPy's by {difference:.1e}")
        tf.keras.optimizers.SGD(network.RATE).apply_gradients(zip(found_by, weights))  # noqa: B905
        after = float(differentiate(weights, pictures, classes)[0])
        if not after < loss:
            raise Wrong(f"a step took the loss from {loss:.4f} to {after:.4f}")
        largest = max(largest, difference)
    return largest


def check() -> str:
    import numpy as np  # noqa: PLC0415 - a missing package is a finding, not a traceback
    import numpy_network  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415
    from tensorflow_network import loss_and_gradient  # noqa: PLC0415

    with tf.device("/CPU:0"):
        difference = check_step(tf, np, numpy_network, loss_and_gradient)
    data = {"tensorflow": tf.__version__, "keras": tf.keras.__version__, "difference": difference}
    print("data: " + json.dumps(data))
    return (
        f"TensorFlow {tf.__version__}, Keras {tf.keras.__version__}: the gradient of a training"
        f" step is that of NumPy {np.__version__} within {numpy_network.GRADIENT_TOLERANCE:.0e}"
    )


def main(arguments: "list[str]") -> int:
    if arguments:
        print("usage: tensorflow-training-check.py")
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
