/*
 * A library before MPI's own, whose calls do wrong when they are told to: planted_ranks.py.
 *
 * The variable OMPI_MCA_planted says KIND:RANK:RANKS:BYTES:PLACE: the call, the rank in
 * MPI_COMM_WORLD that does wrong (-1: all), in groups of how many ranks (0: of any), from how many
 * bytes on, and which of them is spoiled.
 */
#include <mpi.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static int is_on; /* whether the traffic has begun */
static unsigned char *later[8]; /* the bytes that are spoiled when a call ends that has begun */
static int n_later;

static int planted(const char *kind, MPI_Comm comm, long bytes, long *place)
{
    const char *chosen = getenv("OMPI_MCA_planted");
    char name[32] = "";
    long wrong_rank = -1, wrong_ranks = 0, least = 0;
    int rank, ranks;
    *place = 0;
    if (chosen == NULL || sscanf(chosen, "%31[^:]:%ld:%ld:%ld:%ld", name, &wrong_rank, &wrong_ranks,
                                 &least, place) != 5 ||
        strcmp(name, kind) != 0)
        return 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(comm, &ranks);
    return (wrong_rank < 0 || wrong_rank == rank) && (wrong_ranks == 0 || wrong_ranks == ranks) &&
           bytes >= least;
}

static long bytes_of(long count, MPI_Datatype type)
{
    int width;
    PMPI_Type_size(type, &width);
    return count * width;
}

static unsigned char *spot(const char *kind, MPI_Comm comm, const void *buffer, long bytes)
{
    long place;
    if (!is_on || bytes <= 0 || !planted(kind, comm, bytes, &place))
        return NULL;
    return (unsigned char *)buffer + place % bytes;
}

static int spoil(int code, const char *kind, MPI_Comm comm, void *buffer, long bytes)
{
    unsigned char *byte = spot(kind, comm, buffer, bytes);
    if (byte != NULL)
        *byte ^= 1;
    return code;
}

static int spoil_later(int code, const char *kind, MPI_Comm comm, void *buffer, long bytes)
{
    unsigned char *byte = spot(kind, comm, buffer, bytes);
    if (byte != NULL && n_later < 8)
        later[n_later++] = byte;
    return code;
}

static int spoil_now(int code)
{
    while (n_later > 0)
        *later[--n_later] ^= 1;
    return code;
}

/* A copy of what is sent that is spoiled; it is never freed. */
static const void *spoiled_copy(const char *kind, MPI_Comm comm, const void *buffer, long bytes)
{
    void *copy;
    if (spot(kind, comm, buffer, bytes) == NULL)
        return buffer;
    copy = malloc((size_t)bytes);
    memcpy(copy, buffer, (size_t)bytes);
    spoil(0, kind, comm, copy, bytes);
    return copy;
}

static int group_size(MPI_Comm comm)
{
    int size;
    PMPI_Comm_size(comm, &size);
    return size;
}

static long last_part(const int *counts, const int *starts, MPI_Comm comm)
{
    const int last = group_size(comm) - 1;
    return starts[last] + counts[last];
}

/* ---- Who is there ---- */

int MPI_Init_thread(int *argc, char ***argv, int required, int *granted)
{
    long place;
    int code = PMPI_Init_thread(argc, argv, required, granted);
    if (planted("threads", MPI_COMM_WORLD, 0, &place))
        *granted = MPI_THREAD_FUNNELED;
    return code;
}

int MPI_Comm_rank(MPI_Comm comm, int *rank)
{
    long place;
    int code = PMPI_Comm_rank(comm, rank);
    if (planted("same-rank", comm, 0, &place))
        *rank -= 1;
    return code;
}

int MPI_Comm_split(MPI_Comm comm, int colour, int key, MPI_Comm *made)
{
    long place;
    is_on = 1;
    return PMPI_Comm_split(comm, colour, planted("split", comm, 0, &place) ? -key : key, made);
}

int MPI_Barrier(MPI_Comm comm)
{
    long place;
    return planted("barrier", comm, 0, &place) ? MPI_SUCCESS : PMPI_Barrier(comm);
}

/* ---- Messages ---- */

int MPI_Sendrecv(const void *out, int n, MPI_Datatype type, int to, int tag, void *in, int m,
                 MPI_Datatype other, int from, int from_tag, MPI_Comm comm, MPI_Status *status)
{
    return spoil(PMPI_Sendrecv(out, n, type, to, tag, in, m, other, from, from_tag, comm, status),
                 "message", comm, in, bytes_of(m, other));
}

