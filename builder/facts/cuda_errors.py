"""The errors of CUDA that containers run into: what each means there, and whose matter it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HOST, IMAGE, START, UNCLEAR = "host", "image", "start", "unclear"


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaError:
    """One value of CUresult and cudaError_t.

    `driver_name` is cuda.h's, empty where it has none, and `name` driver_types.h's. `matter` says
    where to look: `host` (the machine, its driver, its GPUs), `image`, `start` (how the container
    was started), or `unclear` where any of them can be the cause. `remedy` is what to do.
    """

    code: int
    driver_name: str
    name: str
    meaning: str
    matter: str
    remedy: str
    source: str


_TYPES = "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html"
_RESET = "drain the node, reset the GPU (nvidia-smi -r) or reboot"
_GIVE = (
    "start with --gpus all, --nv or ch-fromhost --nvidia, and NVIDIA_VISIBLE_DEVICES unset or all"
)

# Values and names: cuda.h and driver_types.h of CUDA 13.0, as the documentation prints them.
# tests/images/cuda-errors.h has the same rows for the programs in images: a test compares them.
CUDA_ERRORS: Mapping[int, CudaError] = {
    code: CudaError(
        code=code,
        driver_name=driver_name,
        name=name,
        meaning=meaning,
        matter=matter,
        remedy=remedy,
        source=_TYPES,
    )
    for code, driver_name, name, meaning, matter, remedy in (
        (
            2,
            "CUDA_ERROR_OUT_OF_MEMORY",
            "cudaErrorMemoryAllocation",
            "the GPU's memory is taken",
            HOST,
            "see who holds it: nvidia-smi",
        ),
        (
            3,
            "CUDA_ERROR_NOT_INITIALIZED",
            "cudaErrorInitializationError",
            "the driver could not be initialised",
            HOST,
            "build-images doctor --gpu",
        ),
        (
            34,
            "CUDA_ERROR_STUB_LIBRARY",
            "cudaErrorStubLibrary",
            "libcuda.so.1 is a stub of the toolkit, not the host's driver library",
            IMAGE,
            "take the folder stubs off LD_LIBRARY_PATH and out of the loader's cache",
        ),
        (
            35,
            "",
            "cudaErrorInsufficientDriver",
            "no driver, or one that is older than this CUDA needs",
            HOST,
            "an image with an older CUDA, or a newer driver on the host",
        ),
        (
            46,
            "CUDA_ERROR_DEVICE_UNAVAILABLE",
            "cudaErrorDevicesUnavailable",
            "every GPU is taken by another process, or closed to computing",
            HOST,
            "nvidia-smi -q -d COMPUTE shows the compute mode, nvidia-smi who computes",
        ),
        (
            100,
            "CUDA_ERROR_NO_DEVICE",
            "cudaErrorNoDevice",
            "the driver is there, but no GPU was given to this container",
            START,
            _GIVE,
        ),
        (
            101,
            "CUDA_ERROR_INVALID_DEVICE",
            "cudaErrorInvalidDevice",
            "there is no GPU of this number",
            START,
            "compare CUDA_VISIBLE_DEVICES with nvidia-smi -L",
        ),
        (
            209,
            "CUDA_ERROR_NO_BINARY_FOR_GPU",
            "cudaErrorNoKernelImageForDevice",
            "the program holds no code for this GPU",
            IMAGE,
            "an image whose CUDA has the GPU's compute capability",
        ),
        (
            214,
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "cudaErrorECCUncorrectable",
            "the GPU's memory has an error that ECC cannot correct",
            HOST,
            _RESET,
        ),
        (
            218,
            "CUDA_ERROR_INVALID_PTX",
            "cudaErrorInvalidPtx",
            "the driver cannot compile the program's PTX",
            IMAGE,
            "an image whose CUDA is not newer than the driver",
        ),
        (
            220,
            "CUDA_ERROR_NVLINK_UNCORRECTABLE",
            "cudaErrorNvlinkUncorrectable",
            "an NVLink has an error that cannot be corrected",
            HOST,
            _RESET,
        ),
        (
            221,
            "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
            "cudaErrorJitCompilerNotFound",
            "libnvidia-ptxjitcompiler.so.1 was not given to this container",
            START,
            _GIVE,
        ),
        (
            222,
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            "cudaErrorUnsupportedPtxVersion",
            "the program's PTX is newer than the driver",
            IMAGE,
            "an image whose CUDA is not newer than the driver",
        ),
        (
            304,
            "CUDA_ERROR_OPERATING_SYSTEM",
            "cudaErrorOperatingSystem",
            "the system refused a call: a device node may be closed to this user",
            START,
            "ls -l /dev/nvidia*, and the cgroup's list of devices",
        ),
        (
            700,
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "cudaErrorIllegalAddress",
            "a kernel used an address that is not its own",
            UNCLEAR,
            "build-images doctor --gpu; if it finds nothing, the program",
        ),
        (
            702,
            "CUDA_ERROR_LAUNCH_TIMEOUT",
            "cudaErrorLaunchTimeout",
            "a kernel took too long for a GPU with a screen",
            HOST,
            "a GPU without a screen",
        ),
        (
            714,
            "CUDA_ERROR_HARDWARE_STACK_ERROR",
            "cudaErrorHardwareStackError",
            "the GPU's stack is broken, often by its memory",
            UNCLEAR,
            "build-images doctor --gpu; if it finds nothing, the program",
        ),
        (
            719,
            "CUDA_ERROR_LAUNCH_FAILED",
            "cudaErrorLaunchFailure",
            "a kernel ended in a way that has no other name; a GPU that is lost does this too",
            UNCLEAR,
            "build-images doctor --gpu; if it finds nothing, the program",
        ),
        (
            802,
            "CUDA_ERROR_SYSTEM_NOT_READY",
            "cudaErrorSystemNotReady",
            "the host is not ready: on machines with NVSwitches the fabric manager is not running",
            HOST,
            "systemctl status nvidia-fabricmanager",
        ),
        (
            803,
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "cudaErrorSystemDriverMismatch",
            "libcuda.so.1 is of another version than the host's kernel driver",
            UNCLEAR,
            "one from the image: take it out; one from the host: reboot after the driver's update",
        ),
        (
            804,
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
            "cudaErrorCompatNotSupportedOnDevice",
            "forward compatibility (cuda-compat) does not work on this GPU",
            IMAGE,
            "take cuda-compat out of the image, or its folder off the library path",
        ),
        (
            805,
            "CUDA_ERROR_MPS_CONNECTION_FAILED",
            "cudaErrorMpsConnectionFailed",
            "the MPS daemon of the host does not answer",
            HOST,
            "nvidia-cuda-mps-control on the host, and CUDA_MPS_PIPE_DIRECTORY in the container",
        ),
        (
            999,
            "CUDA_ERROR_UNKNOWN",
            "cudaErrorUnknown",
            "often a device node is missing, /dev/nvidia-uvm for example; a lost GPU does this too",
            UNCLEAR,
            "build-images doctor --gpu; then nvidia-modprobe -u -c=0 on the host",
        ),
    )
}
