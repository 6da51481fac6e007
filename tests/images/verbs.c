/*
 * verbs
 *
 * The library of RDMA's verbs has what it needs to talk to adapters: each driver that is configured
 * is there, and can be loaded. Without an adapter nothing else loads them, so that one that stayed
 * behind in a development stage is missed on the first node that has one.
 *
 * https://github.com/linux-rdma/rdma-core/blob/master/Documentation/libibverbs.md
 *
 * Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
 * `data: {JSON}` stands before it.
 */
#define _GNU_SOURCE

#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 512, PLACE = PATH_MAX };

static const char CONFIGURED[] = "/etc/libibverbs.d";
static char folder[PLACE]; /* of libibverbs, and below it that of the drivers */
static int n_loaded, n_faults;

static void fault(const char *what, const char *why)
{
    if (n_faults++ == 0)
        printf("%s: %s\n", what, why);
}

/* Loads a driver; its constructor tells libibverbs of itself. */
static void load(const char *path)
{
    if (dlopen(path, RTLD_NOW) == NULL)
        fault("a driver of verbs cannot be loaded", dlerror());
    else
        n_loaded++;
}

/* libmlx5-rdmav34.so is the driver mlx5; the number is that of libibverbs' interface. */
static int find_driver(const char *place, const char *name, char path[PLACE])
{
    DIR *directory = opendir(place);
    struct dirent *entry;
    char start[LINE];
    int is_there = 0;
    snprintf(start, sizeof start, "lib%s-rdmav", name);
    while (directory != NULL && (entry = readdir(directory)) != NULL)
        if (strncmp(entry->d_name, start, strlen(start)) == 0)
            is_there = snprintf(path, PLACE, "%s/%s", place, entry->d_name) < PLACE;
    if (directory != NULL)
        closedir(directory);
    return is_there;
}

/* A line of a configuration is `driver mlx5`; drivers with a path come from elsewhere. */
static void try_line(char *line)
{
    char below[PLACE + 16], path[PLACE];
    const char *word = strtok(line, " \t\n"), *name = strtok(NULL, " \t\n");
    if (word == NULL || name == NULL || strcmp(word, "driver") != 0 || strchr(name, '/') != NULL)
        return;
    snprintf(below, sizeof below, "%s/libibverbs", folder);
    if (find_driver(below, name, path) || find_driver(folder, name, path))
        load(path);
    else
        fault("no library of a driver of verbs that is configured", name);
}

static int try_configured(void)
{
    DIR *directory = opendir(CONFIGURED);
    struct dirent *entry;
    int n = 0;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        char path[PLACE], line[LINE];
        FILE *file;
        if (strstr(entry->d_name, ".driver") == NULL)
            continue;
        snprintf(path, sizeof path, "%s/%s", CONFIGURED, entry->d_name);
        file = fopen(path, "r");
        while (file != NULL && fgets(line, sizeof line, file) != NULL)
            try_line(line);
        if (file != NULL)
            fclose(file);
        n++;
    }
    if (directory != NULL)
        closedir(directory);
    return n;
}

int main(void)
{
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);
    void *symbol = library == NULL ? NULL : dlsym(library, "ibv_get_device_list");
    Dl_info info;
    int n_configured;

    if (symbol == NULL || dladdr(symbol, &info) == 0 ||
        realpath(info.dli_fname, folder) == NULL) {
        printf("libibverbs.so.1 cannot be loaded: %s\n", library == NULL ? dlerror() : "no symbols");
        return 1;
    }
    *strrchr(folder, '/') = '\0';
    n_configured = try_configured();
    if (n_configured == 0)
        fault("no driver of verbs is configured in", CONFIGURED);
    if (n_faults > 0)
        return 1;
    printf("data: {\"configured\": %d, \"loaded\": %d}\n", n_configured, n_loaded);
    printf("libibverbs loads all %d drivers that are configured\n", n_loaded);
    return 0;
}
