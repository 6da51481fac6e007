/*
 * mpi RANKS LEVEL [LIBRARY]
 *
 * RANKS processes find each other, and what they send and reduce arrives whole. LEVEL is the
 * least thread level that MPI has to grant: single, funneled, serialized or multiple. LIBRARY is
 * how the library has to begin its name, for example "Open MPI v5.0".
 *
 * The number of ranks is an argument because a launcher of another MPI starts RANKS programs that
 * each are "rank 0 of 1", and all of them end well.
 *
 * Exit status: 0 on every rank passed, else failed, on every rank. The last line of standard
 * output is the finding, printed by rank 0; a line `data: {JSON}` stands before it.
 */
#define _XOPEN_SOURCE 700

#include <mpi.h>

#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE = 240, GUARD = 16, LARGEST = 1 << 20, MOST = 65536, EXCHANGE = 1000 };

static const int BYTES[] = {1, 7, 64, 1000, 4096, 65536, 65537, LARGEST};
static const int COUNTS[] = {1, 7, 1000, MOST};
enum { N_BYTES = sizeof BYTES / sizeof *BYTES, N_COUNTS = sizeof COUNTS / sizeof *COUNTS };

struct level {
    const char *name;
    int value;
};

static const struct level LEVELS[] = {{"single", MPI_THREAD_SINGLE},
                                      {"funneled", MPI_THREAD_FUNNELED},
                                      {"serialized", MPI_THREAD_SERIALIZED},
                                      {"multiple", MPI_THREAD_MULTIPLE}};
enum { N_LEVELS = sizeof LEVELS / sizeof *LEVELS };

/* What tells processes apart: the number alone does not if each rank has its own container. */
struct process {
    char host[128];
    uint64_t pid_namespace;
    int64_t pid;
};

static int rank = -1, size = 0;
static char fault[LINE]; /* the first fault that this rank found, or "" */
static long messages, values;
static int hosts;

/* ---- Faults ---- */

static char waiting[LINE] = "before MPI_Init_thread\n"; /* for the handler of SIGTERM */

static void on_term(int number)
{
    ssize_t ignored = write(STDERR_FILENO, waiting, strlen(waiting));
    (void)ignored;
    _exit(128 + number);
}

/* Names the step that follows, so that a rank that is ended while it hangs says where. */
static void step(const char *name)
{
    snprintf(waiting, sizeof waiting, "rank %d of %d was ended during: %s\n", rank, size, name);
}

static void found(const char *format, ...)
{
    va_list arguments;
    if (fault[0] != '\0')
        return;
    va_start(arguments, format);
    vsnprintf(fault, sizeof fault, format, arguments);
    va_end(arguments);
}

static const char *first_line(char *text)
{
    text[strcspn(text, "\r\n")] = '\0';
    return text;
}

/* A call that failed leaves nothing to agree with: say so and end all ranks. */
static void must(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    printf("rank %d of %d: %s: %s\n", rank, size, call, first_line(text));
    fflush(stdout);
    fprintf(stderr, "rank %d of %d: %s: %s\n", rank, size, call, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
}
#define MUST(call) must(call, #call)

static void *room(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL)
        must(MPI_ERR_NO_MEM, "malloc");
    return memory;
}

/* ---- The library ---- */

/* "Open MPI v4.1.4, package: ..." → "Open MPI v4.1.4"; "MPICH Version:  4.2.1" → "MPICH 4.2.1" */
static const char *library(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING + 1];
    static const char WORD[] = " Version:";
    char *word;
    int length;
    MUST(MPI_Get_library_version(text, &length));
    first_line(text);
    text[strcspn(text, ",")] = '\0';
    word = strstr(text, WORD);
    if (word != NULL) {
        const char *rest = word + strlen(WORD);
        rest += strspn(rest, " \t");
        word[0] = ' ';
        memmove(word + 1, rest, strlen(rest) + 1);
    }
    for (char *c = text; *c != '\0'; c++) /* it is printed as JSON */
        if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
            *c = ' ';
    return text;
}

