/*
 * gpu-mpi RANKS   messages between buffers in the memory of GPUs, where MPI says that it takes them
 *
 * MPIX_Query_cuda_support, which Open MPI, MPICH and MVAPICH2 have, says whether MPI takes pointers
 * into a GPU's memory. If it does, messages of several sizes go around the ring and back from GPU to
 * GPU, and doubles are summed over all ranks, each against its closed form. If not, there is nothing
 * to check, and `"applies": false` in the data says so. The driver's library is opened at run time:
 * no CUDA toolkit is needed to make this program.
 *
 * Exit status: 0 passed, 77 skipped, else failed, with the CUDA error's number and name. The last
 * line of standard output is the finding; a line `data: {JSON}` stands before it.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */

#include "cuda-errors.h"

#include <dlfcn.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PASSED = 0, FAILED = 1, USAGE = 2, SKIPPED = 77, LARGEST = 1 << 20, LINE = 400 };
static const int SIZES[] = {1, 1000, 65536, LARGEST};
static const int COUNTS[] = {1, 1000, 65536};
enum { N_SIZES = sizeof SIZES / sizeof *SIZES, N_COUNTS = sizeof COUNTS / sizeof *COUNTS };

typedef uintptr_t device_pointer; /* CUdeviceptr, on 64-bit machines */

static struct {
    int (*init)(unsigned flags);
    int (*count)(int *count);
    int (*retain)(void **context, int device);
    int (*set)(void *context);
    int (*allocate)(device_pointer *pointer, size_t bytes);
    int (*release)(device_pointer pointer);
    int (*to_device)(device_pointer to, const void *from, size_t bytes);
    int (*to_host)(void *to, device_pointer from, size_t bytes);
} cu;

static int rank, size;
static char fault[LINE]; /* this rank's first */

#define FOUND(...)                                                                                 \
    do {                                                                                           \
        if (fault[0] == '\0')                                                                      \
            snprintf(fault, sizeof fault, __VA_ARGS__);                                            \
    } while (0)

/* Whether a call of the driver's succeeded; if not, the fault names the error. */
static int good(const char *call, int number)
{
    const struct cuda_error *known = cuda_error_of(number);
    if (number != 0)
        FOUND("%s: CUDA error %d (%s)", call, number,
              known != NULL && known->driver_name != NULL ? known->driver_name : "no name for it");
    return number == 0;
}

static int resolve(void *library, const char *name, void *function)
{
    void *address = dlsym(library, name);
    memcpy(function, &address, sizeof address); /* C99 has no cast from object to function */
    if (address == NULL)
        FOUND("libcuda.so.1 has no %s", name);
    return address != NULL;
}

/* One GPU for each rank of a node, as far as there are enough. */
static int begin(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int gpus = 0;
    if (library == NULL)
        FOUND("%s", dlerror());
    return library != NULL && resolve(library, "cuInit", &cu.init) &&
           resolve(library, "cuDeviceGetCount", &cu.count) &&
           resolve(library, "cuDevicePrimaryCtxRetain", &cu.retain) &&
           resolve(library, "cuCtxSetCurrent", &cu.set) &&
           resolve(library, "cuMemAlloc_v2", &cu.allocate) &&
           resolve(library, "cuMemFree_v2", &cu.release) &&
           resolve(library, "cuMemcpyHtoD_v2", &cu.to_device) &&
           resolve(library, "cuMemcpyDtoH_v2", &cu.to_host) && good("cuInit", cu.init(0)) &&
           good("cuDeviceGetCount", cu.count(&gpus)) && good("cuDeviceGetCount", gpus ? 0 : 100) &&
           good("cuDevicePrimaryCtxRetain", cu.retain(&context, rank % gpus)) &&
           good("cuCtxSetCurrent", cu.set(context));
}

static unsigned char pattern(int source, int bytes, int offset)
{
    return (unsigned char)(source * 31 + bytes * 7 + offset * 13 + offset / 251);
}

