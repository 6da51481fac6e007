/*
 * cuda-nccl [MARK]   NCCL's allreduce on one GPU, and on all of them together
 *
 * Sums of doubles and maxima of 64-bit integers, at several sizes, against closed forms. The
 * library is opened at run time, so that one program does for every image. MARK is a file that is
 * there if the development stage had NCCL: then the image must have it. Without NCCL there is
 * nothing to check, and `"applies": false` in the data says so.
 *
 * Exit status: 0 passed, 77 skipped, else failed. The last line of standard output is the finding;
 * `data: {JSON}` stands before it.
 */
#include "cuda-check.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

static const char LIBRARY[] = "libnccl.so.2";
static const int COUNTS[] = {1, 1000, 1 << 20};

/* nccl.h: values and signatures since NCCL 2.0 */
enum { NCCL_INT64 = 4, NCCL_FLOAT64 = 8, NCCL_SUM = 0, NCCL_MAX = 2 };
typedef void *Communicator;
static struct {
    int (*version)(int *version);
    int (*init_all)(Communicator *communicators, int count, const int *devices);
    int (*allreduce)(const void *from, void *to, size_t count, int type, int operation,
                     Communicator communicator, cudaStream_t stream);
    int (*group_start)();
    int (*group_end)();
    int (*destroy)(Communicator communicator);
    const char *(*error_string)(int error);
} nccl;

static int nccl_failed(const char *call, int error)
{
    return failed(std::string(call) + ": NCCL error " + std::to_string(error) + " (" +
                  nccl.error_string(error) + ")");
}

#define TRY_NCCL(call, name)                                                                       \
    do {                                                                                           \
        const int error_ = (call);                                                                 \
        if (error_ != 0)                                                                           \
            return nccl_failed(name, error_);                                                      \
    } while (0)

static bool resolve(void *library, const char *name, void *function)
{
    void *address = dlsym(library, name);
    memcpy(function, &address, sizeof address);
    if (address == nullptr)
        failed(std::string(LIBRARY) + " has no " + name);
    return address != nullptr;
}

static bool resolve_all(void *library)
{
    return resolve(library, "ncclGetVersion", &nccl.version) &&
           resolve(library, "ncclCommInitAll", &nccl.init_all) &&
           resolve(library, "ncclAllReduce", &nccl.allreduce) &&
           resolve(library, "ncclGroupStart", &nccl.group_start) &&
           resolve(library, "ncclGroupEnd", &nccl.group_end) &&
           resolve(library, "ncclCommDestroy", &nccl.destroy) &&
           resolve(library, "ncclGetErrorString", &nccl.error_string);
}

/* What rank r brings, and what comes of all ranks: (r+1)*(i+1)/4, and the largest of r and i. */
static double summand(int rank, int i) { return (rank + 1) * (i + 1.0) * 0.25; }
static double summed(int ranks, int i) { return ranks * (ranks + 1) / 2 * (i + 1.0) * 0.25; }
static int64_t candidate(int ranks, int rank, int i)
{
    return (static_cast<int64_t>((rank + i) % ranks) << 40) + i;
}
static int64_t largest(int ranks, int i) { return (static_cast<int64_t>(ranks - 1) << 40) + i; }

/* One rank: a GPU, its part of the numbers, and its communicator. */
struct Rank {
    Communicator communicator = nullptr;
    Device<double> from, to;
    Device<int64_t> from_integers, to_integers;
};

