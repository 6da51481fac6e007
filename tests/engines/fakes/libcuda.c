/*
 * A libcuda.so.1 that says what a test wants, and keeps the memory of its GPUs in that of the host.
 *
 * It answers as the driver of CUDA 10.1 does with V100s. FAKE_CUDA changes answers: NAME=NUMBER,
 * separated by commas. init, count, name, attribute, memory and context are the errors of these
 * calls; gpus their number; cuda what it supports (10010); capability that of the GPUs (70), and
 * capability1 that of GPU 1. An empty CUDA_VISIBLE_DEVICES takes all GPUs away, as the driver's does.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_DEVICE = 100, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

#ifdef VERSION /* the driver's library holds its version */
const char *const fake_version = "NVIDIA UNIX " VERSION;
#endif

static int of(const char *name, int usual)
{
    const char *text = getenv("FAKE_CUDA");
    const size_t length = strlen(name);
    while (text != NULL && *text != '\0') {
        if (strncmp(text, name, length) == 0 && text[length] == '=')
            return atoi(text + length + 1);
        text = strchr(text, ',');
        text = text == NULL ? NULL : text + 1;
    }
    return usual;
}

int cuInit(unsigned flags)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    const int error = of("init", flags == 0 ? 0 : 1);
    return error != 0 ? error : visible != NULL && *visible == '\0' ? NO_DEVICE : 0;
}
int cuDriverGetVersion(int *version)
{
    *version = of("cuda", 10010);
    return 0;
}
int cuDeviceGetCount(int *count)
{
    *count = of("gpus", 1);
    return of("count", 0);
}
int cuDeviceGetName(char *name, int length, int device)
{
    snprintf(name, (size_t)length, device == 0 ? "Tesla \"V100\"" : "Tesla P100");
    return of("name", 0);
}
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    const int usual = of("capability", 70);
    const int both = device == 1 ? of("capability1", usual) : usual;
    *value = attribute == CAPABILITY_MAJOR ? both / 10 : attribute == CAPABILITY_MINOR ? both % 10 : -1;
    return of("attribute", 0);
}
#ifndef INCOMPLETE
int cuGetErrorName(int error, const char **name)
{
    *name = error == 205 ? "CUDA_ERROR_MAP_FAILED" : NULL;
    return *name == NULL;
}
#endif

/* What gpu-mpi calls */
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    static int made;
    (void)device;
    *context = &made;
    return of("context", 0);
}
int cuCtxSetCurrent(void *context) { return context == NULL; }
int cuMemAlloc_v2(uintptr_t *pointer, size_t bytes)
{
    *pointer = (uintptr_t)malloc(bytes);
    return of("memory", 0);
}
int cuMemFree_v2(uintptr_t pointer)
{
    free((void *)pointer);
    return 0;
}
int cuMemcpyHtoD_v2(uintptr_t to, const void *from, size_t bytes)
{
    memcpy((void *)to, from, bytes);
    return 0;
}
int cuMemcpyDtoH_v2(void *to, uintptr_t from, size_t bytes)
{
    memcpy(to, (void *)from, bytes);
    if (of("spoil", 0) && bytes > 999)
        ((char *)to)[999] ^= 1;
    return of("copy", 0);
}
