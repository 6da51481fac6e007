/*
 * Part of mpi.c: collectives that compute, whose results closed forms give.
 *
 * Rank r brings (r+1)·w(i), where w(i) is a whole number from 1 to 1024: sums are exact in every
 * type. `all` is the sum of (r+1) over the ranks that take part.
 */
enum reduction { REDUCE, ALLREDUCE, IALLREDUCE, SCAN, REDUCE_SCATTER, N_REDUCTIONS };
static const char *const REDUCTIONS[] = {"reduce", "allreduce", "iallreduce", "scan",
                                         "reduce_scatter"};

enum operation { SUM_DOUBLE, SUM_INT64, SUM_INT32, SUM_FLOAT, MAX_DOUBLE, BXOR_BYTE, N_OPERATIONS };
static const char *const OPERATIONS[] = {"SUM (double)", "SUM (int64)",  "SUM (int32)",
                                         "SUM (float)",  "MAX (double)", "BXOR (byte)"};
static const int OPERAND[] = {8, 8, 4, 4, 8, 1}; /* bytes */

/* In values; then 1 MiB and 8 MiB in bytes. */
static const int COUNTS[] = {1, 1000, 8192};
static const int LARGE[] = {KIB *KIB + 8, LARGEST};
enum { N_COUNTS = sizeof COUNTS / sizeof *COUNTS, N_LARGE = sizeof LARGE / sizeof *LARGE };

static MPI_Datatype datatype(enum operation operation)
{
    const MPI_Datatype types_of[] = {MPI_DOUBLE, MPI_INT64_T, MPI_INT32_T,
                                     MPI_FLOAT,  MPI_DOUBLE,  MPI_UNSIGNED_CHAR};
    return types_of[operation];
}

static MPI_Op op(enum operation operation)
{
    return operation == MAX_DOUBLE ? MPI_MAX : operation == BXOR_BYTE ? MPI_BXOR : MPI_SUM;
}

static int weight(int i)
{
    return 1 + (int)((uint32_t)i * UINT32_C(2654435761) >> 22);
}

/* The largest comes from another rank for each i. */
static double peak(int r, int i)
{
    return (double)((r + i) % 8) * 2048.0;
}

/* Eight bytes that are the same. */
static uint64_t constant(int r)
{
    return (scrambled((uint64_t)r + 7) & 0xFF) * UINT64_C(0x0101010101010101);
}

/* What the ranks that take part make of it. */
struct combined {
    int all;
    double peaks[8];
    uint64_t key;
};

/* Of the group's first `n` ranks. */
static struct combined combine(const struct group *group, int n)
{
    struct combined result = {0, {0}, 0};
    for (int m = 0; m < n; m++) {
        const int r = group->members[m];
        result.all += r + 1;
        result.key ^= constant(r);
        for (int i = 0; i < 8; i++)
            if (peak(r, i) > result.peaks[i])
                result.peaks[i] = peak(r, i);
    }
    return result;
}

/* Sums that no 32 bits hold, and no float. */
static const int64_t UNIT = INT64_C(1) << 36, PRIME = 1048573;

/* For each type: what a rank brings, and the first of `count` results that is wrong, or `count`. */
#define OF_TYPE(NAME, TYPE, VALUE)                                                                 \
    static void fill_##NAME(void *buffer, const struct combined *c, int count)                     \
    {                                                                                              \
        TYPE *out = buffer;                                                                        \
        for (int i = 0; i < count; i++)                                                            \
            out[i] = VALUE;                                                                        \
    }                                                                                              \
    static int wrong_##NAME(const void *buffer, const struct combined *c, int start, int count,    \
                            double *got, double *expected)                                         \
    {                                                                                              \
        const TYPE *in = buffer;                                                                   \
        for (int i = start; i < start + count; i++) {                                              \
            const TYPE value = VALUE;                                                              \
            if (in[i - start] != value) {                                                          \
                *got = (double)in[i - start];                                                      \
                *expected = (double)value;                                                         \
                return i - start;                                                                  \
            }                                                                                      \
        }                                                                                          \
        return count;                                                                              \
    }
OF_TYPE(double, double, (double)(c->all * weight(i) * PRIME))
OF_TYPE(int64, int64_t, c->all * weight(i) * UNIT)
OF_TYPE(int32, int32_t, c->all * weight(i))
OF_TYPE(float, float, (float)(c->all * weight(i)))
OF_TYPE(peak, double, c->peaks[i % 8] + weight(i))

static uint64_t word_at(const unsigned char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, 8);
    return word;
}

/* A member brings the store with its constant in it, so that the result has all constants. */
static void fill_bytes(unsigned char *buffer, uint64_t key, int count)
{
    for (int i = 0; i < count; i += 8) {
        const uint64_t word = word_at(store + i) ^ key;
        memcpy(buffer + i, &word, 8);
    }
}

/* An even number of members cancel the store out. */
static int wrong_bytes(const unsigned char *in, uint64_t key, int members, int start, int count,
                       double *got, double *expected)
{
    const uint64_t mask = members % 2 ? ~UINT64_C(0) : 0;
    int i = 0;
    while (i + 8 <= count && word_at(in + i) == ((word_at(store + start + i) & mask) ^ key))
        i += 8;
    for (; i < count; i++) {
        const unsigned char value = (store[start + i] & mask) ^ (key & 0xFF);
        if (in[i] != value) {
            *got = in[i];
            *expected = value;
            return i;
        }
    }
    return count;
}