/* "Open MPI v5.0" begins "Open MPI v5.0.7", not "Open MPI v5.01". */
static void check_library(const char *wanted)
{
    const char *name = library();
    size_t length = strlen(wanted);
    if (strncmp(name, wanted, length) != 0 || (name[length] >= '0' && name[length] <= '9'))
        found("the library is %s, expected %s", name, wanted);
}

static const struct level *level_named(const char *name)
{
    for (int i = 0; i < N_LEVELS; i++)
        if (strcmp(LEVELS[i].name, name) == 0)
            return &LEVELS[i];
    return NULL;
}

static const char *level_name(int value)
{
    for (int i = 0; i < N_LEVELS; i++)
        if (LEVELS[i].value == value)
            return LEVELS[i].name;
    return "unknown";
}

static void check_threads(int granted, const struct level *required)
{
    int now;
    MUST(MPI_Query_thread(&now));
    if (granted < required->value)
        found("MPI grants thread level %s, required is %s", level_name(granted), required->name);
    else if (now != granted)
        found("MPI_Init_thread granted thread level %s, MPI_Query_thread says %s",
              level_name(granted), level_name(now));
}

/* ---- Who is there ---- */

static struct process myself(void)
{
    struct process me;
    struct stat status;
    memset(&me, 0, sizeof me);
    gethostname(me.host, sizeof me.host - 1);
    if (stat("/proc/self/ns/pid", &status) == 0)
        me.pid_namespace = status.st_ino;
    me.pid = getpid();
    return me;
}

/*
 * Each rank once, each in a process of its own; if not, all ranks see it, and none goes on to wait
 * for messages that nobody sends. Counts the hosts.
 */
static int check_processes(void)
{
    struct process me = myself();
    struct process *all = room((size_t)size * sizeof me);
    int *ranks = room((size_t)size * sizeof *ranks);

    step("MPI_Allgather of the processes");
    MUST(MPI_Allgather(&rank, 1, MPI_INT, ranks, 1, MPI_INT, MPI_COMM_WORLD));
    MUST(MPI_Allgather(&me, sizeof me, MPI_BYTE, all, sizeof me, MPI_BYTE, MPI_COMM_WORLD));
    for (int i = 0; i < size; i++) {
        int new_host = 1;
        if (ranks[i] != i)
            found("rank %d says that it is rank %d", i, ranks[i]);
        for (int j = 0; j < i; j++) {
            if (memcmp(&all[i], &all[j], sizeof me) == 0)
                found("ranks %d and %d are one process, %ld on %s", j, i, (long)all[i].pid,
                      all[i].host);
            if (strcmp(all[i].host, all[j].host) == 0)
                new_host = 0;
        }
        hosts += new_host;
    }
    free(ranks);
    free(all);
    return fault[0] == '\0';
}

/* ---- Point to point ---- */

/* The byte at an offset of a message: it depends on who sends to whom, and on the size. */
static unsigned char pattern(int source, int target, int bytes, int offset)
{
    uint32_t x = (uint32_t)source * 0x9E3779B1u ^ (uint32_t)target * 0x85EBCA77u ^
                 (uint32_t)bytes * 0xC2B2AE3Du;
    x = (x ^ x >> 15) + (uint32_t)offset * 0x27D4EB2Fu;
    return (unsigned char)(x >> 24 ^ x >> 11);
}

static void fill(unsigned char *buffer, int source, int target, int bytes)
{
    for (int i = 0; i < bytes; i++)
        buffer[i] = pattern(source, target, bytes, i);
}

/* Poison: what is not written stays wrong. */
static void spoil(unsigned char *buffer, int source, int target, int bytes)
{
    for (int i = 0; i < bytes; i++)
        buffer[i] = (unsigned char)~pattern(source, target, bytes, i);
    memset(buffer + bytes, 0x5A, GUARD);
}

