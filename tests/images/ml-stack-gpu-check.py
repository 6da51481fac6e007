"""CuPy and cuDNN on each GPU.

Usage: ml-stack-gpu-check.py [-- BEFORE...]. BEFORE is a command that says whether the GPUs' layers
below are sound: with 77 or an error nothing is judged.

Exit status: 0 passed, 77 skipped (there is no GPU, or BEFORE says so), else failed. The last line
of standard output is the finding; a line `data: {JSON}` stands before it.
"""

import ctypes
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
CONTROL = "/dev/nvidiactl"
CUDNN = "nvidia-cudnn-cu13"
# Of cudnn.h: layout NCHW, type double, softmax accurate over channels.
NCHW, DOUBLE, ACCURATE, CHANNELS = 0, 1, 1, 1


def finding(cupy, before: "list[str]") -> "tuple[int, str]":
    if before:
        done = subprocess.run(before, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            return SKIPPED, (done.stdout.decode().strip().splitlines() or ["not judged"])[-1]
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if Path(CONTROL).exists():
            return 1, f"{CONTROL} is there, but CuPy finds no GPU: {error}"
        return SKIPPED, f"no GPU: {CONTROL} is absent"
    return compute(cupy, count)


def compute(cupy, count: int) -> "tuple[int, str]":
    """A product by CuPy and a softmax by cuDNN on each GPU, compared with NumPy's."""
    import numpy as np  # noqa: PLC0415

    random = np.random.default_rng(20)
    a, b = random.standard_normal((512, 384)), random.standard_normal((384, 256))
    powers = np.exp(a - a.max(axis=1, keepdims=True))
    names = []
    if count < 1:
        return 1, "CuPy finds 0 GPUs"
    for number in range(count):
        with cupy.cuda.Device(number):
            product = cupy.asnumpy(cupy.asarray(a) @ cupy.asarray(b))
            shares = cupy.asnumpy(softmax(cupy, cupy.asarray(a)))
        if not np.allclose(product, a @ b, rtol=1e-10, atol=1e-9):
            return 1, f"CuPy's product on GPU {number} differs from NumPy's"
        if not np.allclose(shares, powers / powers.sum(axis=1, keepdims=True), atol=1e-12):
            return 1, f"cuDNN's softmax on GPU {number} differs from NumPy's"
        names.append(cupy.cuda.runtime.getDeviceProperties(number)["name"].decode())
    versions = {"cupy": cupy.__version__, "cudnn": importlib.metadata.version(CUDNN)}
    print("data: " + json.dumps({**versions, "gpus": names}))
    return 0, f"CuPy's product and cuDNN's softmax agree with NumPy's on {'; '.join(names)}"


def softmax(cupy, rows):
    """Of each row, by cuDNN."""
    [path] = [one for one in importlib.metadata.files(CUDNN) or [] if one.name == "libcudnn.so.9"]
    cudnn = ctypes.CDLL(str(path.locate()))
    cudnn.cudnnGetErrorString.restype = ctypes.c_char_p

    def call(name: str, *arguments: object) -> None:
        status = getattr(cudnn, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: {cudnn.cudnnGetErrorString(status).decode()}")

    handle, layout = ctypes.c_void_p(), ctypes.c_void_p()
    result = cupy.empty_like(rows)
    one, zero = ctypes.byref(ctypes.c_double(1)), ctypes.byref(ctypes.c_double(0))
    call("cudnnCreate", ctypes.byref(handle))
    call("cudnnCreateTensorDescriptor", ctypes.byref(layout))
    call("cudnnSetTensor4dDescriptor", layout, NCHW, DOUBLE, *rows.shape, 1, 1)
    source, target = ctypes.c_void_p(rows.data.ptr), ctypes.c_void_p(result.data.ptr)
    how = (handle, ACCURATE, CHANNELS)
    call("cudnnSoftmaxForward", *how, one, layout, source, zero, layout, target)
    cupy.cuda.Device().synchronize()
    call("cudnnDestroyTensorDescriptor", layout)
    call("cudnnDestroy", handle)
    return result


def main(arguments: "list[str]") -> int:
    try:
        import cupy  # noqa: PLC0415 - a missing package is a finding, not a traceback
    except ImportError as error:
        print(f"cannot import CuPy: {str(error).splitlines()[0]}")
        return 1
    before = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    try:
        status, said = finding(cupy, before)
    except RuntimeError as error:  # of CUDA and of cuDNN
        status, said = 1, f"on the GPU: {str(error).splitlines()[0]}"
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
