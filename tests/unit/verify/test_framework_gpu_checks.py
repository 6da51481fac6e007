"""The checks of frameworks on GPUs, with frameworks that are made up: what passes, what fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from samples import ROOT

SOURCES = ROOT / "tests/images"
# Tensors are numbers that know where they are.
TORCH = """
WRONG = {wrong!r}
__version__, float64 = "2", "float64"
class version: cuda = "12.4"
class device:
    def __init__(self, kind, number): self.number = number
class cuda:
    is_available = staticmethod(lambda: True)
    get_arch_list = staticmethod(lambda: ["sm_70"])
    device_count = staticmethod(lambda: 2)
    get_device_capability = staticmethod(lambda number: (7, 0))
    get_device_name = staticmethod(lambda number: "V100")
class Tensor:
    def __init__(self, value, place=None, of=()):
        self.value, self.place, self.of, self.grad = value, place, of, None
    def to(self, place): return Tensor(self.value, place)
    def detach(self): return Tensor(self.value, self.place)
    def cpu(self): return Tensor(self.value)
    def requires_grad_(self, _): return self
    def pow(self, _): return self
    def sum(self): return self
    def off(self, what): return bool(WRONG == what and self.place and self.place.number == 1)
    def __matmul__(self, other):
        return Tensor(self.value * other.value + self.off("product"), self.place, (self, other))
    def backward(self):
        a, b = self.of
        b.grad = Tensor(a.value * self.value + b.off("gradient"), b.place)
def manual_seed(seed): pass
def randn(*shape, **more): return Tensor(shape[0])
def allclose(a, b, **more): return a.value == b.value and a.place is b.place is None
"""
TENSORFLOW = """
import builtins, contextlib
WRONG = {wrong!r}
__version__, where = "2", ["/CPU:0"]
class test: is_built_with_cuda = staticmethod(lambda: True)
class sysconfig:
    get_build_info = staticmethod(lambda: {{"cuda_compute_capabilities": ["compute_70"]}})
class errors:
    class OpError(Exception): pass
class random:
    set_seed = staticmethod(lambda seed: None)
    normal = staticmethod(lambda shape, dtype: Number(shape[0]))
class Device: name = "/GPU:0"
class config:
    list_logical_devices = staticmethod(lambda kind: [Device])
    list_physical_devices = staticmethod(lambda kind: [Device])
    class experimental:
        get_device_details = staticmethod(lambda one: {{"device_name": "V100"}})
class Number:
    def __init__(self, value):
        self.value = value
        self.device = "/CPU:0" if WRONG == "place" else where[-1]
    def __sub__(self, other): return self.value - other.value
    def __pow__(self, _): return self
class GradientTape:
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def watch(self, one): pass
    def gradient(self, size, one): return Number(size.value + one.value + off("gradient"))
@contextlib.contextmanager
def device(name):
    where.append(name)
    yield
    where.pop()
def off(what): return bool(WRONG == what and "GPU" in where[-1])
def identity(one): return Number(one.value)
def matmul(a, b): return Number(a.value * b.value + off("product"))
def reduce_sum(one): return one
def function(step, jit_compile): return step if jit_compile else None
class math: log1p = staticmethod(lambda one: Number(one.value + off("compiled step")))
def abs(one): return builtins.abs(getattr(one, "value", one))
reduce_all = bool
"""
JAX = """
import sys, types
WRONG = {wrong!r}
__version__ = "2"
class Device:
    compute_capability, device_kind = "9.0", "H100"
    def __init__(self, name): self.name = name
    def __repr__(self): return self.name
CPU, GPU = Device("cpu"), Device("cuda:0")
class Number:
    def __init__(self, value, device): self.value, self.device = value, device
    def devices(self): return {{CPU if WRONG == "place" else self.device}}
    def off(self, what): return bool(WRONG == what and self.device is GPU)
def devices(kind):
    if WRONG == "none" and kind == "cuda": raise RuntimeError("no device\\nmore")
    return [CPU if kind == "cpu" else GPU]
def device_put(value, device): return Number(value, device)
def jit(function): return function
def grad(function): return lambda b: Number(3 + b.off("gradient"), b.device)
class config:
    update = staticmethod(lambda name, value: None)
class numpy:
    matmul = staticmethod(lambda a, b: Number(a.value + b.value + b.off("product"), a.device))
if WRONG != "plugin":
    plugin = sys.modules["jax_cuda13_plugin"] = types.ModuleType("jax_cuda13_plugin")
    plugin.__spec__ = types.SimpleNamespace()
"""
# Matrices are of one element; cuDNN's softmax of it is 1.
CUPY = """
import ctypes, importlib.metadata, pathlib
WRONG = {wrong!r}
__version__, where, arrays = "14", [0], []
class runtime:
    class CUDARuntimeError(RuntimeError): pass
    def getDeviceCount():
        if WRONG == "none": raise runtime.CUDARuntimeError("cudaErrorNoDevice")
        return 0 if WRONG == "zero" else 2
    getDeviceProperties = staticmethod(lambda number: {{"name": b"H100"}})
class Device:
    def __init__(self, number=0): self.number = number
    def __enter__(self): where.append(self.number)
    def __exit__(self, *_): where.pop()
    def synchronize(self): pass
