/*
 * What programs and libraries say of themselves: 64-bit little-endian ELF files, as the loader reads
 * them. https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html, and for hashes and versions
 * https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
 */
enum {
    ET_EXEC_ = 2,
    PT_LOAD_ = 1, PT_DYNAMIC_ = 2, PT_INTERP_ = 3, PT_NOTE_ = 4,
    DT_NEEDED_ = 1, DT_HASH_ = 4, DT_STRTAB_ = 5, DT_SYMTAB_ = 6, DT_STRSZ_ = 10, DT_SONAME_ = 14,
    DT_RPATH_ = 15, DT_RUNPATH_ = 29,
    MOST_NEEDED = 512
};
static const uint64_t DT_GNU_HASH_ = 0x6ffffef5, DT_VERSYM_ = 0x6ffffff0, DT_FLAGS_1_ = 0x6ffffffb,
                      DT_VERDEF_ = 0x6ffffffc, DT_VERNEED_ = 0x6ffffffe, DF_1_PIE_ = 0x08000000;

/* What a file is for: started, found by the loader, or loaded by a program that knows where it is. */
enum kind { UNKNOWN, PROGRAM, LIBRARY, PLUGIN };

struct object {
    const char *path;
    enum kind kind;
    dev_t device;
    ino_t inode;
    const unsigned char *data;
    size_t size;
    int type, machine, system;
    const char *interpreter, *soname, *rpath, *runpath; /* NULL where there is none */
    const char *needed[MOST_NEEDED];
    int n_needed, is_pie, is_dynamic;
    const unsigned char *strings, *symbols;
    size_t strings_size;
    uint32_t n_symbols;
    const unsigned char *hash, *gnu_hash, *verdef, *verneed;
    const char *fault; /* why it cannot be loaded, or NULL */
    int is_private; /* others than its owner and its group may not read it */
    int is_judged, is_told, is_lacking;
};

/* ---- Places ---- */

static const unsigned char *header_of(const struct object *o, int i)
{
    return o->data + at(o->data + 32, 8) + (size_t)i * SEGMENT;
}

static int n_headers(const struct object *o)
{
    return (int)at(o->data + 56, 2);
}

/* What is loaded at an address, if `size` bytes of it are in the file. */
static const unsigned char *loaded_at(const struct object *o, uint64_t address, size_t size)
{
    for (int i = 0; i < n_headers(o); i++) {
        const unsigned char *h = header_of(o, i);
        const uint64_t offset = at(h + 8, 8), start = at(h + 16, 8), length = at(h + 32, 8);
        if (at(h, 4) == PT_LOAD_ && address >= start && address - start < length &&
            length - (address - start) >= size)
            return o->data + offset + (address - start);
    }
    return NULL;
}

static const char *string_at(const struct object *o, uint64_t offset)
{
    if (o->strings == NULL || offset >= o->strings_size ||
        memchr(o->strings + offset, 0, o->strings_size - offset) == NULL)
        return "";
    return (const char *)o->strings + offset;
}

static int is_whole(const struct object *o)
{
    const uint64_t table = at(o->data + 32, 8);
    return fits(table, (uint64_t)n_headers(o) * SEGMENT, o->size) &&
           segments_fit(o->data + table, n_headers(o), o->size) && sections_fit(o->data, o->size);
}

/* ---- The dynamic section ---- */

static void read_entry(struct object *o, uint64_t tag, uint64_t value)
{
    if (tag == DT_STRTAB_)
        o->strings = loaded_at(o, value, o->strings_size);
    else if (tag == DT_SYMTAB_)
        o->symbols = loaded_at(o, value, 24);
    else if (tag == DT_HASH_)
        o->hash = loaded_at(o, value, 8);
    else if (tag == DT_GNU_HASH_)
        o->gnu_hash = loaded_at(o, value, 16);
    else if (tag == DT_VERDEF_)
        o->verdef = loaded_at(o, value, 20);
    else if (tag == DT_VERNEED_)
        o->verneed = loaded_at(o, value, 16);
    else if (tag == DT_FLAGS_1_)
        o->is_pie = (value & DF_1_PIE_) != 0;
}

