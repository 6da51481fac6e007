/*
 * mpi-speed [LARGEST [ROUNDS]]
 *
 * How fast messages are: ping-pong between the first and the last rank (half of a round trip),
 * windows of messages from the first to the last (bandwidth), and allreduce over all ranks, for
 * sizes from 1 byte to LARGEST (default 4194304). ROUNDS (default 1000) are those of the smallest
 * sizes; larger messages take fewer. At least two ranks.
 *
 * Every message carries a pattern that changes from round to round and is looked at on arrival;
 * every sum is compared with a closed form. A fast wrong answer fails.
 *
 * Exit status: 0 on every rank measured and right, else wrong, on every rank. Rank 0 prints a
 * table, a line `data: {JSON}` and the finding. Times are in microseconds, bandwidths in MB/s of
 * 10^6 bytes.
 */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 16, WARM_UP = 5, TAG = 7, LEAST = 10, SMALL = 4096 };

struct row {
    int bytes;
    double latency, bandwidth, allreduce;
};

static int rank, size, last;
static long wrong;

static int rounds_of(int bytes, int rounds)
{
    long fewer = bytes <= SMALL ? rounds : (long)rounds * SMALL / bytes;
    return fewer < LEAST ? LEAST : (int)fewer;
}

static unsigned char mark(int bytes, int round)
{
    return (unsigned char)(bytes * 7 + round * 13 + 1);
}

static void spoil(unsigned char *buffer, int bytes, int round)
{
    memset(buffer, (unsigned char)~mark(bytes, round), (size_t)bytes);
}

/* Looks at some bytes only, ends included: it must not take longer than the message. */
static void look(const unsigned char *buffer, int bytes, int round)
{
    const int step = bytes / 16 + 1;
    for (int i = 0; i < bytes; i += step)
        wrong += buffer[i] != mark(bytes, round);
    wrong += buffer[bytes - 1] != mark(bytes, round);
}

