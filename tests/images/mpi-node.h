/*
 * Part of mpi.c: what the ranks of one host do with each other: whether they share memory, Put and
 * Get, and files by MPI-IO.
 */
#include <fcntl.h>
#include <sys/socket.h>

enum {
    STEP = 2 * KIB * KIB,
    IN_WINDOW = KIB * KIB + 8,
    WINDOW = 17 * 64 * KIB,
    IN_FILE = 128 * KIB + 8,
    PLACE = 256
};

static struct group node; /* the ranks of this host */
static char within_host[16] = "unknown"; /* "memory", "TCP" */
static char files[16] = "unknown";       /* "whole", "not shared" */

static void make_node(void)
{
    step("MPI_Comm_split_type");
    MUST(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL,
                             &node.comm));
    MUST(MPI_Comm_set_errhandler(node.comm, MPI_ERRORS_RETURN));
    MUST(MPI_Comm_size(node.comm, &node.size));
    MUST(MPI_Comm_rank(node.comm, &node.rank));
    node.members = room((size_t)node.size * sizeof *node.members);
    MUST(MPI_Allgather(&rank, 1, MPI_INT, node.members, 1, MPI_INT, node.comm));
}

static void free_node(void)
{
    MPI_Comm_free(&node.comm);
    free(node.members);
}

/* ---- Shared memory ---- */

/*
 * The bytes that this process received over TCP so far, or -1 if the kernel does not tell: it does
 * since 4.1, and QEMU does not. https://man7.org/linux/man-pages/man7/tcp.7.html (TCP_INFO)
 */
static int64_t bytes_over_tcp(void)
{
    enum { SOL_TCP_LEVEL = 6, INFO = 11, RECEIVED = 128, LAST_FILE = 1024 };
    int64_t sum = 0;
    for (int fd = 0; fd < LAST_FILE; fd++) {
        unsigned char info[256] = {0};
        socklen_t length = sizeof info;
        uint64_t received;
        if (getsockopt(fd, SOL_TCP_LEVEL, INFO, info, &length) != 0)
            continue;
        if (length < RECEIVED + 8)
            return -1;
        memcpy(&received, info + RECEIVED, 8);
        sum += (int64_t)received;
    }
    return sum;
}

