/*
 * Part of architecture.c: what the header of an ELF file says, and whether the file is cut off. No
 * program need be linked to it for that: what is opened by its name, as plugins are, nothing else finds.
 */
enum { HEADER = 64 };

struct elf {
    int bits;       /* 32 or 64; 0 if the header says neither */
    int endian;     /* 1 little, 2 big; 0 if the header says neither */
    int machine;
    unsigned flags;
};

/* ---- The header ---- */

static unsigned number(const unsigned char *bytes, int n, int endian)
{
    unsigned value = 0;
    for (int i = 0; i < n; i++)
        value = value << 8 | bytes[endian == 2 ? i : n - 1 - i];
    return value;
}

static struct elf decode(const unsigned char header[HEADER])
{
    struct elf elf;
    elf.bits = header[4] == 1 ? 32 : header[4] == 2 ? 64 : 0;
    elf.endian = header[5] == 1 || header[5] == 2 ? header[5] : 0;
    elf.machine = (int)number(header + 18, 2, elf.endian);
    elf.flags = number(header + (elf.bits == 32 ? 36 : 48), 4, elf.endian);
    return elf;
}

/* ---- Files that are cut off ---- */

/* A table of a file, or NULL if the file ends before it does; what is there has to be freed. */
static unsigned char *table_of(int file, uint64_t offset, uint64_t length, uint64_t size)
{
    unsigned char *table;
    if (length == 0 || !fits(offset, length, size))
        return NULL;
    table = checked(malloc(length));
    if (pread(file, table, length, (off_t)offset) == (ssize_t)length)
        return table;
    free(table);
    return NULL;
}

/* Debug information apart from its program: the code is named (SHT_NOBITS), and is not there. */
static int is_debug_information(const unsigned char *header, int file, uint64_t size)
{
    enum { NOBITS = 8, EXECUTABLE = 4 };
    const uint64_t n = at(header + 60, 2);
    unsigned char *table = table_of(file, at(header + 40, 8), n * SECTION, size);
    int is_without_code = 0;
    for (uint64_t i = 0; table != NULL && i < n; i++) {
        const unsigned char *section = table + i * SECTION;
        if (at(section + 4, 4) == NOBITS && (at(section + 8, 8) & EXECUTABLE))
            is_without_code = 1;
    }
    free(table);
    return is_without_code;
}

/* Objects and modules of the kernel have sections alone. */
static int is_cut_off(const unsigned char *header, int file, uint64_t size)
{
    const int n = (int)at(header + 56, 2);
    unsigned char *table = table_of(file, at(header + 32, 8), (uint64_t)n * SEGMENT, size);
    const int has_segments = n == 0 || (table != NULL && segments_fit(table, n, size));
    free(table);
    return !sections_fit(header, size) ||
           (!has_segments && !is_debug_information(header, file, size));
}
