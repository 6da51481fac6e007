"""Each package of the stack is imported and does one thing, whose result is known in another way.

Usage: ml-stack-check.py [CAPABILITY...]. With compute capabilities (75), CuPy, cuDNN and NCCL
are looked at, too: what they do without a GPU.

Exit status: 0 passed, else failed. A line for each package stands first, `ok` or `wrong`; the last
line of standard output is the finding; a line `data: {JSON}` stands before it.
"""

import ctypes
import importlib.metadata
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

SINGLE = 2e-6  # Keras trains in single precision, and weights are below 1
START_S = 300  # a server's start, under emulation on a busy machine
ELF_CUDA = 190  # e_machine


class Wrong(Exception):
    """A result is not what it has to be."""


def expect(condition: object, problem: str) -> None:
    if not condition:
        raise Wrong(problem)


def numpy_and_scipy() -> str:
    """A product and a discrete Fourier transform, summed up by Python."""
    import cmath  # noqa: PLC0415

    import numpy as np  # noqa: PLC0415 - a missing package is a finding, not a traceback
    import scipy.fft  # noqa: PLC0415

    random = np.random.default_rng(1)
    a, b = random.integers(-99, 99, (7, 9)), random.integers(-99, 99, (9, 5))
    product = [[sum(int(x * y) for x, y in zip(r, c)) for c in b.T] for r in a]  # noqa: B905
    expect((a @ b).tolist() == product, "the product is not the sum of products")
    signal = random.standard_normal(12).tolist()
    turns = [cmath.exp(-2j * cmath.pi * one / 12) for one in range(12)]
    spectrum = [sum(x * turns[k * n % 12] for n, x in enumerate(signal)) for k in range(12)]
    expect(np.allclose(scipy.fft.fft(signal), spectrum, atol=1e-12), "the Fourier transform")
    return f"NumPy {np.__version__}, SciPy {scipy.__version__}: a product, a Fourier transform"


def opencv() -> str:
    """A picture through PNG and back, and a filter that is a sum of moved pictures."""
    import cv2  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    random = np.random.default_rng(2)
    picture = random.integers(0, 256, (37, 53, 3), dtype=np.uint8)
    written, png = cv2.imencode(".png", picture)
    expect(written and bytes(png[:4]) == b"\x89PNG", "no PNG was written")
    read = cv2.imdecode(png, cv2.IMREAD_COLOR)
    expect(read is not None and np.array_equal(read, picture), "a PNG is not read as written")
    values, kernel = random.standard_normal((20, 30)), random.standard_normal((3, 3))
    border = np.pad(values, 1)
    moved = [kernel[i, j] * border[i : i + 20, j : j + 30] for i in range(3) for j in range(3)]
    filtered = cv2.filter2D(values, cv2.CV_64F, kernel, borderType=cv2.BORDER_CONSTANT)
    expect(np.allclose(filtered, sum(moved), atol=1e-12), "the filter is not the weighted sum")
    return f"OpenCV {cv2.__version__}: a PNG is read as written, a filter is the weighted sum"


def keras() -> str:
    """Steps of training that are NumPy's, and predictions that a file keeps."""
    import keras  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    import numpy_network as network  # noqa: PLC0415

    inputs, between, classes = network.SIZES
    model = keras.Sequential(
        [
            keras.layers.Input((inputs,)),
            keras.layers.Dense(between, activation="tanh"),
            keras.layers.Dense(classes),
        ]
    )
    model.set_weights(network.made(np))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(network.RATE), loss)
    pictures, answers = (np.concatenate(one) for one in zip(*network.batches(np)))  # noqa: B905
    model.fit(pictures, answers, batch_size=network.BATCH, shuffle=False, verbose=0)
    learnt = network.trained(np)[0]
    change = network.apart(np, learnt, network.made(np))
    expect(change > network.LEAST_CHANGE, "training moved no weight")
    difference = network.apart(np, model.get_weights(), learnt)
    near = difference <= SINGLE  # false for NaN
    expect(near, f"weights after training differ from NumPy's by {difference:.1e}")
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        loaded = keras.saving.load_model(f"{folder}/model.keras")
    same = np.array_equal(loaded.predict(pictures, verbose=0), model.predict(pictures, verbose=0))
    expect(same, "a model predicts otherwise after it was saved and loaded")
    backend = keras.backend.backend()
    return f"Keras {keras.__version__} on {backend}: training is NumPy's, a file keeps the model"


