/*
 * architecture EXPECTED [ROOT]
 *
 * Every ELF file of the root file system is whole, and made for the expected architecture, spelled as
 * `uname -m` does. An image of mixed architectures works until somebody calls the wrong file: a
 * base image that resolved to the builder's own architecture, an installer that fetched x86_64
 * binaries (https://github.com/conda-forge/docker-images/issues/185), a borrowed tool that stayed.
 *
 * Without ROOT `uname -m` has to agree too, and the walk begins at /. What is mounted into the
 * image (/proc, a home directory, the host's driver libraries) is not the image's and is left
 * out. Symbolic links are not followed; a file with several names is read once.
 *
 * Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
 * `data: {JSON}` with the counts stands before it.
 *
 * Not looked into: members of static archives, compressed files.
 */
#define _XOPEN_SOURCE 700

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "image-mounts.h"
#include "elf-whole.h"
#include "architecture-elf.h"

enum { SHOWN = 5 };

/* Machines, https://www.sco.com/developers/gabi/latest/ch4.eheader.html */
enum {
    EM_NONE_ = 0,
    EM_386_ = 3,
    EM_PPC_ = 20,
    EM_PPC64_ = 21,
    EM_S390_ = 22,
    EM_ARM_ = 40,
    EM_X86_64_ = 62,
    EM_AARCH64_ = 183,
    EM_CUDA_ = 190,
    EM_AMDGPU_ = 224,
    EM_RISCV_ = 243,
    EM_BPF_ = 247,
    EM_LOONGARCH_ = 258
};

struct architecture {
    const char *name;
    int machine;
};

static const struct architecture ARCHITECTURES[] = {
    {"x86_64", EM_X86_64_}, {"ppc64le", EM_PPC64_}, {"aarch64", EM_AARCH64_}};
enum { N_ARCHITECTURES = sizeof ARCHITECTURES / sizeof *ARCHITECTURES };

struct inode {
    dev_t device;
    ino_t number;
};

static struct {
    const struct architecture *expected;
    const char *top; /* where the walk began, without a final slash: "" for / */
    struct inode *linked; /* open addressing; slots with number 0 are free */
    size_t n_linked, linked_slots;
    long files, elf, foreign, other_processor, unreadable_files, unreadable_directories, mounted;
    char *shown[SHOWN];
    long cut_off;
    char *shown_cut_off[SHOWN];
} walk;

/* ---- Files with several names ---- */

static int remember(struct inode *slots, size_t n_slots, struct inode wanted)
{
    size_t at = (size_t)(((uint64_t)wanted.number * 0x9E3779B97F4A7C15u) ^ wanted.device) % n_slots;
    while (slots[at].number != 0) {
        if (slots[at].number == wanted.number && slots[at].device == wanted.device)
            return 0;
        at = (at + 1) % n_slots;
    }
    slots[at] = wanted;
    return 1;
}

/* Is this the first name of the file that we meet? */
static int first_name(const struct stat *status)
{
    struct inode wanted;
    if (status->st_nlink < 2 || status->st_ino == 0)
        return 1;
    if (2 * (walk.n_linked + 1) > walk.linked_slots) {
        size_t larger = walk.linked_slots == 0 ? 1024 : 2 * walk.linked_slots;
        struct inode *slots = checked(calloc(larger, sizeof *slots));
        for (size_t i = 0; i < walk.linked_slots; i++)
            if (walk.linked[i].number != 0)
                remember(slots, larger, walk.linked[i]);
        free(walk.linked);
        walk.linked = slots;
        walk.linked_slots = larger;
    }
    wanted.device = status->st_dev;
    wanted.number = status->st_ino;
    if (!remember(walk.linked, walk.linked_slots, wanted))
        return 0;
    walk.n_linked++;
    return 1;
}

/* ---- ELF ---- */

static int is_expected(const struct elf *elf)
{
    if (elf->bits != 64 || elf->endian != 1 || elf->machine != walk.expected->machine)
        return 0;
    /*
     * ppc64le means version 2 of the ELF ABI, in the low two bits of e_flags. 0 is "unspecified
     * or not using any features affected by the differences" (64-bit ELFv2 ABI, section 4.1);
     * the dynamic loader takes 0 and 2 (glibc, sysdeps/powerpc/powerpc64/dl-machine.h).
     */
    return elf->machine != EM_PPC64_ || (elf->flags & 3) == 0 || (elf->flags & 3) == 2;
}