/* Whether whoever started the ranks says how they are to talk. */
static int is_tuned(void)
{
    static const char *const NAMES[] = {
        "OMPI_MCA_btl",   "OMPI_MCA_pml",      "OMPI_MCA_mtl",       "UCX_TLS",
        "FI_PROVIDER",    "MPIR_CVAR_NOLOCAL", "MPIR_CVAR_OFI_USE_PROVIDER",
        "I_MPI_FABRICS",  "MV2_USE_SHARED_MEM"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (getenv(NAMES[i]) != NULL)
            return 1;
    return 0;
}

/* Of Open MPI the transports tell, where the kernel does not. */
static int lacks_memory(void)
{
    return strncmp(transport, "ob1 (", 5) == 0 && strstr(transport, "sm") == NULL &&
           strstr(transport, "vader") == NULL;
}

/* Messages around the ring of this host's ranks: over memory, or over the network by a fallback. */
static void check_sharing(int is_launched)
{
    const int to = (node.rank + 1) % node.size, from = (node.rank + node.size - 1) % node.size;
    const int64_t before = bytes_over_tcp();
    const unsigned char *expected;
    int is_tcp;
    if (node.size == 1)
        return;
    next_call();
    expected = stretch(node.members[from], rank, STEP);
    step("MPI_Sendrecv between the ranks of this host");
    MUST(MPI_Sendrecv(stretch(rank, node.members[to], STEP), STEP, MPI_BYTE, to, 3, incoming, STEP,
                      MPI_BYTE, from, 3, node.comm, MPI_STATUS_IGNORE));
    check(incoming, expected, "message", node.members[from], rank, STEP);
    is_tcp = before < 0 ? lacks_memory() : bytes_over_tcp() - before > STEP / 2;
    snprintf(within_host, sizeof within_host, "%s", is_tcp ? "TCP" : "memory");
    if (is_tcp && !(is_launched && is_tuned()))
        found("messages between ranks of one host go over TCP (%s), not over shared memory: MPI "
              "has fallen back", transport);
}

/* ---- Put and Get ---- */

static void check_window(const unsigned char *window, int source, int bytes, const char *what)
{
    const int count = bytes / 8 * 8;
    check(window, stretch(source, rank, count), what, source, rank, count);
}

/*
 * Into the right neighbour's memory, and out of the left one's. The window has whole pages: others
 * MPICH 4.0.2 lays out wrongly over UCX 1.13, https://github.com/pmodels/mpich/pull/6140.
 */
static void check_one_sided(void)
{
    static const int SIZES[] = {8, 1000, IN_WINDOW};
    const int to = (node.rank + 1) % node.size, from = (node.rank + node.size - 1) % node.size;
    unsigned char *window;
    MPI_Win win;

    step("MPI_Win_allocate");
    MUST(MPI_Win_allocate(WINDOW, 1, MPI_INFO_NULL, node.comm, &window, &win));
    for (int i = 0; i < 3; i++) {
        const int bytes = SIZES[i], count = bytes / 8;
        next_call();
        step("MPI_Put of %d bytes", bytes);
        memset(window, 0xA5, (size_t)bytes);
        set_guard(window + bytes);
        MUST(MPI_Win_fence(0, win));
        MUST(MPI_Put(stretch(rank, node.members[to], bytes), count, MPI_DOUBLE, to, 0, count,
                     MPI_DOUBLE, win));
        MUST(MPI_Win_fence(0, win));
        check_window(window, node.members[from], bytes, "put");
        check_guard(window + bytes, "put", bytes);
        step("MPI_Get of %d bytes", bytes);
        memcpy(window, stretch(rank, node.members[to], bytes + 8), (size_t)bytes);
        set_guard(incoming + bytes);
        MUST(MPI_Win_fence(0, win));
        MUST(MPI_Get(incoming, count, MPI_DOUBLE, from, 0, count, MPI_DOUBLE, win));
        MUST(MPI_Win_fence(0, win));
        check(incoming, stretch(node.members[from], rank, bytes + 8), "get", node.members[from],
              rank, bytes);
        check_guard(incoming + bytes, "get", bytes);
    }
    MUST(MPI_Win_free(&win));
}

/* ---- Files ---- */

/* A new file's name, the same on all ranks; empty if rank 0 of the host can make none. */
static void name_file(char name[PLACE])
{
    const char *folder = getenv("TMPDIR");
    int file = -1;
    memset(name, 0, PLACE);
    if (node.rank == 0) {
        snprintf(name, PLACE, "%s/mpi-check-XXXXXX", folder == NULL ? "/tmp" : folder);
        file = mkstemp(name);
    }
    if (file >= 0)
        close(file);
    else
        name[0] = '\0';
    if (node.rank == 0 && name[0] == '\0')
        found("no file can be made in %s", folder == NULL ? "/tmp" : folder);
    MUST(MPI_Bcast(name, PLACE, MPI_CHAR, 0, node.comm));
}

/* Whether all ranks see the file: containers may have folders for temporary files of their own. */
static int is_shared(const char *name)
{
    const int mine = access(name, F_OK) == 0;
    int all = 0;
    MUST(MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, node.comm));
    return all;
}

/* Each rank writes a part, and reads its neighbour's. */
static void write_and_read(const char *name)
{
    const int from = (node.rank + 1) % node.size, bytes = IN_FILE, count = bytes / 8;
    MPI_Offset length = 0;
    MPI_File file;

    next_call();
    step("MPI_File_open");
    MUST(MPI_File_open(node.comm, (char *)name, MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    step("MPI_File_write_at_all of %d bytes", bytes);
    MUST(MPI_File_write_at_all(file, (MPI_Offset)node.rank * bytes,
                               (void *)stretch(rank, -1, bytes), count, MPI_DOUBLE,
                               MPI_STATUS_IGNORE));
    MUST(MPI_File_sync(file));
    MUST(MPI_Barrier(node.comm));
    MUST(MPI_File_get_size(file, &length));
    if (length != (MPI_Offset)node.size * bytes)
        found("a file by MPI-IO has %lld bytes, expected %lld", (long long)length,
              (long long)node.size * bytes);
    step("MPI_File_read_at_all of %d bytes", bytes);
    set_guard(incoming + bytes);
    MUST(MPI_File_read_at_all(file, (MPI_Offset)from * bytes, incoming, count, MPI_DOUBLE,
                              MPI_STATUS_IGNORE));
    check(incoming, stretch(node.members[from], -1, bytes), "file", node.members[from], rank, bytes);
    check_guard(incoming + bytes, "file", bytes);
    step("MPI_File_close");
    MUST(MPI_File_close(&file));
}

static void check_files(void)
{
    char name[PLACE];
    name_file(name);
    if (name[0] == '\0')
        return;
    if (is_shared(name)) {
        write_and_read(name);
        snprintf(files, sizeof files, "whole");
    } else
        snprintf(files, sizeof files, "not shared");
    if (node.rank == 0)
        unlink(name);
}

static void check_node(int is_launched)
{
    make_node();
    check_sharing(is_launched);
    check_one_sided();
    check_files();
    free_node();
}
