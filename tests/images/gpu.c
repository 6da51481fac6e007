/*
 * gpu LAYER LEAST_DRIVER CUDA [PROGRAM]
 * gpu none
 *
 * The host's driver and its GPUs as a container sees them, one layer at a time:
 *
 *   driver     the host's driver is LEAST_DRIVER or newer, as CUDA asks for
 *   devices    its device nodes are here and can be opened; without any the container has no GPU
 *   library    libcuda.so.1 is the host's: no stub, of the kernel module's version, and it begins
 *   found      it gives at least one GPU
 *   version    it supports CUDA, or a release of CUDA's major version
 *   code       PROGRAM has code for each GPU, or PTX that the driver can compile
 *   ready      all of the above: for the checks that come after
 *
 * A layer that cannot be judged because an earlier one failed is skipped, and says which. The
 * driver's library is opened at run time: no CUDA toolkit is needed to make this program.
 *
 * `gpu none` does what a program that needs a GPU does, and fails where there is none for it.
 *
 * Exit status: 0 passed, 77 skipped (no GPU on this host or given to this container, or not judged),
 * else failed, with the CUDA error's number and name. The last line of standard output is the
 * finding; a line `data: {JSON}` stands before it.
 */
#include "gpu-host.h"

#include "cuda-code.h"
#include "cuda-errors.h"

#include <dlfcn.h>
#include <stdarg.h>

enum { PASSED = 0, FAILED = 1, USAGE = 2, SKIPPED = 77, NAME = 100, TEXT = 1024, MOST_GPUS = 64 };
/* cuda.h: CUresult, and CUdevice_attribute of the compute capability */
enum { SUCCESS = 0, NO_DEVICE = 100, MISMATCH = 803, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

static const char LIBRARY[] = "libcuda.so.1";
static const char CONTROL[] = "/dev/nvidiactl";

struct gpu {
    char name[NAME];
    int major, minor;
};

/* Everything that the layers find out, each for those after it. */
static struct {
    const char *least, *cuda, *program;
    char driver[VERSION_LENGTH];   /* the kernel module's version, "" if it cannot be seen */
    char library[PATH_LENGTH];     /* the file that libcuda.so.1 is */
    int driver_cuda, count;        /* 12040 */
    struct gpu gpus[MOST_GPUS];
} host;

static struct {
    int (*init)(unsigned flags);
    int (*driver_version)(int *version);
    int (*count)(int *count);
    int (*name)(char *name, int length, int device);
    int (*attribute)(int *value, int attribute, int device);
    int (*error_name)(int error, const char **name);
} cu;

/* The last layer's finding, and the members of its data. */
static char finding[TEXT * 2], data[TEXT * 2];

static int ends(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding, sizeof finding, format, arguments);
    va_end(arguments);
    return status;
}

/* Adds `"name": "text"` to the data, without what JSON would have to escape. */
static void note(const char *name, const char *text)
{
    size_t at = strlen(data);
    at += (size_t)snprintf(data + at, sizeof data - at, "%s\"%s\": \"", at == 0 ? "" : ", ", name);
    for (; *text != '\0' && at < sizeof data - 2; text++)
        if ((unsigned char)*text >= ' ' && *text != '"' && *text != '\\')
            data[at++] = *text;
    snprintf(data + at, sizeof data - at, "\"");
}

static int cuda_failed(const char *call, int number)
{
    const struct cuda_error *known = cuda_error_of(number);
    const char *name = known == NULL ? NULL : known->driver_name;
    if (known != NULL && name == NULL)
        name = known->name;
    if (name == NULL && (cu.error_name == NULL || cu.error_name(number, &name) != SUCCESS))
        name = NULL;
    if (name == NULL)
        name = "no name for it";
    note("cuda_error", name);
    return ends(FAILED, "%s: CUDA error %d (%s)%s%s", call, number, name, known ? ": " : "",
                known ? known->meaning : "");
}

static int major_of(const char *version) { return atoi(version); }

