/*
 * Which GPUs a program has code for: the containers in its section .nv_fatbin, as cuobjdump reads
 * them. For C and C++, 64-bit ELF files of this machine's byte order.
 */
#ifndef CUDA_CODE_H
#define CUDA_CODE_H

#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUDA_MOST = 64, CUDA_PTX = 1, CUDA_MACHINE_CODE = 2, CUDA_ALIGNMENT = 8 };
#define CUDA_MAGIC UINT32_C(0xBA55ED50)

/* Compute capabilities as numbers (70), ascending, each once. */
struct cuda_set {
    unsigned values[CUDA_MOST];
    int count;
};
struct cuda_code {
    struct cuda_set code, ptx;
};

struct cuda_container {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
};
struct cuda_entry {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t size;
    uint32_t compressed_size, options;
    uint16_t minor, major;
    uint32_t capability;
};

struct cuda_bytes {
    const char *data;
    uint64_t size;
};

static inline void cuda_insert(struct cuda_set *set, unsigned value)
{
    int i = 0;
    while (i < set->count && set->values[i] < value)
        i++;
    if (set->count == CUDA_MOST || (i < set->count && set->values[i] == value))
        return;
    memmove(&set->values[i + 1], &set->values[i], (size_t)(set->count - i) * sizeof value);
    set->values[i] = value;
    set->count++;
}

static inline int cuda_same(const struct cuda_set *a, const struct cuda_set *b)
{
    return a->count == b->count &&
           memcmp(a->values, b->values, (size_t)a->count * sizeof *a->values) == 0;
}

/* "70 80", or "nothing". */
static inline void cuda_list(const struct cuda_set *set, char *text, size_t length)
{
    size_t at = 0;
    snprintf(text, length, "nothing");
    for (int i = 0; i < set->count && at < length; i++)
        at += (size_t)snprintf(text + at, length - at, "%s%u", i == 0 ? "" : " ", set->values[i]);
}

static inline int cuda_at(struct cuda_bytes bytes, uint64_t offset, void *value, size_t size)
{
    if (offset > bytes.size || bytes.size - offset < size)
        return 0;
    memcpy(value, bytes.data + offset, size);
    return 1;
}

static inline void cuda_read_container(struct cuda_bytes section, uint64_t begin, uint64_t end,
                                       struct cuda_code *found)
{
    struct cuda_entry entry;
    while (begin < end && cuda_at(section, begin, &entry, sizeof entry) &&
           entry.header_size >= sizeof entry && entry.size <= section.size) {
        if (entry.kind == CUDA_PTX)
            cuda_insert(&found->ptx, entry.capability);
        else if (entry.kind == CUDA_MACHINE_CODE)
            cuda_insert(&found->code, entry.capability);
        begin += entry.header_size + entry.size;
    }
}

static inline void cuda_read_section(struct cuda_bytes section, struct cuda_code *found)
{
    struct cuda_container container;
    uint64_t offset = 0;
    while (cuda_at(section, offset, &container, sizeof container)) {
        const uint64_t begin = offset + container.header_size;
        if (container.magic != CUDA_MAGIC || container.size > section.size) {
            offset += CUDA_ALIGNMENT; /* what fills the space between two */
            continue;
        }
        cuda_read_container(section, begin, begin + container.size, found);
        offset = (begin + container.size + CUDA_ALIGNMENT - 1) / CUDA_ALIGNMENT * CUDA_ALIGNMENT;
    }
}

/* A section by its name; empty without one. */
static inline struct cuda_bytes cuda_section(struct cuda_bytes file, const char *name)
{
    const struct cuda_bytes none = {NULL, 0};
    const size_t length = strlen(name) + 1;
    Elf64_Ehdr header;
    Elf64_Shdr names, section;
    char found[32];
    if (length > sizeof found || !cuda_at(file, 0, &header, sizeof header) ||
        memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        !cuda_at(file, header.e_shoff + (uint64_t)header.e_shstrndx * header.e_shentsize, &names,
                 sizeof names))
        return none;
    for (unsigned i = 0; i < header.e_shnum; i++)
        if (cuda_at(file, header.e_shoff + (uint64_t)i * header.e_shentsize, &section,
                    sizeof section) &&
            cuda_at(file, names.sh_offset + section.sh_name, found, length) &&
            memcmp(found, name, length) == 0 && section.sh_offset <= file.size &&
            section.sh_size <= file.size - section.sh_offset) {
            const struct cuda_bytes bytes = {file.data + section.sh_offset, section.sh_size};
            return bytes;
        }
    return none;
}

/* What a program holds; 0 if the file cannot be read, and then errno says why. */
static inline int cuda_code_of(const char *path, struct cuda_code *found)
{
    FILE *file = fopen(path, "rb");
    char *data = NULL;
    long size = -1;
    memset(found, 0, sizeof *found);
    if (file == NULL)
        return 0;
    if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0 &&
        fseek(file, 0, SEEK_SET) == 0 && (data = (char *)malloc((size_t)size + 1)) != NULL &&
        fread(data, 1, (size_t)size, file) == (size_t)size) {
        const struct cuda_bytes bytes = {data, (uint64_t)size};
        cuda_read_section(cuda_section(bytes, ".nv_fatbin"), found);
    } else {
        size = -1;
    }
    free(data);
    fclose(file);
    return size >= 0;
}

#endif
