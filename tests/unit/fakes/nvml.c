/*
 * A libnvidia-ml.so.1 that says what a test wants.
 *
 * It answers as driver 418.87 does on a POWER9 node with V100s. FAKE_NVML changes answers:
 * NAME=VALUE, separated by commas; a name that ends in a digit is for that GPU alone. A negative
 * value of what is a number is an error: temp1=-15 says that GPU 1 is lost when it is asked for its
 * temperature. Names are those in the calls below. With once=1, a second begin ends the process;
 * after=N: what is used is told N times, then the call fails with lost=NUMBER, or hangs without.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct gpu {
    unsigned index;
} *nvmlDevice_t;

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char id_text[32];
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

enum {
    OK = 0,
    INVALID = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    TOO_SMALL = 7,
    FUNCTION_NOT_FOUND = 13,
    LOST = 15
};

static struct gpu gpus[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

static int find(const char *name, long long *value)
{
    const char *text = getenv("FAKE_NVML");
    const size_t length = strlen(name);
    while (text != NULL && *text != '\0') {
        if (strncmp(text, name, length) == 0 && text[length] == '=') {
            *value = strtoll(text + length + 1, NULL, 0);
            return 1;
        }
        text = strchr(text, ',');
        text = text == NULL ? NULL : text + 1;
    }
    return 0;
}

static long long of(const char *name, nvmlDevice_t gpu, long long usual)
{
    char own[64];
    snprintf(own, sizeof own, "%s%u", name, gpu == NULL ? 99 : gpu->index);
    if (!find(own, &usual))
        find(name, &usual);
    return usual;
}

static int give(const char *name, nvmlDevice_t gpu, long long usual, unsigned *value)
{
    const long long number = of(name, gpu, usual);
    if (number < 0)
        return (int)-number;
    *value = (unsigned)number;
    return OK;
}

static int text(char *buffer, unsigned length, const char *usual, const char *variable)
{
    const char *said = getenv(variable);
    if (snprintf(buffer, length, "%s", said == NULL ? usual : said) >= (int)length)
        return TOO_SMALL;
    return OK;
}

int nvmlInitWithFlags(unsigned flags)
{
    static int begun;
    (void)flags;
    if (begun++ && of("once", NULL, 0))
        raise(SIGSEGV);
    sleep((unsigned)of("sleep", NULL, 0));
    if (of("crash", NULL, 0))
        raise(SIGSEGV);
    return (int)of("init", NULL, OK);
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { return error == LOST ? "GPU is lost" : "it says so"; }
int nvmlSystemGetDriverVersion(char *buffer, unsigned length)
{
    return text(buffer, length, "418.87.00", "FAKE_NVML_DRIVER");
}
int nvmlSystemGetCudaDriverVersion(int *version)
{
    return give("cuda", NULL, 10010, (unsigned *)version);
}
int nvmlDeviceGetCount_v2(unsigned *count) { return give("count", NULL, 1, count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *gpu)
{
    *gpu = &gpus[index];
    return (int)of("handle", *gpu, OK);
}
int nvmlDeviceGetName(nvmlDevice_t gpu, char *buffer, unsigned length)
{
    const long long error = of("name", gpu, OK);
    return error ? (int)error
                 : text(buffer, length, "Tesla V100-SXM2-32GB", "FAKE_NVML_NAME");
}
int nvmlDeviceGetUUID(nvmlDevice_t gpu, char *buffer, unsigned length)
{
    return snprintf(buffer, length, "GPU-%08x", gpu->index) < (int)length ? OK : TOO_SMALL;
}
int nvmlDeviceGetPciInfo_v3(nvmlDevice_t gpu, struct pci *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->domain = 4;
    pci->bus = 4 + gpu->index;
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(nvmlDevice_t gpu, int *major, int *minor)
{
    const long long both = of("capability", gpu, 70);
    *major = (int)(both / 10);
    *minor = (int)(both % 10);
    return OK;
}
int nvmlDeviceGetMemoryInfo(nvmlDevice_t gpu, unsigned long long memory[3])
{
    (void)gpu;
    memory[0] = 34089730048ULL;
    memory[1] = 34089730048ULL - 1048576;
    memory[2] = 1048576;
    return OK;
}
/* Its driver is too old for this, unless `reserved` says how much the driver keeps for itself. */
int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t gpu, struct memory_v2 *memory)
{
    const long long reserved = of("reserved", gpu, 0);
    if (reserved == 0)
        return FUNCTION_NOT_FOUND;
    memory->reserved = (unsigned long long)reserved;
    memory->total = 34089730048ULL;
    memory->used = 1048576 - memory->reserved;
    memory->free = memory->total - 1048576;
    return memory->version == 0x02000028 ? OK : INVALID;
}
int nvmlDeviceGetTemperature(nvmlDevice_t gpu, int sensor, unsigned *value)
{
    return sensor == 0 ? give("temp", gpu, 34, value) : INVALID;
}
int nvmlDeviceGetTemperatureThreshold(nvmlDevice_t gpu, int which, unsigned *value)
{
    return which == 1 ? give("slowdown", gpu, 87, value) : NOT_SUPPORTED;
}
int nvmlDeviceGetPowerUsage(nvmlDevice_t gpu, unsigned *value)
{
    return give("power", gpu, 37500, value);
}
int nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t gpu, unsigned *value)
{
    return give("limit", gpu, 300000, value);
}
int nvmlDeviceGetClockInfo(nvmlDevice_t gpu, int which, unsigned *value)
{
    return give(which == 1 ? "sm" : "memory", gpu, which == 1 ? 135 : 877, value);
}
int nvmlDeviceGetMaxClockInfo(nvmlDevice_t gpu, int which, unsigned *value)
{
    return which == 1 ? give("smmax", gpu, 1530, value) : INVALID;
}
int nvmlDeviceGetPerformanceState(nvmlDevice_t gpu, unsigned *value)
{
    return give("state", gpu, 0, value);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t gpu, unsigned long long *reasons)
{
    *reasons = (unsigned long long)of("throttle", gpu, 1);
    return OK;
}
int nvmlDeviceGetPersistenceMode(nvmlDevice_t gpu, unsigned *value)
{
    return give("persistence", gpu, 1, value);
}
int nvmlDeviceGetComputeMode(nvmlDevice_t gpu, unsigned *value)
{
    return give("mode", gpu, 0, value);
}
int nvmlDeviceGetUtilizationRates(nvmlDevice_t gpu, unsigned rates[2])
{
    static long long told;
    const long long lost = of("lost", NULL, 0);
    if (told++ >= of("after", NULL, 1000000)) {
        if (lost)
            return (int)lost;
        for (;;)
            pause();
    }
    rates[1] = 0;
    return give("use", gpu, 0, &rates[0]);
}
int nvmlDeviceGetEccMode(nvmlDevice_t gpu, unsigned *now, unsigned *later)
{
    *later = 1;
    return give("ecc", gpu, 1, now);
}
int nvmlDeviceGetTotalEccErrors(nvmlDevice_t gpu, int kind, int counter, unsigned long long *count)
{
    static const char *names[2][2] = {{"vcorrected", "corrected"}, {"vuncorrected", "uncorrected"}};
    const long long number = of(names[kind][counter], gpu, 0);
    if (number < 0)
        return (int)-number;
    *count = (unsigned long long)number;
    return OK;
}
int nvmlDeviceGetRetiredPages(nvmlDevice_t gpu, int cause, unsigned *count, void *addresses)
{
    const unsigned room = *count;
    const int error = give(cause == 0 ? "single" : "double", gpu, 0, count);
    (void)addresses;
    return error != OK ? error : *count > room ? TOO_SMALL : OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t gpu, unsigned *pending)
{
    return give("pagespending", gpu, 0, pending);
}
int nvmlDeviceGetRemappedRows(nvmlDevice_t gpu, unsigned *correctable, unsigned *uncorrectable,
                              unsigned *pending, unsigned *failed)
{
    const int error = give("rows", gpu, -NOT_SUPPORTED, uncorrectable);
    *correctable = 0;
    *pending = (unsigned)of("rowspending", gpu, 0);
    *failed = (unsigned)of("rowsfailed", gpu, 0);
    return error;
}
int nvmlDeviceGetMigMode(nvmlDevice_t gpu, unsigned *now, unsigned *later)
{
    *later = 0;
    return give("mig", gpu, -NOT_SUPPORTED, now);
}
int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t gpu, unsigned *count)
{
    (void)gpu;
    *count = 7;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t gpu, unsigned index, nvmlDevice_t *device)
{
    const long long number = of("migdevices", gpu, 0);
    *device = gpu;
    if (number < 0)
        return (int)-number;
    return index < (unsigned)number ? OK : NOT_FOUND;
}
int nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t gpu, unsigned *value)
{
    return give("generation", gpu, 3, value);
}
int nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t gpu, unsigned *value)
{
    return give("width", gpu, 16, value);
}
int nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t gpu, unsigned *value)
{
    return give("widthmax", gpu, 16, value);
}
int nvmlDeviceGetNvLinkState(nvmlDevice_t gpu, unsigned link, unsigned *active)
{
    if (link >= 6)
        return INVALID;
    *active = link < (unsigned)of("nvlinks", gpu, 6);
    return OK;
}
