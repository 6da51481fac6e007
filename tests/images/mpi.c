/*
 * mpi [-t SECONDS] RANKS LEVEL [LIBRARY]
 *
 * RANKS processes find each other, and what they send and reduce arrives whole, from 1 byte to
 * 8 MiB, also in groups of 1 to 5 ranks; those of one host share memory. LEVEL is the least thread
 * level that MPI has to grant: single, funneled, serialized or multiple. LIBRARY is how the library
 * has to begin its name, for example "Open MPI v5.0".
 *
 * The number of ranks is an argument because a launcher of another MPI starts RANKS programs that
 * each are "rank 0 of 1", and all of them end well.
 *
 * Exit status: 0 on every rank passed, else failed, on every rank. The last line of standard
 * output is the finding, printed by rank 0; a line `data: {JSON}` stands before it. A rank that is
 * ended says on standard error what it was doing: "rank 2 of 4 was ended during: MPI_Bcast". One that
 * takes more than SECONDS ends itself: "rank 2 of 4 waited too long in: MPI_Bcast". With SECONDS, which
 * launchers of a host give, variables that tell MPI how to talk are theirs: no fallback is a fault.
 */
#define _XOPEN_SOURCE 700

#include <mpi.h>

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 240 };

struct level {
    const char *name;
    int value;
};

static const struct level LEVELS[] = {{"single", MPI_THREAD_SINGLE},
                                      {"funneled", MPI_THREAD_FUNNELED},
                                      {"serialized", MPI_THREAD_SERIALIZED},
                                      {"multiple", MPI_THREAD_MULTIPLE}};
enum { N_LEVELS = sizeof LEVELS / sizeof *LEVELS };

static int rank = -1, size = 0;
static char fault[LINE]; /* the first fault that this rank found, or "" */

/* ---- Faults ---- */

static char who[64] = "a rank", doing[LINE / 2] = "its start"; /* for handlers of signals */

/* Handlers may use no stdio: https://man7.org/linux/man-pages/man7/signal-safety.7.html */
static void say(const char *text)
{
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

static void tell(const char *how)
{
    char line[sizeof who + sizeof doing + 32] = "";
    strcat(line, who);
    strcat(line, how);
    strcat(line, doing);
    strcat(line, "\n");
    say(line);
}

static void on_term(int number)
{
    tell(" was ended during: ");
    _exit(128 + number);
}

/* The launcher ends the others when the first one ends: so that they can say so too, it waits. */
static void on_alarm(int number)
{
    tell(" waited too long in: ");
    sleep(2);
    _exit(128 + number);
}

/* Who this is: what MPI says, and before it says anything what the launcher does. */
static void name_myself(void)
{
    static const char *const NAMES[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    for (int i = 3; i >= 0; i--)
        if (getenv(NAMES[i]) != NULL)
            snprintf(who, sizeof who, "rank %d", atoi(getenv(NAMES[i])));
    if (rank >= 0)
        snprintf(who, sizeof who, "rank %d of %d", rank, size);
}

/* Names the step that follows, so that a rank that hangs says where. */
static void step(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(doing, sizeof doing, format, arguments);
    va_end(arguments);
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
    sleep(1); /* aborting ends the launcher, and with it what it has not passed on yet */
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

#include "mpi-library.h"
#include "mpi-processes.h"
#include "mpi-patterns.h"
#include "mpi-groups.h"
#include "mpi-traffic.h"
#include "mpi-reductions.h"
#include "mpi-node.h"

/* ---- Thread levels ---- */

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
    const struct file file = library_file();
    int version, subversion;
    MUST(MPI_Get_version(&version, &subversion));
    printf("data: {\"ranks\": %d, \"rank_numbers\": [%s], \"hosts\": %d, \"ranks_by_host\": {%s}, "
           "\"thread_level\": \"%s\", \"library\": \"%s\", \"library_file\": \"%s\", "
           "\"library_inode\": %" PRIu64 ", \"transport\": \"%s\", \"within_host\": \"%s\", "
           "\"files\": \"%s\", \"mpi_standard\": \"%d.%d\", \"group_sizes\": [%s], "
           "\"combinations\": \"%s\", \"calls\": %ld, \"messages_per_rank\": %ld, "
           "\"values_per_rank\": %ld, \"seconds\": %.3f}\n",
           size, numbers, hosts, places, level_name(granted), library, file.path, file.inode,
           transport, within_host, files, version, subversion, group_sizes,
           thrifty ? "by turns" : "all", calls, messages, values, seconds);
    if (faults > 1)
        printf("%s (and faults on %d more ranks)\n", text, faults - 1);
    else if (faults == 1)
        printf("%s\n", text);
    else
        printf("%d rank%s on %d host%s: messages and collectives of 1 B to %d MiB are whole, thread "
               "level %s, over %s (%s)\n",
               size, size == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s", LARGEST / KIB / KIB,
               level_name(granted),
               transport[0] == '\0' ? "a transport that it does not tell" : transport, library);
    fflush(stdout);
}

static int wrong_size(int expected)
{
    if (size == 1)
        printf("MPI started singletons: this process is rank 0 of 1, expected %d ranks; launcher "
               "and library do not belong together (%s)\n", expected, library);
    else if (rank == 0)
        printf("MPI started %d ranks, expected %d (%s)\n", size, expected, library);
    fflush(stdout);
    return size != expected;
}

/* What a rank was waiting for when it took too long is then on standard error. */
static void explain(int number, void (*handler)(int))
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    sigaction(number, &action, NULL);
}

static void check_all_calls(int is_launched)
{
    count_cores();
    make_store();
    make_buffers();
    for (int i = 0; i < n_groups; i++)
        check_barrier(&groups[i]);
    check_point_to_point();
    check_collectives();
    check_reductions();
    step("MPI_T, which tells the transport");
    read_components();
    check_node(is_launched);
    free_buffers();
    free(store);
}

static int all_checks(int granted, const struct level *required, const char *wanted_library,
                      int is_launched)
{
    const double start = MPI_Wtime();
    char text[LINE + 32] = "";
    int faults;

    if (check_processes()) {
        check_threads(granted, required);
        if (wanted_library != NULL)
            check_library(wanted_library);
        if (make_groups())
            check_all_calls(is_launched);
        free_groups();
    }
    faults = agree(text);
    if (rank == 0)
        report(faults, text, granted, MPI_Wtime() - start);
    return faults != 0;
}

static int usage(void)
{
    puts("usage: mpi [-t SECONDS] RANKS single|funneled|serialized|multiple [LIBRARY]");
    return 2;
}

int main(int argc, char **argv)
{
    const struct level *required;
    int expected, seconds = 0, granted = -1, failed;

    if (argc > 2 && strcmp(argv[1], "-t") == 0) {
        seconds = atoi(argv[2]);
        argc -= 2;
        argv += 2;
    }
    required = argc < 3 ? NULL : level_named(argv[2]);
    expected = argc < 2 ? 0 : atoi(argv[1]);
    if (expected < 1 || required == NULL || argc > 4)
        return usage();
    name_myself();
    explain(SIGTERM, on_term);
    explain(SIGALRM, on_alarm);
    alarm((unsigned)seconds);
    step("MPI_Init_thread");
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &granted);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MUST(MPI_Comm_size(MPI_COMM_WORLD, &size));
    MUST(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    name_myself();
    read_library();
    failed = size == expected
                 ? all_checks(granted, required, argc == 4 ? argv[3] : NULL, seconds > 0)
                 : wrong_size(expected);
    step("MPI_Finalize");
    MPI_Finalize();
    return failed;
}
