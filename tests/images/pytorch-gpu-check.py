"""PyTorch on a GPU: the driver, the build and the device fit each other, and results are right.

Usage: pytorch-gpu-check.py [CAPABILITY...]. The capabilities, as plain numbers (70), are those
that the image promises code for.

Exit status: 0 passed, 77 skipped as there is no GPU, else failed. The last line of standard output
is the finding.

Python 3.6 has to run it: Ubuntu 18.04 and CentOS 7 have no other.
"""

import sys
from pathlib import Path

SKIPPED = 77
CONTROL = "/dev/nvidiactl"


def finding(torch, capabilities: "list[str]") -> "tuple[int, str]":
    if torch.version.cuda is None:
        return 1, f"PyTorch {torch.__version__} was built without CUDA"
    built = torch.cuda.get_arch_list() if hasattr(torch.cuda, "get_arch_list") else []
    promised = {f"sm_{one}" for one in capabilities}
    if built and not promised <= set(built):
        return 1, f"PyTorch has code for {', '.join(built)}; {sorted(promised - set(built))} lack"
    if not torch.cuda.is_available():
        if Path(CONTROL).exists():
            return 1, f"{CONTROL} is there, but PyTorch finds no GPU"
        return SKIPPED, f"no GPU: {CONTROL} is absent"
    return compute(torch)


def compute(torch) -> "tuple[int, str]":
    """A product and a gradient on the device, compared with the CPU's."""
    torch.manual_seed(20)
    a = torch.randn(512, 384, dtype=torch.float64)
    b = torch.randn(384, 256, dtype=torch.float64, requires_grad=True)
    (a @ b).pow(2).sum().backward()
    on_device = b.detach().cuda().requires_grad_(True)
    (a.cuda() @ on_device).pow(2).sum().backward()
    if not torch.allclose(on_device.grad.cpu(), b.grad, rtol=1e-10):
        return 1, "the gradient on the GPU differs from the CPU's"
    name, (major, minor) = torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0)
    return 0, f"product and gradient agree with the CPU's on {name}, sm_{major}{minor}"


def main(arguments: "list[str]") -> int:
    try:
        import torch  # noqa: PLC0415 - a missing package is a finding, not a traceback
    except ImportError as error:
        print(f"cannot import PyTorch: {str(error).splitlines()[0]}")
        return 1
    status, said = finding(torch, arguments)
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