/* What this rank brings, `outgoing`; made once for all counts and groups. */
static void fill_values(enum operation operation)
{
    const int count = (operation == SUM_DOUBLE ? LARGEST : LARGE[0]) / OPERAND[operation];
    struct combined mine = {rank + 1, {0}, constant(rank)};
    for (int i = 0; i < 8; i++)
        mine.peaks[i] = peak(rank, i);
    step("filling buffers");
    switch (operation) {
    case SUM_DOUBLE: fill_double(outgoing, &mine, count); break;
    case SUM_INT64: fill_int64(outgoing, &mine, count); break;
    case SUM_INT32: fill_int32(outgoing, &mine, count); break;
    case SUM_FLOAT: fill_float(outgoing, &mine, count); break;
    case MAX_DOUBLE: fill_peak(outgoing, &mine, count); break;
    default: fill_bytes(outgoing, mine.key, count);
    }
}

/* Compares this rank's result, which is that of the group's first `n` ranks from `start` on. */
static void check_values(enum reduction reduction, enum operation operation,
                         const struct group *group, int n, int start, int count)
{
    const struct combined all = combine(group, n);
    double got = 0, expected = 0;
    int i = count;
    switch (operation) {
    case SUM_DOUBLE: i = wrong_double(incoming, &all, start, count, &got, &expected); break;
    case SUM_INT64: i = wrong_int64(incoming, &all, start, count, &got, &expected); break;
    case SUM_INT32: i = wrong_int32(incoming, &all, start, count, &got, &expected); break;
    case SUM_FLOAT: i = wrong_float(incoming, &all, start, count, &got, &expected); break;
    case MAX_DOUBLE: i = wrong_peak(incoming, &all, start, count, &got, &expected); break;
    default: i = wrong_bytes(incoming, all.key, n, start, count, &got, &expected);
    }
    values += count;
    if (i < count)
        found("%s %s of %d values over %d ranks: value %d is %.17g, expected %.17g",
              REDUCTIONS[reduction], OPERATIONS[operation], count, group->size, i, got, expected);
    check_guard(incoming + (size_t)count * (size_t)OPERAND[operation], REDUCTIONS[reduction],
                count * OPERAND[operation]);
}

/* What each member gets of a scattered result: as much as the others, and the first what is left. */
static int share_of(const struct group *group, int member, int count)
{
    const int each = count / group->size;
    return member == 0 ? count - each * (group->size - 1) : each;
}

static void reduce_scatter(enum operation operation, const struct group *group, int count)
{
    int *shares = room((size_t)group->size * sizeof *shares);
    for (int i = 0; i < group->size; i++)
        shares[i] = share_of(group, i, count);
    MUST(MPI_Reduce_scatter(outgoing, incoming, shares, datatype(operation), op(operation),
                            group->comm));
    free(shares);
}

static void reduce(enum reduction reduction, enum operation operation, const struct group *group,
                   int count)
{
    const MPI_Datatype type = datatype(operation);
    const int root = count % group->size;
    MPI_Request request;
    switch (reduction) {
    case REDUCE:
        MUST(MPI_Reduce(outgoing, incoming, count, type, op(operation), root, group->comm));
        break;
    case ALLREDUCE:
        MUST(MPI_Allreduce(outgoing, incoming, count, type, op(operation), group->comm));
        break;
    case IALLREDUCE:
        MUST(MPI_Iallreduce(outgoing, incoming, count, type, op(operation), group->comm, &request));
        MUST(MPI_Wait(&request, MPI_STATUS_IGNORE));
        break;
    case SCAN:
        MUST(MPI_Scan(outgoing, incoming, count, type, op(operation), group->comm));
        break;
    default:
        reduce_scatter(operation, group, count);
    }
}

static void check_reduction(enum reduction reduction, enum operation operation,
                            const struct group *group, int count)
{
    const int me = group->rank, n = reduction == SCAN ? me + 1 : group->size;
    const int mine = reduction == REDUCE_SCATTER ? share_of(group, me, count) : count;
    const int start = reduction == REDUCE_SCATTER && me > 0
                          ? share_of(group, 0, count) + (me - 1) * mine
                          : 0;
    const int bytes = mine * OPERAND[operation];
    next_call();
    step("MPI_%s %s of %d values over %d ranks", REDUCTIONS[reduction], OPERATIONS[operation],
         count, group->size);
    memset(incoming, 0xA5, (size_t)(bytes < SMALL ? bytes : 0)); /* no result looks so */
    set_guard(incoming + bytes);
    reduce(reduction, operation, group, count);
    if (reduction != REDUCE || me == count % group->size)
        check_values(reduction, operation, group, n, start, mine);
}

/*
 * Each call with doubles of each size in all groups; with other types in one by turns, and if calls
 * are dear so with doubles, too. The largest goes to those three whose algorithms depend on it most.
 */
static int is_chosen(int operation, int reduction, int group, int i)
{
    const int turn = operation + reduction + i, is_turn = group == turn % n_groups;
    if (i == N_COUNTS + N_LARGE - 1)
        return is_turn && operation == SUM_DOUBLE &&
               (reduction == REDUCE || reduction == ALLREDUCE || reduction == REDUCE_SCATTER);
    if (operation == SUM_DOUBLE)
        return is_turn || (i < N_COUNTS && !thrifty);
    return is_turn && (!thrifty || i == (operation + 2 * reduction) % (N_COUNTS + 1));
}

static void check_reductions(void)
{
    for (int o = 0; o < N_OPERATIONS; o++) {
        fill_values((enum operation)o);
        for (int r = 0; r < N_REDUCTIONS; r++)
            for (int g = 0; g < n_groups; g++)
                for (int i = 0; i < N_COUNTS + N_LARGE; i++)
                    if (is_chosen(o, r, g, i))
                        check_reduction((enum reduction)r, (enum operation)o, &groups[g],
                                        i < N_COUNTS ? COUNTS[i] : LARGE[i - N_COUNTS] / OPERAND[o]);
    }
}
