/*
 * Part of mpi.c: what buffers are to hold, and whether they do.
 *
 * What is sent is a stretch of one store of bytes that look random, so that nothing is made for a
 * message: every byte costs dearly under emulation. Which stretch, depends on who sends how much to
 * whom in which call: a message that ends up elsewhere is wrong, as is one that does not arrive,
 * since the buffer then still holds what another call left there.
 */
enum { GUARD = 48, KIB = 1024, LARGEST = 8 * KIB * KIB, SMALL = 64 * KIB, OFFSETS = 4096 };

static unsigned char *store;
static long messages, values, calls;

static uint64_t scrambled(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static void make_store(void)
{
    const int words = LARGEST / 8 + OFFSETS;
    store = room(8 * (size_t)words);
    for (int i = 0; i < words; i++) {
        const uint64_t word = scrambled((uint64_t)i + 1);
        memcpy(store + 8 * (size_t)i, &word, 8);
    }
}

/* Each rank comes here as often as the others, before what it is going to do. */
static void next_call(void)
{
    calls++;
}

/* What a rank sends to another; a negative target stands for all ranks. */
static const unsigned char *stretch(int source, int target, int bytes)
{
    const uint64_t key = (uint64_t)(source + 1) << 40 ^ (uint64_t)(target + 1) << 20 ^
                         (uint64_t)bytes << 2 ^ (uint64_t)calls << 48;
    return store + 8 * (scrambled(key) % OFFSETS);
}

/* What is not written stays wrong: in small buffers every byte. */
static void poison(unsigned char *buffer, const unsigned char *expected, int bytes)
{
    for (int i = 0; i < bytes && bytes <= 4 * KIB; i++)
        buffer[i] = (unsigned char)~expected[i];
}

/* What is written beyond the end of a buffer shows. */
static void set_guard(unsigned char *end)
{
    memset(end, 0x5A, GUARD);
}

static void check_guard(const unsigned char *end, const char *what, int bytes)
{
    for (int i = 0; i < GUARD; i++)
        if (end[i] != 0x5A)
            found("%s of %d bytes: written beyond its end", what, bytes);
}

static const char *party(int whose, char text[32])
{
    if (whose < 0)
        return "all ranks";
    snprintf(text, 32, "rank %d", whose);
    return text;
}

/* Compares a buffer; a negative target stands for all ranks. */
static void check(const unsigned char *buffer, const unsigned char *expected, const char *what,
                  int source, int target, int bytes)
{
    char from[32], to[32];
    int i = 0;
    messages++;
    if (memcmp(buffer, expected, (size_t)bytes) == 0)
        return;
    while (buffer[i] == expected[i])
        i++;
    found("%s of %d bytes from %s to %s: byte %d is 0x%02x, expected 0x%02x", what, bytes,
          party(source, from), party(target, to), i, buffer[i], expected[i]);
}