int MPI_Irecv(void *in, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    return spoil_later(PMPI_Irecv(in, n, type, from, tag, comm, request), "irecv", comm, in,
                       bytes_of(n, type));
}

int MPI_Waitall(int n, MPI_Request *requests, MPI_Status *statuses)
{
    return spoil_now(PMPI_Waitall(n, requests, statuses));
}

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    return spoil_now(PMPI_Wait(request, status));
}

/* ---- Collectives that move data ---- */

/*
 * A rank that waits in MPI spins. Where another hangs it sleeps instead, up to the last 2 seconds
 * before its alarm, so that it is in MPI when it is ended. Without an alarm it does not sleep.
 */
static int bcast(void *buffer, int n, MPI_Datatype type, int root, MPI_Comm comm)
{
    const char *chosen = getenv("OMPI_MCA_planted");
    struct itimerval alarm;
    MPI_Request request;
    int code, is_done = 0;
    if (chosen == NULL || strncmp(chosen, "hang:", 5) != 0)
        return PMPI_Bcast(buffer, n, type, root, comm);
    code = PMPI_Ibcast(buffer, n, type, root, comm, &request);
    if (code != MPI_SUCCESS)
        return code;
    while (code == MPI_SUCCESS && !is_done && getitimer(ITIMER_REAL, &alarm) == 0 &&
           alarm.it_value.tv_sec >= 2) {
        usleep(10000);
        code = PMPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    }
    return is_done ? code : PMPI_Wait(&request, MPI_STATUS_IGNORE);
}

int MPI_Bcast(void *buffer, int n, MPI_Datatype type, int root, MPI_Comm comm)
{
    const long bytes = bytes_of(n, type);
    long place;
    int code;
    if (type == MPI_INT || type == MPI_CHAR) /* the verdict, and names */
        return PMPI_Bcast(buffer, n, type, root, comm);
    if (planted("lose", comm, bytes, &place))
        raise(SIGKILL);
    while (planted("hang", comm, bytes, &place))
        sleep(1);
    code = spoil(bcast(buffer, n, type, root, comm), "bcast", comm, buffer, bytes);
    if (planted("beyond", comm, bytes, &place))
        ((unsigned char *)buffer)[bytes + place] = 0;
    return code;
}

int MPI_Gather(const void *out, int n, MPI_Datatype type, void *in, int m, MPI_Datatype other,
               int root, MPI_Comm comm)
{
    const int code = PMPI_Gather(out, n, type, in, m, other, root, comm);
    int rank;
    PMPI_Comm_rank(comm, &rank);
    if (type == MPI_CHAR || rank != root)
        return code;
    return spoil(code, "gather", comm, in, bytes_of(m, other) * group_size(comm));
}

int MPI_Gatherv(const void *out, int n, MPI_Datatype type, void *in, const int *counts,
                const int *starts, MPI_Datatype other, int root, MPI_Comm comm)
{
    const int code = PMPI_Gatherv(out, n, type, in, counts, starts, other, root, comm);
    int rank;
    PMPI_Comm_rank(comm, &rank);
    return rank != root ? code
                        : spoil(code, "gatherv", comm, in,
                                bytes_of(last_part(counts, starts, comm), other));
}

int MPI_Scatter(const void *out, int n, MPI_Datatype type, void *in, int m, MPI_Datatype other,
                int root, MPI_Comm comm)
{
    return spoil(PMPI_Scatter(out, n, type, in, m, other, root, comm), "scatter", comm, in,
                 bytes_of(m, other));
}

int MPI_Scatterv(const void *out, const int *counts, const int *starts, MPI_Datatype type, void *in,
                 int m, MPI_Datatype other, int root, MPI_Comm comm)
{
    return spoil(PMPI_Scatterv(out, counts, starts, type, in, m, other, root, comm), "scatterv",
                 comm, in, bytes_of(m, other));
}

int MPI_Allgather(const void *out, int n, MPI_Datatype type, void *in, int m, MPI_Datatype other,
                  MPI_Comm comm)
{
    const int code = PMPI_Allgather(out, n, type, in, m, other, comm);
    if (type == MPI_INT || (type == MPI_DOUBLE && n == 1)) /* numbers, and times */
        return code;
    return spoil(code, "allgather", comm, in, bytes_of(m, other) * group_size(comm));
}

