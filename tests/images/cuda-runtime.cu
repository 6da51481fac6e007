/*
 * cuda-runtime VERSION CAPABILITY...   the CUDA run time in the image, and the code in this program
 * cuda-runtime --compute               kernels and cuBLAS on each GPU
 *
 * The first looks at what needs no GPU. That this program started means that its libraries were
 * found. The run time and cuBLAS are of VERSION (12.4; cuBLAS of its major version); the code that
 * nvcc put into this program is for the capabilities (70 80 ...), each once, with PTX of the last
 * for GPUs to come; and asking for GPUs gives some, or an error that says clearly that none is
 * there.
 *
 * The second adds vectors with a kernel and with cuBLAS and compares each sum.
 *
 * Exit status: 0 passed, 77 skipped (no GPU on this host), else failed, with the CUDA error's number
 * and name. The last line of standard output is the finding; `data: {JSON}` stands before it.
 */
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <elf.h>
#include <stdint.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

enum { PASSED = 0, FAILED = 1, SKIPPED = 77 };

static const char CONTROL[] = "/dev/nvidiactl";

/* ---- Errors ---- */

/* Those that containers run into, and what they mean there: driver_types.h */
static const struct {
    int number;
    const char *meaning;
} ERRORS[] = {
    {34, "libcuda.so.1 is a stub of the toolkit, not the host's driver library"},
    {35, "no driver, or one that is older than this CUDA needs"},
    {100, "the driver is there, but no GPU was given to this container"},
    {209, "no code for this GPU in the program"},
    {222, "the PTX is newer than the driver"},
    {803, "libcuda.so.1 is of another version than the host's kernel driver"},
    {804, "forward compatibility is not supported on this GPU"},
    {999, "often a device node is missing, /dev/nvidia-uvm for example"}};

static std::string described(cudaError_t error)
{
    std::string text = std::to_string(static_cast<int>(error)) + " (" + cudaGetErrorName(error) + ")";
    for (const auto &one : ERRORS)
        if (one.number == static_cast<int>(error))
            text += std::string(": ") + one.meaning;
    return text;
}

static int failed(const std::string &what)
{
    printf("%s\n", what.c_str());
    return FAILED;
}

static int failed(const char *call, cudaError_t error)
{
    return failed(std::string(call) + ": CUDA error " + described(error));
}

/* Does the error mean that this host has no GPU, rather than that it is not to be reached? */
static bool no_gpu(cudaError_t error)
{
    const int number = static_cast<int>(error);
    return (number == 35 || number == 100) && access(CONTROL, F_OK) != 0;
}

/* ---- The code in this program ---- */

/* The containers of GPU code in the section .nv_fatbin, as cuobjdump reads them. */
struct Container {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
};
struct Code {
    uint16_t kind, version; /* 1 PTX, 2 machine code */
    uint32_t header_size;
    uint64_t size;
    uint32_t compressed_size, options;
    uint16_t minor, major;
    uint32_t capability;
};
enum : uint32_t { MAGIC = 0xBA55ED50 };
enum { PTX = 1, MACHINE_CODE = 2, ALIGNMENT = 8 };

struct Found {
    std::set<unsigned> code, ptx;
};

template <typename T> static bool at(const std::string &bytes, uint64_t offset, T *value)
{
    if (offset > bytes.size() || bytes.size() - offset < sizeof *value)
        return false;
    memcpy(value, bytes.data() + offset, sizeof *value);
    return true;
}

static void read_container(const std::string &section, uint64_t begin, uint64_t end, Found *found)
{
    Code code;
    while (begin < end && at(section, begin, &code) && code.header_size >= sizeof code) {
        if (code.kind == PTX)
            found->ptx.insert(code.capability);
        else if (code.kind == MACHINE_CODE)
            found->code.insert(code.capability);
        begin += code.header_size + code.size;
    }
}