/* A message to the right and one from the left, both in the memory of GPUs. */
static void ring(int bytes, device_pointer out, device_pointer in, unsigned char *host)
{
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (int i = 0; i < bytes; i++)
        host[i] = pattern(rank, bytes, i);
    if (!good("cuMemcpyHtoD", cu.to_device(out, host, (size_t)bytes)))
        return;
    memset(host, 0xEE, (size_t)bytes);
    if (!good("cuMemcpyHtoD", cu.to_device(in, host, (size_t)bytes)))
        return;
    MPI_Sendrecv((void *)out, bytes, MPI_BYTE, right, 1, (void *)in, bytes, MPI_BYTE, left, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (!good("cuMemcpyDtoH", cu.to_host(host, in, (size_t)bytes)))
        return;
    for (int i = 0; i < bytes; i++)
        if (host[i] != pattern(left, bytes, i)) {
            FOUND("message of %d bytes from GPU to GPU, rank %d to rank %d: byte %d is 0x%02x, "
                  "expected 0x%02x", bytes, left, rank, i, host[i], pattern(left, bytes, i));
            return;
        }
}

static void allreduce(int count, device_pointer out, device_pointer in, double *host)
{
    const size_t bytes = (size_t)count * sizeof *host;
    for (int i = 0; i < count; i++)
        host[i] = (rank + 1) * (i + 1.0) * 0.25;
    if (!good("cuMemcpyHtoD", cu.to_device(out, host, bytes)))
        return;
    memset(host, 0xEE, bytes);
    if (!good("cuMemcpyHtoD", cu.to_device(in, host, bytes)))
        return;
    MPI_Allreduce((void *)out, (void *)in, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (!good("cuMemcpyDtoH", cu.to_host(host, in, bytes)))
        return;
    for (int i = 0; i < count; i++) {
        const double expected = size * (size + 1) / 2 * (i + 1.0) * 0.25;
        if (host[i] != expected) {
            FOUND("allreduce of %d doubles on GPUs: value %d is %.17g, expected %.17g", count, i,
                  host[i], expected);
            return;
        }
    }
}

static void transfer(void)
{
    device_pointer out = 0, in = 0;
    void *host = malloc(LARGEST);
    if (host == NULL)
        FOUND("out of memory");
    else if (good("cuMemAlloc", cu.allocate(&out, LARGEST)) &&
             good("cuMemAlloc", cu.allocate(&in, LARGEST))) {
        for (int i = 0; i < N_SIZES; i++)
            ring(SIZES[i], out, in, host);
        for (int i = 0; i < N_COUNTS; i++)
            allreduce(COUNTS[i], out, in, host);
    }
    if (out != 0)
        cu.release(out);
    if (in != 0)
        cu.release(in);
    free(host);
}

/* Rank 0 tells the first fault of all ranks; every rank returns the same outcome. */
static int verdict(void)
{
    char *all = calloc((size_t)size, LINE);
    int outcome = PASSED;
    MPI_Gather(fault, LINE, MPI_CHAR, all, LINE, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int i = 0; i < size && rank == 0 && outcome == PASSED; i++)
        if (all[(size_t)i * LINE] != '\0') {
            printf("rank %d: %s\n", i, all + (size_t)i * LINE);
            outcome = FAILED;
        }
    free(all);
    MPI_Bcast(&outcome, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return outcome;
}

/* Without a GPU on one rank, no rank goes on to wait for its messages. */
static int check(void)
{
    int mine = begin(), everyone = 0;
    MPI_Allreduce(&mine, &everyone, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (everyone)
        transfer();
    if (verdict() != PASSED)
        return FAILED;
    if (rank == 0)
        printf("data: {\"applies\": true, \"ranks\": %d}\n%d ranks: messages of 1 B to 1 MiB from "
               "GPU to GPU, and allreduce of 1 to %d doubles on GPUs\n", size, size,
               COUNTS[N_COUNTS - 1]);
    return PASSED;
}

static int does_not_apply(const char *reason)
{
    if (rank == 0)
        printf("data: {\"applies\": false}\nthis MPI takes no pointers into a GPU's memory: %s\n",
               reason);
    return SKIPPED;
}

int main(int argc, char **argv)
{
    int (*query)(void) = NULL;
    void *address = dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support");
    const int expected = argc == 2 ? atoi(argv[1]) : 0;
    int outcome;

    if (expected < 1) {
        puts("usage: gpu-mpi RANKS");
        return USAGE;
    }
    memcpy(&query, &address, sizeof address);
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (size != expected) {
        if (rank == 0)
            printf("MPI started %d ranks, expected %d\n", size, expected);
        outcome = FAILED;
    } else if (query == NULL) {
        outcome = does_not_apply("it has no MPIX_Query_cuda_support");
    } else if (query() != 1) {
        outcome = does_not_apply("MPIX_Query_cuda_support says 0");
    } else {
        outcome = check();
    }
    fflush(stdout); /* before another rank ends, and the launcher with it */
    MPI_Finalize();
    return outcome == SKIPPED && rank != 0 ? PASSED : outcome;
}
