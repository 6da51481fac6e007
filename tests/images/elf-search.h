/*
 * Where the loader looks for libraries: https://man7.org/linux/man-pages/man8/ld.so.8.html
 */
enum { MOST_FOLDERS = 64 };

/* Of the program that asks, which is the image's. */
#if defined(__x86_64__)
enum { OUR_MACHINE = 62, IS_X86_64 = 1, LARGEST_PAGE = 4096 };
#elif defined(__aarch64__)
enum { OUR_MACHINE = 183, IS_X86_64 = 0, LARGEST_PAGE = 65536 };
#else
enum { OUR_MACHINE = 21, IS_X86_64 = 0, LARGEST_PAGE = 65536 }; /* 64-bit POWER */
#endif

static struct object **objects; /* all that were read, in their order */
static size_t n_objects, object_slots;
static struct object **by_file; /* open addressing, by device and inode */

static char *cache; /* /etc/ld.so.cache */
static size_t cache_size;
static const char *system_folders[MOST_FOLDERS], *asked_folders[MOST_FOLDERS];
static int n_system, n_asked;

/* ---- Names ---- */

static int ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static int is_library_name(const char *name)
{
    return strstr(name, ".so.") != NULL || ends_with(name, ".so");
}

/* ---- Objects, each file once ---- */

static struct object **slot_of(dev_t device, ino_t inode)
{
    size_t i = (size_t)((uint64_t)inode * 0x9E3779B97F4A7C15u ^ device) % object_slots;
    while (by_file[i] != NULL && (by_file[i]->device != device || by_file[i]->inode != inode))
        i = (i + 1) % object_slots;
    return &by_file[i];
}

static void grow_objects(void)
{
    if (2 * (n_objects + 1) <= object_slots)
        return;
    object_slots = object_slots == 0 ? 4096 : 2 * object_slots;
    free(by_file);
    by_file = checked(calloc(object_slots, sizeof *by_file));
    objects = checked(realloc(objects, object_slots * sizeof *objects));
    for (size_t i = 0; i < n_objects; i++)
        *slot_of(objects[i]->device, objects[i]->inode) = objects[i];
}

static const char PRIVATE[] = "cannot be read by users";

/* Fills in what a file is: whether it is ELF, or a library that this user may not read. */
static int take(struct object *o, const char *path)
{
    const int file = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    int is_object;
    if (file < 0 && errno == EACCES && is_library_name(last_part(path))) {
        o->machine = OUR_MACHINE;
        o->fault = PRIVATE;
        return 1;
    }
    is_object = file >= 0 && read_object(o, file);
    if (file >= 0)
        close(file);
    return is_object;
}

/* The ELF file at a path, links followed; NULL if it is none, or a program that cannot be read. */
static struct object *object_at(const char *path)
{
    struct object *o, **slot;
    struct stat status;

    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode))
        return NULL;
    grow_objects();
    slot = slot_of(status.st_dev, status.st_ino);
    if (*slot != NULL)
        return *slot;
    o = checked(calloc(1, sizeof *o));
    if (take(o, path)) {
        o->path = realpath(path, NULL);
        if (o->path == NULL)
            o->path = copy_of(path);
        o->device = status.st_dev;
        o->inode = status.st_ino;
        o->is_private = !(status.st_mode & S_IROTH);
        objects[n_objects++] = *slot = o;
    } else {
        free(o);
        o = NULL;
    }
    return o;
}

/* A library for this machine; the loader passes over those for others. */
static struct object *library_at(const char *folder, const char *name)
{
    char path[LONGEST_PATH];
    struct object *o;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return NULL;
    o = object_at(path);
    return o != NULL && o->machine == OUR_MACHINE ? o : NULL;
}

/* ---- Folders ---- */

static void add_folder(const char **folders, int *n, const char *folder)
{
    struct stat status;
    for (int i = 0; i < *n; i++)
        if (strcmp(folders[i], folder) == 0)
            return;
    if (*n < MOST_FOLDERS && folder[0] == '/' && stat(folder, &status) == 0 &&
        S_ISDIR(status.st_mode))
        folders[(*n)++] = copy_of(folder);
}

static void add_folders(const char **folders, int *n, const char *list)
{
    char *words = copy_of(list == NULL ? "" : list), *rest;
    for (char *word = strtok_r(words, ":;", &rest); word != NULL; word = strtok_r(NULL, ":;", &rest))
        add_folder(folders, n, word);
    free(words);
}

/* Debian's loader has folders of its own for each architecture. */
static void find_folders(const char *machine)
{
    static const char *const USUAL[] = {"/lib64", "/usr/lib64", "/lib", "/usr/lib"};
    const char *name = strcmp(machine, "ppc64le") == 0 ? "powerpc64le" : machine;
    char folder[128];
    for (int i = 0; i < 2; i++) {
        snprintf(folder, sizeof folder, "%s/%s-linux-gnu", i == 0 ? "/lib" : "/usr/lib", name);
        add_folder(system_folders, &n_system, folder);
    }
    for (int i = 0; i < 4; i++)
        add_folder(system_folders, &n_system, USUAL[i]);
    add_folders(asked_folders, &n_asked, getenv("LD_LIBRARY_PATH"));
}