static int number_of(const char *version)
{
    const char *dot = strchr(version, '.');
    return atoi(version) * 1000 + (dot == NULL ? 0 : atoi(dot + 1) * 10);
}

/* ---- The layers ---- */

static int layer_driver(void)
{
    const int known = kernel_driver(host.driver);
    if (!known && !exists(CONTROL))
        return ends(SKIPPED, "no GPU: no driver is loaded (/proc/driver/nvidia), and %s is absent",
                    CONTROL);
    if (!known)
        return ends(PASSED, "the driver's version cannot be seen here; its library has to tell it");
    note("driver", host.driver);
    note("least", host.least);
    if (compare_versions(host.driver, host.least) < 0)
        return ends(FAILED, "driver %s is older than %s, which CUDA %s needs: CUDA error 35 "
                    "(cudaErrorInsufficientDriver)", host.driver, host.least, host.cuda);
    return ends(PASSED, "driver %s is not older than %s, which CUDA %s needs", host.driver,
                host.least, host.cuda);
}

/* Opens a device node; a fault is told in the finding. */
static int open_node(const char *path, const char *hint)
{
    char buffer[PATH_LENGTH];
    struct stat status;
    int descriptor;
    if (stat(rooted(path, buffer), &status) != 0)
        return ends(FAILED, "%s is absent%s", path, hint);
    if (!S_ISCHR(status.st_mode))
        return ends(FAILED, "%s is no device node", path);
    descriptor = open(buffer, O_RDWR | O_CLOEXEC);
    if (descriptor < 0)
        return ends(FAILED, "%s cannot be opened: %s%s", path, strerror(errno),
                    errno == EACCES || errno == EPERM ? " (its mode, or the cgroup)" : "");
    close(descriptor);
    return PASSED;
}

static int layer_devices(void)
{
    const int shown = proc_gpus();
    int nodes = 0;
    char path[64];
    if (!exists(CONTROL)) {
        note("given", "no");
        return ends(SKIPPED, "no GPU was given to this container: driver %s is loaded, and %s is "
                    "absent", host.driver, CONTROL);
    }
    if (open_node(CONTROL, "") != PASSED ||
        open_node("/dev/nvidia-uvm", ": CUDA error 999 (CUDA_ERROR_UNKNOWN) would follow; on the "
                                     "host: nvidia-modprobe -u -c=0") != PASSED)
        return FAILED;
    for (int i = 0; i < MOST_GPUS; i++) {
        snprintf(path, sizeof path, "/dev/nvidia%d", i);
        if (!exists(path))
            continue;
        if (open_node(path, "") != PASSED)
            return FAILED;
        nodes++;
    }
    if (nodes == 0)
        return ends(FAILED, "%s is here, and no /dev/nvidia0 or other GPU: CUDA error 100 "
                    "(CUDA_ERROR_NO_DEVICE) would follow", CONTROL);
    snprintf(path, sizeof path, "%d", nodes);
    note("nodes", path);
    return ends(PASSED, "nvidiactl, nvidia-uvm and %d GPU%s can be opened%s", nodes,
                nodes == 1 ? "" : "s", shown > nodes ? "; the host has more" : "");
}

static int resolve(void *library, const char *name, void *function)
{
    void *address = dlsym(library, name);
    if (address == NULL)
        ends(FAILED, "%s has no %s", LIBRARY, name);
    memcpy(function, &address, sizeof address); /* C99 has no cast from object to function */
    return address != NULL;
}

static int resolve_all(void *library)
{
    return resolve(library, "cuInit", &cu.init) &&
           resolve(library, "cuDriverGetVersion", &cu.driver_version) &&
           resolve(library, "cuDeviceGetCount", &cu.count) &&
           resolve(library, "cuDeviceGetName", &cu.name) &&
           resolve(library, "cuDeviceGetAttribute", &cu.attribute) &&
           resolve(library, "cuGetErrorName", &cu.error_name);
}

