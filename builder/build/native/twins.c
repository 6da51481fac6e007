/* Runs the native twin of a foreign program, where there is one.

   builder/build/native/interpreter.py puts this code before the entry point of a static QEMU, which
   binfmt_misc starts for each program of another architecture (flags OCPF). Where a folder of
   native tools is shown at /.native, /.native/twins/PATH describes the twin of the program PATH,
   and takes its place; everywhere else, and if anything is amiss, QEMU goes on as if this
   code were not there.

   A description is text; the first character of a line says what the line is:
     =PROGRAM   the native program
     0NAME      its argv[0], if it is not to be the caller's
     ?WORD      only when WORD, or that of another such line, is among the first arguments
     !ARGUMENT  not when this is among the arguments
     +ARGUMENT  an argument before those of the caller
     LNAME      after them, -L and each folder that the variable NAME lists
     ~A=B       the argument A becomes B
     P          only when the plugins that the arguments name (of a linker) are native ones
     $NAME=V    a variable, unless the caller has set it
     >NAME=V    the same; if the caller has set it, V is put after a colon

   Freestanding: no C library, no data but constants, position independent. Linux on x86_64. */

enum { AT_FLAGS_ = 8, AT_EXECFD_ = 2, PRESERVES_ARGV0 = 1 };
enum { SYS_read = 0, SYS_open = 2, SYS_close = 3, SYS_execve = 59, SYS_fcntl = 72, SYS_readlink = 89 };
enum { F_SETFD = 2, FD_CLOEXEC = 1, O_RDONLY_CLOEXEC = 02000000 };
enum { PATH_LIMIT = 4096, TEXT_LIMIT = 4096, ADDED_LIMIT = 16, LOOKED_AT = 4 };

