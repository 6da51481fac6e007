/*
 * What programs that use the CUDA run time share: how they end, and the errors' names.
 */
#ifndef CUDA_CHECK_H
#define CUDA_CHECK_H

#include "cuda-errors.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <string>

enum { PASSED = 0, FAILED = 1, USAGE = 2, SKIPPED = 77 };

static inline int failed(const std::string &what)
{
    printf("%s\n", what.c_str());
    return FAILED;
}

/* A call that ended with an error: its number, its name as the run time says it, what it means. */
static inline int failed(const std::string &call, cudaError_t error)
{
    const int number = static_cast<int>(error);
    const cuda_error *known = cuda_error_of(number);
    const std::string name = cudaGetErrorName(error);
    printf("data: {\"cuda_error\": \"%s\"}\n", name.c_str());
    return failed(call + ": CUDA error " + std::to_string(number) + " (" + name + ")" +
                  (known == nullptr ? "" : std::string(": ") + known->meaning));
}

/* `cudaMalloc` of `cudaMalloc(&data, bytes)`. */
static inline std::string name_of(const std::string &call)
{
    return call.substr(0, call.find('('));
}

/* Memory of the GPU, freed at the end. */
template <typename T> struct Device {
    T *data = nullptr;
    Device() = default;
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;
    ~Device() { cudaFree(data); }
};

#define TRY(call)                                                                                  \
    do {                                                                                           \
        const cudaError_t error_ = (call);                                                         \
        if (error_ != cudaSuccess)                                                                 \
            return failed(name_of(#call), error_);                                                 \
    } while (0)

#endif