/* The version of the library by the name of its file, or of what is mounted there. */
static int library_version(const char *shown, char version[VERSION_LENGTH])
{
    const char *names[2];
    names[0] = host.library;
    names[1] = shown;
    for (int i = 0; i < 2; i++) {
        const char *base = strstr(names[i], "libcuda.so.");
        if (base != NULL && find_version(base + strlen("libcuda.so."), version))
            return 1;
    }
    if (host.driver[0] != '\0' && holds(host.library, host.driver)) {
        snprintf(version, VERSION_LENGTH, "%s", host.driver);
        return 1;
    }
    return 0;
}

static int wrong_version(const char *version, int own)
{
    note("cuda_error", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
    return ends(FAILED, "%s is of driver %s, the host's is %s: %s (CUDA error %d, "
                "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)", host.library, version, host.driver,
                own ? "it was left in the image" : "the host's library is not of its kernel module",
                MISMATCH);
}

/*
 * Whether a library is the image's own file. Outside of an image it is the host's, of course; and
 * where ch-fromhost has copied the host's files into a folder that ch-run starts, only its version
 * tells it from another one.
 */
static int was_left(int mount)
{
    char path[PATH_LENGTH], ignored[LINE_LENGTH];
    return mount != 0 && mount == mount_of("/usr", ignored) &&
           access(rooted("/opt/build-images/host-contract.json", path), F_OK) == 0;
}

static int judge_library(void)
{
    static char shown[LINE_LENGTH];
    char version[VERSION_LENGTH] = "";
    const int files = mapped("libcuda.so", host.library);
    const int own = was_left(mount_of(host.library, shown));
    note("library", host.library);
    if (files > 1)
        return ends(FAILED, "more than one %s is loaded, the last is %s", LIBRARY, host.library);
    if (strstr(host.library, "/stubs/") != NULL)
        return cuda_failed(host.library, 34);
    if (library_version(shown, version)) {
        note("version", version);
        if (host.driver[0] != '\0' && strcmp(version, host.driver) != 0)
            return wrong_version(version, own);
        if (host.driver[0] == '\0' && compare_versions(version, host.least) < 0)
            return ends(FAILED, "driver %s is older than %s, which CUDA %s needs: CUDA error 35 "
                        "(cudaErrorInsufficientDriver)", version, host.least, host.cuda);
    }
    if (own && (version[0] == '\0' || getenv("CH_RUNNING") == NULL))
        return ends(FAILED, "%s was left in the image: the container was not given the host's",
                    host.library);
    return ends(PASSED, "%s is %s, %s%s", LIBRARY, host.library,
                version[0] == '\0' ? "whose version cannot be told" : "of the driver's version ",
                version);
}

static int layer_library(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW);
    int outcome, error;
    if (library == NULL) {
        const char *reason = dlerror();
        return strstr(reason, "No such file") == NULL
                   ? ends(FAILED, "%s cannot be loaded: %s", LIBRARY, reason)
                   : ends(FAILED, "%s is not found: the container was not given the host's driver "
                          "library", LIBRARY);
    }
    if (!resolve_all(library))
        return FAILED;
    outcome = judge_library();
    if (outcome != PASSED)
        return outcome;
    error = cu.init(0);
    return error == SUCCESS || error == NO_DEVICE ? PASSED : cuda_failed("cuInit", error);
}

static int describe(int device, struct gpu *gpu)
{
    int error = cu.name(gpu->name, NAME - 1, device);
    if (error != SUCCESS)
        return cuda_failed("cuDeviceGetName", error);
    error = cu.attribute(&gpu->major, CAPABILITY_MAJOR, device);
    if (error == SUCCESS)
        error = cu.attribute(&gpu->minor, CAPABILITY_MINOR, device);
    return error == SUCCESS ? PASSED : cuda_failed("cuDeviceGetAttribute", error);
}

