/*
 * Part of mpi.c: who is there: each rank once, in a process of its own.
 */
/* What tells processes apart: the number alone does not if each rank has its own container. */
struct process {
    char host[128];
    uint64_t pid_namespace;
    int64_t pid;
};

static int hosts;
static char places[8 * LINE];  /* how many ranks each host has, as JSON */
static char numbers[8 * LINE]; /* the ranks' own numbers, as JSON */

static struct process myself(void)
{
    struct process me;
    struct stat status;
    memset(&me, 0, sizeof me);
    gethostname(me.host, sizeof me.host - 1);
    plain(me.host);
    if (stat("/proc/self/ns/pid", &status) == 0)
        me.pid_namespace = status.st_ino;
    me.pid = getpid();
    return me;
}

/* "n1": 2, "n2": 2; hosts for which there is no room are left out. */
static void add_place(const struct process *all, int first)
{
    char text[sizeof all->host + 32];
    size_t length = strlen(places);
    int count = 0;
    for (int i = first; i < size; i++)
        count += strcmp(all[i].host, all[first].host) == 0;
    snprintf(text, sizeof text, "%s\"%s\": %d", length == 0 ? "" : ", ", all[first].host, count);
    if (length + strlen(text) < sizeof places)
        memcpy(places + length, text, strlen(text) + 1);
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
        add_number(numbers, sizeof numbers, ranks[i]);
        for (int j = 0; j < i; j++) {
            if (memcmp(&all[i], &all[j], sizeof me) == 0)
                found("ranks %d and %d are one process, %ld on %s", j, i, (long)all[i].pid,
                      all[i].host);
            if (strcmp(all[i].host, all[j].host) == 0)
                new_host = 0;
        }
        hosts += new_host;
        if (new_host)
            add_place(all, i);
    }
    free(ranks);
    free(all);
    return fault[0] == '\0';
}
