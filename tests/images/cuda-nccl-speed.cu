/*
 * cuda-nccl-speed MARK [COUNT]   the bandwidth of NCCL's allreduce over all GPUs of this machine
 *
 * COUNT doubles a GPU (default 2^24, 128 MiB) are added, 20 times in a row, the best of 5 rounds.
 * Then every sum is compared with its closed form. The bus bandwidth is that of NCCL's tests: the
 * bytes of one GPU by the time, times 2 (n - 1) / n for n GPUs. MARK is as of cuda-nccl, whose
 * functions these are. Without NCCL, or with one GPU, there is nothing to measure.
 *
 * Exit status: 0 passed, 77 skipped, else failed. The last line of standard output is the finding;
 * `data: {JSON}` stands before it. Rates are in GB/s of 10^9 bytes.
 */
#define main cuda_nccl_main
#include "cuda-nccl.cu"
#undef main

#include <algorithm>
#include <chrono>
#include <cstdlib>

enum { ROUNDS = 5, IN_A_ROUND = 20 };

static double now()
{
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static int add_all(std::vector<Rank> *all, const std::vector<Communicator> &communicators, int count)
{
    TRY_NCCL(nccl.group_start(), "ncclGroupStart");
    for (size_t i = 0; i < all->size(); i++)
        TRY_NCCL(nccl.allreduce((*all)[i].from.data, (*all)[i].to.data, count, NCCL_FLOAT64,
                                NCCL_SUM, communicators[i], 0), "ncclAllReduce");
    TRY_NCCL(nccl.group_end(), "ncclGroupEnd");
    return PASSED;
}

static int wait_for_all(int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        TRY(cudaSetDevice(rank));
        TRY(cudaDeviceSynchronize());
    }
    return PASSED;
}

/* The sums alone: cuda-nccl compares the maxima of integers, too. */
static int check_sums(const std::vector<Rank> &all, int count)
{
    const int ranks = static_cast<int>(all.size());
    std::vector<double> numbers(count);
    for (int rank = 0; rank < ranks; rank++) {
        TRY(cudaSetDevice(rank));
        TRY(cudaMemcpy(numbers.data(), all[rank].to.data, count * sizeof(double),
                       cudaMemcpyDeviceToHost));
        for (int i = 0; i < count; i++)
            if (numbers[i] != summed(ranks, i))
                return failed("GPU " + std::to_string(rank) + " has at " + std::to_string(i) +
                              " the sum " + std::to_string(numbers[i]) + ", not " +
                              std::to_string(summed(ranks, i)));
    }
    return PASSED;
}

static int measure(const std::vector<Communicator> &communicators, int count, double *best)
{
    const int ranks = static_cast<int>(communicators.size());
    std::vector<Rank> all(ranks);
    for (int rank = 0; rank < ranks; rank++)
        if (fill(&all[rank], ranks, rank, count) != PASSED)
            return FAILED;
    for (int round = -1; round < ROUNDS; round++) { /* the first one connects the GPUs */
        for (int rank = 0; rank < ranks; rank++) {
            TRY(cudaSetDevice(rank));
            TRY(cudaMemset(all[rank].to.data, 0xFF, count * sizeof(double)));
        }
        if (wait_for_all(ranks) != PASSED)
            return FAILED;
        const double begin = now();
        for (int i = 0; i < IN_A_ROUND; i++)
            if (add_all(&all, communicators, count) != PASSED)
                return FAILED;
        if (wait_for_all(ranks) != PASSED)
            return FAILED;
        const double took = (now() - begin) / IN_A_ROUND;
        *best = round <= 0 ? took : std::min(*best, took);
    }
    return check_sums(all, count);
}

int main(int argc, char **argv)
{
    const int count = argc > 2 ? atoi(argv[2]) : 1 << 24;
    int ranks = 0, version = 0;
    double seconds = 0;
    void *library = nullptr;
    if (argc > 3 || count < 1) {
        puts("usage: cuda-nccl-speed MARK [COUNT]");
        return USAGE;
    }
    library = dlopen(LIBRARY, RTLD_NOW);
    if (library == nullptr)
        return without_library(dlerror(), argc > 1 ? argv[1] : "");
    if (!resolve_all(library))
        return FAILED;
    TRY_NCCL(nccl.version(&version), "ncclGetVersion");
    TRY(cudaGetDeviceCount(&ranks));
    if (ranks < 1)
        return failed("cudaGetDeviceCount: 0 GPUs");
    if (ranks == 1) {
        puts("data: {\"applies\": false}\nthere is one GPU here: nothing to reduce over");
        return SKIPPED;
    }
    std::vector<Communicator> communicators(ranks);
    TRY_NCCL(nccl.init_all(communicators.data(), ranks, nullptr), "ncclCommInitAll");
    const int outcome = measure(communicators, count, &seconds);
    for (Communicator one : communicators)
        nccl.destroy(one);
    if (outcome != PASSED)
        return outcome;
    if (seconds <= 0)
        return failed("an allreduce took no time that the clock can tell");
    const double rate = 1e-9 * count * sizeof(double) / seconds;
    const double bus = rate * 2 * (ranks - 1) / ranks;
    printf("data: {\"gpus\": %d, \"nccl\": \"%s\", \"bytes\": %zu, \"bus_gb_per_s\": %.3f}\n", ranks,
           version_text(version).c_str(), count * sizeof(double), bus);
    printf("NCCL %s adds %d doubles over %d GPUs: bus bandwidth %.1f GB/s, all sums right\n",
           version_text(version).c_str(), count, ranks, bus);
    return PASSED;
}
