"""PyTorch on each GPU: the driver, the build and the devices fit each other, results are right.

Usage: pytorch-gpu-check.py [CAPABILITY...] [-- COMMAND...]. The capabilities, as plain numbers
(70), are those that the image promises code for. COMMAND says whether the layers below are in
order: if it fails, this check was not judged, and its last line says why.

Exit status: 0 passed, 77 skipped as there is no GPU, else failed. The last line of standard output
is the finding; a line `data: {JSON}` stands before it.

Python 3.6 has to run it: Ubuntu 18.04 and CentOS 7 have no other.
"""

import json
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
CONTROL = "/dev/nvidiactl"


def finding(torch, capabilities: "list[str]", before: "list[str]") -> "tuple[int, str]":
    if torch.version.cuda is None:
        return 1, f"PyTorch {torch.__version__} was built without CUDA"
    built = torch.cuda.get_arch_list() if hasattr(torch.cuda, "get_arch_list") else []
    promised = {f"sm_{one}" for one in capabilities}
    if built and not promised <= set(built):
        return 1, f"PyTorch has code for {', '.join(built)}; {sorted(promised - set(built))} lack"
    if before:
        done = subprocess.run(before, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            return SKIPPED, (done.stdout.decode().strip().splitlines() or ["not judged"])[-1]
    if not torch.cuda.is_available():
        if Path(CONTROL).exists():
            return 1, f"{CONTROL} is there, but PyTorch finds no GPU"
        return SKIPPED, f"no GPU: {CONTROL} is absent"
    return compute(torch)


def compute(torch) -> "tuple[int, str]":
    """A product and a gradient on each device, compared with the CPU's."""
    torch.manual_seed(20)
    a = torch.randn(512, 384, dtype=torch.float64)
    b = torch.randn(384, 256, dtype=torch.float64, requires_grad=True)
    product = a @ b
    product.pow(2).sum().backward()
    names = []
    for number in range(torch.cuda.device_count()):
        place = torch.device("cuda", number)
        on_device = b.detach().to(place).requires_grad_(True)
        found = a.to(place) @ on_device
        found.pow(2).sum().backward()
        if not torch.allclose(found.detach().cpu(), product.detach(), rtol=1e-10, atol=1e-10):
            return 1, f"the product on GPU {number} differs from the CPU's"
        if not torch.allclose(on_device.grad.cpu(), b.grad, rtol=1e-10):
            return 1, f"the gradient on GPU {number} differs from the CPU's"
        major, minor = torch.cuda.get_device_capability(number)
        names.append(f"{torch.cuda.get_device_name(number)}, sm_{major}{minor}")
    print("data: " + json.dumps({"pytorch": torch.__version__, "gpus": names}))
    return 0, f"product and gradient agree with the CPU's on {'; '.join(names)}"


def main(arguments: "list[str]") -> int:
    try:
        import torch  # noqa: PLC0415 - a missing package is a finding, not a traceback
    except ImportError as error:
        print(f"cannot import PyTorch: {str(error).splitlines()[0]}")
        return 1
    split = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        status, said = finding(torch, arguments[:split], arguments[split + 1 :])
    except RuntimeError as error:  # of CUDA: its first line names the error
        status, said = 1, f"PyTorch: {str(error).splitlines()[0]}"
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
