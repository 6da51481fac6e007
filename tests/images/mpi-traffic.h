/*
 * Part of mpi.c: messages, and the collectives that move data without computing on them.
 */
static const int MESSAGES[] = {1, 7, 64, 1000, 4096, 65536, 65537, KIB *KIB, LARGEST};
static const int SHARES[] = {1, 1000, 65537, KIB *KIB + 8, LARGEST}; /* of all that a rank gets */
enum {
    N_MESSAGES = sizeof MESSAGES / sizeof *MESSAGES,
    N_SHARES = sizeof SHARES / sizeof *SHARES,
    EXCHANGE = 1000
};

struct type {
    MPI_Datatype type;
    int width; /* bytes of one */
};

enum { N_TYPES = 4 };
static struct type types[N_TYPES];
static unsigned char *outgoing, *incoming; /* each LARGEST bytes, and a guard behind every part */

static void make_types(void)
{
    MPI_Datatype triple;
    MUST(MPI_Type_contiguous(3, MPI_DOUBLE, &triple));
    MUST(MPI_Type_commit(&triple));
    types[0] = (struct type){MPI_BYTE, 1};
    types[1] = (struct type){MPI_INT32_T, 4};
    types[2] = (struct type){MPI_DOUBLE, 8};
    types[3] = (struct type){triple, 24};
}

/* The largest number of bytes up to `bytes` that is made of whole values of a type. */
static int whole(int bytes, const struct type *type)
{
    return bytes / type->width * type->width;
}

/* ---- Point to point ---- */

static void check_status(MPI_Status *status, int source, int tag, int bytes)
{
    int count;
    MUST(MPI_Get_count(status, MPI_BYTE, &count));
    if (status->MPI_SOURCE != source || status->MPI_TAG != tag || count != bytes)
        found("message of %d bytes from rank %d with tag %d: the status says %d bytes from rank "
              "%d with tag %d", bytes, source, tag, count, status->MPI_SOURCE, status->MPI_TAG);
}

/* Around the ring: `to` and `from` are this rank's neighbours. */
static void ring(int to, int from, int bytes, const struct type *type)
{
    const int count = bytes / type->width, tag = 1 + bytes % 1000;
    const unsigned char *expected = stretch(from, rank, bytes);
    MPI_Status status;
    poison(incoming, expected, bytes);
    set_guard(incoming + bytes);
    MUST(MPI_Sendrecv(stretch(rank, to, bytes), count, type->type, to, tag, incoming, count,
                      type->type, from, tag, MPI_COMM_WORLD, &status));
    check_status(&status, from, tag, bytes);
    check(incoming, expected, "message", from, rank, bytes);
    check_guard(incoming + bytes, "message", bytes);
}

