/* The host contract in the image says what is true of it.
 *
 * usage: host-contract FILE
 *
 * Compared are the C library's version, the least kernel that it starts on (its note .note.ABI-tag),
 * the MPI's library, which is loaded and asked for its version, and the PMIx beside it. On the route
 * `host`, no MPI is in the image, and none is looked for.
 *
 * Exit status: 0 all of it is true, 1 something is not, or cannot be seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#define LARGEST (1 << 20)
#define VERSION_BYTES 8192 /* MPI_MAX_LIBRARY_VERSION_STRING of Open MPI, MPICH and their kin */

static char contract[LARGEST];

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    exit(1);
}

static void read_contract(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        fail("there is no %s", path);
    size_t size = fread(contract, 1, sizeof contract - 1, file);
    contract[size] = 0;
    fclose(file);
}

/* The text of a key of the contract, or of its part `mpi`; NULL if it is not there. The file is the
 * builder's own: each text stands in a line of its own, and no text holds a quotation mark. */
static const char *told(const char *part, const char *key)
{
    static char values[8][256];
    static int next;
    char quoted[64];
    const char *from = contract, *end = NULL;
    if (part) {
        snprintf(quoted, sizeof quoted, "\"%s\": {", part);
        from = strstr(contract, quoted);
        if (!from)
            return NULL;
        end = strchr(from, '}');
    }
    snprintf(quoted, sizeof quoted, "\"%s\": \"", key);
    const char *found = strstr(from, quoted);
    if (!found || (end && found > end))
        return NULL;
    char *value = values[next++ % 8];
    found += strlen(quoted);
    snprintf(value, 256, "%.*s", (int)strcspn(found, "\""), found);
    return value;
}

struct tag {
    unsigned version[3];
    int seen;
};

/* The kernel of the ABI tag of libc.so.6, from its notes in memory. */
static int find_tag(struct dl_phdr_info *library, size_t size, void *data)
{
    struct tag *tag = data;
    (void)size;
    const char *name = strrchr(library->dlpi_name, '/');
    if (!name || strncmp(name, "/libc", 5) || (name[5] != '.' && name[5] != '-'))
        return 0;
    for (int n = 0; n < library->dlpi_phnum; n++) {
        const ElfW(Phdr) *header = &library->dlpi_phdr[n];
        if (header->p_type != PT_NOTE)
            continue;
        const char *at = (const char *)(library->dlpi_addr + header->p_vaddr);
        const char *end = at + header->p_memsz;
        size_t align = header->p_align == 8 ? 8 : 4;
        while (at + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *note = (const void *)at;
            const char *owner = at + sizeof *note;
            const char *body = owner + (note->n_namesz + 3) / 4 * 4;
            if (note->n_type == NT_GNU_ABI_TAG && !strcmp(owner, "GNU") && note->n_descsz >= 16) {
                const unsigned *words = (const void *)body;
                if (words[0] == ELF_NOTE_OS_LINUX) {
                    memcpy(tag->version, words + 1, sizeof tag->version);
                    tag->seen = 1;
                }
            }
            at = body + (note->n_descsz + align - 1) / align * align;
        }
    }
    return 0;
}

static void check_kernel(void)
{
    const char *said = told(NULL, "kernel");
    struct tag tag = {{0, 0, 0}, 0};
    char found[64];
    dl_iterate_phdr(find_tag, &tag);
    if (!tag.seen)
        fail("the C library has no note that says which kernel it needs");
    snprintf(found, sizeof found, "%u.%u.%u", tag.version[0], tag.version[1], tag.version[2]);
    if (!said || strcmp(said, found))
        fail("the C library needs Linux %s, and the contract says %s", found,
             said ? said : "nothing");
}

/* What MPI_Get_library_version says, of which the first line; NULL if there is no such library. */
static const char *library_version(const char *name)
{
    static char text[VERSION_BYTES];
    int length = 0;
    void *library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        fail("the library %s of the contract cannot be loaded: %s", name, dlerror());
    int (*version)(char *, int *);
    *(void **)&version = dlsym(library, "MPI_Get_library_version");
    if (!version || version(text, &length))
        fail("the library %s does not say its version", name);
    text[strcspn(text, "\n,")] = 0;
    for (char *at = text; *at; at++)
        if (*at == '\t')
            *at = ' ';
    return text;
}

/* `version` as a word of `text`: 4.1 is not in 4.1.4, and 4.1.4 is in "v4.1.4". */
static int names(const char *text, const char *version)
{
    for (const char *at = strstr(text, version); at; at = strstr(at + 1, version)) {
        char before = at > text ? at[-1] : ' ', after = at[strlen(version)];
        if (!strchr("0123456789.", before) && !(after && strchr("0123456789.", after)))
            return 1;
    }
    return 0;
}

static void check_pmix(const char *said, char *found, size_t size)
{
    void *library = dlopen("libpmix.so.2", RTLD_NOW);
    const char *(*version)(void) = NULL;
    snprintf(found, size, "%s", "no PMIx of its own");
    if (!library)
        return;
    *(void **)&version = dlsym(library, "PMIx_Get_version");
    const char *text = version ? version() : NULL;
    if (!text)
        return;
    const char *number = strpbrk(text, "0123456789");
    snprintf(found, size, "PMIx %.*s", (int)strspn(number ? number : "", "0123456789."),
             number ? number : "");
    if (said && strncmp(found + 5, said, strlen(said)))
        fail("%s is in the image, and the contract says %s", found, said);
}

static void check_mpi(char *finding, size_t size)
{
    const char *route = told("mpi", "route"), *library = told("mpi", "library");
    const char *version = told("mpi", "version"), *pmix = told("mpi", "pmix");
    char found[64];
    finding[0] = 0;
    if (!route || !strcmp(route, "host"))
        return;
    if (!library || !version)
        fail("the contract does not name the library and the version of the MPI");
    const char *text = library_version(library);
    if (!names(text, version))
        fail("%s is %s, and the contract says %s", library, text, version);
    check_pmix(pmix, found, sizeof found);
    snprintf(finding, size, ", %s is %s, %s", library, text, found);
}

int main(int count, char **arguments)
{
    struct utsname machine;
    static char mpi[VERSION_BYTES + 512];
    if (count != 2)
        fail("usage: host-contract FILE");
    read_contract(arguments[1]);
    const char *architecture = told(NULL, "architecture"), *glibc = told(NULL, "glibc");
    uname(&machine);
    if (!architecture || strcmp(architecture, machine.machine))
        fail("programs here are for %s, and the contract says %s", machine.machine,
             architecture ? architecture : "nothing");
    if (!glibc || strcmp(glibc, gnu_get_libc_version()))
        fail("the C library is glibc %s, and the contract says %s", gnu_get_libc_version(),
             glibc ? glibc : "nothing");
    check_kernel();
    check_mpi(mpi, sizeof mpi);
    printf("true of this image: glibc %s, Linux %s%s\n", glibc, told(NULL, "kernel"), mpi);
    return 0;
}
