/*
 * Part of libraries.c: whether a file can be loaded, and what it lacks.
 */
enum { SHOWN = 5, LONGEST_FAULT = 400, MOST_LOADED = 4096, MANY = 4 };

static char *faults[SHOWN];
static long n_faults;
static int is_mpi_hosts, allowed_level;

/* ---- Faults ---- */

static void fault(const char *format, ...)
{
    va_list arguments;
    if (n_faults++ >= SHOWN)
        return;
    faults[n_faults - 1] = checked(malloc(LONGEST_FAULT));
    va_start(arguments, format);
    vsnprintf(faults[n_faults - 1], LONGEST_FAULT, format, arguments);
    va_end(arguments);
    for (char *c = faults[n_faults - 1]; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
}

static void print_faults(void)
{
    for (long i = 0; i < n_faults && i < SHOWN; i++)
        printf("%s%s", i == 0 ? "" : "; ", faults[i]);
    if (n_faults > SHOWN)
        printf("; and %ld more faults", n_faults - SHOWN);
    putchar('\n');
}

/* ---- What the host brings ---- */

static int begins(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static int is_hosts_to_bring(const char *name)
{
    return begins(name, "libcuda.so") || begins(name, "libnvidia-") ||
           begins(name, "libcudadebugger") ||
           (is_mpi_hosts && (begins(name, "libmpi") || begins(name, "libmpich")));
}

/* The level of a CPU target; one that is named otherwise may be for anything. */
static int level_named(const char *target, const char *contract)
{
    static const char START[] = "x86_64_v";
    int level = strcmp(target, "generic") == 0 || strcmp(target, "x86_64") == 0 ? 1 : 4;
    char text[4096];
    const char *base;
    FILE *file = fopen(contract, "r");
    size_t n = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    if (file != NULL)
        fclose(file);
    text[n] = '\0';
    if (begins(target, START))
        level = atoi(target + strlen(START));
    base = strstr(text, "\"baseline\"");
    base = base == NULL ? NULL : strstr(base, START);
    return base != NULL && atoi(base + strlen(START)) > level ? atoi(base + strlen(START)) : level;
}

/* ---- All that is loaded with a file ---- */

struct loaded {
    struct object *all[MOST_LOADED];
    const char *names[MOST_LOADED]; /* by which each was asked for */
    int n, is_complete;             /* whether nothing is missing, be it the host's to bring */
};

static int has_name(const struct object *o, const char *name)
{
    return strcmp(last_part(o->path), name) == 0 || (o->soname != NULL && strcmp(o->soname, name) == 0);
}

static int is_loaded(const struct loaded *with, const char *name)
{
    for (int i = 0; i < with->n; i++)
        if (strcmp(with->names[i], name) == 0 || has_name(with->all[i], name))
            return 1;
    return 0;
}

static void add_loaded(struct loaded *with, struct object *o, const char *name)
{
    for (int i = 0; i < with->n; i++)
        if (with->all[i] == o)
            return;
    if (with->n < MOST_LOADED) {
        with->all[with->n] = o;
        with->names[with->n++] = name;
    }
}

/* A library that another file of the image may have loaded before, as Python's packages do. */
static struct object *elsewhere(const char *name)
{
    for (size_t i = 0; i < n_objects; i++)
        if (objects[i]->machine == OUR_MACHINE && has_name(objects[i], name))
            return objects[i];
    return NULL;
}

/* Once, whatever is linked to it. */
static void tell_fault(struct object *o)
{
    if (!o->is_told)
        fault("%s %s", o->path, o->fault);
    o->is_told = 1;
}

static void load_needed(struct loaded *with, struct object *root, struct object *from,
                        const char *name)
{
    struct object *o;
    if (is_loaded(with, name))
        return;
    o = found(root, from, name);
    if (o == NULL && root->kind == PLUGIN)
        o = elsewhere(name);
    if (o != NULL && o->fault == NULL) {
        add_loaded(with, o, name);
        return;
    }
    with->is_complete = 0;
    if (o != NULL) {
        tell_fault(o);
        return;
    }
    if (!is_hosts_to_bring(name) && !from->is_lacking) {
        from->is_lacking = 1;
        fault("%s needs %s, which is not in the image", from->path, name);
    }
}

/* Breadth first, as the loader does it. */
static void load(struct loaded *with, struct object *root)
{
    with->n = 0;
    with->is_complete = 1;
    add_loaded(with, root, root->path);
    for (int i = 0; i < with->n; i++) {
        struct object *from = with->all[i];
        for (int k = 0; k < from->n_needed; k++)
            load_needed(with, root, from, from->needed[k]);
    }
    if (root->interpreter != NULL && object_at(root->interpreter) != NULL)
        add_loaded(with, object_at(root->interpreter), root->interpreter);
}

/* ---- One file ---- */

static void judge_interpreter(const struct object *o)
{
    const int is_program = o->type == ET_EXEC_ || o->is_pie;
    if (o->kind == PROGRAM && is_program && o->interpreter == NULL && o->n_needed > 0)
        fault("%s has no program interpreter (PT_INTERP), and is linked to libraries", o->path);
    else if (o->interpreter != NULL && object_at(o->interpreter) == NULL)
        fault("%s needs the interpreter %s, which is not in the image", o->path, o->interpreter);
}

/* The loader looks into folders for newer processors by itself. */
static int is_for_some(const char *path)
{
    return strstr(path, "/glibc-hwcaps/") != NULL;
}

static void judge_level(const struct object *o)
{
    int level;
    if (!IS_X86_64 || allowed_level > 3 || is_for_some(o->path))
        return;
    level = level_of_note(o);
    if (level <= allowed_level && o->kind == PROGRAM)
        level = level_of_code(o);
    if (level > allowed_level)
        fault("%s is for processors of x86-64-v%d, and the image is for x86-64%s", o->path, level,
              allowed_level == 1 ? "" : allowed_level == 2 ? "-v2" : "-v3");
}

/*
 * Hosts of POWER and Arm have pages of up to 64 KiB. The kernel maps a file where its addresses and
 * offsets are the same but for whole pages; the loader of glibc before 2.35 asks for the alignment.
 */
static void judge_pages(const struct object *o)
{
    for (int i = 0; i < n_headers(o); i++) {
        const unsigned char *h = header_of(o, i);
        const uint64_t moved = at(h + 16, 8) - at(h + 8, 8), alignment = at(h + 48, 8);
        if (at(h, 4) != PT_LOAD_ || at(h + 32, 8) == 0)
            continue;
        if (moved % LARGEST_PAGE == 0 && (o->kind == PROGRAM || alignment % LARGEST_PAGE == 0))
            continue;
        fault("%s is laid out for memory pages of %lu bytes, and those of hosts have up to %d",
              o->path, (unsigned long)alignment, LARGEST_PAGE);
        return;
    }
}

/* Whether another library of that name has a version: what brings a C library of its own. */
static int is_elsewhere(const char *file, const char *version)
{
    for (size_t i = 0; i < n_objects; i++)
        if (objects[i]->machine == OUR_MACHINE && has_name(objects[i], file) &&
            objects[i]->verdef != NULL && has_version(objects[i], version))
            return 1;
    return 0;
}

static void judge_version(const struct object *o, const struct loaded *with, const char *file,
                          const char *version)
{
    for (int i = 0; i < with->n; i++)
        if (has_name(with->all[i], file) && !has_version(with->all[i], version) &&
            (o->kind != PLUGIN || !is_elsewhere(file, version))) {
            fault("%s needs version %s of %s, which %s does not have", o->path, version, file,
                  with->all[i]->path);
            return;
        }
}

static void judge_versions(const struct object *o, const struct loaded *with)
{
    const unsigned char *need = o->verneed;
    while (need != NULL && need + 16 <= o->data + o->size) {
        const unsigned char *aux = need + at(need + 8, 4);
        for (uint64_t n = at(need + 2, 2); n > 0 && aux + 16 <= o->data + o->size; n--) {
            const int is_weak = (at(aux + 4, 2) & 2) != 0;
            if (!is_weak)
                judge_version(o, with, string_at(o, at(need + 4, 4)), string_at(o, at(aux + 8, 4)));
            aux += at(aux + 12, 4);
        }
        if (at(need + 12, 4) == 0)
            return;
        need += at(need + 12, 4);
    }
}

static int is_defined_by(struct object *const *some, size_t n, const char *name)
{
    const uint32_t hash = gnu_hash(name);
    for (size_t i = 0; i < n; i++)
        if (defines(some[i], name, hash))
            return 1;
    return 0;
}

/* What glibc's library for debuggers asks of the debugger: nptl_db/proc_service.h. */
static int is_debuggers(const struct object *o, const char *name)
{
    return begins(last_part(o->path), "libthread_db") && begins(name, "ps_");
}

static int is_linked_to(const struct object *o)
{
    for (size_t i = 0; i < n_objects; i++)
        for (int k = 0; k < objects[i]->n_needed; k++)
            if (has_name(o, objects[i]->needed[k]))
                return 1;
    return 0;
}

/*
 * A symbol of a library may come from whichever program loads it, as those of Python's do. A library
 * that nothing is linked to, and that takes many so, may be part of a program that is not there.
 */
static void judge_symbols(const struct object *o, const struct loaded *with)
{
    const char *lacking = NULL;
    int taken = 0;
    for (uint32_t i = 0; i < o->n_symbols; i++) {
        const char *name = symbol_name(o, i);
        if (!is_wanted(o, i) || is_debuggers(o, name) ||
            is_defined_by(with->all, (size_t)with->n, name))
            continue;
        taken++;
        if (lacking == NULL && (o->kind == PROGRAM || !is_defined_by(objects, n_objects, name)))
            lacking = name;
    }
    if (lacking != NULL && (taken < MANY || o->kind != LIBRARY || is_linked_to(o)))
        fault("%s needs the symbol %s, which no library of it has", o->path, lacking);
}

/* What is loaded with a file is judged with it, since it is then that it has to be whole. */
static void judge_loaded(struct object *root)
{
    static struct loaded with;
    load(&with, root);
    for (int i = 0; i < with.n && with.is_complete; i++) {
        struct object *o = with.all[i];
        if (o->is_judged || (o != root && o->kind == PROGRAM))
            continue;
        o->is_judged = 1;
        judge_versions(o, &with);
        judge_symbols(o, &with);
    }
}

static void judge(struct object *o)
{
    if (o->fault != NULL) {
        tell_fault(o);
    } else if (o->system != 0 && o->system != 3) {
        fault("%s is for another system than Linux (EI_OSABI %d)", o->path, o->system);
    } else {
        judge_loaded(o);
        judge_interpreter(o);
        judge_level(o);
        judge_pages(o);
    }
}

static void judge_all(void)
{
    const size_t n = n_objects; /* more are read meanwhile, for these alone */
    static const enum kind ORDER[] = {PROGRAM, LIBRARY, PLUGIN};
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < n; i++)
            if (objects[i]->kind == ORDER[k])
                judge(objects[i]);
}