class cuda: pass
cuda.runtime, cuda.Device = runtime, Device
def off(what): return bool(WRONG == what and where[-1] == 1)
class Array:
    shape = (1, 1)
    def __init__(self, value): self.value, self.data, self.ptr = value, self, len(arrays) + 1
    def __matmul__(self, other): return Array(self.value * other.value + off("product"))
def asarray(value):
    arrays.append(Array(value))
    return arrays[-1]
def empty_like(array): return asarray(None)
def asnumpy(array): return array.value
class Library:
    class cudnnGetErrorString:
        def __new__(cls, status): return b"CUDNN_STATUS_NOT_INITIALIZED"
    def __init__(self, path): assert path == "/nowhere/libcudnn.so.9"
    def cudnnCreate(self, handle): return int(WRONG == "cudnn")
    def done(self, *more): return 0
    cudnnCreateTensorDescriptor = cudnnSetTensor4dDescriptor = done
    cudnnDestroyTensorDescriptor = cudnnDestroy = done
    def cudnnSoftmaxForward(self, handle, how, mode, one, layout, source, zero, other, target):
        assert arrays[source.value - 1].value
        arrays[target.value - 1].value = 1.0 + off("softmax")
        return 0
class File:
    name = "libcudnn.so.9"
    locate = staticmethod(lambda: pathlib.Path("/nowhere/libcudnn.so.9"))
importlib.metadata.files = lambda package: [File]
importlib.metadata.version = lambda package: "9"
ctypes.CDLL = Library
"""
MATRICES = """
import math
class Number(float):
    def max(self, **more): return self
    def __matmul__(self, other): return self * other
    sum = max
class random:
    default_rng = staticmethod(lambda seed: random)
    standard_normal = staticmethod(lambda shape: Number(sum(shape)))
def exp(one): return Number(math.exp(one))
def allclose(one, other, **more): return one == other
"""
NUMPY = """
class random:
    default_rng = staticmethod(lambda seed: random)
    standard_normal = staticmethod(sum)
def asarray(one): return one.value
def allclose(one, other, **more): return one == other
"""


def said(folder: Path, module: str, text: str, wrong: str) -> tuple[int, str]:
    """Exit status and finding of the check of a framework that is made up."""
    (folder / f"{module}.py").write_text(text.format(wrong=wrong))
    name = {"torch": "pytorch", "cupy": "ml-stack"}.get(module, module)
    done = subprocess.run(
        [sys.executable, str(SOURCES / f"{name}-gpu-check.py"), "70", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("wrong", "status", "finding"),
    [
        ("", 0, "product and gradient agree with the CPU's on V100, sm_70; V100, sm_70"),
        ("product", 1, "the product on GPU 1 differs from the CPU's"),
        ("gradient", 1, "the gradient on GPU 1 differs from the CPU's"),
    ],
)
def test_pytorch(wrong: str, status: int, finding: str, tmp_path: Path) -> None:
    assert said(tmp_path, "torch", TORCH, wrong) == (status, finding)


@pytest.mark.parametrize(
    ("wrong", "status", "finding"),
    [
        ("", 0, "product, gradient and a compiled step agree with the CPU's on V100"),
        ("compiled step", 1, "the compiled step on /GPU:0 differs from the CPU's"),
        ("product", 1, "the product on /GPU:0 differs from the CPU's"),
        ("gradient", 1, "the gradient on /GPU:0 differs from the CPU's"),
        ("place", 1, "the product for /GPU:0 was computed on /CPU:0"),
    ],
)
def test_tensorflow(wrong: str, status: int, finding: str, tmp_path: Path) -> None:
    assert said(tmp_path, "tensorflow", TENSORFLOW, wrong) == (status, finding)


@pytest.mark.parametrize(
    ("wrong", "status", "finding"),
    [
        ("", 0, "product and gradient agree with the CPU's on H100, 9.0"),
        ("product", 1, "the product on cuda:0 differs from the CPU's"),
        ("gradient", 1, "the gradient on cuda:0 differs from the CPU's"),
        ("place", 1, "the product for cuda:0 was computed on {cpu}"),
        ("none", 77, "no GPU: /dev/nvidiactl is absent"),
        ("plugin", 1, "JAX 2 has no jax_cuda13_plugin"),
    ],
)
def test_jax(wrong: str, status: int, finding: str, tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text(NUMPY)
    if wrong == "none" and Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    assert said(tmp_path, "jax", JAX, wrong) == (status, finding)


@pytest.mark.parametrize(
    ("wrong", "status", "finding"),
    [
        ("", 0, "CuPy's product and cuDNN's softmax agree with NumPy's on H100; H100"),
        ("product", 1, "CuPy's product on GPU 1 differs from NumPy's"),
        ("softmax", 1, "cuDNN's softmax on GPU 1 differs from NumPy's"),
        ("cudnn", 1, "on the GPU: cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED"),
        ("zero", 1, "CuPy finds 0 GPUs"),
        ("none", 77, "no GPU: /dev/nvidiactl is absent"),
    ],
)
def test_ml_stack(wrong: str, status: int, finding: str, tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text(MATRICES)
    if wrong == "none" and Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    assert said(tmp_path, "cupy", CUPY, wrong) == (status, finding)
