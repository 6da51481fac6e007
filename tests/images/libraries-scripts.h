/*
 * Part of libraries.c: scripts on PATH, whose first line names an interpreter that has to be there, and
 * links on PATH, which have to lead to something.
 */
enum { FIRST_LINE = 256 }; /* as much of it as the kernel reads */

static int is_program(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

static int is_on_path(const char *name)
{
    char path[LONGEST_PATH], *words = copy_of(getenv("PATH") == NULL ? "" : getenv("PATH")), *rest;
    int is_there = 0;
    for (char *word = strtok_r(words, ":", &rest); word != NULL && !is_there;
         word = strtok_r(NULL, ":", &rest))
        is_there = snprintf(path, sizeof path, "%s/%s", word, name) < (int)sizeof path &&
                   is_program(path);
    free(words);
    return is_there;
}

/* What is there in a container that runs, or is the host's, is no part of an image. */
static int is_made_later(const char *target)
{
    static const char *const PLACES[] = {"/dev", "/proc", "/run", "/sys", "/tmp", "/var/run"};
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++)
        if (below(target, PLACES[i]))
            return 1;
    return 0;
}

static void judge_link(const char *path)
{
    char target[LONGEST_PATH];
    const ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0)
        return;
    target[n] = '\0';
    if (!is_made_later(target))
        fault("%s is a link to %s, which is not in the image", path, target);
}

/* What `env` starts: its first word that is neither an option nor a variable. */
static char *started_by_env(char *words)
{
    char *rest, *word = strtok_r(words, " \t", &rest);
    while (word != NULL && (word[0] == '-' || strchr(word, '=') != NULL))
        word = strtok_r(NULL, " \t", &rest);
    return word;
}

/* Returns whether the file is a script. */
static int judge_script(const char *path)
{
    char line[FIRST_LINE] = "", *interpreter, *rest, *name;
    const int file = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    const ssize_t n = file < 0 ? -1 : read(file, line, sizeof line - 1);
    if (file >= 0)
        close(file);
    if (n < 3 || strncmp(line, "#!", 2) != 0)
        return 0;
    line[strcspn(line, "\n")] = '\0';
    interpreter = line + 2 + strspn(line + 2, " \t");
    rest = interpreter + strcspn(interpreter, " \t");
    if (*rest != '\0')
        *rest++ = '\0';
    if (!is_program(interpreter))
        fault("%s begins with #!%s, which is not in the image", path, interpreter);
    else if (strcmp(last_part(interpreter), "env") == 0 && (name = started_by_env(rest)) != NULL &&
             strchr(name, '/') == NULL && !is_on_path(name))
        fault("%s is started by %s, which is not on PATH", path, name);
    return 1;
}