def protobuf() -> str:
    """A message over a socket: its bytes are those of the encoding's definition."""
    import google.protobuf  # noqa: PLC0415
    from google.protobuf.internal import api_implementation  # noqa: PLC0415
    from google.protobuf.type_pb2 import Field  # noqa: PLC0415

    sent = Field(kind=Field.TYPE_STRING, number=-300, name="Größe", packed=True)
    number, name = (1 << 64) - 300, "Größe".encode()
    seven = [number >> shift & 0x7F for shift in range(0, 70, 7)]
    varint = bytes([*(one | 0x80 for one in seven[:-1]), seven[-1]])
    wanted = b"\x08\x09\x18" + varint + b"\x22" + bytes([len(name)]) + name + b"\x40\x01"
    here, there = socket.socketpair()
    with here, there:
        here.sendall(sent.SerializeToString(deterministic=True))
        here.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: there.recv(4096), b""))
    expect(received == wanted, f"the message is {received.hex()}, not {wanted.hex()}")
    expect(Field.FromString(received) == sent, "the message is not read as it was sent")
    kind = api_implementation.Type()
    expect(kind != "python", "the compiled implementation is missing")
    compiler = subprocess.run(["protoc", "--version"], stdout=subprocess.PIPE, check=True)
    told = compiler.stdout.decode().strip()
    return f"Protobuf {google.protobuf.__version__} ({kind}), {told}: a message over a socket"


def numba() -> str:
    """A compiled function, which is Python's."""
    import numba  # noqa: PLC0415

    def longest(limit):
        best, of = 0, 0
        for start in range(1, limit):
            number, steps = start, 0
            while number != 1:
                number = number // 2 if number % 2 == 0 else 3 * number + 1
                steps += 1
            if steps > best:
                best, of = steps, start
        return best, of

    compiled = numba.njit(longest)
    found = tuple(compiled(3000))
    expect(compiled.nopython_signatures, "nothing was compiled")
    expect(found == longest(3000), f"the compiled function has {found}, Python {longest(3000)}")
    return f"Numba {numba.__version__}: a compiled function has what Python has"


def pandas() -> str:
    """Sums and means of groups, and a table through CSV and back."""
    import io  # noqa: PLC0415

    import numpy as np  # noqa: PLC0415
    import pandas as pd  # noqa: PLC0415

    random = np.random.default_rng(3)
    keys = [f"key {one}" for one in random.integers(0, 7, 500)]
    values = random.integers(-1000, 1000, 500).tolist()
    table = pd.DataFrame({"key": keys, "value": values})
    groups: dict[str, list[int]] = {}
    for key, value in zip(keys, values):  # noqa: B905
        groups.setdefault(key, []).append(value)
    found = table.groupby("key")["value"].agg(["sum", "mean"])
    expect(found["sum"].to_dict() == {k: sum(v) for k, v in groups.items()}, "sums of groups")
    means = {key: sum(of) / len(of) for key, of in groups.items()}
    close = all(abs(found["mean"][key] - mean) < 1e-9 for key, mean in means.items())
    expect(len(found) == len(means) and close, "means of groups")
    expect(pd.read_csv(io.StringIO(table.to_csv(index=False))).equals(table), "CSV and back")
    return f"pandas {pd.__version__}: sums and means of groups are Python's, CSV and back"


