/*
 * cuda-compute   kernels of nvcc's on each GPU: a vector addition and a reduction
 *
 * Whole numbers are added, so that every sum is exact and compared bit for bit with the host's.
 * What a kernel writes to is spoilt before, so that what it does not write stays wrong. The
 * reduction sums in shared memory with barriers, and with an atomic addition.
 *
 * Exit status: 0 passed, else failed, with the CUDA error's number and name: no GPU is a failure
 * here. The last line of standard output is the finding; `data: {JSON}` stands before it.
 */
#include "cuda-check.h"

#include <cstring>
#include <vector>

enum { N = (1 << 20) + 3, THREADS = 256, BLOCKS = 64 };

__global__ void add(const float *a, const float *b, float *sum, int n)
{
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        sum[i] = a[i] + b[i];
}

__global__ void reduce(const float *values, int n, double *sums, unsigned long long *whole)
{
    __shared__ double sum[THREADS];
    const int first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int stride = static_cast<int>(gridDim.x * blockDim.x);
    unsigned long long counted = 0;
    double mine = 0;
    for (int i = first; i < n; i += stride) {
        mine += values[i];
        counted += static_cast<unsigned long long>(values[i]);
    }
    sum[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            sum[threadIdx.x] += sum[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum[0];
    atomicAdd(whole, counted);
}

/* Sums of any of these are exact in single precision, and all of them together in double. */
static float first_of(int i) { return static_cast<float>(i % 1000); }
static float second_of(int i) { return static_cast<float>(7 * (i % 100)); }

/* What a GPU computes from, and into. */
struct Vectors {
    std::vector<float> a, b;
    Device<float> on_a, on_b, on_sum;
    Device<double> sums;
    Device<unsigned long long> whole;
};

static int prepare(Vectors *v)
{
    const size_t bytes = N * sizeof(float);
    for (int i = 0; i < N; i++) {
        v->a.push_back(first_of(i));
        v->b.push_back(second_of(i));
    }
    TRY(cudaMalloc(&v->on_a.data, bytes));
    TRY(cudaMalloc(&v->on_b.data, bytes));
    TRY(cudaMalloc(&v->on_sum.data, bytes));
    TRY(cudaMalloc(&v->sums.data, BLOCKS * sizeof(double)));
    TRY(cudaMalloc(&v->whole.data, sizeof(unsigned long long)));
    TRY(cudaMemcpy(v->on_a.data, v->a.data(), bytes, cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(v->on_b.data, v->b.data(), bytes, cudaMemcpyHostToDevice));
    TRY(cudaMemset(v->on_sum.data, 0xFF, bytes));
    TRY(cudaMemset(v->sums.data, 0xFF, BLOCKS * sizeof(double)));
    TRY(cudaMemset(v->whole.data, 0, sizeof(unsigned long long)));
    return PASSED;
}

static int wrong(const char *what, int number, const std::string &found)
{
    return failed(std::string(what) + " on GPU " + std::to_string(number) + ": " + found);
}

static int check_addition(Vectors *v, int number)
{
    int n = N;
    std::vector<float> sums(N);
    void *arguments[] = {&v->on_a.data, &v->on_b.data, &v->on_sum.data, &n};
    const dim3 blocks((N + THREADS - 1) / THREADS), threads(THREADS);
    TRY(cudaLaunchKernel(reinterpret_cast<const void *>(add), blocks, threads, arguments, 0, 0));
    TRY(cudaGetLastError());
    TRY(cudaDeviceSynchronize());
    TRY(cudaMemcpy(sums.data(), v->on_sum.data, N * sizeof(float), cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++)
        if (sums[i] != v->a[i] + v->b[i]) /* a number that is none differs from every number */
            return wrong("addition", number,
                         "sum " + std::to_string(i) + " is " + std::to_string(sums[i]) + ", not " +
                             std::to_string(v->a[i] + v->b[i]));
    return PASSED;
}

static int check_reduction(Vectors *v, int number)
{
    int n = N;
    unsigned long long whole = 0, expected = 0;
    double sums[BLOCKS], sum = 0;
    void *arguments[] = {&v->on_a.data, &n, &v->sums.data, &v->whole.data};
    const dim3 blocks(BLOCKS), threads(THREADS);
    for (float value : v->a)
        expected += static_cast<unsigned long long>(value);
    TRY(cudaLaunchKernel(reinterpret_cast<const void *>(reduce), blocks, threads, arguments, 0, 0));
    TRY(cudaGetLastError());
    TRY(cudaDeviceSynchronize());
    TRY(cudaMemcpy(sums, v->sums.data, sizeof sums, cudaMemcpyDeviceToHost));
    TRY(cudaMemcpy(&whole, v->whole.data, sizeof whole, cudaMemcpyDeviceToHost));
    for (double one : sums)
        sum += one;
    if (sum != static_cast<double>(expected))
        return wrong("reduction", number, "the sum in shared memory is " + std::to_string(sum) +
                                              ", not " + std::to_string(expected));
    if (whole != expected)
        return wrong("reduction", number, "the atomic sum is " + std::to_string(whole) + ", not " +
                                              std::to_string(expected));
    return PASSED;
}

static int compute_on(int number, std::string *names)
{
    Vectors v;
    cudaDeviceProp properties;
    cudaFuncAttributes code;
    TRY(cudaSetDevice(number));
    TRY(cudaGetDeviceProperties(&properties, number));
    TRY(cudaFuncGetAttributes(&code, reinterpret_cast<const void *>(add)));
    if (prepare(&v) != PASSED || check_addition(&v, number) != PASSED ||
        check_reduction(&v, number) != PASSED)
        return FAILED;
    *names += std::string(names->empty() ? "" : ", ") + properties.name + " (code of sm_" +
              std::to_string(code.binaryVersion) + ")";
    return PASSED;
}

int main()
{
    int count = 0;
    std::string names;
    TRY(cudaGetDeviceCount(&count));
    if (count < 1)
        return failed("cudaGetDeviceCount: 0 GPUs");
    for (int number = 0; number < count; number++)
        if (compute_on(number, &names) != PASSED)
            return FAILED;
    printf("data: {\"gpus\": %d, \"numbers\": %d}\n", count, N);
    printf("%d numbers are added and reduced, each sum exact, on: %s\n", N, names.c_str());
    return PASSED;
}