static int fill(Rank *one, int ranks, int rank, int count)
{
    std::vector<double> numbers;
    std::vector<int64_t> integers;
    const size_t bytes = count * sizeof(double);
    for (int i = 0; i < count; i++) {
        numbers.push_back(summand(rank, i));
        integers.push_back(candidate(ranks, rank, i));
    }
    TRY(cudaSetDevice(rank));
    TRY(cudaMalloc(&one->from.data, bytes));
    TRY(cudaMalloc(&one->to.data, bytes));
    TRY(cudaMalloc(&one->from_integers.data, bytes));
    TRY(cudaMalloc(&one->to_integers.data, bytes));
    TRY(cudaMemcpy(one->from.data, numbers.data(), bytes, cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(one->from_integers.data, integers.data(), bytes, cudaMemcpyHostToDevice));
    TRY(cudaMemset(one->to.data, 0xFF, bytes));
    TRY(cudaMemset(one->to_integers.data, 0xFF, bytes));
    return PASSED;
}

static int compare(const Rank &one, int ranks, int rank, int count)
{
    std::vector<double> numbers(count);
    std::vector<int64_t> integers(count);
    const size_t bytes = count * sizeof(double);
    TRY(cudaSetDevice(rank));
    TRY(cudaDeviceSynchronize());
    TRY(cudaMemcpy(numbers.data(), one.to.data, bytes, cudaMemcpyDeviceToHost));
    TRY(cudaMemcpy(integers.data(), one.to_integers.data, bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++)
        if (numbers[i] != summed(ranks, i) || integers[i] != largest(ranks, i))
            return failed("NCCL on " + std::to_string(ranks) + " GPUs, " + std::to_string(count) +
                          " numbers: GPU " + std::to_string(rank) + " has at " + std::to_string(i) +
                          " the sum " + std::to_string(numbers[i]) + " and the maximum " +
                          std::to_string(integers[i]) + ", expected " +
                          std::to_string(summed(ranks, i)) + " and " +
                          std::to_string(largest(ranks, i)));
    return PASSED;
}

static int reduce(const std::vector<Communicator> &communicators, int count)
{
    const int ranks = static_cast<int>(communicators.size());
    std::vector<Rank> all(ranks);
    for (int rank = 0; rank < ranks; rank++)
        if (fill(&all[rank], ranks, rank, count) != PASSED)
            return FAILED;
    TRY_NCCL(nccl.group_start(), "ncclGroupStart");
    for (int rank = 0; rank < ranks; rank++) {
        TRY_NCCL(nccl.allreduce(all[rank].from.data, all[rank].to.data, count, NCCL_FLOAT64,
                                NCCL_SUM, communicators[rank], 0), "ncclAllReduce");
        TRY_NCCL(nccl.allreduce(all[rank].from_integers.data, all[rank].to_integers.data, count,
                                NCCL_INT64, NCCL_MAX, communicators[rank], 0), "ncclAllReduce");
    }
    TRY_NCCL(nccl.group_end(), "ncclGroupEnd");
    for (int rank = 0; rank < ranks; rank++)
        if (compare(all[rank], ranks, rank, count) != PASSED)
            return FAILED;
    return PASSED;
}

static int reduce_on(int ranks)
{
    std::vector<Communicator> communicators(ranks);
    int outcome = PASSED;
    TRY_NCCL(nccl.init_all(communicators.data(), ranks, nullptr), "ncclCommInitAll");
    for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS && outcome == PASSED; i++)
        outcome = reduce(communicators, COUNTS[i]);
    for (Communicator one : communicators)
        nccl.destroy(one);
    return outcome;
}

static int without_library(const char *reason, const char *mark)
{
    if (access(mark, F_OK) == 0)
        return failed(std::string("the development stage had NCCL, and here it is not found: ") +
                      reason);
    puts("data: {\"applies\": false}");
    printf("this image has no NCCL (%s)\n", LIBRARY);
    return SKIPPED;
}

/* NCCL 2.9 writes 20905, and before it 2804 for 2.8.4. */
static std::string version_text(int version)
{
    const int unit = version < 10000 ? 1000 : 10000;
    return std::to_string(version / unit) + "." + std::to_string(version % unit / 100) + "." +
           std::to_string(version % 100);
}

int main(int argc, char **argv)
{
    int count = 0, version = 0;
    void *library = dlopen(LIBRARY, RTLD_NOW);
    if (library == nullptr)
        return without_library(dlerror(), argc > 1 ? argv[1] : "");
    if (!resolve_all(library))
        return FAILED;
    TRY_NCCL(nccl.version(&version), "ncclGetVersion");
    TRY(cudaGetDeviceCount(&count));
    if (count < 1)
        return failed("cudaGetDeviceCount: 0 GPUs");
    if (reduce_on(1) != PASSED || (count > 1 && reduce_on(count) != PASSED))
        return FAILED;
    printf("data: {\"gpus\": %d, \"nccl\": \"%s\"}\n", count, version_text(version).c_str());
    printf("NCCL %s reduces 1 to %d numbers on %s\n", version_text(version).c_str(), COUNTS[2],
           count == 1 ? "1 GPU" : ("1 and " + std::to_string(count) + " GPUs").c_str());
    return PASSED;
}