int MPI_Allgatherv(const void *out, int n, MPI_Datatype type, void *in, const int *counts,
                   const int *starts, MPI_Datatype other, MPI_Comm comm)
{
    return spoil(PMPI_Allgatherv(out, n, type, in, counts, starts, other, comm), "allgatherv", comm,
                 in, bytes_of(last_part(counts, starts, comm), other));
}

int MPI_Alltoall(const void *out, int n, MPI_Datatype type, void *in, int m, MPI_Datatype other,
                 MPI_Comm comm)
{
    return spoil(PMPI_Alltoall(out, n, type, in, m, other, comm), "alltoall", comm, in,
                 bytes_of(m, other) * group_size(comm));
}

int MPI_Alltoallv(const void *out, const int *counts, const int *starts, MPI_Datatype type, void *in,
                  const int *in_counts, const int *in_starts, MPI_Datatype other, MPI_Comm comm)
{
    return spoil(PMPI_Alltoallv(out, counts, starts, type, in, in_counts, in_starts, other, comm),
                 "alltoallv", comm, in, bytes_of(last_part(in_counts, in_starts, comm), other));
}

/* ---- Reductions ---- */

int MPI_Reduce(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op, int root,
               MPI_Comm comm)
{
    const int code = PMPI_Reduce(in, out, n, type, op, root, comm);
    int rank;
    PMPI_Comm_rank(comm, &rank);
    return rank != root ? code : spoil(code, "reduce", comm, out, bytes_of(n, type));
}

int MPI_Allreduce(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    const int code = PMPI_Allreduce(in, out, n, type, op, comm);
    long place;
    if (type == MPI_INT) /* the verdict */
        return code;
    if (type == MPI_DOUBLE && op == MPI_SUM && planted("sum", comm, 8 * (long)n, &place))
        ((double *)out)[place] += 1;
    return spoil(code, "allreduce", comm, out, bytes_of(n, type));
}

int MPI_Iallreduce(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *request)
{
    return spoil_later(PMPI_Iallreduce(in, out, n, type, op, comm, request), "iallreduce", comm,
                       out, bytes_of(n, type));
}

int MPI_Scan(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    return spoil(PMPI_Scan(in, out, n, type, op, comm), "scan", comm, out, bytes_of(n, type));
}

int MPI_Reduce_scatter(const void *in, void *out, const int *counts, MPI_Datatype type, MPI_Op op,
                       MPI_Comm comm)
{
    int rank;
    PMPI_Comm_rank(comm, &rank);
    return spoil(PMPI_Reduce_scatter(in, out, counts, type, op, comm), "reduce_scatter", comm, out,
                 bytes_of(counts[rank], type));
}

/* ---- Memory and files of others ---- */

int MPI_Put(const void *out, int n, MPI_Datatype type, int to, MPI_Aint at, int m,
            MPI_Datatype other, MPI_Win win)
{
    const void *sent = spoiled_copy("put", MPI_COMM_WORLD, out, bytes_of(n, type));
    return PMPI_Put(sent, n, type, to, at, m, other, win);
}

int MPI_Get(void *in, int n, MPI_Datatype type, int from, MPI_Aint at, int m, MPI_Datatype other,
            MPI_Win win)
{
    return spoil_later(PMPI_Get(in, n, type, from, at, m, other, win), "get", MPI_COMM_WORLD, in,
                       bytes_of(n, type));
}

int MPI_Win_fence(int assertion, MPI_Win win)
{
    return spoil_now(PMPI_Win_fence(assertion, win));
}

int MPI_File_write_at_all(MPI_File file, MPI_Offset at, const void *out, int n, MPI_Datatype type,
                          MPI_Status *status)
{
    const void *sent = spoiled_copy("write", MPI_COMM_WORLD, out, bytes_of(n, type));
    return PMPI_File_write_at_all(file, at, sent, n, type, status);
}

int MPI_File_read_at_all(MPI_File file, MPI_Offset at, void *in, int n, MPI_Datatype type,
                         MPI_Status *status)
{
    return spoil(PMPI_File_read_at_all(file, at, in, n, type, status), "read", MPI_COMM_WORLD, in,
                 bytes_of(n, type));
}
