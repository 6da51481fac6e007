"""JAX on the CPU: results of operations, and a step of training whose gradient is NumPy's.

Usage: jax-check.py MACHINE. MACHINE is what `uname -m` has to say.

Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
`data: {JSON}` stands before it.
"""

import json
import os
import platform
import struct
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

MACHINES = {"x86_64": 62, "ppc64le": 21, "aarch64": 183}  # e_machine of ELF


class Wrong(Exception):
    """A result is not what it has to be."""


def expect(condition: object, problem: str) -> None:
    if not condition:
        raise Wrong(problem)


def check_machine(jaxlib, machine: str) -> None:
    """The extension modules are built for the machine, and so is what runs here."""
    libraries = sorted(Path(jaxlib.__file__).parent.glob("*.so"))
    expect(libraries, "jaxlib has no extension module")
    for library in libraries:
        with library.open("rb") as file:
            head = file.read(20)
        (found,) = struct.unpack_from("<H", head, 18)
        whole = head[:4] == b"\x7fELF" and found == MACHINES[machine]
        expect(whole, f"{library.name} is no {machine} ELF")
    expect(platform.machine() == machine, f"uname says {platform.machine()}, expected {machine}")


def check_operations(jax, np) -> None:
    """Products, convolutions, sums, sorting and a decomposition, as they are and compiled."""
    jnp, random = jax.numpy, np.random.default_rng(20)
    for dtype, tolerance in (("float32", 2e-4), ("float64", 1e-11)):
        a = random.standard_normal((129, 257)).astype(dtype)
        b = random.standard_normal((257, 65)).astype(dtype)
        for multiply in (jnp.matmul, jax.jit(jnp.matmul)):
            product = multiply(a, b)
            expect(product.dtype == dtype, f"the product of {dtype} is {product.dtype}")
            close = np.allclose(product, a @ b, rtol=tolerance, atol=tolerance)
            expect(close, f"{dtype} product")
        total = jnp.exp(a).sum(axis=0)
        expect(np.allclose(total, np.exp(a).sum(axis=0), rtol=tolerance), f"{dtype} sum of exp")
        convolved = jnp.correlate(a[0], b[:7, 0], mode="valid")
        wanted = np.correlate(a[0], b[:7, 0], mode="valid")
        close = np.allclose(convolved, wanted, rtol=tolerance, atol=tolerance)
        expect(close, f"{dtype} convolution")
    order = random.permutation(10_000)
    expect(bool((jnp.sort(order) == np.arange(10_000)).all()), "sort")
    square = random.standard_normal((40, 40))
    values = jnp.linalg.eigvalsh(square + square.T)
    close = np.allclose(values, np.linalg.eigvalsh(square + square.T), rtol=1e-10, atol=1e-10)
    expect(close, "eigenvalues")


def check_step(jax, np, network, loss_of) -> float:
    """A step of training, as it is and compiled; returns the largest difference from NumPy's."""
    weights = network.made(np)
    pictures, classes = next(network.batches(np))
    loss, by_weight = network.gradient(np, weights, pictures, classes)
    largest = 0.0
    slope = jax.value_and_grad(loss_of)
    for name, differentiate in (("as it is", slope), ("compiled", jax.jit(slope))):
        found, found_by = differentiate(weights, pictures, classes)
        difference = max(network.apart(np, found_by, by_weight), abs(float(found) - loss))
        near = difference <= network.GRADIENT_TOLERANCE  # false for NaN
        expect(near, f"the gradient, {name}, differs from NumPy's by {difference:.1e}")
        stepped = [old - network.RATE * by for old, by in zip(weights, found_by)]  # noqa: B905
        after = float(loss_of(stepped, pictures, classes))
        expect(after < loss, f"a step took the loss from {loss:.4f} to {after:.4f}")
        largest = max(largest, difference)
    return largest


def check(machine: str) -> str:
    import jax  # noqa: PLC0415 - a missing package is a finding, not a traceback
    import jaxlib  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    import numpy_network  # noqa: PLC0415
    from jax_network import loss_of  # noqa: PLC0415

    jax.config.update("jax_enable_x64", True)
    check_machine(jaxlib, machine)
    check_operations(jax, np)
    difference = check_step(jax, np, numpy_network, loss_of)
    data = {"jax": jax.__version__, "numpy": np.__version__, "gradient_difference": difference}
    print("data: " + json.dumps(data))
    return (
        f"JAX {jax.__version__}: operations agree with NumPy {np.__version__}, and the gradient of"
        f" a training step is NumPy's within {numpy_network.GRADIENT_TOLERANCE:.0e}"
    )


def main(arguments: "list[str]") -> int:
    if len(arguments) != 1 or arguments[0] not in MACHINES:
        print(f"usage: jax-check.py {'|'.join(MACHINES)}")
        return 2
    try:
        print(check(arguments[0]))
    except ImportError as error:
        print(f"cannot import JAX and NumPy: {str(error).splitlines()[0]}")
        return 1
    except Wrong as error:
        print(f"wrong: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
