/*
 * gpu-mpi-support   whether Open MPI was built with CUDA, and whether it uses CUDA here
 *
 * Prints four numbers: MPIX_CUDA_AWARE_SUPPORT when this program was compiled, whether libcuda.so.1
 * can be loaded, MPIX_Query_cuda_support, and the number of GPUs that the driver gives. The driver's
 * library is opened at run time: no CUDA toolkit is needed to make this program.
 */
#include <dlfcn.h>
#include <mpi.h>
#include <mpi-ext.h>
#include <stdio.h>
#include <string.h>

static int gpus_of(void *library)
{
    int (*init)(unsigned flags), (*count)(int *count), gpus = 0;
    void *addresses[] = {dlsym(library, "cuInit"), dlsym(library, "cuDeviceGetCount")};
    memcpy(&init, &addresses[0], sizeof init); /* C99 has no cast from object to function */
    memcpy(&count, &addresses[1], sizeof count);
    return init != NULL && count != NULL && init(0) == 0 && count(&gpus) == 0 ? gpus : 0;
}

int main(int argc, char **argv)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    MPI_Init(&argc, &argv);
    printf("%d %d %d %d\n", MPIX_CUDA_AWARE_SUPPORT, library != NULL, MPIX_Query_cuda_support(),
           library == NULL ? 0 : gpus_of(library));
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