static void check_message(const unsigned char *buffer, int source, int target, int bytes)
{
    messages++;
    for (int i = 0; i < bytes; i++) {
        unsigned char expected = pattern(source, target, bytes, i);
        if (buffer[i] != expected) {
            found("message of %d bytes from rank %d to rank %d: byte %d is 0x%02x, expected 0x%02x",
                  bytes, source, target, i, buffer[i], expected);
            return;
        }
    }
    for (int i = 0; i < GUARD; i++)
        if (buffer[bytes + i] != 0x5A) {
            found("message of %d bytes from rank %d to rank %d: written beyond its end", bytes,
                  source, target);
            return;
        }
}

static void check_status(MPI_Status *status, int source, int tag, int bytes)
{
    int count;
    MUST(MPI_Get_count(status, MPI_BYTE, &count));
    if (status->MPI_SOURCE != source || status->MPI_TAG != tag || count != bytes)
        found("message of %d bytes from rank %d with tag %d: the status says %d bytes from rank "
              "%d with tag %d", bytes, source, tag, count, status->MPI_SOURCE, status->MPI_TAG);
}

/* Around the ring: `to` and `from` are this rank's neighbours. */
static void ring(int to, int from, int bytes, unsigned char *out, unsigned char *in)
{
    const int tag = 1 + bytes % 1000;
    MPI_Status status;
    fill(out, rank, to, bytes);
    spoil(in, from, rank, bytes);
    MUST(MPI_Sendrecv(out, bytes, MPI_BYTE, to, tag, in, bytes, MPI_BYTE, from, tag,
                      MPI_COMM_WORLD, &status));
    check_status(&status, from, tag, bytes);
    check_message(in, from, rank, bytes);
}

/* Between every two ranks, both ways at once. */
static void everyone(void)
{
    const size_t slot = EXCHANGE + GUARD;
    unsigned char *out = room((size_t)size * slot), *in = room((size_t)size * slot);
    MPI_Request *requests = room(2 * (size_t)size * sizeof *requests);
    MPI_Status *statuses = room(2 * (size_t)size * sizeof *statuses);
    for (int i = 0; i < size; i++) {
        fill(out + (size_t)i * slot, rank, i, EXCHANGE);
        spoil(in + (size_t)i * slot, i, rank, EXCHANGE);
        MUST(MPI_Irecv(in + (size_t)i * slot, EXCHANGE, MPI_BYTE, i, 0, MPI_COMM_WORLD,
                       &requests[2 * i]));
        MUST(MPI_Isend(out + (size_t)i * slot, EXCHANGE, MPI_BYTE, i, 0, MPI_COMM_WORLD,
                       &requests[2 * i + 1]));
    }
    MUST(MPI_Waitall(2 * size, requests, statuses));
    for (int i = 0; i < size; i++) {
        check_status(&statuses[2 * i], i, 0, EXCHANGE);
        check_message(in + (size_t)i * slot, i, rank, EXCHANGE);
    }
    free(statuses);
    free(requests);
    free(in);
    free(out);
}

static void check_point_to_point(void)
{
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;
    unsigned char *out = room(LARGEST + GUARD), *in = room(LARGEST + GUARD);
    char name[64];
    for (int i = 0; i < N_BYTES; i++) {
        snprintf(name, sizeof name, "MPI_Sendrecv of %d bytes around the ring", BYTES[i]);
        step(name);
        ring(right, left, BYTES[i], out, in);
        ring(left, right, BYTES[i], out, in);
    }
    step("MPI_Isend and MPI_Irecv between all ranks");
    everyone();
    free(in);
    free(out);
}

/* ---- Reductions and other collectives, against closed forms ---- */

/* Sums over the ranks: (r+1)·(i+1)·unit. The doubles are exact, the integers need 64 bits. */
static int64_t unit_sum(int64_t unit, int i)
{
    return (int64_t)size * (size + 1) / 2 * (i + 1) * unit;
}

