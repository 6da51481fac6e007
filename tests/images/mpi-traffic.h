/*
 * Part of mpi.c: messages and collectives, whose results are compared with closed forms.
 */
enum { GUARD = 16, KIB = 1024, LARGEST = 16 * KIB * KIB, MOST = 65536, EXCHANGE = 1000 };

static const int MESSAGES[] = {1, 7, 64, 1000, 4096, 65536, 65537, KIB *KIB, LARGEST};
static const int BLOCKS[] = {1, 1000, 65537, LARGEST};
static const int COUNTS[] = {1, 7, 1000, MOST};
enum {
    N_MESSAGES = sizeof MESSAGES / sizeof *MESSAGES,
    N_BLOCKS = sizeof BLOCKS / sizeof *BLOCKS,
    N_COUNTS = sizeof COUNTS / sizeof *COUNTS
};

static long messages, values;

/* ---- Patterns ---- */

/*
 * What a buffer is to hold, 8 bytes at a time, since every byte costs dearly under emulation. A
 * pattern depends on who sends what to whom, and each word of it on where it stands.
 */
struct pattern {
    uint64_t seed, mask, key;
};

static uint64_t scrambled(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static struct pattern pattern(int source, int target, int bytes)
{
    struct pattern made = {scrambled((uint64_t)(source + 1) << 40 ^ (uint64_t)(target + 1) << 20 ^
                                     (uint64_t)bytes << 4),
                           ~UINT64_C(0), 0};
    return made;
}

static uint64_t word_of(struct pattern made, int index)
{
    uint64_t x = made.seed + (uint64_t)index * UINT64_C(0x9E3779B97F4A7C15);
    return ((x ^ x >> 29) & made.mask) ^ made.key;
}

static void fill(unsigned char *buffer, struct pattern made, int bytes)
{
    const int whole = bytes / 8;
    uint64_t word;
    for (int i = 0; i < whole; i++) {
        word = word_of(made, i);
        memcpy(buffer + 8 * i, &word, 8);
    }
    word = word_of(made, whole);
    memcpy(buffer + 8 * whole, &word, (size_t)(bytes % 8));
}

/* Poison: what is not written stays wrong, and what is written beyond the end shows. */
static void spoil(unsigned char *buffer, struct pattern made, int bytes)
{
    made.key = ~made.key;
    if (bytes <= MOST)
        fill(buffer, made, bytes);
    else
        memset(buffer, 0xA5, (size_t)bytes);
    memset(buffer + bytes, 0x5A, GUARD);
}

/* The offset of the first byte that is wrong, or `bytes`. */
static int first_difference(const unsigned char *buffer, struct pattern made, int bytes)
{
    unsigned char expected[8];
    uint64_t word, got;
    int i = 0;
    for (; i < bytes / 8; i++) {
        word = word_of(made, i);
        memcpy(&got, buffer + 8 * i, 8);
        if (got != word)
            break;
    }
    word = word_of(made, i);
    memcpy(expected, &word, 8);
    for (int j = 8 * i; j < bytes && j < 8 * i + 8; j++)
        if (buffer[j] != expected[j % 8])
            return j;
    return bytes;
}

static unsigned char byte_of(struct pattern made, int offset)
{
    unsigned char bytes[8];
    uint64_t word = word_of(made, offset / 8);
    memcpy(bytes, &word, 8);
    return bytes[offset % 8];
}

static const char *party(int whose, char text[32])
{
    if (whose < 0)
        return "all ranks";
    snprintf(text, 32, "rank %d", whose);
    return text;
}

/* Compares a buffer; a negative source or target stands for all ranks. */
static void check(const unsigned char *buffer, struct pattern made, const char *what, int source,
                  int target, int bytes)
{
    const int wrong = first_difference(buffer, made, bytes);
    char from[32], to[32];
    messages++;
    if (wrong < bytes)
        found("%s of %d bytes from %s to %s: byte %d is 0x%02x, expected 0x%02x", what, bytes,
              party(source, from), party(target, to), wrong, buffer[wrong], byte_of(made, wrong));
}

static void check_guard(const unsigned char *end, const char *what, int bytes)
{
    for (int i = 0; i < GUARD; i++)
        if (end[i] != 0x5A)
            found("%s of %d bytes: written beyond its end", what, bytes);
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
static void ring(int to, int from, int bytes, unsigned char *out, unsigned char *in)
{
    const int tag = 1 + bytes % 1000;
    const struct pattern expected = pattern(from, rank, bytes);
    MPI_Status status;
    fill(out, pattern(rank, to, bytes), bytes);
    spoil(in, expected, bytes);
    MUST(MPI_Sendrecv(out, bytes, MPI_BYTE, to, tag, in, bytes, MPI_BYTE, from, tag,
                      MPI_COMM_WORLD, &status));
    check_status(&status, from, tag, bytes);
    check(in, expected, "message", from, rank, bytes);
    check_guard(in + bytes, "message", bytes);
}

/* Between every two ranks, both ways at once. */
static void everyone(void)
{
    const size_t slot = EXCHANGE + GUARD;
    unsigned char *out = room((size_t)size * slot), *in = room((size_t)size * slot);
    MPI_Request *requests = room(2 * (size_t)size * sizeof *requests);
    MPI_Status *statuses = room(2 * (size_t)size * sizeof *statuses);
    for (int i = 0; i < size; i++) {
        fill(out + (size_t)i * slot, pattern(rank, i, EXCHANGE), EXCHANGE);
        spoil(in + (size_t)i * slot, pattern(i, rank, EXCHANGE), EXCHANGE);
        MUST(MPI_Irecv(in + (size_t)i * slot, EXCHANGE, MPI_BYTE, i, 0, MPI_COMM_WORLD,
                       &requests[2 * i]));
        MUST(MPI_Isend(out + (size_t)i * slot, EXCHANGE, MPI_BYTE, i, 0, MPI_COMM_WORLD,
                       &requests[2 * i + 1]));
    }
    MUST(MPI_Waitall(2 * size, requests, statuses));
    for (int i = 0; i < size; i++) {
        check_status(&statuses[2 * i], i, 0, EXCHANGE);
        check(in + (size_t)i * slot, pattern(i, rank, EXCHANGE), "message", i, rank, EXCHANGE);
        check_guard(in + (size_t)i * slot + EXCHANGE, "message", EXCHANGE);
    }
    free(statuses);
    free(requests);
    free(in);
    free(out);
}

static void check_point_to_point(unsigned char *out, unsigned char *in)
{
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (int i = 0; i < N_MESSAGES; i++) {
        step("MPI_Sendrecv of %d bytes around the ring", MESSAGES[i]);
        ring(right, left, MESSAGES[i], out, in);
        if (MESSAGES[i] < LARGEST)
            ring(left, right, MESSAGES[i], out, in);
    }
    step("MPI_Isend and MPI_Irecv between all ranks");
    everyone();
}

/* ---- Collectives on bytes ---- */

static void broadcast(int root, int bytes, unsigned char *buffer)
{
    const struct pattern expected = pattern(root, -1, bytes);
    step("MPI_Bcast of %d bytes from rank %d", bytes, root);
    spoil(buffer, expected, bytes);
    if (rank == root)
        fill(buffer, expected, bytes);
    MUST(MPI_Bcast(buffer, bytes, MPI_BYTE, root, MPI_COMM_WORLD));
    check(buffer, expected, "bcast", root, -1, bytes);
    check_guard(buffer + bytes, "bcast", bytes);
}

/*
 * One rank gives a pattern, the others a constant each; the exclusive or of all is the pattern with
 * all constants in it. `target` is the rank that has the result, or -1 for all of them.
 */
static void exclusive_or(int target, int bytes, unsigned char *out, unsigned char *in)
{
    const char *what = target < 0 ? "allreduce BXOR" : "reduce BXOR";
    struct pattern mine = pattern(0, target, bytes), expected = mine;
    if (rank != 0)
        mine.mask = 0;
    mine.key = scrambled((uint64_t)rank);
    for (int i = 0; i < size; i++)
        expected.key ^= scrambled((uint64_t)i);
    fill(out, mine, bytes);
    spoil(in, expected, bytes);
    if (target < 0) {
        step("MPI_Allreduce of %d bytes", bytes);
        MUST(MPI_Allreduce(out, in, bytes, MPI_UNSIGNED_CHAR, MPI_BXOR, MPI_COMM_WORLD));
    } else {
        step("MPI_Reduce of %d bytes to rank %d", bytes, target);
        MUST(MPI_Reduce(out, in, bytes, MPI_UNSIGNED_CHAR, MPI_BXOR, target, MPI_COMM_WORLD));
    }
    if (target < 0 || rank == target) {
        check(in, expected, what, -1, target, bytes);
        check_guard(in + bytes, what, bytes);
    }
}

static void gather_to_all(int bytes, unsigned char *out, unsigned char *in)
{
    step("MPI_Allgather of %d bytes from each rank", bytes);
    fill(out, pattern(rank, -1, bytes), bytes);
    memset(in, 0xA5, (size_t)size * (size_t)bytes);
    memset(in + (size_t)size * (size_t)bytes, 0x5A, GUARD);
    MUST(MPI_Allgather(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD));
    for (int i = 0; i < size; i++)
        check(in + (size_t)i * (size_t)bytes, pattern(i, -1, bytes), "allgather", i, rank, bytes);
    check_guard(in + (size_t)size * (size_t)bytes, "allgather", bytes);
}

static void all_to_all(int bytes, unsigned char *out, unsigned char *in)
{
    step("MPI_Alltoall of %d bytes between each two ranks", bytes);
    for (int i = 0; i < size; i++)
        fill(out + (size_t)i * (size_t)bytes, pattern(rank, i, bytes), bytes);
    memset(in, 0xA5, (size_t)size * (size_t)bytes);
    memset(in + (size_t)size * (size_t)bytes, 0x5A, GUARD);
    MUST(MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD));
    for (int i = 0; i < size; i++)
        check(in + (size_t)i * (size_t)bytes, pattern(i, rank, bytes), "alltoall", i, rank, bytes);
    check_guard(in + (size_t)size * (size_t)bytes, "alltoall", bytes);
}

/* Each size once; what all ranks together give one of them is at most LARGEST bytes. */
static void check_collectives(unsigned char *out, unsigned char *in)
{
    const int last = size - 1, share = LARGEST / size;
    for (int root = 0; root < size; root += 1 + size / 64) /* of many ranks, some */
        broadcast(root, MOST, in);
    for (int i = 0; i < N_BLOCKS; i++) {
        broadcast(last, BLOCKS[i], in);
        exclusive_or(-1, BLOCKS[i], out, in);
        exclusive_or(last, BLOCKS[i], out, in);
        if (BLOCKS[i] < share || i == N_BLOCKS - 1) {
            gather_to_all(BLOCKS[i] < share ? BLOCKS[i] : share, out, in);
            all_to_all(BLOCKS[i] < share ? BLOCKS[i] : share, out, in);
        }
    }
}

/* ---- Sums and largest values ---- */

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

static void check_reductions(void *in, void *out)
{
    for (int i = 0; i < N_COUNTS; i++) {
        step("MPI_Allreduce of %d values", COUNTS[i]);
        check_double(COUNTS[i], in, out);
        check_int64(COUNTS[i], in, out);
    }
}

static void check_traffic(void)
{
    unsigned char *out = room(LARGEST + GUARD), *in = room(LARGEST + GUARD);
    check_point_to_point(out, in);
    check_reductions(out, in);
    check_collectives(out, in);
    free(in);
    free(out);
}