def scikit_learn() -> str:
    """Ridge regression, which has a closed form, and the axes of a singular value decomposition."""
    import numpy as np  # noqa: PLC0415
    import sklearn  # noqa: PLC0415
    from sklearn.decomposition import PCA  # noqa: PLC0415
    from sklearn.linear_model import Ridge  # noqa: PLC0415

    random = np.random.default_rng(4)
    points, heights = random.standard_normal((80, 6)), random.standard_normal(80)
    middle = points - points.mean(axis=0)
    normal = middle.T @ middle + 2.5 * np.eye(6)
    slopes = np.linalg.solve(normal, middle.T @ (heights - heights.mean()))
    fitted = Ridge(alpha=2.5).fit(points, heights)
    expect(
        np.allclose(fitted.coef_, slopes, atol=1e-10), "the ridge is not that of the closed form"
    )
    offset = heights.mean() - points.mean(axis=0) @ slopes
    expect(abs(fitted.intercept_ - offset) < 1e-10, "the offset of the ridge")
    axes = np.linalg.svd(middle, full_matrices=False)[2]
    along = np.abs((PCA(svd_solver="full").fit(points).components_ * axes).sum(axis=1))
    expect(np.allclose(along, 1, atol=1e-10), "principal axes are not the singular vectors")
    return f"scikit-learn {sklearn.__version__}: a ridge is its closed form, axes are the SVD's"


def jupyterlab() -> str:
    """A notebook is executed, and the server gives its pages to who has the token."""
    import jupyterlab  # noqa: PLC0415
    import nbformat.v4 as notebooks  # noqa: PLC0415
    from nbclient import NotebookClient  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        places = ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
        os.environ.update(dict.fromkeys((*places, "JUPYTER_RUNTIME_DIR"), folder))
        cells = [notebooks.new_code_cell("n = 0"), notebooks.new_code_cell("n + sum(range(101))")]
        notebook = notebooks.new_notebook(cells=cells)
        NotebookClient(notebook, timeout=START_S, startup_timeout=START_S).execute()
        outputs = [one["data"]["text/plain"] for one in notebook.cells[-1].outputs]
        expect(outputs == ["5050"], f"the notebook's last cell has {outputs}, not 5050")
        served(Path(folder))
    return f"JupyterLab {jupyterlab.__version__}: a notebook is executed, the server answers"


def served(folder: Path) -> None:
    token, log = os.urandom(16).hex(), folder / "server.log"
    argv = [
        "jupyter-lab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--notebook-dir={folder}",
    ]
    environment = {**os.environ, "JUPYTER_TOKEN": token}
    with (
        log.open("wb") as output,
        subprocess.Popen(argv, env=environment, stdout=output, stderr=output) as server,
    ):
        try:
            address = address_of(server, folder, log)
            status, text = answer(f"{address}api/status?token={token}")
            running = status == 200 and "started" in json.loads(text)
            expect(running, f"/api/status answers {status} to the token")
            status, _ = answer(f"{address}api/status?token=another")
            expect(status == 403, f"/api/status answers {status} to another token")
            status, text = answer(f"{address}lab?token={token}")
            expect(status == 200 and "<title>JupyterLab" in text, f"/lab answers {status}")
        finally:
            server.terminate()


