/*
 * cuda-memory [MIB [TIMES]]   the bandwidth of each GPU's memory, and of its link to the host
 *
 * Kernels copy (b = a) and triad (c = b + s a) over arrays of MIB mebibytes, and copies of one array
 * from page-locked memory of the host to the GPU and back: the best of TIMES rounds. Arrays should
 * be larger than the GPU's caches. All numbers are dyadic fractions, and exact: after the rounds
 * every element that came back is compared. What is written to is spoilt before each round.
 *
 * Exit status: 0 passed, 2 bad usage, else failed. The last line of standard output is the finding;
 * a line `data: {JSON}` stands before it. Rates are those of the slowest GPU, in GB/s of 10^9 bytes.
 */
#include "cuda-check.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

enum { THREADS = 256, BLOCKS = 4096, LAUNCHES = 20 };
enum { COPY, TRIAD, TO_GPU, FROM_GPU, RATES };
static const char *const NAMES[] = {"copy", "triad", "to_gpu", "from_gpu"};
static const int ARRAYS[] = {2, 3, 1, 1}; /* read or written */

__global__ void copy(const double *a, double *b, long n)
{
    const long first = static_cast<long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long stride = static_cast<long>(gridDim.x) * blockDim.x;
    for (long i = first; i < n; i += stride)
        b[i] = a[i];
}

__global__ void triad(const double *a, const double *b, double *c, long n)
{
    const long first = static_cast<long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long stride = static_cast<long>(gridDim.x) * blockDim.x;
    for (long i = first; i < n; i += stride)
        c[i] = b[i] + 0.5 * a[i];
}

/* Page-locked memory of the host, freed at the end. */
struct Pinned {
    double *data = nullptr;
    Pinned() = default;
    Pinned(const Pinned &) = delete;
    Pinned &operator=(const Pinned &) = delete;
    ~Pinned() { cudaFreeHost(data); }
};

struct Arrays {
    long n;
    Device<double> a, b, c;
    Pinned host, back;
    size_t bytes() const { return n * sizeof(double); }
};

static double number(long i) { return static_cast<double>(i % 4096); }

static double now()
{
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static int prepare(Arrays *v)
{
    for (Device<double> *one : {&v->a, &v->b, &v->c})
        TRY(cudaMalloc(&one->data, v->bytes()));
    TRY(cudaMallocHost(&v->host.data, v->bytes()));
    TRY(cudaMallocHost(&v->back.data, v->bytes()));
    for (long i = 0; i < v->n; i++)
        v->host.data[i] = number(i);
    return PASSED;
}

/* Copy to the GPU, work there, copy back; the times of all four. */
static int round_of(Arrays *v, double took[RATES])
{
    void *copied[] = {&v->a.data, &v->b.data, &v->n};
    void *added[] = {&v->a.data, &v->b.data, &v->c.data, &v->n};
    const dim3 blocks(BLOCKS), threads(THREADS);
    double begin;
    for (Device<double> *one : {&v->a, &v->b, &v->c})
        TRY(cudaMemset(one->data, 0xFF, v->bytes()));
    memset(v->back.data, 0xFF, v->bytes());
    TRY(cudaDeviceSynchronize());

    begin = now();
    TRY(cudaMemcpy(v->a.data, v->host.data, v->bytes(), cudaMemcpyHostToDevice));
    took[TO_GPU] = now() - begin;

    begin = now();
    for (int i = 0; i < LAUNCHES; i++)
        TRY(cudaLaunchKernel(reinterpret_cast<const void *>(copy), blocks, threads, copied, 0, 0));
    TRY(cudaDeviceSynchronize());
    took[COPY] = (now() - begin) / LAUNCHES;

    begin = now();
    for (int i = 0; i < LAUNCHES; i++)
        TRY(cudaLaunchKernel(reinterpret_cast<const void *>(triad), blocks, threads, added, 0, 0));
    TRY(cudaDeviceSynchronize());
    took[TRIAD] = (now() - begin) / LAUNCHES;

    begin = now();
    TRY(cudaMemcpy(v->back.data, v->c.data, v->bytes(), cudaMemcpyDeviceToHost));
    took[FROM_GPU] = now() - begin;
    return PASSED;
}

static int compare(const Arrays &v, int gpu)
{
    for (long i = 0; i < v.n; i++)
        if (v.back.data[i] != 1.5 * number(i))
            return failed("GPU " + std::to_string(gpu) + ": number " + std::to_string(i) + " is " +
                          std::to_string(v.back.data[i]) + ", not " +
                          std::to_string(1.5 * number(i)));
    return PASSED;
}

static int measure(int gpu, long n, int times, double rates[RATES])
{
    Arrays v;
    double best[RATES] = {}, took[RATES];
    v.n = n;
    TRY(cudaSetDevice(gpu));
    if (prepare(&v) != PASSED)
        return FAILED;
    for (int round = 0; round < times; round++) {
        if (round_of(&v, took) != PASSED || compare(v, gpu) != PASSED)
            return FAILED;
        for (int i = 0; i < RATES; i++)
            best[i] = round == 0 ? took[i] : std::min(best[i], took[i]);
    }
    for (int i = 0; i < RATES; i++) {
        if (best[i] <= 0)
            return failed(std::string(NAMES[i]) + " took no time that the clock can tell");
        const double rate = 1e-9 * ARRAYS[i] * static_cast<double>(v.bytes()) / best[i];
        rates[i] = gpu == 0 ? rate : std::min(rates[i], rate);
    }
    return PASSED;
}

int main(int argc, char **argv)
{
    const long mib = argc > 1 ? atol(argv[1]) : 256;
    const int times = argc > 2 ? atoi(argv[2]) : 10;
    double rates[RATES] = {};
    int count = 0;
    if (argc > 3 || mib < 1 || mib > 1 << 20 || times < 1) {
        puts("usage: cuda-memory [MIB [TIMES]]");
        return USAGE;
    }
    TRY(cudaGetDeviceCount(&count));
    if (count < 1)
        return failed("cudaGetDeviceCount: 0 GPUs");
    for (int gpu = 0; gpu < count; gpu++)
        if (measure(gpu, mib * (1L << 20) / static_cast<long>(sizeof(double)), times, rates) != PASSED)
            return FAILED;
    printf("data: {\"gpus\": %d, \"mebibytes\": %ld", count, mib);
    for (int i = 0; i < RATES; i++)
        printf(", \"%s_gb_per_s\": %.3f", NAMES[i], rates[i]);
    printf("}\nthe slowest of %d GPU%s: copy %.1f GB/s, triad %.1f GB/s; from the host %.1f GB/s, "
           "to the host %.1f GB/s; all values right\n", count, count == 1 ? "" : "s", rates[COPY],
           rates[TRIAD], rates[TO_GPU], rates[FROM_GPU]);
    return PASSED;
}
