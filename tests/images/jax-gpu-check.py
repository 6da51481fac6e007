"""JAX on each GPU: the driver, the plugin and the devices fit each other, results are right.

Usage: jax-gpu-check.py [-- COMMAND...]. COMMAND says whether the layers below are in order: if it
fails, this check was not judged, and its last line says why.

Exit status: 0 passed, 77 skipped as there is no GPU, else failed. The last line of standard output
is the finding; a line `data: {JSON}` stands before it.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
CONTROL = "/dev/nvidiactl"
PLUGIN = "jax_cuda13_plugin"


def finding(jax, before: "list[str]") -> "tuple[int, str]":
    if importlib.util.find_spec(PLUGIN) is None:
        return 1, f"JAX {jax.__version__} has no {PLUGIN}"
    if before:
        done = subprocess.run(before, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            return SKIPPED, (done.stdout.decode().strip().splitlines() or ["not judged"])[-1]
    try:
        devices = jax.devices("cuda")
    except RuntimeError as error:
        if Path(CONTROL).exists():
            found = str(error).splitlines()[0]
            return 1, f"{CONTROL} is there, but JAX finds no GPU: {found}"
        return SKIPPED, f"no GPU: {CONTROL} is absent"
    return compute(jax, devices)


def compute(jax, devices) -> "tuple[int, str]":
    """A product and a gradient on each device, compared with the CPU's."""
    import numpy as np  # noqa: PLC0415

    jax.config.update("jax_enable_x64", True)
    random = np.random.default_rng(20)
    a, b = random.standard_normal((512, 384)), random.standard_normal((384, 256))
    wanted = results_on(jax, jax.devices("cpu")[0], a, b)
    for device in devices:
        for name, one in results_on(jax, device, a, b).items():
            if set(one.devices()) != {device}:
                return 1, f"the {name} for {device} was computed on {one.devices()}"
            if not np.allclose(np.asarray(one), np.asarray(wanted[name]), rtol=1e-10, atol=1e-9):
                return 1, f"the {name} on {device} differs from the CPU's"
    names = [f"{one.device_kind}, {getattr(one, 'compute_capability', '?')}" for one in devices]
    print("data: " + json.dumps({"jax": jax.__version__, "gpus": names}))
    return 0, f"product and gradient agree with the CPU's on {'; '.join(names)}"


def results_on(jax, device, a, b):
    a, b = jax.device_put(a, device), jax.device_put(b, device)
    slope = jax.jit(jax.grad(lambda b: ((a @ b) ** 2).sum()))
    return {"product": jax.jit(jax.numpy.matmul)(a, b), "gradient": slope(b)}


def main(arguments: "list[str]") -> int:
    try:
        import jax  # noqa: PLC0415 - a missing package is a finding, not a traceback
    except ImportError as error:
        print(f"cannot import JAX: {str(error).splitlines()[0]}")
        return 1
    before = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    try:
        status, said = finding(jax, before)
    except RuntimeError as error:  # of XLA: its first line names the error
        status, said = 1, f"JAX: {str(error).splitlines()[0]}"
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
