/*
 * A CUDA run time whose GPUs are this machine's processor: what the checks' programs use of it, and
 * the words of the language for kernels. Kernels run as they are written, with a thread for each of
 * a block's where they wait for each other.
 *
 * FAKE_CUDA changes answers: NAME=NUMBER, separated by commas. A call's name (malloc, memcpy,
 * launch, synchronize, count, device, pinned) makes it end with that error; gpus is the number of
 * GPUs, capability is theirs, after is how many launches succeed first; add, shared, atomic,
 * unwritten, copied and triad spoil a result.
 */
#ifndef FAKE_CUDA_RUNTIME_H
#define FAKE_CUDA_RUNTIME_H

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifndef VERSION
#define VERSION 12040
#endif
#define CUDART_VERSION VERSION

enum cudaError_t { cudaSuccess = 0 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
typedef void *cudaStream_t;
struct cudaDeviceProp {
    char name[64];
    int major, minor;
};
struct cudaFuncAttributes {
    int binaryVersion;
};
struct dim3 {
    unsigned x, y, z;
    explicit dim3(unsigned x_ = 1) : x(x_), y(1), z(1) {}
};

inline int fake(const char *name, int usual)
{
    const char *text = std::getenv("FAKE_CUDA");
    const std::size_t length = std::strlen(name);
    while (text != nullptr && *text != '\0') {
        if (std::strncmp(text, name, length) == 0 && text[length] == '=')
            return std::atoi(text + length + 1);
        text = std::strchr(text, ',');
        text = text == nullptr ? nullptr : text + 1;
    }
    return usual;
}
inline cudaError_t fake_error(const char *name) { return static_cast<cudaError_t>(fake(name, 0)); }

inline const char *cudaGetErrorName(cudaError_t error)
{
    return error == 214 ? "cudaErrorECCUncorrectable" : error == 719 ? "cudaErrorLaunchFailure" : "itsName";
}
inline cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = VERSION;
    return static_cast<cudaError_t>(VERSION == 0 ? 35 : 0);
}
inline cudaError_t cudaGetDeviceCount(int *count)
{
    *count = fake("gpus", 1);
    return fake_error("count");
}
inline cudaError_t cudaSetDevice(int) { return fake_error("device"); }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int)
{
    std::snprintf(properties->name, sizeof properties->name, "Tesla V100");
    properties->major = fake("capability", 70) / 10;
    properties->minor = fake("capability", 70) % 10;
    return cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *)
{
    attributes->binaryVersion = 70;
    return cudaSuccess;
}
template <typename T> cudaError_t cudaMalloc(T **pointer, std::size_t bytes)
{
    *pointer = static_cast<T *>(std::malloc(bytes));
    return fake_error("malloc");
}
template <typename T> cudaError_t cudaMallocHost(T **pointer, std::size_t bytes)
{
    *pointer = static_cast<T *>(std::malloc(bytes));
    return fake_error("pinned");
}
inline cudaError_t cudaFreeHost(void *pointer)
{
    std::free(pointer);
    return cudaSuccess;
}
inline cudaError_t cudaFree(void *pointer)
{
    std::free(pointer);
    return cudaSuccess;
}
inline cudaError_t cudaMemset(void *pointer, int value, std::size_t bytes)
{
    std::memset(pointer, value, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void *to, const void *from, std::size_t bytes, cudaMemcpyKind)
{
    std::memcpy(to, from, bytes);
    return fake_error("memcpy");
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return fake_error("synchronize"); }
cudaError_t cudaLaunchKernel(const void *kernel, dim3 blocks, dim3 threads, void **arguments,
                             std::size_t shared, cudaStream_t stream);

#define __global__ static
#define __shared__ static
inline void atomicAdd(unsigned long long *sum, unsigned long long value)
{
    __sync_fetch_and_add(sum, value);
}
extern thread_local dim3 blockIdx, threadIdx;
extern dim3 blockDim, gridDim;
void __syncthreads();

#endif