static void list_gpus(char *text, size_t length)
{
    size_t at = 0;
    for (int i = 0; i < host.count && at < length; i++) {
        const struct gpu *gpu = &host.gpus[i], *before = &host.gpus[i - (i > 0)];
        if (i > 0 && strcmp(gpu->name, before->name) == 0 && gpu->major == before->major &&
            gpu->minor == before->minor)
            continue;
        at += (size_t)snprintf(text + at, length - at, "%s%s, compute capability %d.%d",
                               i == 0 ? "" : ", ", gpu->name, gpu->major, gpu->minor);
    }
}

static int layer_found(void)
{
    char listed[TEXT];
    int error = cu.init(0);
    if (error != SUCCESS)
        return cuda_failed("cuInit", error);
    error = cu.count(&host.count);
    if (error != SUCCESS)
        return cuda_failed("cuDeviceGetCount", error);
    if (host.count < 1)
        return ends(FAILED, "the driver answers, but gives no GPU to this container");
    if (host.count > MOST_GPUS)
        host.count = MOST_GPUS;
    for (int i = 0; i < host.count; i++)
        if (describe(i, &host.gpus[i]) != PASSED)
            return FAILED;
    list_gpus(listed, sizeof listed);
    note("gpu", listed);
    return ends(PASSED, "%d GPU%s: %s", host.count, host.count == 1 ? "" : "s", listed);
}

static int layer_version(void)
{
    char supported[VERSION_LENGTH];
    const int error = cu.driver_version(&host.driver_cuda), wanted = number_of(host.cuda);
    if (error != SUCCESS)
        return cuda_failed("cuDriverGetVersion", error);
    snprintf(supported, sizeof supported, "%d.%d", host.driver_cuda / 1000,
             host.driver_cuda % 1000 / 10);
    note("driver_cuda", supported);
    note("cuda", host.cuda);
    if (host.driver_cuda >= wanted)
        return ends(PASSED, "the driver supports CUDA %s, the image has %s", supported, host.cuda);
    if (host.driver_cuda / 1000 == major_of(host.cuda) && major_of(host.cuda) >= 11)
        return ends(PASSED, "the driver supports CUDA %s, the image has %s: minor-version "
                    "compatibility, without compiling PTX", supported, host.cuda);
    return ends(FAILED, "the driver supports CUDA %s, the image has %s: CUDA error 35 "
                "(cudaErrorInsufficientDriver)", supported, host.cuda);
}

/* Code for these, Tegra's, runs on no other of their major: CUDA C++ Programming Guide. */
static int is_tegra(unsigned capability)
{
    return capability == 32 || capability == 53 || capability == 62 || capability == 72 ||
           capability == 87;
}

/* The code that a GPU runs: of its major capability and no newer minor; 0 without any. */
static unsigned fitting(const struct cuda_set *set, int major, int minor)
{
    const unsigned own = (unsigned)(major * 10 + minor);
    unsigned best = 0;
    for (int i = 0; i < set->count; i++) {
        const unsigned one = set->values[i];
        if (one == own || (one / 10 == own / 10 && one < own && !is_tegra(one) && !is_tegra(own)))
            best = one;
    }
    return best;
}

static unsigned compilable(const struct cuda_set *set, int major, int minor)
{
    unsigned best = 0;
    for (int i = 0; i < set->count; i++)
        if ((int)set->values[i] <= major * 10 + minor)
            best = set->values[i];
    return best;
}