/* Both sides have their buffers ready before a clock starts. */
static void meet(int other)
{
    MPI_Sendrecv(NULL, 0, MPI_BYTE, other, TAG, NULL, 0, MPI_BYTE, other, TAG, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

/* Microseconds of a message one way. */
static double ping_pong(unsigned char *buffer, int bytes, int rounds)
{
    const int other = rank == 0 ? last : 0;
    double begin = 0, took = 0;
    for (int round = -WARM_UP; round < rounds; round++) {
        memset(buffer, rank == 0 ? mark(bytes, round) : 0, (size_t)bytes);
        if (rank == last)
            spoil(buffer, bytes, round);
        meet(other);
        begin = MPI_Wtime();
        if (rank == 0)
            MPI_Send(buffer, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
        MPI_Recv(buffer, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == last)
            MPI_Send(buffer, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
        if (round >= 0)
            took += MPI_Wtime() - begin;
        look(buffer, bytes, round);
    }
    return took / rounds / 2 * 1e6;
}

/* MB/s of windows of messages one way, each window answered by an empty message. */
static double stream(unsigned char *buffer, int bytes, int rounds)
{
    MPI_Request requests[WINDOW];
    double begin = 0, took = 0;
    for (int round = -WARM_UP; round < rounds; round++) {
        memset(buffer, rank == 0 ? mark(bytes, round) : 0, (size_t)bytes);
        if (rank == last)
            spoil(buffer, bytes, round);
        meet(rank == 0 ? last : 0);
        begin = MPI_Wtime();
        for (int i = 0; i < WINDOW; i++)
            if (rank == 0)
                MPI_Isend(buffer, bytes, MPI_BYTE, last, TAG, MPI_COMM_WORLD, &requests[i]);
            else
                MPI_Irecv(buffer, bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, &requests[i]);
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (rank == 0)
            MPI_Recv(NULL, 0, MPI_BYTE, last, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(NULL, 0, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        if (round >= 0)
            took += MPI_Wtime() - begin;
        look(buffer, bytes, round);
    }
    return took > 0 ? (double)bytes * WINDOW * rounds / took / 1e6 : 0;
}

/* Microseconds of a sum over all ranks, the slowest rank's mean. */
static double allreduce(double *in, double *out, int bytes, int rounds)
{
    const int count = bytes < (int)sizeof *in ? 1 : bytes / (int)sizeof *in;
    double took = 0, most = 0;
    for (int round = -WARM_UP; round < rounds; round++) {
        const double ranks = (double)size * (size + 1) / 2;
        double begin;
        for (int i = 0; i < count; i++) {
            in[i] = (rank + 1.0) * (round + WARM_UP + 1);
            out[i] = -1;
        }
        begin = MPI_Wtime();
        MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (round >= 0)
            took += MPI_Wtime() - begin;
        for (int i = 0; i < count; i++)
            wrong += out[i] != ranks * (round + WARM_UP + 1);
    }
    took = took / rounds * 1e6;
    MPI_Allreduce(&took, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

static struct row measure(int bytes, int rounds, void *in, void *out)
{
    struct row row = {bytes, 0, 0, 0};
    const int fewer = rounds_of(bytes, rounds);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 || rank == last) {
        row.latency = ping_pong(in, bytes, fewer);
        row.bandwidth = stream(in, bytes, fewer / WINDOW + LEAST);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    row.allreduce = allreduce(in, out, bytes, fewer / 4 + LEAST);
    return row;
}

static void print_row(const struct row *row)
{
    if (row->bytes == 1)
        printf("%10s %14s %14s %14s\n", "bytes", "latency us", "MB/s", "allreduce us");
    printf("%10d %14.2f %14.2f %14.2f\n", row->bytes, row->latency, row->bandwidth,
           row->allreduce);
    fflush(stdout);
}

static int verdict(const struct row *first, const struct row *largest)
{
    long all = 0;
    MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("data: {\"ranks\": %d, \"latency_us\": %.3f, \"bytes\": %d, \"mb_per_s\": %.3f, "
               "\"allreduce_us\": %.3f}\n",
               size, first->latency, largest->bytes, largest->bandwidth, first->allreduce);
        if (all != 0)
            printf("%ld values arrived wrong\n", all);
        else if (first->latency <= 0 || largest->bandwidth <= 0 || first->allreduce <= 0)
            puts("a measurement took no time: the clock or the program is wrong");
        else
            printf("%d ranks: latency %.2f us, bandwidth %.0f MB/s at %d bytes, allreduce of 8 "
                   "bytes %.2f us, all values right\n",
                   size, first->latency, largest->bandwidth, largest->bytes, first->allreduce);
    }
    if (rank == 0 && all == 0)
        all = first->latency <= 0 || largest->bandwidth <= 0 || first->allreduce <= 0;
    MPI_Bcast(&all, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    return all != 0;
}

static int usage(const char *problem)
{
    if (rank == 0)
        printf("%s; usage: mpi-speed [LARGEST [ROUNDS]], at least 2 ranks\n", problem);
    return 2;
}

static int run(int argc, char **argv)
{
    const int largest = argc > 1 ? atoi(argv[1]) : 1 << 22;
    const int rounds = argc > 2 ? atoi(argv[2]) : 1000;
    struct row first = {0}, row = {0};
    void *in, *out;
    if (size < 2)
        return usage("there is one rank: launcher and library do not belong together, or -n 1");
    if (argc > 3 || largest < 1 || largest > 1 << 28 || rounds < 1)
        return usage("sizes are 1 to 268435456 bytes");
    in = malloc((size_t)largest + sizeof(double));
    out = malloc((size_t)largest + sizeof(double));
    if (in == NULL || out == NULL)
        return usage("not enough memory");
    for (int bytes = 1; bytes <= largest; bytes *= 4) {
        row = measure(bytes, rounds, in, out);
        if (bytes == 1)
            first = row;
        if (rank == 0)
            print_row(&row);
    }
    free(in);
    free(out);
    return verdict(&first, &row);
}

int main(int argc, char **argv)
{
    int status;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    last = size - 1;
    status = run(argc, argv);
    MPI_Finalize();
    return status;
}
