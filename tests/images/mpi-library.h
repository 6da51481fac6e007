/*
 * Part of mpi.c: which MPI library is loaded, from which file, and what it sends messages over.
 */

/* What is printed as JSON must not end its string. */
static void plain(char *text)
{
    for (char *c = text; *c != '\0'; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
            *c = ' ';
}

static char library[MPI_MAX_LIBRARY_VERSION_STRING + 1]; /* "Open MPI v4.1.4", "MPICH 4.2.1" */
static char transport[LINE + 8];                         /* "ob1 (self, vader)", "ch4:ofi" */

/* What stands after a word and a colon, with blanks around that; NULL if they are not there. */
static const char *after(const char *text, const char *word)
{
    const char *rest = strstr(text, word);
    if (rest == NULL)
        return NULL;
    rest += strlen(word);
    rest += strspn(rest, " \t");
    return *rest == ':' ? rest + 1 + strspn(rest + 1, " \t") : NULL;
}

/* MPICH and its kin say in a line of its own: "MPICH Device:    ch4:ofi" */
static void read_device(const char *text)
{
    const char *device = after(text, " Device");
    if (device != NULL && strchr(text, '\n') != NULL)
        snprintf(transport, sizeof transport, "%.*s", (int)strcspn(device, " \t\r\n"), device);
}

/*
 * "Open MPI v4.1.4, package: ..." → "Open MPI v4.1.4"; "MPICH Version:  4.2.1" → "MPICH 4.2.1";
 * "MVAPICH2 Version      :  2.3.7" → "MVAPICH2 2.3.7"
 */
static void read_library(void)
{
    static const char WORD[] = " Version";
    const char *version;
    int length;
    MUST(MPI_Get_library_version(library, &length));
    read_device(library);
    first_line(library);
    library[strcspn(library, ",")] = '\0';
    version = after(library, WORD);
    if (version != NULL)
        memmove(strstr(library, WORD) + 1, version, strlen(version) + 1);
    plain(library);
}

/* "Open MPI v5.0" begins "Open MPI v5.0.7", not "Open MPI v5.01". */
static void check_library(const char *wanted)
{
    size_t length = strlen(wanted);
    char next = strlen(library) < length ? '\0' : library[length];
    if (strncmp(library, wanted, length) != 0 || (next >= '0' && next <= '9'))
        found("the library is %s, expected %s", library, wanted);
}

/* ---- The transport ---- */

/*
 * The component in the name of a control variable: of "btl_tcp_links" it is "tcp". Names of whole
 * frameworks are none; `pml_wrapper` is one of Open MPI 5.0's.
 */
static int component(const char *variable, const char *framework, char *name, size_t room)
{
    size_t length = strlen(framework);
    if (strncmp(variable, framework, length) != 0 || variable[length] != '_')
        return 0;
    variable += length + 1;
    snprintf(name, room, "%.*s", (int)strcspn(variable, "_"), variable);
    return strcmp(name, "base") != 0 && strcmp(name, "wrapper") != 0;
}

/* Numbers for which there is no room are left out. */
static void add_number(char *list, size_t capacity, int number)
{
    const size_t length = strlen(list);
    if (length + 16 < capacity)
        snprintf(list + length, capacity - length, "%s%d", length == 0 ? "" : ", ", number);
}

static void add_word(char *list, size_t room, const char *word)
{
    size_t length = strlen(list);
    snprintf(list + length, room - length, "%s%s", length == 0 ? "" : ", ", word);
}

/* In Open MPI 5.0 `vader` is another name of `sm`. */
static void drop_alias(char *list)
{
    static const char ALIAS[] = ", vader";
    char *alias = strstr(list, ALIAS);
    if (alias != NULL && strstr(list, "sm") != NULL)
        memmove(alias, alias + strlen(ALIAS), strlen(alias + strlen(ALIAS)) + 1);
}

/*
 * Open MPI closes the components that it did not select, and their control variables go with them:
 * those of its messaging layer (pml) and of the layer's transports (btl, mtl) that are left tell
 * what it uses. Of the mtl, which are loaded anew by asking, only the layer cm makes use.
 */
static void read_components(void)
{
    static const char *const FRAMEWORKS[] = {"pml", "btl", "mtl"};
    enum { PML, BTL, MTL, N_FRAMEWORKS };
    char names[N_FRAMEWORKS][LINE / 2] = {"", "", ""}, last[N_FRAMEWORKS][32] = {"", "", ""};
    int provided, count = 0, below;

    if (strncmp(library, "Open MPI", 8) != 0 ||
        MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS)
        return;
    MPI_T_cvar_get_num(&count);
    for (int i = 0; i < count; i++) {
        char name[LINE], found_name[32];
        int length = sizeof name, nothing = 0, verbosity, binding, scope;
        MPI_Datatype type;
        MPI_T_enum values;
        if (MPI_T_cvar_get_info(i, name, &length, &verbosity, &type, &values, NULL, &nothing,
                                &binding, &scope) != MPI_SUCCESS)
            continue;
        for (int f = 0; f < N_FRAMEWORKS; f++)
            if (component(name, FRAMEWORKS[f], found_name, sizeof found_name) &&
                strcmp(found_name, last[f]) != 0 && strstr(names[f], found_name) == NULL) {
                snprintf(last[f], sizeof last[f], "%s", found_name);
                add_word(names[f], sizeof names[f], found_name);
            }
    }
    MPI_T_finalize();
    drop_alias(names[BTL]);
    below = strcmp(names[PML], "ob1") == 0 ? BTL : strcmp(names[PML], "cm") == 0 ? MTL : PML;
    if (below == PML)
        snprintf(transport, sizeof transport, "%s", names[PML]);
    else
        snprintf(transport, sizeof transport, "%s (%s)", names[PML], names[below]);
}

/* ---- The file ---- */

struct file {
    char path[LINE];
    uint64_t inode;
};

/* From /proc/self/maps: "7f3e…-7f3f… r--p 00000000 08:01 1234   /usr/lib/libmpi.so.40.30.4" */
static struct file library_file(void)
{
    struct file found_file = {"", 0};
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && found_file.path[0] == '\0' && fgets(line, sizeof line, maps) != NULL) {
        const char *name = strrchr(first_line(line), '/');
        uint64_t inode;
        if (name == NULL || (strncmp(name, "/libmpi.so", 10) != 0 &&
                             strncmp(name, "/libmpich.so", 12) != 0))
            continue;
        if (sscanf(line, "%*s %*s %*s %*s %" SCNu64, &inode) == 1) {
            snprintf(found_file.path, sizeof found_file.path, "%s", strchr(line, '/'));
            found_file.inode = inode;
        }
    }
    if (maps != NULL)
        fclose(maps);
    plain(found_file.path);
    return found_file;
}
