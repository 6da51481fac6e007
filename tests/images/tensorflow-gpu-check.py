"""TensorFlow on each GPU: the driver, the build and the devices fit each other, results are right.

Usage: tensorflow-gpu-check.py [CAPABILITY...] [-- COMMAND...]. The capabilities, as plain numbers
(70), are those that the image promises code for. COMMAND says whether the layers below are in
order: if it fails, this check was not judged, and its last line says why.

Exit status: 0 passed, 77 skipped as there is no GPU, else failed. The last line of standard output
is the finding; a line `data: {JSON}` stands before it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

SKIPPED = 77
CONTROL = "/dev/nvidiactl"


def finding(tf, capabilities: "list[str]", before: "list[str]") -> "tuple[int, str]":
    if not tf.test.is_built_with_cuda():
        return 1, f"TensorFlow {tf.__version__} was built without CUDA"
    info = tf.sysconfig.get_build_info()
    lacking = missing(capabilities, list(info.get("cuda_compute_capabilities", [])))
    if lacking:
        built = ", ".join(info["cuda_compute_capabilities"])
        return 1, f"TensorFlow has code for {built}; {lacking} lack"
    if before:
        done = subprocess.run(before, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            return SKIPPED, (done.stdout.decode().strip().splitlines() or ["not judged"])[-1]
    places = [one.name for one in tf.config.list_logical_devices("GPU")]
    if not places and Path(CONTROL).exists():
        return 1, f"{CONTROL} is there, but TensorFlow finds no GPU: a library may be missing"
    if not places:
        return SKIPPED, f"no GPU: {CONTROL} is absent"
    return compute(tf, places)


def missing(capabilities: "list[str]", built: "list[str]") -> "list[str]":
    """Those without code: TensorFlow names sm_70, and compute_70 where it has PTX too."""
    have = {one.rpartition("_")[2] for one in built}
    return [one for one in capabilities if built and one not in have]


def compute(tf, places: "list[str]") -> "tuple[int, str]":
    """A product, a gradient and a compiled step on each device, compared with the CPU's."""
    tf.random.set_seed(20)
    a = tf.random.normal((512, 384), dtype="float64")
    b = tf.random.normal((384, 256), dtype="float64")
    wanted = results_on(tf, "/CPU:0", a, b)
    for place in places:
        found = results_on(tf, place, a, b)
        for name, one in found.items():
            other = wanted[name]
            if "GPU" not in one.device:
                return 1, f"the {name} for {place} was computed on {one.device}"
            if not bool(tf.reduce_all(tf.abs(one - other) <= 1e-9 + 1e-10 * tf.abs(other))):
                return 1, f"the {name} on {place} differs from the CPU's"
    names = [
        str(tf.config.experimental.get_device_details(one).get("device_name", one.name))
        for one in tf.config.list_physical_devices("GPU")
    ]
    print("data: " + json.dumps({"tensorflow": tf.__version__, "gpus": names}))
    where = "; ".join(names)
    return 0, f"product, gradient and a compiled step agree with the CPU's on {where}"


def results_on(tf, place: str, a, b):
    with tf.device(place):
        a, b = tf.identity(a), tf.identity(b)
        with tf.GradientTape() as tape:
            tape.watch(b)
            product = tf.matmul(a, b)
            size = tf.reduce_sum(product**2)
        # Keras compiles training steps by XLA, which needs ptxas and libdevice of CUDA's nvcc.
        step = tf.function(lambda x, y: tf.math.log1p(tf.matmul(x, y) ** 2), jit_compile=True)
        return {"product": product, "gradient": tape.gradient(size, b), "compiled step": step(a, b)}


def main(arguments: "list[str]") -> int:
    try:
        import tensorflow as tf  # noqa: PLC0415 - a missing package is a finding, not a traceback
    except ImportError as error:
        print(f"cannot import TensorFlow: {str(error).splitlines()[0]}")
        return 1
    split = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        status, said = finding(tf, arguments[:split], arguments[split + 1 :])
    except (tf.errors.OpError, RuntimeError) as error:
        status, said = 1, f"TensorFlow: {str(error).splitlines()[0]}"
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