/* Every other double of what is sent: as a column of a matrix. */
static void strided(int to, int from, int count)
{
    const int bytes = 8 * count;
    const unsigned char *expected = stretch(from, rank, 2 * bytes);
    MPI_Datatype column;
    MUST(MPI_Type_vector(count, 1, 2, MPI_DOUBLE, &column));
    MUST(MPI_Type_commit(&column));
    set_guard(incoming + bytes);
    MUST(MPI_Sendrecv(stretch(rank, to, 2 * bytes), 1, column, to, 2, incoming, count, MPI_DOUBLE,
                      from, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    MUST(MPI_Type_free(&column));
    for (int i = 0; i < count; i++)
        if (memcmp(incoming + 8 * (size_t)i, expected + 16 * (size_t)i, 8) != 0)
            found("message of a column of %d doubles from rank %d to rank %d: value %d is wrong",
                  count, from, rank, i);
    check_guard(incoming + bytes, "message of a column", bytes);
    messages++;
}

/* Between every two ranks, both ways at once. */
static void everyone(void)
{
    const size_t slot = EXCHANGE + GUARD;
    unsigned char *in = room((size_t)size * slot);
    MPI_Request *requests = room(2 * (size_t)size * sizeof *requests);
    MPI_Status *statuses = room(2 * (size_t)size * sizeof *statuses);
    for (int i = 0; i < size; i++) {
        poison(in + (size_t)i * slot, stretch(i, rank, EXCHANGE), EXCHANGE);
        set_guard(in + (size_t)i * slot + EXCHANGE);
        MUST(MPI_Irecv(in + (size_t)i * slot, EXCHANGE, MPI_BYTE, i, 0, MPI_COMM_WORLD,
                       &requests[2 * i]));
        MUST(MPI_Isend(stretch(rank, i, EXCHANGE), EXCHANGE, MPI_BYTE, i, 0, MPI_COMM_WORLD,
                       &requests[2 * i + 1]));
    }
    MUST(MPI_Waitall(2 * size, requests, statuses));
    for (int i = 0; i < size; i++) {
        check_status(&statuses[2 * i], i, 0, EXCHANGE);
        check(in + (size_t)i * slot, stretch(i, rank, EXCHANGE), "message", i, rank, EXCHANGE);
        check_guard(in + (size_t)i * slot + EXCHANGE, "message", EXCHANGE);
    }
    free(statuses);
    free(requests);
    free(in);
}

static void check_point_to_point(void)
{
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (int i = 0; i < N_MESSAGES; i++)
        for (int t = 0; t < N_TYPES; t++) {
            const int bytes = whole(MESSAGES[i], &types[t]);
            if (bytes == 0 || (t != i % N_TYPES && (bytes > SMALL + 1 || thrifty)))
                continue;
            next_call();
            step("MPI_Sendrecv of %d bytes around the ring", bytes);
            ring(t % 2 == 0 ? right : left, t % 2 == 0 ? left : right, bytes, &types[t]);
        }
    next_call();
    step("MPI_Sendrecv of columns around the ring");
    strided(right, left, 1);
    strided(left, right, 10000);
    next_call();
    step("MPI_Isend and MPI_Irecv between all ranks");
    everyone();
}

/* ---- Collectives that move data ---- */

enum call { BCAST, GATHER, SCATTER, ALLGATHER, ALLTOALL, N_CALLS };

/* How a call moves data: the variants with counts of their own for each part are `varying`. */
struct move {
    const struct group *group;
    const struct type *type;
    enum call call;
    int varying, root, share;
};

/* Where the parts of a buffer lie, in values of the type. */
struct parts {
    int *counts, *starts, bytes;
};

static struct parts in_parts, out_parts;

static const char *name_of(const struct move *move)
{
    static const char *const NAMES[2][N_CALLS] = {
        {"bcast", "gather", "scatter", "allgather", "alltoall"},
        {"bcast", "gatherv", "scatterv", "allgatherv", "alltoallv"}};
    return NAMES[move->varying][move->call];
}

/* What a member of the group gives another in values; of varying parts some are empty. */
static int count_between(const struct move *move, int source, int target)
{
    const int count = move->share / move->type->width;
    const int which = move->call == GATHER || move->call == ALLGATHER ? source
                      : move->call == SCATTER                         ? target
                                                                      : source + target;
    return move->varying ? count * ((which + 1) % 3) / 2 : count;
}

/* What it is; a gathering to all has no target of its own. */
static const unsigned char *given(const struct move *move, int source, int target, int bytes)
{
    const int *members = move->group->members;
    return stretch(members[source], move->call == ALLGATHER ? -1 : members[target], bytes);
}

/* Parts of this rank's with each of `n` others; `to` says whether they are sent. */
static void lay_out(struct parts *parts, const struct move *move, int n, int is_sent)
{
    const int me = move->group->rank, gap = move->varying ? GUARD / move->type->width : 0;
    int at = 0;
    for (int i = 0; i < n; i++) {
        const int other = n == 1 && move->group->size > 1 ? move->root : i;
        parts->counts[i] = is_sent ? count_between(move, me, other) : count_between(move, other, me);
        parts->starts[i] = at;
        at += parts->counts[i] + gap;
    }
    parts->bytes = at * move->type->width;
}

/* What is sent to one rank, or is the same for all, is sent from the store itself. */
static const unsigned char *outgoing_of(const struct move *move, int n)
{
    const int width = move->type->width, me = move->group->rank;
    if (n == 1)
        return given(move, me, move->root, out_parts.counts[0] * width);
    for (int i = 0; i < n; i++) {
        const int bytes = out_parts.counts[i] * width;
        memcpy(outgoing + (size_t)out_parts.starts[i] * (size_t)width, given(move, me, i, bytes),
               (size_t)bytes);
    }
    return outgoing;
}

/* Before the call what comes in is poisoned, after it compared. */
static void look_at_incoming(const struct move *move, int n, int is_after)
{
    const int width = move->type->width;
    for (int i = 0; i < n; i++) {
        const int source = n == 1 && move->group->size > 1 ? move->root : i;
        const int bytes = in_parts.counts[i] * width;
        const unsigned char *expected = given(move, source, move->group->rank, bytes);
        unsigned char *part = incoming + (size_t)in_parts.starts[i] * (size_t)width;
        if (is_after)
            check(part, expected, name_of(move), move->group->members[source], rank, bytes);
        else
            poison(part, expected, bytes);
        if (move->varying || i == n - 1) {
            if (is_after)
                check_guard(part + bytes, name_of(move), bytes);
            else
                set_guard(part + bytes);
        }
    }
}

static void call(const struct move *move, const unsigned char *sent)
{
    const MPI_Datatype type = move->type->type;
    const MPI_Comm comm = move->group->comm;
    int *out = out_parts.counts, *from = out_parts.starts, *in = in_parts.counts,
        *to = in_parts.starts;
    if (!move->varying && move->call == GATHER)
        MUST(MPI_Gather(sent, *out, type, incoming, *in, type, move->root, comm));
    else if (!move->varying && move->call == SCATTER)
        MUST(MPI_Scatter(sent, *out, type, incoming, *in, type, move->root, comm));
    else if (!move->varying && move->call == ALLGATHER)
        MUST(MPI_Allgather(sent, *out, type, incoming, *in, type, comm));
    else if (!move->varying)
        MUST(MPI_Alltoall(sent, *out, type, incoming, *in, type, comm));
    else if (move->call == GATHER)
        MUST(MPI_Gatherv(sent, *out, type, incoming, in, to, type, move->root, comm));
    else if (move->call == SCATTER)
        MUST(MPI_Scatterv(sent, out, from, type, incoming, *in, type, move->root, comm));
    else if (move->call == ALLGATHER)
        MUST(MPI_Allgatherv(sent, *out, type, incoming, in, to, type, comm));
    else
        MUST(MPI_Alltoallv(sent, out, from, type, incoming, in, to, type, comm));
}

static void check_move(const struct move *move)
{
    const struct group *group = move->group;
    const int is_root = group->rank == move->root;
    const int n_out = move->call == ALLTOALL || (move->call == SCATTER && is_root) ? group->size
                      : move->call == SCATTER                                      ? 0
                                                                                   : 1;
    const int n_in = move->call == GATHER ? (is_root ? group->size : 0)
                     : move->call == SCATTER ? 1
                                             : group->size;
    next_call();
    step("MPI_%s of %d bytes from each of %d ranks", name_of(move), move->share, group->size);
    lay_out(&out_parts, move, n_out, 1);
    lay_out(&in_parts, move, n_in, 0);
    look_at_incoming(move, n_in, 0);
    call(move, outgoing_of(move, n_out));
    look_at_incoming(move, n_in, 1);
}

static void broadcast(const struct group *group, int root, int bytes, const struct type *type)
{
    const int source = group->members[root];
    const unsigned char *expected;
    next_call();
    expected = stretch(source, -1, bytes);
    step("MPI_Bcast of %d bytes from rank %d to %d ranks", bytes, source, group->size);
    poison(incoming, expected, bytes);
    set_guard(incoming + bytes);
    if (group->rank == root)
        memcpy(incoming, expected, (size_t)bytes);
    MUST(MPI_Bcast(incoming, bytes / type->width, type->type, root, group->comm));
    check(incoming, expected, "bcast", source, -1, bytes);
    check_guard(incoming + bytes, "bcast", bytes);
}

static void check_bytes(enum call call, int varying, const struct group *group, int root,
                        const struct type *type, int share)
{
    const int most = call == BCAST ? LARGEST : LARGEST / group->size;
    const int bytes = whole(share < most ? share : most, type);
    const struct move move = {group, type, call, varying, root, bytes};
    if (bytes > 0 && call == BCAST)
        broadcast(group, root, bytes, type);
    else if (bytes > 0)
        check_move(&move);
}

/*
 * One call of one size in all groups: with all types if it is small and the group is the world,
 * else with one by turns. The largest is for one group by turns, and so is each where calls are
 * dear: still each call is tried in all groups and with all sizes.
 */
static void check_call(enum call call, int varying, int size_index)
{
    const int share = SHARES[size_index], turn = size_index + 2 * (int)call + varying;
    const int is_small = share <= SMALL + 1, is_dear = thrifty || share == LARGEST;
    for (int g = 0; g < n_groups; g++)
        for (int t = 0; t < N_TYPES; t++) {
            const int is_turn = t == (turn + g) % N_TYPES;
            if ((is_dear && g != turn % n_groups) || (!is_turn && (g > 0 || !is_small || thrifty)))
                continue;
            check_bytes(call, varying, &groups[g], turn % groups[g].size, &types[t], share);
        }
}

static void check_collectives(void)
{
    for (int root = 0; root < size; root += 1 + size / 64) /* of many ranks, some */
        broadcast(&groups[0], root, SMALL, &types[root % (N_TYPES - 1)]);
    for (int i = 0; i < N_SHARES; i++)
        for (int call = 0; call < N_CALLS; call++)
            for (int varying = 0; varying < 1 + (call != BCAST); varying++)
                check_call((enum call)call, varying, i);
}

static void make_buffers(void)
{
    const size_t capacity = LARGEST + ((size_t)size + 1) * GUARD;
    outgoing = room(capacity);
    incoming = room(capacity);
    in_parts.counts = room(4 * (size_t)size * sizeof(int));
    in_parts.starts = in_parts.counts + size;
    out_parts.counts = in_parts.starts + size;
    out_parts.starts = out_parts.counts + size;
    make_types();
}

static void free_buffers(void)
{
    MUST(MPI_Type_free(&types[N_TYPES - 1].type));
    free(in_parts.counts);
    free(incoming);
    free(outgoing);
}