static void read_name(struct object *o, uint64_t tag, uint64_t value)
{
    if (tag == DT_NEEDED_ && o->n_needed < MOST_NEEDED)
        o->needed[o->n_needed++] = string_at(o, value);
    else if (tag == DT_SONAME_)
        o->soname = string_at(o, value);
    else if (tag == DT_RPATH_)
        o->rpath = string_at(o, value);
    else if (tag == DT_RUNPATH_)
        o->runpath = string_at(o, value);
}

/* The last symbol of the chains of a GNU hash table is the last of all. */
static uint32_t count_by_gnu_hash(const struct object *o)
{
    const unsigned char *table = o->gnu_hash, *end = o->data + o->size;
    const uint32_t n_buckets = (uint32_t)at(table, 4), first = (uint32_t)at(table + 4, 4);
    const unsigned char *buckets = table + 16 + at(table + 8, 4) * 8, *chains;
    uint32_t last = 0;
    if (buckets > end || (size_t)(end - buckets) / 4 < n_buckets)
        return 0;
    chains = buckets + (size_t)n_buckets * 4;
    for (uint32_t i = 0; i < n_buckets; i++)
        if ((uint32_t)at(buckets + (size_t)i * 4, 4) > last)
            last = (uint32_t)at(buckets + (size_t)i * 4, 4);
    if (last < first)
        return first;
    while ((size_t)(end - chains) / 4 > last - first &&
           !(at(chains + (size_t)(last - first) * 4, 4) & 1))
        last++;
    return last + 1;
}

static void read_dynamic(struct object *o, const unsigned char *section, size_t length)
{
    for (size_t i = 0; i + 16 <= length; i += 16) /* first, since others are names in it */
        if (at(section + i, 8) == DT_STRSZ_)
            o->strings_size = at(section + i + 8, 8);
    for (size_t i = 0; i + 16 <= length && at(section + i, 8) != 0; i += 16)
        read_entry(o, at(section + i, 8), at(section + i + 8, 8));
    for (size_t i = 0; i + 16 <= length && at(section + i, 8) != 0; i += 16)
        read_name(o, at(section + i, 8), at(section + i + 8, 8));
    o->n_symbols = o->hash != NULL       ? (uint32_t)at(o->hash + 4, 4)
                   : o->gnu_hash != NULL ? count_by_gnu_hash(o)
                                         : 0;
    if (o->symbols == NULL || (size_t)(o->data + o->size - o->symbols) / 24 < o->n_symbols)
        o->n_symbols = 0;
}

static void read_headers(struct object *o)
{
    for (int i = 0; i < n_headers(o); i++) {
        const unsigned char *h = header_of(o, i);
        const unsigned char *content = o->data + at(h + 8, 8);
        const size_t length = at(h + 32, 8);
        if (at(h, 4) == PT_INTERP_ && length > 0 && content[length - 1] == '\0')
            o->interpreter = (const char *)content;
        if (at(h, 4) == PT_DYNAMIC_) {
            o->is_dynamic = 1;
            read_dynamic(o, content, length);
        }
    }
}

/* ---- Symbols ---- */

static const unsigned char *symbol(const struct object *o, uint32_t i)
{
    return o->symbols + (size_t)i * 24;
}

static const char *symbol_name(const struct object *o, uint32_t i)
{
    return string_at(o, at(symbol(o, i), 4));
}

static int is_defined(const struct object *o, uint32_t i)
{
    return at(symbol(o, i) + 6, 2) != 0;
}

/* One that has to be found elsewhere: neither weak nor local. */
static int is_wanted(const struct object *o, uint32_t i)
{
    return !is_defined(o, i) && symbol(o, i)[4] >> 4 == 1 && symbol_name(o, i)[0] != '\0';
}

static uint32_t gnu_hash(const char *name)
{
    uint32_t h = 5381;
    for (; *name != '\0'; name++)
        h = h * 33 + (unsigned char)*name;
    return h;
}

