/*
 * Whether a 64-bit little-endian ELF file is whole: one that broke off while it was copied still has
 * its header, and names what lies beyond the end.
 */
enum { SEGMENT = 56, SECTION = 64 }; /* bytes of an entry of the two tables */

static uint64_t at(const unsigned char *bytes, int width)
{
    uint64_t value = 0;
    for (int i = width - 1; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

static int fits(uint64_t offset, uint64_t length, uint64_t size)
{
    return offset <= size && size - offset >= length;
}

/* Whether the file has what each program header names, but for those of type PT_NULL. */
static int segments_fit(const unsigned char *table, int n, uint64_t size)
{
    for (int i = 0; i < n; i++) {
        const unsigned char *h = table + (size_t)i * SEGMENT;
        if (at(h, 4) != 0 && !fits(at(h + 8, 8), at(h + 32, 8), size))
            return 0;
    }
    return 1;
}

/* Whether the file has its table of sections, which linkers write last. */
static int sections_fit(const unsigned char *header, uint64_t size)
{
    const uint64_t table = at(header + 40, 8);
    return table == 0 || fits(table, at(header + 58, 2) * at(header + 60, 2), size);
}
