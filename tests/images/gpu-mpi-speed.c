/*
 * gpu-mpi-speed RANKS   the speed of messages between buffers in the memory of GPUs
 *
 * Ping-pong between the first two ranks, of 1 byte (latency) and of 4 MiB (bandwidth): half of a
 * round trip, the best of 5 rounds. Every byte is compared afterwards. Whether MPI takes such
 * buffers is found as by gpu-mpi, whose functions these are.
 *
 * Exit status: 0 passed, 77 skipped, else failed, with the CUDA error's number and name. The last
 * line of standard output is the finding; a line `data: {JSON}` stands before it. Times are in
 * microseconds, bandwidths in MB/s of 10^6 bytes.
 */
#define main gpu_mpi_main
#include "gpu-mpi.c"
#undef main

enum { LARGE = 4 << 20, ROUNDS = 5 };

static int send_pattern(device_pointer buffer, int bytes, int source, unsigned char *host)
{
    for (int i = 0; i < bytes; i++)
        host[i] = pattern(source, bytes, i);
    return good("cuMemcpyHtoD", cu.to_device(buffer, host, (size_t)bytes));
}

static void check_pattern(device_pointer buffer, int bytes, int source, unsigned char *host)
{
    if (!good("cuMemcpyDtoH", cu.to_host(host, buffer, (size_t)bytes)))
        return;
    for (int i = 0; i < bytes; i++)
        if (host[i] != pattern(source, bytes, i)) {
            FOUND("message of %d bytes from GPU to GPU: byte %d is 0x%02x, expected 0x%02x", bytes,
                  i, host[i], pattern(source, bytes, i));
            return;
        }
}

/* Microseconds of a message one way; each rank has its own pattern to send, and spoils the other. */
static double ping_pong(int bytes, int times, device_pointer out, device_pointer in,
                        unsigned char *host)
{
    double best = 0;
    int ready = send_pattern(out, bytes, rank, host), all = 0;
    MPI_Allreduce(&ready, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    for (int round = -1; all && rank < 2 && round < ROUNDS; round++) {
        double begin, took;
        int token = 0;
        memset(host, 0xEE, (size_t)bytes);
        good("cuMemcpyHtoD", cu.to_device(in, host, (size_t)bytes));
        MPI_Sendrecv_replace(&token, 1, MPI_INT, 1 - rank, 2, 1 - rank, 2, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE);
        begin = MPI_Wtime();
        for (int i = 0; i < times; i++) {
            if (rank == 0)
                MPI_Send((void *)out, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
            MPI_Recv((void *)in, bytes, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1)
                MPI_Send((void *)out, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
        took = (MPI_Wtime() - begin) / times / 2 * 1e6;
        best = round <= 0 || took < best ? took : best;
    }
    if (all && rank < 2)
        check_pattern(in, bytes, 1 - rank, host);
    return best;
}

static int measure(void)
{
    int mine = begin(), everyone = 0;
    device_pointer out = 0, in = 0;
    unsigned char *host = malloc(LARGE);
    double latency = 0, large = 0;
    mine = mine && host != NULL && good("cuMemAlloc", cu.allocate(&out, LARGE)) &&
           good("cuMemAlloc", cu.allocate(&in, LARGE));
    MPI_Allreduce(&mine, &everyone, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (everyone) {
        latency = ping_pong(1, 1000, out, in, host);
        large = ping_pong(LARGE, 20, out, in, host);
        if (rank == 0 && (latency <= 0 || large <= 0))
            FOUND("a message took no time that the clock can tell");
    }
    if (out != 0)
        cu.release(out);
    if (in != 0)
        cu.release(in);
    free(host);
    if (verdict() != PASSED)
        return FAILED;
    if (rank == 0)
        printf("data: {\"applies\": true, \"ranks\": %d, \"latency_us\": %.3f, \"bytes\": %d, "
               "\"mb_per_s\": %.3f}\nfrom GPU to GPU: latency %.2f us, bandwidth %.0f MB/s at 4 "
               "MiB, all values right\n", size, latency, LARGE, LARGE / large, latency,
               LARGE / large);
    return PASSED;
}

int main(int argc, char **argv)
{
    int (*query)(void) = NULL;
    void *address = dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support");
    const int expected = argc == 2 ? atoi(argv[1]) : 0;
    int outcome;

    if (expected < 2) {
        puts("usage: gpu-mpi-speed RANKS, at least 2");
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
    } else if (query == NULL || query() != 1) {
        outcome = does_not_apply("MPIX_Query_cuda_support does not say 1");
    } else {
        outcome = measure();
    }
    fflush(stdout); /* before another rank ends, and the launcher with it */
    MPI_Finalize();
    return outcome == SKIPPED && rank != 0 ? PASSED : outcome;
}