static uint32_t sysv_hash(const char *name)
{
    uint32_t h = 0, high;
    for (; *name != '\0'; name++) {
        h = (h << 4) + (unsigned char)*name;
        high = h & 0xf0000000;
        h = (h ^ high >> 24) & ~high;
    }
    return h;
}

static int is_named(const struct object *o, uint32_t i, const char *name)
{
    return i < o->n_symbols && is_defined(o, i) && strcmp(symbol_name(o, i), name) == 0;
}

static int defines_by_gnu_hash(const struct object *o, const char *name, uint32_t hash)
{
    const unsigned char *table = o->gnu_hash, *bloom = table + 16;
    const uint32_t n_buckets = (uint32_t)at(table, 4), first = (uint32_t)at(table + 4, 4);
    const uint32_t words = (uint32_t)at(table + 8, 4), shift = (uint32_t)at(table + 12, 4);
    const unsigned char *buckets = bloom + (size_t)words * 8, *chains = buckets + (size_t)n_buckets * 4;
    uint64_t word;
    if (n_buckets == 0 || words == 0 || chains > o->data + o->size)
        return 0;
    word = at(bloom + (size_t)(hash / 64 % words) * 8, 8);
    if (!(word >> hash % 64 & word >> (hash >> shift) % 64 & 1))
        return 0;
    for (uint32_t i = (uint32_t)at(buckets + (size_t)(hash % n_buckets) * 4, 4);
         i >= first && i < o->n_symbols; i++) {
        const uint32_t chain = (uint32_t)at(chains + (size_t)(i - first) * 4, 4);
        if ((chain | 1) == (hash | 1) && is_named(o, i, name))
            return 1;
        if (chain & 1)
            break;
    }
    return 0;
}

static int defines_by_hash(const struct object *o, const char *name)
{
    const uint32_t n_buckets = (uint32_t)at(o->hash, 4), n_chains = (uint32_t)at(o->hash + 4, 4);
    const unsigned char *buckets = o->hash + 8, *chains = buckets + (size_t)n_buckets * 4;
    uint32_t i, steps = 0;
    if (n_buckets == 0 || chains + (size_t)n_chains * 4 > o->data + o->size)
        return 0;
    i = (uint32_t)at(buckets + (size_t)(sysv_hash(name) % n_buckets) * 4, 4);
    for (; i != 0 && i < n_chains && steps++ < n_chains; i = (uint32_t)at(chains + (size_t)i * 4, 4))
        if (is_named(o, i, name))
            return 1;
    return 0;
}

static int defines(const struct object *o, const char *name, uint32_t hash)
{
    if (o->n_symbols == 0)
        return 0;
    return o->gnu_hash != NULL ? defines_by_gnu_hash(o, name, hash)
           : o->hash != NULL   ? defines_by_hash(o, name)
                               : 0;
}

/* ---- Versions ---- */

/* Whether a library has a version; one without any versions is taken as having them all. */
static int has_version(const struct object *o, const char *name)
{
    const unsigned char *def = o->verdef;
    while (def != NULL && def + 20 <= o->data + o->size) {
        const unsigned char *aux = def + at(def + 12, 4);
        if (aux + 8 <= o->data + o->size && strcmp(string_at(o, at(aux, 4)), name) == 0)
            return 1;
        if (at(def + 16, 4) == 0)
            return 0;
        def += at(def + 16, 4);
    }
    return 1;
}

/* ---- Reading ---- */

static int read_object(struct object *o, int file)
{
    struct stat status;
    void *memory;
    if (fstat(file, &status) != 0 || status.st_size < 64)
        return 0;
    o->size = (size_t)status.st_size;
    memory = mmap(NULL, o->size, PROT_READ, MAP_PRIVATE, file, 0);
    if (memory == MAP_FAILED)
        return 0;
    o->data = memory;
    if (memcmp(o->data, "\177ELF\2\1", 6) != 0) {
        munmap(memory, o->size);
        return 0;
    }
    o->system = o->data[7];
    o->type = (int)at(o->data + 16, 2);
    o->machine = (int)at(o->data + 18, 2);
    if (!is_whole(o))
        o->fault = "is cut off";
    else
        read_headers(o);
    return 1;
}