static int code_for(const struct gpu *gpu, const struct cuda_code *found, char *text, size_t length)
{
    const unsigned code = fitting(&found->code, gpu->major, gpu->minor);
    const unsigned ptx = compilable(&found->ptx, gpu->major, gpu->minor);
    char codes[TEXT / 2], ptxs[TEXT / 2];
    if (code != 0) {
        snprintf(text, length, "code of sm_%u for compute capability %d.%d", code, gpu->major,
                 gpu->minor);
        return PASSED;
    }
    cuda_list(&found->code, codes, sizeof codes);
    cuda_list(&found->ptx, ptxs, sizeof ptxs);
    if (ptx != 0 && host.driver_cuda < number_of(host.cuda)) {
        note("cuda_error", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION");
        return ends(FAILED, "no code for compute capability %d.%d, and PTX of CUDA %s is newer "
                    "than the driver: CUDA error 222 (CUDA_ERROR_UNSUPPORTED_PTX_VERSION)",
                    gpu->major, gpu->minor, host.cuda);
    }
    if (ptx == 0) {
        note("cuda_error", "CUDA_ERROR_NO_BINARY_FOR_GPU");
        return ends(FAILED, "code for %s and PTX for %s: none for compute capability %d.%d of %s: "
                    "CUDA error 209 (CUDA_ERROR_NO_BINARY_FOR_GPU)", codes, ptxs, gpu->major,
                    gpu->minor, gpu->name);
    }
    snprintf(text, length, "PTX of compute_%u, compiled by the driver for compute capability %d.%d",
             ptx, gpu->major, gpu->minor);
    return PASSED;
}

static int layer_code(void)
{
    struct cuda_code found;
    char text[TEXT] = "", before[TEXT] = "", all[TEXT * 2] = "";
    if (host.program == NULL)
        return ends(PASSED, "no program was named");
    if (!cuda_code_of(host.program, &found))
        return ends(FAILED, "%s: %s", host.program, strerror(errno));
    for (int i = 0; i < host.count; i++) {
        if (code_for(&host.gpus[i], &found, text, sizeof text) != PASSED)
            return FAILED;
        if (strcmp(text, before) != 0)
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i == 0 ? "" : "; ", text);
        memcpy(before, text, sizeof before);
    }
    note("code", all);
    return ends(PASSED, "%s", all);
}

static const struct layer {
    const char *name;
    int (*judge)(void);
} LAYERS[] = {{"driver", layer_driver},   {"devices", layer_devices}, {"library", layer_library},
              {"found", layer_found},     {"version", layer_version}, {"code", layer_code}};
enum { N_LAYERS = sizeof LAYERS / sizeof *LAYERS };

/* ---- The verdict ---- */

static int told(int status)
{
    if (data[0] != '\0')
        printf("data: {%s}\n", data);
    printf("%s\n", finding);
    return status;
}

static int not_judged(const struct layer *layer, int status)
{
    char reason[sizeof finding];
    if (status == SKIPPED) /* no GPU here: that says it all */
        return told(SKIPPED);
    memcpy(reason, finding, sizeof reason);
    data[0] = '\0';
    note("layer", layer->name);
    ends(SKIPPED, "not judged, since gpu-%s failed: %.*s", layer->name, TEXT, reason);
    return told(SKIPPED);
}

static int judge(const char *wanted)
{
    for (int i = 0; i < N_LAYERS; i++) {
        int status;
        data[0] = '\0';
        status = LAYERS[i].judge();
        if (strcmp(LAYERS[i].name, wanted) == 0)
            return told(status);
        if (status != PASSED)
            return not_judged(&LAYERS[i], status);
    }
    return PASSED; /* ready */
}

/* What a program that needs a GPU ends with where none is given to it. */
static int must_have_one(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW);
    if (library == NULL) {
        ends(FAILED, "%s", dlerror());
        return told(FAILED);
    }
    return resolve_all(library) ? told(layer_found()) : told(FAILED);
}

static int is_layer(const char *name)
{
    for (int i = 0; i < N_LAYERS; i++)
        if (strcmp(LAYERS[i].name, name) == 0)
            return 1;
    return strcmp(name, "ready") == 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "none") == 0)
        return must_have_one();
    if (argc < 4 || argc > 5 || !is_layer(argv[1])) {
        puts("usage: gpu driver|devices|library|found|version|code|ready LEAST_DRIVER CUDA "
             "[PROGRAM] | gpu none");
        return USAGE;
    }
    host.least = argv[2];
    host.cuda = argv[3];
    host.program = argc == 5 ? argv[4] : NULL;
    return judge(argv[1]);
}