/* ---- The cache ---- */

/* Its newer part, which older ones have before them: sysdeps/generic/dl-cache.h of glibc. */
static const unsigned char *cache_table(uint32_t *count)
{
    static const char MAGIC[] = "glibc-ld.so.cache1.1";
    for (size_t i = 0; cache != NULL && i + 48 <= cache_size; i += 4)
        if (memcmp(cache + i, MAGIC, sizeof MAGIC - 1) == 0) {
            const unsigned char *start = (const unsigned char *)cache + i;
            *count = (uint32_t)at(start + 20, 4);
            return (cache_size - i - 48) / 24 < *count ? NULL : start;
        }
    return NULL;
}

static const char *cache_text(const unsigned char *table, uint64_t offset)
{
    const char *text = (const char *)table + offset, *end = cache + cache_size;
    return text >= cache && text < end && memchr(text, 0, (size_t)(end - text)) != NULL ? text : "";
}

static void read_cache(void)
{
    const int file = open("/etc/ld.so.cache", O_RDONLY);
    struct stat status;
    if (file < 0)
        return;
    if (fstat(file, &status) == 0 && status.st_size > 0) {
        cache_size = (size_t)status.st_size;
        cache = checked(malloc(cache_size));
        if (read(file, cache, cache_size) != (ssize_t)cache_size)
            cache_size = 0;
    }
    close(file);
}

static struct object *in_cache(const char *name)
{
    uint32_t count = 0;
    const unsigned char *table = cache_table(&count);
    for (uint32_t i = 0; table != NULL && i < count; i++) {
        const unsigned char *entry = table + 48 + (size_t)i * 24;
        struct object *o;
        if (strcmp(cache_text(table, at(entry + 4, 4)), name) != 0)
            continue;
        o = object_at(cache_text(table, at(entry + 8, 4)));
        if (o != NULL && o->machine == OUR_MACHINE)
            return o;
    }
    return NULL;
}

/* ---- One name ---- */

/* $ORIGIN, $LIB and $PLATFORM in a folder of an object's path of libraries. */
static void expand(char *out, size_t size, const char *folder, const char *origin)
{
    const char *slash = strrchr(origin, '/');
    size_t length = 0;
    out[0] = '\0';
    while (*folder != '\0' && length + 1 < size) {
        if (strncmp(folder, "$ORIGIN", 7) == 0 || strncmp(folder, "${ORIGIN}", 9) == 0) {
            length += (size_t)snprintf(out + length, size - length, "%.*s",
                                       slash == NULL ? 0 : (int)(slash - origin), origin);
            folder += folder[1] == '{' ? 9 : 7;
        } else {
            out[length++] = *folder++;
            out[length] = '\0';
        }
    }
}

static struct object *in_list(const char *list, const struct object *from, const char *name)
{
    char folder[LONGEST_PATH], *words, *rest;
    struct object *o = NULL;
    if (list == NULL)
        return NULL;
    words = rest = copy_of(list);
    for (char *word = strtok_r(words, ":", &rest); word != NULL && o == NULL;
         word = strtok_r(NULL, ":", &rest)) {
        expand(folder, sizeof folder, word, from->path);
        o = library_at(folder, name);
    }
    free(words);
    return o;
}

static struct object *in_folders(const char *const *folders, int n, const char *name)
{
    struct object *o = NULL;
    for (int i = 0; i < n && o == NULL; i++)
        o = library_at(folders[i], name);
    return o;
}

/* Where the loader finds what has no path of its own; each name is looked for once. */
static struct object *found_by_loader(const char *name)
{
    static struct known {
        uint32_t hash;
        const char *name;
        struct object *object;
    } *known;
    static size_t n_known;
    const uint32_t hash = gnu_hash(name);
    for (size_t i = 0; i < n_known; i++)
        if (known[i].hash == hash && strcmp(known[i].name, name) == 0)
            return known[i].object;
    known = checked(realloc(known, (n_known + 1) * sizeof *known));
    known[n_known].hash = hash;
    known[n_known].name = name; /* of a file that stays in memory */
    known[n_known].object = in_cache(name);
    if (known[n_known].object == NULL)
        known[n_known].object = in_folders(system_folders, n_system, name);
    return known[n_known++].object;
}

/*
 * What `from` gets for a name that it needs, `root` being the program that it is loaded for, whose
 * RPATH counts for all of it.
 */
static struct object *found(const struct object *root, const struct object *from, const char *name)
{
    struct object *o = NULL;
    char path[LONGEST_PATH];
    if (strchr(name, '/') != NULL) {
        expand(path, sizeof path, name, from->path);
        return object_at(path);
    }
    if (from->runpath == NULL) {
        o = in_list(from->rpath, from, name);
        if (o == NULL && root->runpath == NULL)
            o = in_list(root->rpath, root, name);
    }
    if (o == NULL)
        o = in_folders(asked_folders, n_asked, name);
    if (o == NULL)
        o = in_list(from->runpath, from, name);
    return o != NULL ? o : found_by_loader(name);
}