def address_of(server: "subprocess.Popen[bytes]", folder: Path, log: Path) -> str:
    """The address that the server writes down when it listens."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and server.poll() is None:
        for file in folder.glob("jpserver-*.json"):
            address = f"http://127.0.0.1:{json.loads(file.read_text())['port']}/"
            try:
                answer(address + "api")
            except OSError:
                continue
            return address
        time.sleep(0.2)
    lines = log.read_text(errors="replace").strip().splitlines()
    raise Wrong(f"the server does not start: {(lines or ['it printed nothing'])[-1]}")


def answer(address: str) -> "tuple[int, str]":
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=START_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


KERNEL = """
extern "C" __global__ void scale(float *values, float factor, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] *= factor;
}
"""


def cupy(capabilities: "list[str]") -> str:
    """NVRTC compiles a kernel by CuPy, for each GPU that the image is for."""
    import cupy  # noqa: PLC0415
    from cupy.cuda import nvrtc  # noqa: PLC0415

    for capability in capabilities:
        program = nvrtc.createProgram(KERNEL, "scale.cu", (), ())
        nvrtc.compileProgram(program, (f"--gpu-architecture=sm_{capability}",))
        code, text = nvrtc.getCUBIN(program), nvrtc.getPTX(program)
        (machine,) = struct.unpack_from("<H", code, 18)
        expect(code[:4] == b"\x7fELF" and machine == ELF_CUDA, "NVRTC's code is no ELF for GPUs")
        expect(b"scale" in code, "the kernel is not in NVRTC's code")
        found = [line.split() for line in text.decode().splitlines() if line.startswith(".target")]
        expect(found == [[".target", f"sm_{capability}"]], f"PTX for {capability} has {found}")
    version = ".".join(map(str, nvrtc.getVersion()))
    return f"CuPy {cupy.__version__}: NVRTC {version} compiles for sm_{', sm_'.join(capabilities)}"


def library(package: str, name: str) -> "tuple[ctypes.CDLL, list[int]]":
    """A library of a wheel, and the numbers of the wheel's version."""
    files = importlib.metadata.files(package) or []
    [path] = [file.locate() for file in files if file.name == name]
    version = importlib.metadata.version(package)
    return ctypes.CDLL(str(path)), [int(one) for one in version.split(".")]


def cudnn() -> str:
    loaded, wheel = library("nvidia-cudnn-cu13", "libcudnn.so.9")
    loaded.cudnnGetVersion.restype = ctypes.c_size_t
    number = loaded.cudnnGetVersion()
    found = [number // 10_000, number // 100 % 100, number % 100]
    expect(found == wheel[:3], f"the library says {found}, its wheel {wheel}")
    return f"cuDNN {'.'.join(map(str, found))}: the library's version is its wheel's"


def nccl() -> str:
    loaded, wheel = library("nvidia-nccl-cu13", "libnccl.so.2")
    number = ctypes.c_int()
    expect(loaded.ncclGetVersion(ctypes.byref(number)) == 0, "ncclGetVersion fails")
    found = [number.value // 10_000, number.value // 100 % 100, number.value % 100]
    expect(found == wheel[:3], f"the library says {found}, its wheel {wheel}")
    return f"NCCL {'.'.join(map(str, found))}: the library's version is its wheel's"


def main(capabilities: "list[str]") -> int:
    if not all(one.isdigit() for one in capabilities):
        print("usage: ml-stack-check.py [CAPABILITY...]")
        return 2
    packages = {
        "NumPy and SciPy": numpy_and_scipy,
        "OpenCV": opencv,
        "Keras": keras,
        "Protobuf": protobuf,
        "Numba": numba,
        "pandas": pandas,
        "scikit-learn": scikit_learn,
        "JupyterLab": jupyterlab,
    }
    if capabilities:
        packages |= {"CuPy": lambda: cupy(capabilities), "cuDNN": cudnn, "NCCL": nccl}
    good, wrong = [], []
    for name, check in packages.items():
        try:
            good.append(check())
            print(f"ok {good[-1]}", flush=True)
        except Exception as error:  # each package is judged, whatever the others do
            first = (str(error).splitlines() or [""])[0]
            kind = "" if isinstance(error, Wrong) else f"{type(error).__name__}: "
            wrong.append(f"{name}: {kind}{first}")
            print(f"wrong {wrong[-1]}", flush=True)
    print("data: " + json.dumps({"ok": [one.partition(":")[0] for one in good], "wrong": wrong}))
    names = ", ".join(one.partition(":")[0] for one in good)
    print("wrong: " + "; ".join(wrong) if wrong else f"each does what it has to: {names}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
