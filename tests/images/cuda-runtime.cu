/*
 * cuda-runtime VERSION PROGRAM CAPABILITY...   the CUDA run time in the image, and nvcc's code
 *
 * What needs no GPU. That this program started means that its libraries were found. The run time
 * and cuBLAS are of VERSION (12.4; cuBLAS of its major version); the code that nvcc put into
 * PROGRAM is for the capabilities (70 80 ...), each once, with PTX of the last for GPUs to come;
 * and asking for GPUs gives some, or an error that says clearly that none is there.
 *
 * Exit status: 0 passed, else failed, with the CUDA error's number and name. The last line of
 * standard output is the finding; `data: {JSON}` stands before it.
 */
#include "cuda-check.h"
#include "cuda-code.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

static const char CONTROL[] = "/dev/nvidiactl";

/* Does the error mean that this host has no GPU, rather than that it is not to be reached? */
static bool no_gpu(cudaError_t error)
{
    const int number = static_cast<int>(error);
    return (number == 35 || number == 100) && access(CONTROL, F_OK) != 0;
}

static std::string listed(const cuda_set &set)
{
    char text[512];
    cuda_list(&set, text, sizeof text);
    return text;
}

static int check_code(const char *program, const cuda_set &declared)
{
    const cuda_set newest = {{declared.values[declared.count - 1]}, 1};
    cuda_code found;
    if (!cuda_code_of(program, &found))
        return failed(std::string(program) + " cannot be read");
    printf("code for %s, PTX for %s\n", listed(found.code).c_str(), listed(found.ptx).c_str());
    if (!cuda_same(&found.code, &declared))
        return failed("nvcc made code for " + listed(found.code) + ", declared: " +
                      listed(declared));
    if (!cuda_same(&found.ptx, &newest))
        return failed("nvcc made PTX for " + listed(found.ptx) + ", expected: " + listed(newest));
    return PASSED;
}

static std::string version_text(int version)
{
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/* 11.8, of the library libcudart.so.11.8.89 that was loaded. */
static std::string loaded_version()
{
    static const char NAME[] = "/libcudart.so.";
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        const size_t at = line.find(NAME);
        if (at == std::string::npos)
            continue;
        const std::string version = line.substr(at + sizeof NAME - 1);
        return version.substr(0, version.find('.', version.find('.') + 1));
    }
    return "no release that its name says";
}

static int check_versions(const std::string &expected)
{
    int number = 0, major = 0, minor = 0;
    const cudaError_t error = cudaRuntimeGetVersion(&number);
    if (error != cudaSuccess && !no_gpu(error))
        return failed("cudaRuntimeGetVersion", error);
    /* Before CUDA 12 the run time does not answer without a driver. */
    const std::string runtime = error == cudaSuccess ? version_text(number) : loaded_version();
    if (runtime != expected)
        return failed("the run time is of CUDA " + runtime + ", not " + expected);
    if (cublasGetProperty(MAJOR_VERSION, &major) != CUBLAS_STATUS_SUCCESS ||
        cublasGetProperty(MINOR_VERSION, &minor) != CUBLAS_STATUS_SUCCESS)
        return failed("cuBLAS does not say its version");
    printf("cuBLAS %d.%d\n", major, minor);
    if (std::to_string(major) != expected.substr(0, expected.find('.')))
        return failed("cuBLAS is of CUDA " + std::to_string(major) + ", not " + expected);
    return PASSED;
}

static int check_devices(std::string *finding)
{
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess)
        *finding = std::to_string(count) + " GPU" + (count == 1 ? "" : "s");
    else if (no_gpu(error))
        *finding = std::string("no GPU here, as ") + cudaGetErrorName(error) + " says";
    else
        return failed("cudaGetDeviceCount", error);
    return PASSED;
}

static int check_runtime(const std::string &version, const char *program, const cuda_set &declared)
{
    std::string devices;
    if (check_versions(version) != PASSED || check_code(program, declared) != PASSED ||
        check_devices(&devices) != PASSED)
        return FAILED;
    printf("data: {\"cuda\": \"%s\", \"capabilities\": \"%s\"}\n", version.c_str(),
           listed(declared).c_str());
    printf("CUDA %s with code for %s; %s\n", version.c_str(), listed(declared).c_str(),
           devices.c_str());
    return PASSED;
}

int main(int argc, char **argv)
{
    cuda_set declared = {{}, 0};
    for (int i = 3; i < argc; i++)
        cuda_insert(&declared, static_cast<unsigned>(strtoul(argv[i], nullptr, 10)));
    if (declared.count == 0) {
        puts("usage: cuda-runtime VERSION PROGRAM CAPABILITY...");
        return USAGE;
    }
    return check_runtime(argv[1], argv[2], declared);
}