static long kernel(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

static int same(const char *a, const char *b)
{
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

/* Whether `variable` (NAME=VALUE) sets the name that `other` (NAME, or NAME=V) has. */
static int same_name(const char *variable, const char *other)
{
    while (*variable == *other && *variable != '=' && *variable) variable++, other++;
    return *variable == '=' && (*other == '=' || !*other);
}

static char *value_of(char *variable)
{
    while (*variable && *variable++ != '=') {}
    return variable;
}

static int begins(const char *text, const char *with)
{
    while (*with && *text == *with) text++, with++;
    return !*with;
}

/* B, if `line` is A=B and A is the argument; else the argument. */
static char *replaced(char *argument, char *line)
{
    char *a = argument;
    while (*line && *line != '=' && *a == *line) a++, line++;
    return !*a && *line == '=' ? line + 1 : argument;
}

static long length_of(const char *text)
{
    long length = 0;
    while (text[length]) length++;
    return length;
}

static char *append(char *at, const char *text)
{
    while (*text) *at++ = *text++;
    *at = 0;
    return at;
}

static char *append_number(char *at, unsigned long number)
{
    if (number >= 10) at = append_number(at, number / 10);
    *at++ = (char)('0' + number % 10);
    *at = 0;
    return at;
}

/* Reads the description of the open program's twin; 0 if there is none. */
static long description(long program, char *text)
{
    static const char twins[] = "/.native/twins";
    char link[32], path[PATH_LIMIT + sizeof twins];
    append_number(append(link, "/proc/self/fd/"), (unsigned long)program);
    char *at = append(path, twins);
    long length = kernel(SYS_readlink, (long)link, (long)at, PATH_LIMIT);
    if (length <= 0 || length >= PATH_LIMIT || *at != '/') return 0;
    at[length] = 0;
    long file = kernel(SYS_open, (long)path, O_RDONLY_CLOEXEC, 0);
    if (file < 0) return 0;
    length = kernel(SYS_read, file, (long)text, TEXT_LIMIT - 1);
    kernel(SYS_close, file, 0, 0);
    if (length <= 0 || length == TEXT_LIMIT - 1) return 0;
    text[length] = 0;
    return length;
}

/* `stack` is what the kernel hands a new program: argc, argv, envp, auxv. Returns if QEMU is to
   go on. */
__attribute__((used)) static void decide(unsigned long *stack)
{
    long argc = (long)stack[0];
    char **argv = (char **)(stack + 1), **envp = argv + argc + 1, **end = envp;
    while (*end) end++;
    long variables = end - envp, program = -1, flags = 0;
    for (unsigned long *aux = (unsigned long *)(end + 1); aux[0]; aux += 2) {
        if (aux[0] == AT_EXECFD_) program = (long)aux[1];
        if (aux[0] == AT_FLAGS_) flags = (long)aux[1];
    }
    /* argv: the interpreter, the program's path, the caller's argv[0], its arguments. */
    if (program < 0 || !(flags & PRESERVES_ARGV0) || argc < 3) return;

    /* What the image preloads (fakeroot, stdbuf) works in the image's own programs alone. */
    for (char **variable = envp; variable < end; variable++)
        if (begins(*variable, "LD_PRELOAD=") && *value_of(*variable)) return;

    char text[TEXT_LIMIT];
    if (!description(program, text)) return;
    char *native = 0, *name = argv[2], *added[ADDED_LIMIT], *folders[ADDED_LIMIT];
    char *environment[variables + ADDED_LIMIT + 1];
    char *replacements[ADDED_LIMIT];
    long replacing = 0, plugins = 0;
    long arguments = 0, appended = 0, settings = variables, conditional = 0, met = 0;
    for (long n = 0; n < variables; n++) environment[n] = envp[n];
    char joined[2 * TEXT_LIMIT], *room = joined;
    for (char *line = text, *next; *line; line = next) {
        for (next = line; *next && *next != '\n'; next++) {}
        if (*next) *next++ = 0;
        switch (*line++) {
        case '=': native = line; break;
        case '0': name = line; break;
        case '?':
            conditional = 1;
            for (long i = 3; i < argc && i < 3 + LOOKED_AT; i++) met |= same(line, argv[i]);
            break;
        case '!':
            for (long i = 3; i < argc; i++)
                if (same(line, argv[i])) return;
            break;
        case '+':
            if (arguments == ADDED_LIMIT) return;
            added[arguments++] = line;
            break;
        case '~':
            if (replacing == ADDED_LIMIT) return;
            replacements[replacing++] = line;
            break;
        case 'P': plugins = 1; break;
        case 'L': {
            char *at = 0;
            for (long n = 0; n < variables && !at; n++)
                if (same_name(envp[n], line)) at = value_of(envp[n]);
            while (at && *at) {
                char *piece = at;
                while (*at && *at != ':') at++;
                if (at > piece) {
                    if (appended == ADDED_LIMIT || at - piece + 3 > joined + sizeof joined - room)
                        return;
                    folders[appended++] = room;
                    room = append(room, "-L");
                    while (piece < at) *room++ = *piece++;
                    *room++ = 0;
                }
                if (*at) at++;
            }
            break;
        }
        case '$':
        case '>': {
            long known = 0;
            while (known < settings && !same_name(environment[known], line)) known++;
            if (known == settings) {
                if (settings == variables + ADDED_LIMIT) return;
                environment[settings++] = line;
            } else if (line[-1] == '>') {
                char *value = value_of(line);
                if (length_of(environment[known]) + length_of(value) + 2 >
                    joined + sizeof joined - room) return;
                char *whole = room;
                room = append(append(append(room, environment[known]), ":"), value) + 1;
                environment[known] = whole;
            }
            break;
        }
        default: return;
        }
    }
    if (!native || (conditional && !met)) return;

    char *words[argc + arguments + appended];
    long n = 0;
    words[n++] = name;
    for (long i = 0; i < arguments; i++) words[n++] = added[i];
    for (long i = 3; i < argc; i++) {
        words[n] = argv[i];
        for (long r = 0; r < replacing; r++) words[n] = replaced(words[n], replacements[r]);
        int named = n > 0 && (same(words[n - 1], "-plugin") || same(words[n - 1], "--plugin"));
        if (plugins && ((named && !begins(words[n], "/.native/")) || begins(words[n], "--plugin=")))
            return;
        n++;
    }
    for (long i = 0; i < appended; i++) words[n++] = folders[i];
    words[n] = 0;
    environment[settings] = 0;
    kernel(SYS_fcntl, program, F_SETFD, FD_CLOEXEC);
    kernel(SYS_execve, (long)native, (long)words, (long)environment);
    kernel(SYS_fcntl, program, F_SETFD, 0); /* QEMU reads the program through it */
}

/* `onward` is filled in: how far QEMU's own entry point is from it. */
__asm__(".section .text.start, \"ax\"\n"
        "onward: .quad 0\n"
        ".globl start\n"
        "start: mov %rsp, %rdi\n"
        "  call decide\n"
        "  lea onward(%rip), %rax\n"
        "  add (%rax), %rax\n"
        "  xor %edx, %edx\n"
        "  jmp *%rax\n");
