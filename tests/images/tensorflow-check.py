"""TensorFlow on the CPU: right results and gradients, and a model that learns a line.

Usage: tensorflow-check.py MACHINE. MACHINE is what `uname -m` has to say.

Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
`data: {JSON}` stands before it.
"""

import json
import os
import platform
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class Wrong(Exception):
    """A result is not what it has to be."""


def expect(condition: object, problem: str) -> None:
    if not condition:
        raise Wrong(problem)


def check_operations(tf, np) -> None:
    """Products, convolutions and sums agree with NumPy's, as they are and in a compiled graph."""
    random = np.random.default_rng(20)
    for dtype, tolerance in (("float32", 2e-4), ("float64", 1e-11)):
        a = random.standard_normal((129, 257)).astype(dtype)
        b = random.standard_normal((257, 65)).astype(dtype)
        for multiply in (tf.matmul, tf.function(tf.matmul)):
            product = multiply(tf.constant(a), tf.constant(b)).numpy()
            expect(np.allclose(product, a @ b, rtol=tolerance, atol=tolerance), f"{dtype} product")
        total = tf.reduce_sum(tf.exp(tf.constant(a)), axis=0).numpy()
        expect(np.allclose(total, np.exp(a).sum(axis=0), rtol=tolerance), f"{dtype} sum of exp")
    signal, kernel = a[0].astype("float32"), b[:7, 0].astype("float32")
    found = tf.nn.conv1d(signal[None, :, None], kernel[:, None, None], stride=1, padding="VALID")
    wanted = np.correlate(signal, kernel, mode="valid")
    expect(np.allclose(found[0, :, 0].numpy(), wanted, rtol=2e-4, atol=2e-4), "convolution")


def check_gradients(tf, np) -> None:
    """A derivative with a closed form; then a line is found by gradient descent."""
    x = tf.Variable(np.linspace(-2, 2, 41))
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(tf.sin(x) * tf.exp(x))
    wanted = (np.cos(x.numpy()) + np.sin(x.numpy())) * np.exp(x.numpy())
    close = np.allclose(tape.gradient(value, x).numpy(), wanted, rtol=1e-12, atol=1e-12)
    expect(close, "the derivative of sin x exp x")

    inputs = tf.constant(np.linspace(-1, 1, 64))
    slope, offset = tf.Variable(0.0, dtype="float64"), tf.Variable(0.0, dtype="float64")
    for _ in range(60):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((slope * inputs + offset - (3 * inputs - 2)) ** 2)
        by_slope, by_offset = tape.gradient(loss, (slope, offset))
        slope.assign_sub(0.5 * by_slope)
        offset.assign_sub(0.5 * by_offset)
    near = abs(slope.numpy() - 3) < 1e-2 and abs(offset.numpy() + 2) < 1e-2
    expect(near, f"training found y = {slope.numpy():.3f} x + {offset.numpy():.3f}, not 3 x - 2")


def check(machine: str) -> str:
    import numpy as np  # noqa: PLC0415 - a missing package is a finding, not a traceback
    import tensorflow as tf  # noqa: PLC0415

    expect(platform.machine() == machine, f"uname says {platform.machine()}, expected {machine}")
    with tf.device("/CPU:0"):
        check_operations(tf, np)
        check_gradients(tf, np)
    print("data: " + json.dumps({"tensorflow": tf.__version__, "numpy": np.__version__}))
    return (
        f"TensorFlow {tf.__version__}: operations agree with NumPy {np.__version__}, "
        "gradients are right"
    )


def main(arguments: "list[str]") -> int:
    if len(arguments) != 1:
        print("usage: tensorflow-check.py MACHINE")
        return 2
    try:
        print(check(arguments[0]))
    except ImportError as error:
        print(f"cannot import TensorFlow and NumPy: {str(error).splitlines()[0]}")
        return 1
    except Wrong as error:
        print(f"wrong: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