static Found read_section(const std::string &section)
{
    Found found;
    Container container;
    for (uint64_t offset = 0; at(section, offset, &container);) {
        if (container.magic != MAGIC) {
            offset += ALIGNMENT; /* what fills the space between two */
            continue;
        }
        const uint64_t begin = offset + container.header_size;
        read_container(section, begin, begin + container.size, &found);
        offset = (begin + container.size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return found;
}

/* A section of a 64-bit ELF file of this machine's byte order, "" without one of the name. */
static std::string section_of(const std::string &file, const char *name)
{
    Elf64_Ehdr header;
    Elf64_Shdr names, section;
    if (!at(file, 0, &header) ||
        !at(file, header.e_shoff + uint64_t{header.e_shstrndx} * header.e_shentsize, &names))
        return "";
    for (unsigned i = 0; i < header.e_shnum; i++)
        if (at(file, header.e_shoff + uint64_t{i} * header.e_shentsize, &section) &&
            names.sh_offset + section.sh_name < file.size() &&
            strcmp(file.c_str() + names.sh_offset + section.sh_name, name) == 0 &&
            section.sh_offset + section.sh_size <= file.size())
            return file.substr(section.sh_offset, section.sh_size);
    return "";
}

static std::string listed(const std::set<unsigned> &numbers)
{
    std::string text;
    for (unsigned number : numbers)
        text += (text.empty() ? "" : " ") + std::to_string(number);
    return text.empty() ? "nothing" : text;
}

static int check_code(const std::set<unsigned> &declared)
{
    std::ifstream self("/proc/self/exe", std::ios::binary);
    const std::string file((std::istreambuf_iterator<char>(self)), std::istreambuf_iterator<char>());
    const Found found = read_section(section_of(file, ".nv_fatbin"));
    printf("code for %s, PTX for %s\n", listed(found.code).c_str(), listed(found.ptx).c_str());
    if (found.code != declared)
        return failed("nvcc made code for " + listed(found.code) + ", declared: " + listed(declared));
    if (found.ptx != std::set<unsigned>{*declared.rbegin()})
        return failed("nvcc made PTX for " + listed(found.ptx) + ", expected: " +
                      std::to_string(*declared.rbegin()));
    return PASSED;
}

/* ---- The run time ---- */

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

static int check_runtime(const std::string &version, const std::set<unsigned> &declared)
{
    std::string devices;
    if (check_versions(version) != PASSED || check_code(declared) != PASSED ||
        check_devices(&devices) != PASSED)
        return FAILED;
    printf("data: {\"cuda\": \"%s\", \"capabilities\": \"%s\"}\n", version.c_str(),
           listed(declared).c_str());
    printf("CUDA %s with code for %s; %s\n", version.c_str(), listed(declared).c_str(),
           devices.c_str());
    return PASSED;
}

/* ---- Computing ---- */

#ifdef __CUDACC__

enum { N = 1 << 20, THREADS = 256 };

__global__ void add(const float *a, const float *b, float *sum, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        sum[i] = a[i] + b[i];
}

/* Whole numbers, so that each sum is exact. */
static float first(int i) { return static_cast<float>(i % 1000); }
static float second(int i) { return static_cast<float>(7 * (i % 100)); }

struct Vectors {
    float *a = nullptr, *b = nullptr, *sum = nullptr;
    ~Vectors() { cudaFree(a), cudaFree(b), cudaFree(sum); }
};

#define TRY(call)                                                                                  \
    do {                                                                                           \
        const cudaError_t error_ = (call);                                                         \
        if (error_ != cudaSuccess)                                                                 \
            return failed(#call, error_);                                                          \
    } while (0)

static int compare(const char *what, const float *device, int number)
{
    std::vector<float> sums(N);
    TRY(cudaMemcpy(sums.data(), device, N * sizeof(float), cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++)
        if (sums[i] != first(i) + second(i))
            return failed(std::string(what) + " on GPU " + std::to_string(number) + ": sum " +
                          std::to_string(i) + " is " + std::to_string(sums[i]) + ", not " +
                          std::to_string(first(i) + second(i)));
    return PASSED;
}

static int add_by_kernel(const Vectors &v, int number)
{
    TRY(cudaMemset(v.sum, 0xFF, N * sizeof(float)));
    add<<<(N + THREADS - 1) / THREADS, THREADS>>>(v.a, v.b, v.sum, N);
    TRY(cudaGetLastError());
    TRY(cudaDeviceSynchronize());
    return compare("the kernel", v.sum, number);
}

static int add_by_cublas(const Vectors &v, int number)
{
    const float one = 1;
    cublasHandle_t handle;
    cublasStatus_t status = cublasCreate(&handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return failed("cublasCreate: status " + std::to_string(static_cast<int>(status)));
    TRY(cudaMemcpy(v.sum, v.b, N * sizeof(float), cudaMemcpyDeviceToDevice));
    status = cublasSaxpy(handle, N, &one, v.a, 1, v.sum, 1);
    cublasDestroy(handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return failed("cublasSaxpy: status " + std::to_string(static_cast<int>(status)));
    return compare("cublasSaxpy", v.sum, number);
}

static int compute_on(int number, std::string *names)
{
    std::vector<float> a(N), b(N);
    Vectors v;
    cudaDeviceProp properties;
    cudaFuncAttributes code;
    TRY(cudaSetDevice(number));
    TRY(cudaGetDeviceProperties(&properties, number));
    for (int i = 0; i < N; i++) {
        a[i] = first(i);
        b[i] = second(i);
    }
    TRY(cudaMalloc(&v.a, N * sizeof(float)));
    TRY(cudaMalloc(&v.b, N * sizeof(float)));
    TRY(cudaMalloc(&v.sum, N * sizeof(float)));
    TRY(cudaMemcpy(v.a, a.data(), N * sizeof(float), cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(v.b, b.data(), N * sizeof(float), cudaMemcpyHostToDevice));
    TRY(cudaFuncGetAttributes(&code, add));
    if (add_by_kernel(v, number) != PASSED || add_by_cublas(v, number) != PASSED)
        return FAILED;
    *names += std::string(names->empty() ? "" : ", ") + properties.name + " (code of sm_" +
              std::to_string(code.binaryVersion) + ")";
    return PASSED;
}

static int compute()
{
    int count = 0, driver = 0;
    std::string names;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (no_gpu(error)) {
        printf("no GPU: %s is absent and the run time says %s\n", CONTROL, cudaGetErrorName(error));
        return SKIPPED;
    }
    if (error != cudaSuccess)
        return failed("cudaGetDeviceCount", error);
    for (int number = 0; number < count; number++)
        if (compute_on(number, &names) != PASSED)
            return FAILED;
    TRY(cudaDriverGetVersion(&driver));
    printf("data: {\"gpus\": %d, \"driver_cuda\": \"%s\"}\n", count, version_text(driver).c_str());
    printf("a kernel and cuBLAS add %d numbers on: %s\n", N, names.c_str());
    return PASSED;
}

#else /* a test of the rest, without nvcc */

static int compute() { return failed("this program was not made by nvcc"); }

#endif

int main(int argc, char **argv)
{
    std::set<unsigned> declared;
    if (argc == 2 && strcmp(argv[1], "--compute") == 0)
        return compute();
    for (int i = 2; i < argc; i++)
        declared.insert(static_cast<unsigned>(strtoul(argv[i], nullptr, 10)));
    if (declared.empty()) {
        puts("usage: cuda-runtime VERSION CAPABILITY... | cuda-runtime --compute");
        return 2;
    }
    return check_runtime(argv[1], declared);
}
