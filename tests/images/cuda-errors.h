/*
 * The errors of CUDA that containers run into, and what each means there, for C and C++.
 * builder/facts/cuda_errors.py has the same rows, with what to do: a test compares them.
 */
#ifndef CUDA_ERRORS_H
#define CUDA_ERRORS_H

#include <stddef.h>

static const struct cuda_error {
    int number;
    const char *driver_name; /* cuda.h: CUresult */
    const char *name;        /* driver_types.h: cudaError_t */
    const char *meaning;
} CUDA_ERRORS[] = {
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation",
     "the GPU's memory is taken"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "cudaErrorInitializationError",
     "the driver could not be initialised"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "cudaErrorStubLibrary",
     "libcuda.so.1 is a stub of the toolkit, not the host's driver library"},
    {35, NULL, "cudaErrorInsufficientDriver",
     "no driver, or one that is older than this CUDA needs"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "cudaErrorDevicesUnavailable",
     "every GPU is taken by another process, or closed to computing"},
    {100, "CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice",
     "the driver is there, but no GPU was given to this container"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "cudaErrorInvalidDevice",
     "there is no GPU of this number"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "cudaErrorNoKernelImageForDevice",
     "the program holds no code for this GPU"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable",
     "the GPU's memory has an error that ECC cannot correct"},
    {218, "CUDA_ERROR_INVALID_PTX", "cudaErrorInvalidPtx",
     "the driver cannot compile the program's PTX"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "cudaErrorNvlinkUncorrectable",
     "an NVLink has an error that cannot be corrected"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "cudaErrorJitCompilerNotFound",
     "libnvidia-ptxjitcompiler.so.1 was not given to this container"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "cudaErrorUnsupportedPtxVersion",
     "the program's PTX is newer than the driver"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "cudaErrorOperatingSystem",
     "the system refused a call: a device node may be closed to this user"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress",
     "a kernel used an address that is not its own"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "cudaErrorLaunchTimeout",
     "a kernel took too long for a GPU with a screen"},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "cudaErrorHardwareStackError",
     "the GPU's stack is broken, often by its memory"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure",
     "a kernel ended in a way that has no other name; a GPU that is lost does this too"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady",
     "the host is not ready: on machines with NVSwitches the fabric manager is not running"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "cudaErrorSystemDriverMismatch",
     "libcuda.so.1 is of another version than the host's kernel driver"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "cudaErrorCompatNotSupportedOnDevice",
     "forward compatibility (cuda-compat) does not work on this GPU"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "cudaErrorMpsConnectionFailed",
     "the MPS daemon of the host does not answer"},
    {999, "CUDA_ERROR_UNKNOWN", "cudaErrorUnknown",
     "often a device node is missing, /dev/nvidia-uvm for example; a lost GPU does this too"}};

/* The row of an error's number; NULL if there is none. */
static inline const struct cuda_error *cuda_error_of(int number)
{
    for (size_t i = 0; i < sizeof CUDA_ERRORS / sizeof *CUDA_ERRORS; i++)
        if (CUDA_ERRORS[i].number == number)
            return &CUDA_ERRORS[i];
    return NULL;
}

#endif
