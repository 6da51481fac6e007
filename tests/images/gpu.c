/*
 * gpu
 *
 * The NVIDIA driver answers inside the container and gives at least one GPU. The driver's library
 * is opened at run time, so that the program needs no CUDA toolkit and starts everywhere.
 *
 * Exit status: 0 passed, 77 skipped (no GPU on this host), else failed, with the CUDA error's
 * number and name. The last line of standard output is the finding; a line `data: {JSON}` stands
 * before it when the driver answered.
 */
#define _GNU_SOURCE /* dladdr */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PASSED = 0, FAILED = 1, SKIPPED = 77, NAME = 100 };

static const char LIBRARY[] = "libcuda.so.1";
static const char CONTROL[] = "/dev/nvidiactl";

/* cuda.h: CUresult, and CUdevice_attribute of the compute capability */
enum { CUDA_SUCCESS_ = 0, NO_DEVICE = 100, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

static struct {
    int (*init)(unsigned flags);
    int (*driver_version)(int *version);
    int (*count)(int *count);
    int (*name)(char *name, int length, int device);
    int (*attribute)(int *value, int attribute, int device);
    int (*error_name)(int error, const char **name);
} cu;

struct error {
    int number;
    const char *name;
    const char *meaning;
};

/* The errors that containers run into: driver_types.h and cuda.h */
static const struct error ERRORS[] = {
    {3, "CUDA_ERROR_NOT_INITIALIZED", "the driver was not initialised"},
    {34, "CUDA_ERROR_STUB_LIBRARY",
     "libcuda.so.1 is a stub of the toolkit, not the host's driver library"},
    {35, "cudaErrorInsufficientDriver", "the host's driver is older than this CUDA needs"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE",
     "the driver is there, but no GPU was given to this container"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "there is no device of this number"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no code for this GPU in the program"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the PTX is newer than the driver"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "libcuda.so.1 is of another version than the host's kernel driver"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
     "forward compatibility is not supported on this GPU"},
    {999, "CUDA_ERROR_UNKNOWN", "often a device node is missing, /dev/nvidia-uvm for example"}};
enum { N_ERRORS = sizeof ERRORS / sizeof *ERRORS };

static int cuda_error(const char *call, int number)
{
    const char *name = NULL, *meaning = "";
    for (int i = 0; i < N_ERRORS; i++)
        if (ERRORS[i].number == number) {
            name = ERRORS[i].name;
            meaning = ERRORS[i].meaning;
        }
    if (name == NULL && (cu.error_name(number, &name) != CUDA_SUCCESS_ || name == NULL))
        name = "no name for it";
    printf("%s: CUDA error %d (%s)%s%s\n", call, number, name, *meaning == '\0' ? "" : ": ",
           meaning);
    return FAILED;
}

static int resolve(void *library, const char *name, void *function)
{
    void *address = dlsym(library, name);
    if (address == NULL)
        printf("%s has no %s\n", LIBRARY, name);
    memcpy(function, &address, sizeof address); /* C99 has no cast from object to function */
    return address != NULL;
}

static int resolve_all(void *library)
{
    return resolve(library, "cuInit", &cu.init) &&
           resolve(library, "cuDriverGetVersion", &cu.driver_version) &&
           resolve(library, "cuDeviceGetCount", &cu.count) &&
           resolve(library, "cuDeviceGetName", &cu.name) &&
           resolve(library, "cuDeviceGetAttribute", &cu.attribute) &&
           resolve(library, "cuGetErrorName", &cu.error_name);
}

static int without_library(const char *reason)
{
    const int there = access(CONTROL, F_OK) == 0;
    if (strstr(reason, "No such file") == NULL) {
        printf("%s cannot be loaded: %s\n", LIBRARY, reason);
        return FAILED;
    }
    if (there) {
        printf("%s is there, but %s is not found: the container was not given the host's driver "
               "library\n", CONTROL, LIBRARY);
        return FAILED;
    }
    printf("no GPU: %s is absent and %s is not found\n", CONTROL, LIBRARY);
    return SKIPPED;
}

/* The file that the driver's library was loaded from; "" if that cannot be told. */
static const char *library_path(void)
{
    Dl_info information;
    void *address;
    memcpy(&address, &cu.init, sizeof address);
    return dladdr(address, &information) != 0 && information.dli_fname != NULL
               ? information.dli_fname : "";
}

static void print_json(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++)
        if ((unsigned char)*text >= ' ' && *text != '"' && *text != '\\')
            putchar(*text);
    putchar('"');
}

struct gpu {
    char name[NAME];
    int major, minor;
};

static int describe(int device, struct gpu *gpu)
{
    int error = cu.name(gpu->name, NAME - 1, device);
    if (error != CUDA_SUCCESS_)
        return cuda_error("cuDeviceGetName", error);
    error = cu.attribute(&gpu->major, CAPABILITY_MAJOR, device);
    if (error == CUDA_SUCCESS_)
        error = cu.attribute(&gpu->minor, CAPABILITY_MINOR, device);
    return error == CUDA_SUCCESS_ ? PASSED : cuda_error("cuDeviceGetAttribute", error);
}

static int same(const struct gpu *a, const struct gpu *b)
{
    return strcmp(a->name, b->name) == 0 && a->major == b->major && a->minor == b->minor;
}

static void print_finding(const struct gpu *gpus, int n, int version)
{
    printf("data: {\"gpus\": %d, \"name\": ", n);
    print_json(gpus[0].name);
    printf(", \"compute_capability\": \"%d.%d\", \"driver_cuda\": \"%d.%d\", \"library\": ",
           gpus[0].major, gpus[0].minor, version / 1000, version % 1000 / 10);
    print_json(library_path());
    printf("}\n%d GPU%s: ", n, n == 1 ? "" : "s");
    for (int i = 0; i < n; i++)
        if (i == 0 || !same(&gpus[i], &gpus[i - 1]))
            printf("%s, compute capability %d.%d, ", gpus[i].name, gpus[i].major, gpus[i].minor);
    printf("driver supports CUDA %d.%d\n", version / 1000, version % 1000 / 10);
}

static int check_devices(void)
{
    struct gpu *gpus;
    int n = 0, version = 0, outcome = PASSED;
    int error = cu.driver_version(&version);
    if (error != CUDA_SUCCESS_)
        return cuda_error("cuDriverGetVersion", error);
    error = cu.count(&n);
    if (error != CUDA_SUCCESS_)
        return cuda_error("cuDeviceGetCount", error);
    if (n < 1) {
        puts("the driver answers, but gives no GPU to this container");
        return FAILED;
    }
    gpus = calloc((size_t)n, sizeof *gpus);
    if (gpus == NULL) {
        puts("out of memory");
        return FAILED;
    }
    for (int i = 0; i < n && outcome == PASSED; i++)
        outcome = describe(i, &gpus[i]);
    if (outcome == PASSED)
        print_finding(gpus, n, version);
    free(gpus);
    return outcome;
}

int main(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW);
    int error;
    if (library == NULL)
        return without_library(dlerror());
    if (!resolve_all(library))
        return FAILED;
    error = cu.init(0);
    if (error == NO_DEVICE && access(CONTROL, F_OK) != 0) {
        printf("no GPU: %s is absent (%s is %s)\n", CONTROL, LIBRARY, library_path());
        return SKIPPED;
    }
    return error == CUDA_SUCCESS_ ? check_devices() : cuda_error("cuInit", error);
}
