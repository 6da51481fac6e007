/*
 * What a container sees of the host's driver: its version, the files it mounted, and their text.
 * GPU_ROOT, which tests set, stands before every path of /proc and /dev.
 */
#ifndef GPU_HOST_H
#define GPU_HOST_H

#define _GNU_SOURCE 1

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_LENGTH = 4096, LINE_LENGTH = 8192, VERSION_LENGTH = 32 };

static inline const char *rooted(const char *path, char buffer[PATH_LENGTH])
{
    const char *root = getenv("GPU_ROOT");
    snprintf(buffer, PATH_LENGTH, "%s%s", root == NULL ? "" : root, path);
    return buffer;
}

static inline int exists(const char *path)
{
    char buffer[PATH_LENGTH];
    return access(rooted(path, buffer), F_OK) == 0;
}

/* The first run of digits and dots, two dots at most but one at least: 535.104.05. */
static inline int find_version(const char *text, char version[VERSION_LENGTH])
{
    for (; *text != '\0'; text++) {
        const size_t length = strspn(text, "0123456789.");
        if (length >= 5 && length < VERSION_LENGTH && text[0] != '.' && text[length - 1] != '.' &&
            memchr(text, '.', length) != NULL) {
            memcpy(version, text, length);
            version[length] = '\0';
            return 1;
        }
        text += length;
        if (*text == '\0')
            break;
    }
    return 0;
}

/* The version of the loaded kernel module; 0 without one that can be seen. */
static inline int kernel_driver(char version[VERSION_LENGTH])
{
    char path[PATH_LENGTH], line[LINE_LENGTH];
    FILE *file = fopen(rooted("/proc/driver/nvidia/version", path), "r");
    const char *module = NULL;
    int found = 0;
    version[0] = '\0';
    if (file == NULL)
        return 0;
    if (fgets(line, sizeof line, file) != NULL)
        module = strstr(line, "Kernel Module");
    if (module != NULL)
        found = find_version(module, version);
    fclose(file);
    return found;
}

/* Less than 0, 0, more than 0: versions as numbers between dots. */
static inline int compare_versions(const char *a, const char *b)
{
    while (*a != '\0' || *b != '\0') {
        char *next_a, *next_b;
        const long x = strtol(a, &next_a, 10), y = strtol(b, &next_b, 10);
        if (x != y)
            return x < y ? -1 : 1;
        a = next_a + (*next_a == '.');
        b = next_b + (*next_b == '.');
        if (next_a == a && next_b == b && *a != '\0' && *b != '\0')
            return 0; /* no digits: nothing more to compare */
    }
    return 0;
}

/* How many GPUs have an entry in /proc; 0 where the driver does not show them. */
static inline int proc_gpus(void)
{
    char path[PATH_LENGTH];
    DIR *folder = opendir(rooted("/proc/driver/nvidia/gpus", path));
    struct dirent *entry;
    int count = 0;
    if (folder == NULL)
        return 0;
    while ((entry = readdir(folder)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

/* The file that a library was mapped from; more than one is told by the result. */
static inline int mapped(const char *name, char path[PATH_LENGTH])
{
    char line[LINE_LENGTH];
    FILE *maps = fopen("/proc/self/maps", "r");
    int files = 0;
    path[0] = '\0';
    if (maps == NULL)
        return 0;
    while (fgets(line, sizeof line, maps) != NULL) {
        char *file = strchr(line, '/'), *base;
        if (file == NULL)
            continue;
        file[strcspn(file, "\n")] = '\0';
        base = strrchr(file, '/') + 1;
        if (strncmp(base, name, strlen(name)) != 0 || strcmp(file, path) == 0)
            continue;
        snprintf(path, PATH_LENGTH, "%s", file);
        files++;
    }
    fclose(maps);
    return files;
}

/*
 * What is mounted at the place of a file, or at the nearest folder above it: `shown` is the path
 * on the file system that it comes from, which for a mounted file names the host's. Returns the
 * number of the mount; 0 if that cannot be told. proc(5): "36 35 98:0 /root /mount/point ...".
 */
static inline int mount_of(const char *file, char shown[LINE_LENGTH])
{
    static char path[PATH_LENGTH], line[LINE_LENGTH], root[LINE_LENGTH], point[LINE_LENGTH];
    FILE *mounts = fopen(rooted("/proc/self/mountinfo", path), "r");
    size_t depth = 0;
    int found = 0;
    if (mounts == NULL)
        return 0;
    while (fgets(line, sizeof line, mounts) != NULL) {
        int number;
        size_t length;
        if (sscanf(line, "%d %*d %*s %8191s %8191s", &number, root, point) != 3)
            continue;
        length = strcmp(point, "/") == 0 ? 0 : strlen(point);
        if (strncmp(file, point, length) != 0 || (file[length] != '/' && file[length] != '\0') ||
            (found != 0 && length < depth))
            continue;
        found = number;
        depth = length;
        memcpy(shown, root, sizeof root);
    }
    fclose(mounts);
    return found;
}

/* Does a file hold a text? The driver's libraries hold their version. */
static inline int holds(const char *path, const char *text)
{
    const size_t length = strlen(text), room = 1 << 16;
    char *buffer = malloc(room + length);
    FILE *file = fopen(path, "rb");
    size_t kept = 0, got;
    int found = 0;
    while (file != NULL && buffer != NULL && !found &&
           (got = fread(buffer + kept, 1, room, file)) > 0) {
        const size_t have = kept + got;
        found = memmem(buffer, have, text, length) != NULL;
        kept = have < length ? have : length - 1;
        memmove(buffer, buffer + have - kept, kept);
    }
    if (file != NULL)
        fclose(file);
    free(buffer);
    return found;
}

#endif