/*
 * ELF files that are rightly there although the processor cannot run them:
 * - EM_NONE: no machine at all (Guile's byte code);
 * - BPF: run by the kernel's virtual machine, the same on all architectures;
 * - CUDA and AMD GPU: code objects that the driver loads into a GPU;
 * - firmware: loaded into devices, which have processors of their own.
 * They are counted in the data as other_processor.
 */
static int for_other_processor(const struct elf *elf, const char *path)
{
    const char *inside = path + strlen(walk.top);
    return elf->machine == EM_NONE_ || elf->machine == EM_BPF_ || elf->machine == EM_CUDA_ ||
           elf->machine == EM_AMDGPU_ || below(inside, "/usr/lib/firmware") ||
           below(inside, "/lib/firmware");
}

static const char *machine_name(const struct elf *elf)
{
    static char unknown[32];
    switch (elf->machine) {
    case EM_386_: return "i386";
    case EM_PPC_: return "ppc";
    case EM_PPC64_: return elf->endian == 1 ? "ppc64le" : "ppc64";
    case EM_S390_: return "s390";
    case EM_ARM_: return "arm";
    case EM_X86_64_: return elf->bits == 32 ? "x32" : "x86_64";
    case EM_AARCH64_: return "aarch64";
    case EM_RISCV_: return "riscv";
    case EM_LOONGARCH_: return "loongarch";
    }
    snprintf(unknown, sizeof unknown, "machine %d", elf->machine);
    return unknown;
}

