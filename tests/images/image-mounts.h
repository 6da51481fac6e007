/*
 * What is mounted into an image, which is not the image's: for the programs that walk through one.
 */
enum { LONGEST_PATH = 8192 };

struct mount {
    char *point;  /* where it is mounted */
    char *device; /* major:minor */
    char *root;   /* the part of its file system that is seen there */
};

static struct mount *mounts;
static size_t n_mounts;

static void *checked(void *memory)
{
    if (memory == NULL) {
        puts("out of memory");
        exit(1);
    }
    return memory;
}

static char *copy_of(const char *text)
{
    return strcpy(checked(malloc(strlen(text) + 1)), text);
}

/* The kernel writes blanks and backslashes of the mount table as \ooo. */
static void unescape(char *text)
{
    char *out = text;
    for (const char *in = text; *in != '\0'; out++) {
        if (in[0] == '\\' && in[1] >= '0' && in[1] <= '3' && in[2] >= '0' && in[2] <= '7' &&
            in[3] >= '0' && in[3] <= '7') {
            *out = (char)((in[1] - '0') * 64 + (in[2] - '0') * 8 + (in[3] - '0'));
            in += 4;
        } else {
            *out = *in++;
        }
    }
    *out = '\0';
}

/* proc(5), /proc/self/mountinfo: "36 35 98:0 /root /mount/point options ..." */
static void read_mounts(void)
{
    FILE *table = fopen("/proc/self/mountinfo", "r");
    char *line = NULL;
    size_t size = 0;
    if (table == NULL)
        return;
    while (getline(&line, &size, table) > 0) {
        char *field[5];
        int n = 0;
        for (char *word = strtok(line, " \n"); word != NULL && n < 5; word = strtok(NULL, " \n"))
            field[n++] = word;
        if (n < 5)
            continue;
        unescape(field[3]);
        unescape(field[4]);
        mounts = checked(realloc(mounts, (n_mounts + 1) * sizeof *mounts));
        mounts[n_mounts].device = copy_of(field[2]);
        mounts[n_mounts].root = copy_of(field[3]);
        mounts[n_mounts++].point = copy_of(field[4]);
    }
    free(line);
    fclose(table);
}

/* Is `path` at or below `directory`? */
static int below(const char *path, const char *directory)
{
    size_t length = strcmp(directory, "/") == 0 ? 0 : strlen(directory);
    return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* The mount that shows `path`: the deepest, and the latest of several at one place. */
static const struct mount *mount_of(const char *path)
{
    const struct mount *found = NULL;
    for (size_t i = 0; i < n_mounts; i++) {
        const struct mount *m = &mounts[i];
        if (below(path, m->point) &&
            (found == NULL || strlen(m->point) >= strlen(found->point)))
            found = m;
    }
    return found;
}

static int is_mount_point(const char *path)
{
    for (size_t i = 0; i < n_mounts; i++)
        if (strcmp(mounts[i].point, path) == 0)
            return 1;
    return 0;
}

/*
 * Is something foreign mounted at `path`?
 *
 * The device number cannot tell: an overlay reports several for the image itself, and a directory
 * that is bound into a Charliecloud image lies on the same disk as the image. A mount is the
 * image's own when it shows at its place what the image's file system has at that place, as when
 * Apptainer assembles the root from one mount per top directory ("underlay"). The image's file
 * system is the one that shows `top`/usr; `top` has no final slash, so that it is "" for /.
 */
static int foreign_mount(const char *path, const char *top)
{
    char usr[LONGEST_PATH];
    const struct mount *here, *image;
    size_t end, root_end;

    if (!is_mount_point(path))
        return 0;
    snprintf(usr, sizeof usr, "%s/usr", top);
    here = mount_of(path);
    image = mount_of(usr);
    if (image == NULL || strcmp(here->device, image->device) != 0)
        return 1;
    if (here == image)
        return 0;
    /* The image's mount shows <prefix><point>; a piece of it shows <prefix><its point>. */
    end = strcmp(image->point, "/") == 0 ? 0 : strlen(image->point);
    root_end = strcmp(image->root, "/") == 0 ? 0 : strlen(image->root);
    if (end > root_end || strncmp(image->root + root_end - end, image->point, end) != 0)
        return 1;
    root_end -= end;
    return strncmp(here->root, image->root, root_end) != 0 ||
           strcmp(here->root + root_end, path) != 0;
}
