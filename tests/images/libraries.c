/*
 * libraries MPI_ROUTE CPU [CONTRACT]
 *
 * Every program on PATH, every library that the loader finds, and every Python extension can be
 * loaded: what it is linked to is in the image, has the symbols and the versions that it asks for,
 * is whole, and is for this system. Programs and libraries below /usr/local and /opt count, too: a
 * run-time stage can drop what a development stage had. Users can read each library that the loader
 * finds. Scripts on PATH have their interpreters, and links on PATH lead to something.
 *
 * The loader itself is not asked, file by file: under emulation that would take minutes.
 *
 * What the host brings is not looked for: the GPU driver's libraries, and the MPI's if MPI_ROUTE is
 * `host`. On x86_64, code for a newer level of it than CPU (`generic`, or x86_64_v2 to x86_64_v4)
 * and the base named in the file CONTRACT is a fault, unless the program asks the processor.
 *
 * Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
 * `data: {JSON}` with the counts stands before it.
 */
#define _XOPEN_SOURCE 700

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "image-mounts.h"
#include "elf-whole.h"
#include "elf-object.h"
#include "elf-search.h"
#include "x86-code.h"
#include "libraries-loading.h"
#include "libraries-scripts.h"

static long n_programs, n_libraries, n_extensions, n_scripts;

/* ---- Which files ---- */

/*
 * What is both started and loaded is a program. Whoever looks at the image may own its files: a library
 * that the loader finds has to be for others, too. What else only its owner may read is meant so.
 */
static void note_object(const char *path, enum kind kind, long *count)
{
    struct object *o = object_at(path);
    if (o != NULL && o->is_private && o->fault == NULL && kind == LIBRARY)
        o->fault = PRIVATE;
    if (o == NULL || (o->fault == PRIVATE && kind != LIBRARY) || o->machine != OUR_MACHINE || (o->kind != UNKNOWN && o->kind <= kind))
        return;
    *count += o->kind == UNKNOWN;
    o->kind = kind;
}

enum where { ON_PATH, LINKED, IN_PYTHON, BELOW };

static void visit_file(const char *path, const struct stat *status, enum where where)
{
    const char *name = last_part(path);
    const int is_executable = (status->st_mode & 0111) != 0;
    if (where == IN_PYTHON && is_library_name(name))
        note_object(path, PLUGIN, &n_extensions);
    else if (where == LINKED && strncmp(name, "lib", 3) == 0 && is_library_name(name))
        note_object(path, LIBRARY, &n_libraries);
    else if (where == BELOW && is_library_name(name))
        note_object(path, PLUGIN, &n_libraries);
    else if (is_executable && (where == ON_PATH || where == BELOW) && object_at(path) != NULL)
        note_object(path, is_library_name(name) ? PLUGIN : PROGRAM, &n_programs);
    else if (is_executable && where == ON_PATH)
        n_scripts += judge_script(path);
}

/* The files of a folder; those below it if `deep`. Links are followed to files, not to folders. */
static void visit_folder(const char *folder, enum where where, int deep)
{
    DIR *directory = opendir(folder);
    struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        char path[LONGEST_PATH];
        struct stat status, own;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= (int)sizeof path ||
            lstat(path, &own) != 0 || foreign_mount(path, ""))
            continue;
        if (stat(path, &status) != 0) {
            if (where == ON_PATH && (errno == ENOENT || errno == ELOOP))
                judge_link(path);
        } else if (S_ISREG(status.st_mode)) {
            visit_file(path, &status, where);
        } else if (deep && S_ISDIR(own.st_mode)) {
            visit_folder(path, where, deep);
        }
    }
    if (directory != NULL)
        closedir(directory);
}

static void visit_path(void)
{
    char *words = copy_of(getenv("PATH") == NULL ? "" : getenv("PATH")), *rest;
    for (char *word = strtok_r(words, ":", &rest); word != NULL; word = strtok_r(NULL, ":", &rest))
        if (word[0] == '/' && !foreign_mount(word, ""))
            visit_folder(word, ON_PATH, 0);
    free(words);
}