/* The largest comes from another rank for each i. */
static double for_max(int r, int i)
{
    return -1e6 + (r + i) % size * 1000.0 + i % 1000;
}

static void compare(double got, double expected, const char *what, int count, int i)
{
    values++;
    if (got != expected)
        found("allreduce %s of %d values: value %d is %.17g, expected %.17g", what, count, i, got,
              expected);
}

static void check_double(int count, double *in, double *out)
{
    for (int i = 0; i < count; i++) {
        in[i] = (rank + 1) * (i + 1.0) * 0.25;
        out[i] = -1;
    }
    MUST(MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    for (int i = 0; i < count; i++)
        compare(out[i], (double)unit_sum(1, i) * 0.25, "SUM (double)", count, i);
    for (int i = 0; i < count; i++) {
        in[i] = for_max(rank, i);
        out[i] = 0;
    }
    MUST(MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
    for (int i = 0; i < count; i++)
        compare(out[i], -1e6 + (size - 1) * 1000.0 + i % 1000, "MAX (double)", count, i);
}

static void check_int64(int count, int64_t *in, int64_t *out)
{
    const int64_t unit = INT64_C(1) << 20; /* no sum of 65536 of them fits into 32 bits */
    for (int i = 0; i < count; i++) {
        in[i] = (rank + 1) * (i + 1) * unit + (rank == 0);
        out[i] = -1;
    }
    MUST(MPI_Allreduce(in, out, count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD));
    for (int i = 0; i < count; i++, values++)
        if (out[i] != unit_sum(unit, i) + 1)
            found("allreduce SUM (int64) of %d values: value %d is %lld, expected %lld", count, i,
                  (long long)out[i], (long long)unit_sum(unit, i) + 1);
}

static void check_reductions(void)
{
    void *in = room(MOST * sizeof(double)), *out = room(MOST * sizeof(double));
    char name[64];
    for (int i = 0; i < N_COUNTS; i++) {
        snprintf(name, sizeof name, "MPI_Allreduce of %d values", COUNTS[i]);
        step(name);
        check_double(COUNTS[i], in, out);
        check_int64(COUNTS[i], in, out);
    }
    free(out);
    free(in);
}

static void check_broadcast(void)
{
    unsigned char *buffer = room(MOST + GUARD);
    step("MPI_Bcast from each rank");
    for (int root = 0; root < size; root++) {
        spoil(buffer, root, root, MOST);
        if (rank == root)
            fill(buffer, root, root, MOST);
        MUST(MPI_Bcast(buffer, MOST, MPI_BYTE, root, MPI_COMM_WORLD));
        check_message(buffer, root, root, MOST);
    }
    free(buffer);
}

static void check_all_to_all(void)
{
    int64_t *in = room((size_t)size * EXCHANGE * sizeof *in);
    int64_t *out = room((size_t)size * EXCHANGE * sizeof *out);
    step("MPI_Alltoall");
    for (int i = 0; i < size * EXCHANGE; i++) {
        in[i] = (int64_t)rank * size * EXCHANGE + i;
        out[i] = -1;
    }
    MUST(MPI_Alltoall(in, EXCHANGE, MPI_INT64_T, out, EXCHANGE, MPI_INT64_T, MPI_COMM_WORLD));
    for (int from = 0; from < size; from++)
        for (int i = 0; i < EXCHANGE; i++, values++) {
            int64_t expected = ((int64_t)from * size + rank) * EXCHANGE + i;
            int64_t got = out[from * EXCHANGE + i];
            if (got != expected)
                found("alltoall: value %d from rank %d to rank %d is %lld, expected %lld", i, from,
                      rank, (long long)got, (long long)expected);
        }
    free(out);
    free(in);
}

/* ---- The verdict ---- */

/*
 * All ranks agree, by two ways, for either may be what is broken: a reduction of a flag, and the
 * texts gathered at rank 0 with its verdict broadcast. Returns the number of ranks with a fault;
 * `text` is the first one on rank 0.
 */
static int agree(char text[LINE + 32])
{
    int mine = fault[0] != '\0', any = 0, verdict = 0;
    char *all = room((size_t)size * LINE);

    memset(all, 0, (size_t)size * LINE);
    step("the verdict of all ranks");
    MUST(MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
    MUST(MPI_Gather(fault, LINE, MPI_CHAR, all, LINE, MPI_CHAR, 0, MPI_COMM_WORLD));
    for (int i = 0; i < size && rank == 0; i++) {
        const char *said = all + (size_t)i * LINE;
        if (said[0] != '\0' && verdict++ == 0)
            snprintf(text, LINE + 32, "rank %d: %s", i, said);
    }
    MUST(MPI_Bcast(&verdict, 1, MPI_INT, 0, MPI_COMM_WORLD));
    if (verdict == 0 && (any != 0 || mine))
        snprintf(text, LINE + 32, "the ranks do not agree on whether there was a fault");
    free(all);
    return verdict > 0 ? verdict : any != 0 || mine;
}

static void report(int faults, const char *text, int granted, double seconds)
{
    int version, subversion;
    MUST(MPI_Get_version(&version, &subversion));
    printf("data: {\"ranks\": %d, \"hosts\": %d, \"thread_level\": \"%s\", \"library\": \"%s\", "
           "\"mpi_standard\": \"%d.%d\", \"messages_per_rank\": %ld, \"values_per_rank\": %ld, "
           "\"seconds\": %.3f}\n",
           size, hosts, level_name(granted), library(), version, subversion, messages, values,
           seconds);
    if (faults > 1)
        printf("%s (and faults on %d more ranks)\n", text, faults - 1);
    else if (faults == 1)
        printf("%s\n", text);
    else
        printf("%d ranks on %d host%s: point to point 1 B to 1 MiB, allreduce 1 to %d values, "
               "thread level %s (%s)\n",
               size, hosts, hosts == 1 ? "" : "s", MOST, level_name(granted), library());
    fflush(stdout);
}

static int wrong_size(int expected)
{
    if (size == 1)
        printf("MPI started singletons: this process is rank 0 of 1, expected %d ranks; launcher "
               "and library do not belong together (%s)\n", expected, library());
    else if (rank == 0)
        printf("MPI started %d ranks, expected %d (%s)\n", size, expected, library());
    fflush(stdout);
    return size != expected;
}

/* SIGTERM ends a check that takes too long; what it waited for is then on standard error. */
static void explain_on_term(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_term;
    sigaction(SIGTERM, &action, NULL);
}

static int check(int granted, const struct level *required, const char *wanted_library)
{
    const double start = MPI_Wtime();
    char text[LINE + 32] = "";
    int faults;

    if (check_processes()) {
        check_threads(granted, required);
        if (wanted_library != NULL)
            check_library(wanted_library);
        check_point_to_point();
        check_reductions();
        check_broadcast();
        check_all_to_all();
    }
    faults = agree(text);
    if (rank == 0)
        report(faults, text, granted, MPI_Wtime() - start);
    return faults != 0;
}

int main(int argc, char **argv)
{
    const struct level *required = argc < 3 ? NULL : level_named(argv[2]);
    const int expected = argc < 2 ? 0 : atoi(argv[1]);
    int granted = -1, failed;

    if (expected < 1 || required == NULL || argc > 4) {
        puts("usage: mpi RANKS single|funneled|serialized|multiple [LIBRARY]");
        return 2;
    }
    explain_on_term();
    step("MPI_Init_thread");
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MUST(MPI_Comm_size(MPI_COMM_WORLD, &size));
    MUST(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    failed = size == expected ? check(granted, required, argc == 4 ? argv[3] : NULL)
                              : wrong_size(expected);
    step("MPI_Finalize");
    MPI_Finalize();
    return failed;
}