/* A path for the finding, which is one line, with place for what else is to be said. */
static char *printable(const char *path)
{
    char *text = checked(malloc(strlen(path) + 128));
    strcpy(text, path);
    for (char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    return text;
}

/* "PATH (x86_64 64-bit little-endian)" */
static void show(const struct elf *elf, const char *path)
{
    static const char *const ENDIAN[] = {"unknown byte order", "little-endian", "big-endian"};
    char *text = printable(path);
    char bits[16] = "unknown class";
    char abi[16] = "";
    if (elf->bits != 0)
        sprintf(bits, "%d-bit", elf->bits);
    if (elf->machine == EM_PPC64_ && (elf->flags & 3) != 0)
        sprintf(abi, ", ELF ABI %u", elf->flags & 3);
    sprintf(text + strlen(text), " (%s %s %s%s)", machine_name(elf), bits, ENDIAN[elf->endian], abi);
    walk.shown[walk.foreign] = text;
}

static void note_cut_off(const char *path)
{
    if (walk.cut_off < SHOWN)
        walk.shown_cut_off[walk.cut_off] = printable(path);
    walk.elf++;
    walk.cut_off++;
}

static void judge(const unsigned char header[HEADER], int file, const char *path)
{
    struct elf elf = decode(header);
    struct stat status;
    if (is_expected(&elf)) {
        if (fstat(file, &status) == 0 && is_cut_off(header, file, (uint64_t)status.st_size))
            note_cut_off(path);
        else
            walk.elf++;
    } else if (for_other_processor(&elf, path)) {
        walk.other_processor++;
    } else {
        if (walk.foreign < SHOWN)
            show(&elf, path);
        walk.elf++;
        walk.foreign++;
    }
}

/* ---- The walk ---- */

/* Fills the buffer as far as the file goes: the number of bytes, or -1. */
static ssize_t read_start(int file, unsigned char *buffer, size_t size)
{
    size_t have = 0;
    while (have < size) {
        ssize_t n = read(file, buffer + have, size - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        have += (size_t)n;
    }
    return (ssize_t)have;
}

static void visit_file(const char *path)
{
    unsigned char header[HEADER] = {0};
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    ssize_t n = file < 0 ? -1 : read_start(file, header, sizeof header);
    walk.files++;
    if (n < 0)
        walk.unreadable_files++;
    else if (n == HEADER && memcmp(header, "\177ELF", 4) == 0)
        judge(header, file, path);
    else if (n >= 52 && memcmp(header, "\177ELF\1", 5) == 0) /* a 32-bit header is 52 bytes */
        judge(header, file, path);
    else if (n >= 4 && memcmp(header, "\177ELF", 4) == 0)
        note_cut_off(path);
    if (file >= 0)
        close(file);
}

static void visit_directory(const char *path);

static void visit(const char *path)
{
    struct stat status;
    if (lstat(path, &status) != 0) {
        if (errno != ENOENT)
            walk.unreadable_files++;
    } else if (!S_ISDIR(status.st_mode) && !S_ISREG(status.st_mode)) {
        return;
    } else if (foreign_mount(path, walk.top)) {
        walk.mounted++;
    } else if (S_ISDIR(status.st_mode)) {
        visit_directory(path);
    } else if (first_name(&status)) {
        visit_file(path);
    }
}

/* The kernel's own trees: seldom part of an image, never to be read through. */
static int kernels_own(const char *path)
{
    const char *inside = path + strlen(walk.top);
    return strcmp(inside, "/proc") == 0 || strcmp(inside, "/sys") == 0 ||
           strcmp(inside, "/dev") == 0;
}

static void visit_directory(const char *path)
{
    DIR *directory = opendir(*path == '\0' ? "/" : path);
    struct dirent *entry;
    if (directory == NULL) {
        walk.unreadable_directories++;
        return;
    }
    for (errno = 0; (entry = readdir(directory)) != NULL; errno = 0) {
        char *child;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        child = checked(malloc(strlen(path) + strlen(entry->d_name) + 2));
        sprintf(child, "%s/%s", path, entry->d_name);
        if (!kernels_own(child))
            visit(child);
        free(child);
    }
    if (errno != 0)
        walk.unreadable_directories++;
    closedir(directory);
}

/* ---- The verdict ---- */

static void print_data(const char *machine)
{
    printf("data: {\"architecture\": \"%s\", \"uname\": \"%s\", \"files\": %ld, \"elf\": %ld, "
           "\"foreign\": %ld, \"cut_off\": %ld, \"other_processor\": %ld, \"unreadable_files\": %ld, "
           "\"unreadable_directories\": %ld, \"mounts_left_out\": %ld}\n",
           walk.expected->name, machine, walk.files, walk.elf, walk.foreign, walk.cut_off,
           walk.other_processor, walk.unreadable_files, walk.unreadable_directories, walk.mounted);
}

static int fail(long n, const char *what, const char *name, char *const *shown)
{
    printf("%ld of %ld ELF files %s %s%s: ", n, walk.elf, n == 1 ? "is" : "are", what, name);
    for (long i = 0; i < n && i < SHOWN; i++)
        printf("%s%s", i == 0 ? "" : ", ", shown[i]);
    if (n > SHOWN)
        printf(" and %ld more", n - SHOWN);
    putchar('\n');
    return 1;
}

static int verdict(void)
{
    if (walk.foreign > 0)
        return fail(walk.foreign, "not for ", walk.expected->name, walk.shown);
    if (walk.cut_off > 0)
        return fail(walk.cut_off, "cut off", "", walk.shown_cut_off);
    if (walk.elf == 0) {
        printf("no ELF file among %ld files under %s/ (%ld files and %ld directories could not be "
               "read)\n", walk.files, walk.top, walk.unreadable_files, walk.unreadable_directories);
        return 1;
    }
    printf("all %ld ELF files are for %s, 64-bit little-endian", walk.elf, walk.expected->name);
    if (walk.unreadable_files + walk.unreadable_directories > 0)
        printf(" (%ld files and %ld directories could not be read by this user)",
               walk.unreadable_files, walk.unreadable_directories);
    putchar('\n');
    return 0;
}

static const struct architecture *find(const char *name)
{
    for (int i = 0; i < N_ARCHITECTURES; i++)
        if (strcmp(ARCHITECTURES[i].name, name) == 0)
            return &ARCHITECTURES[i];
    return NULL;
}

int main(int argc, char **argv)
{
    struct utsname system;
    char *top = copy_of(argc == 3 ? argv[2] : "");

    if (argc < 2 || argc > 3 || (walk.expected = find(argv[1])) == NULL || uname(&system) != 0) {
        puts("usage: architecture x86_64|ppc64le|aarch64 [ROOT]");
        return 2;
    }
    if (argc == 3) {
        free(top);
        top = realpath(argv[2], NULL); /* as the mount table writes it */
        if (top == NULL) {
            printf("%s: %s\n", argv[2], strerror(errno));
            return 2;
        }
    }
    if (argc == 2 && strcmp(system.machine, walk.expected->name) != 0) {
        printf("uname -m says %s, expected %s\n", system.machine, walk.expected->name);
        return 1;
    }
    walk.top = strcmp(top, "/") == 0 ? "" : top;
    read_mounts();
    visit_directory(walk.top);
    print_data(system.machine);
    return verdict();
}
