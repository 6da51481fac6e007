/*
 * Part of mpi.c: communicators of 1 to 5 ranks, since the algorithm depends on their number: what
 * is right with 4 may be wrong with 3.
 */
enum { MOST_GROUPS = 5, COUNTED = 5 };

struct group {
    MPI_Comm comm;
    int size, rank; /* in this communicator */
    int *members;   /* the ranks in MPI_COMM_WORLD */
};

static struct group groups[MOST_GROUPS];
static int n_groups;
static char group_sizes[LINE]; /* as JSON */
static int thrifty; /* whether calls are dear, so that fewer are made */

/* Whether splitting the world into groups of `width` gives a number of ranks that is not seen yet. */
static int is_new(int width, int seen[COUNTED + 1])
{
    const int last = size % width;
    int new = width <= COUNTED && !seen[width];
    if (last > 0 && last <= COUNTED && !seen[last])
        new = seen[last] = 1;
    if (new)
        seen[width] = 1;
    return new;
}

/* Groups of `width` neighbours, the last rank first if `reversed`. */
static void add_group(int width, int reversed)
{
    struct group *group = &groups[n_groups++];
    const int first = rank / width * width;
    const int count = first + width <= size ? width : size - first;
    const int mine = reversed ? first + count - 1 - rank : rank - first;

    group->members = room((size_t)count * sizeof *group->members);
    for (int i = 0; i < count; i++)
        group->members[i] = reversed ? first + count - 1 - i : first + i;
    step("MPI_Comm_split into groups of %d ranks", width);
    MUST(MPI_Comm_split(MPI_COMM_WORLD, first, reversed ? -rank : rank, &group->comm));
    MUST(MPI_Comm_set_errhandler(group->comm, MPI_ERRORS_RETURN));
    MUST(MPI_Comm_size(group->comm, &group->size));
    MUST(MPI_Comm_rank(group->comm, &group->rank));
    if (group->size != count || group->rank != mine)
        found("MPI_Comm_split: rank %d of %d in its group, expected rank %d of %d", group->rank,
              group->size, mine, count);
}

/* Returns whether all ranks have their groups: else none goes on to wait for the others. */
static int make_groups(void)
{
    static const int WIDTHS[] = {3, 4, 2, 5};
    int seen[COUNTED + 1] = {0}, wrong = 0, any = 0;

    if (size <= COUNTED)
        seen[size] = 1;
    add_group(size, 0);
    for (int i = 0; i < 4; i++)
        if (WIDTHS[i] < size && is_new(WIDTHS[i], seen))
            add_group(WIDTHS[i], i % 2 == 0);
    for (int i = 1; i <= COUNTED; i++)
        if (seen[i])
            add_number(group_sizes, sizeof group_sizes, i);
    wrong = fault[0] != '\0';
    MUST(MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
    return !any;
}

static void free_groups(void)
{
    for (int i = 0; i < n_groups; i++) {
        MPI_Comm_free(&groups[i].comm);
        free(groups[i].members);
    }
}

/*
 * With more ranks than cores each call takes as long as the kernel lets one of them wait in vain.
 * Then combinations of call, size and type are tried by turns.
 */
static void count_cores(void)
{
    const int mine = sysconf(_SC_NPROCESSORS_ONLN) < size / hosts;
    MUST(MPI_Allreduce(&mine, &thrifty, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
}

/* ---- Barriers ---- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* No rank leaves before the last one has entered: by the clock, which the ranks of a host share. */
static void check_barrier(const struct group *group)
{
    const int late = group->size - 1;
    const struct timespec pause = {0, 10000000};
    double entered, left, *all = room((size_t)group->size * sizeof *all);

    step("MPI_Barrier of %d ranks", group->size);
    if (group->rank == late)
        nanosleep(&pause, NULL);
    entered = now();
    MUST(MPI_Barrier(group->comm));
    left = now();
    MUST(MPI_Allgather(&entered, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, group->comm));
    if (hosts == 1 && left < all[late])
        found("barrier of %d ranks: rank %d left it %.3f ms before rank %d came", group->size,
              rank, (all[late] - left) * 1e3, group->members[late]);
    messages++;
    free(all);
}