/* Apptainer shows the driver's libraries of the host there. */
static int is_hosts(const char *folder)
{
    return strncmp(folder, "/.singularity.d/", 16) == 0;
}

static void visit_linked(void)
{
    uint32_t count = 0;
    const unsigned char *table = cache_table(&count);
    for (uint32_t i = 0; table != NULL && i < count; i++) {
        const char *path = cache_text(table, at(table + 48 + (size_t)i * 24 + 8, 4));
        if (!foreign_mount(path, ""))
            note_object(path, LIBRARY, &n_libraries);
    }
    for (int i = 0; i < n_system; i++)
        visit_folder(system_folders[i], LINKED, 0);
    for (int i = 0; i < n_asked; i++)
        if (!is_hosts(asked_folders[i]))
            visit_folder(asked_folders[i], LINKED, 0);
}

/* The folders of Python's packages: /usr/lib/python3.11, /usr/lib64/python3.9, ... */
static void visit_extensions(void)
{
    static const char *const PLACES[] = {"/usr/lib", "/usr/lib64"};
    for (int i = 0; i < 2; i++) {
        DIR *directory = opendir(PLACES[i]);
        struct dirent *entry;
        while (directory != NULL && (entry = readdir(directory)) != NULL) {
            char path[LONGEST_PATH];
            snprintf(path, sizeof path, "%s/%s", PLACES[i], entry->d_name);
            if (strncmp(entry->d_name, "python", 6) == 0)
                visit_folder(path, IN_PYTHON, 1);
        }
        if (directory != NULL)
            closedir(directory);
    }
}

/* What the loader loads before every program; where it is missing, each of them complains. */
static void visit_preloaded(void)
{
    char line[LONGEST_PATH], *rest;
    FILE *file = fopen("/etc/ld.so.preload", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "#")] = '\0';
        for (char *name = strtok_r(line, " \t:\n", &rest); name != NULL;
             name = strtok_r(NULL, " \t:\n", &rest)) {
            struct object *o = strchr(name, '/') ? object_at(name) : found_by_loader(name);
            if (o == NULL)
                fault("/etc/ld.so.preload names %s, which is no library of the image", name);
            else
                note_object(o->path, LIBRARY, &n_libraries);
        }
    }
    if (file != NULL)
        fclose(file);
}

/* ---- The verdict ---- */

static int verdict(void)
{
    const long all = n_programs + n_libraries + n_extensions;
    printf("data: {\"programs\": %ld, \"libraries\": %ld, \"extensions\": %ld, \"scripts\": %ld, "
           "\"faults\": %ld}\n", n_programs, n_libraries, n_extensions, n_scripts, n_faults);
    if (n_faults > 0) {
        print_faults();
        return 1;
    }
    if (all == 0) {
        puts("no program and no library was found: nothing was looked at");
        return 1;
    }
    printf("%ld programs, %ld libraries, %ld Python extensions and %ld scripts find all that they "
           "need\n", n_programs, n_libraries, n_extensions, n_scripts);
    return 0;
}

int main(int argc, char **argv)
{
    struct utsname system;
    if (argc < 3 || argc > 4 || uname(&system) != 0) {
        puts("usage: libraries MPI_ROUTE CPU [CONTRACT]");
        return 2;
    }
    read_mounts();
    is_mpi_hosts = strcmp(argv[1], "host") == 0;
    allowed_level = level_named(argv[2], argc == 4 ? argv[3] : "");
    read_cache();
    find_folders(system.machine);
    visit_path();
    visit_linked();
    visit_preloaded();
    visit_extensions();
    visit_folder("/usr/local", BELOW, 1);
    visit_folder("/opt", BELOW, 1);
    judge_all();
    return verdict();
}
