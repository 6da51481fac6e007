/*
 * cuda-gemm double|single|tensor [SIZE [SECONDS]]   the speed of cuBLAS's matrix product on each GPU
 *
 * `double` and `single` are in that precision, single without TF32. `tensor` multiplies factors in
 * half precision and adds in single precision, on tensor cores (compute capability 7.0 and newer).
 *
 * All elements are whole numbers, so small that every product, and every sum of some of a row's
 * products, is exact in the precision of the sums: the sum of all |a|*|b| is at most 2^52 in double
 * precision, 2^24 in single precision and 2^23 on tensor cores, for SIZE up to 4096. So the order of
 * the additions does not matter, and the tolerance is 0. In single precision a factor has 12 binary
 * digits, one more than TF32 keeps; on tensor cores it has 11, three more than bfloat16 keeps, and
 * the sums have more than half precision keeps.
 *
 * The whole result C is compared with the CPU's: C*x = A*(B*x) in 64-bit integers, with a vector x
 * of random odd integers (R. Freivalds). One wrong element makes its row differ. The result is that of
 * the last product that was timed, and is spoilt before: a fast wrong answer fails.
 *
 * Exit status: 0 passed, 77 skipped (no tensor cores), 2 bad usage, else failed. The last line of
 * standard output is the finding; a line `data: {JSON}` stands before it. The rate is that of the
 * slowest GPU, in GFLOP/s of 10^9: the median of five batches of SECONDS / 5 each.
 */
#include "cuda-check.h"

#include <cublas_v2.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

enum { MOST = 4096, BATCHES = 5, FIRST_WITH_TENSOR_CORES = 7 };

/* `wide` is the largest factor. If `narrow`, one factor of each product is 1 or -1. */
static const struct Precision {
    const char *name;
    int32_t wide;
    bool narrow;
    size_t bytes, result_bytes;
} PRECISIONS[] = {{"double", 1 << 20, false, 8, 8},
                  {"single", (1 << 12) - 1, true, 4, 4},
                  {"tensor", (1 << 11) - 1, true, 2, 4}};

static uint64_t random_bits(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 32;
}

/* A square matrix by columns. `first` is the left factor: its columns go with the other's rows. */
static std::vector<int32_t> made(int n, const Precision &precision, bool first)
{
    std::vector<int32_t> elements(static_cast<size_t>(n) * n);
    uint64_t state = first ? 1 : 2;
    for (size_t i = 0; i < elements.size(); i++) {
        const bool odd = (first ? i / n : i % n) % 2 != 0;
        const int32_t most = precision.narrow && odd == first ? 1 : precision.wide;
        const uint64_t bits = random_bits(&state);
        const int32_t size = 1 + static_cast<int32_t>(bits / 2 % most);
        elements[i] = bits % 2 != 0 ? -size : size;
    }
    return elements;
}

/* A whole number with at most 11 binary digits, not 0, in half precision. */
static uint16_t half_bits(int32_t value)
{
    const unsigned size = static_cast<unsigned>(std::abs(value));
    unsigned exponent = 0;
    while (size >> (exponent + 1) != 0)
        exponent++;
    return static_cast<uint16_t>((value < 0 ? 0x8000u : 0u) | (exponent + 15) << 10 |
                                 (size << (10 - exponent) & 0x3FFu));
}

static std::vector<unsigned char> bytes_of(const std::vector<int32_t> &elements, size_t bytes)
{
    std::vector<unsigned char> all(elements.size() * bytes);
    for (size_t i = 0; i < elements.size(); i++) {
        const double number = elements[i];
        const float single = static_cast<float>(number);
        const uint16_t half = bytes == sizeof half ? half_bits(elements[i]) : uint16_t(0);
        const void *source = bytes == sizeof number   ? static_cast<const void *>(&number)
                             : bytes == sizeof single ? static_cast<const void *>(&single)
                                                      : static_cast<const void *>(&half);
        memcpy(&all[i * bytes], source, bytes);
    }
    return all;
}

struct Product {
    const Precision *precision;
    int n;
    std::vector<int32_t> a, b;
    Device<unsigned char> on_a, on_b, on_c;
    size_t result_size() const { return precision->result_bytes * n * n; }
};

static int send(Product *p)
{
    const std::vector<unsigned char> a = bytes_of(p->a, p->precision->bytes);
    const std::vector<unsigned char> b = bytes_of(p->b, p->precision->bytes);
    TRY(cudaMalloc(&p->on_a.data, a.size()));
    TRY(cudaMalloc(&p->on_b.data, b.size()));
    TRY(cudaMalloc(&p->on_c.data, p->result_size()));
    TRY(cudaMemcpy(p->on_a.data, a.data(), a.size(), cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(p->on_b.data, b.data(), b.size(), cudaMemcpyHostToDevice));
    return PASSED;
}

static cublasStatus_t multiply(cublasHandle_t handle, Product *p)
{
    const int n = p->n;
    const float one = 1, zero = 0;
    const double one_double = 1, zero_double = 0;
    void *a = p->on_a.data, *b = p->on_b.data, *c = p->on_c.data;
    if (p->precision->bytes == sizeof(double))
        return cublasDgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one_double,
                           static_cast<double *>(a), n, static_cast<double *>(b), n, &zero_double,
                           static_cast<double *>(c), n);
    if (p->precision->bytes == sizeof(float))
        return cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one,
                           static_cast<float *>(a), n, static_cast<float *>(b), n, &zero,
                           static_cast<float *>(c), n);
    return cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, CUDA_R_16F, n, b,
                        CUDA_R_16F, n, &zero, c, CUDA_R_32F, n, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT);
}

/* ---- The result ---- */

static double element(const std::vector<unsigned char> &result, size_t bytes, size_t at)
{
    float single;
    double found;
    memcpy(&single, &result[at * bytes], sizeof single);
    if (bytes == sizeof single)
        return single;
    memcpy(&found, &result[at * bytes], sizeof found);
    return found;
}

/* matrix * x, modulo 2^64 */
template <typename Element>
static std::vector<uint64_t> times(int n, Element matrix, const std::vector<uint64_t> &x)
{
    std::vector<uint64_t> product(n, 0);
    for (int column = 0; column < n; column++)
        for (int row = 0; row < n; row++)
            product[row] += static_cast<uint64_t>(
                                matrix(static_cast<size_t>(column) * n + row)) * x[column];
    return product;
}

static int wrong_in(const Product &p, const std::vector<unsigned char> &result, int row)
{
    const size_t n = static_cast<size_t>(p.n);
    for (size_t column = 0; column < n; column++) {
        const double found = element(result, p.precision->result_bytes, column * n + row);
        int64_t expected = 0;
        for (size_t i = 0; i < n; i++)
            expected += static_cast<int64_t>(p.a[i * n + row]) * p.b[column * n + i];
        if (found != static_cast<double>(expected)) {
            char text[120];
            snprintf(text, sizeof text, ": element (%d, %d) is %.17g, the CPU has %lld", row,
                     static_cast<int>(column), found, static_cast<long long>(expected));
            return failed(std::string(p.precision->name) + text);
        }
    }
    return failed(std::string(p.precision->name) + ": row " + std::to_string(row) + " is wrong");
}

static int compare(const Product &p)
{
    std::vector<unsigned char> result(p.result_size());
    std::vector<uint64_t> x;
    const size_t bytes = p.precision->result_bytes;
    uint64_t state = 3;
    TRY(cudaMemcpy(result.data(), p.on_c.data, result.size(), cudaMemcpyDeviceToHost));
    for (int i = 0; i < p.n; i++)
        x.push_back(random_bits(&state) | 1);
    const auto of_b = times(p.n, [&](size_t at) { return static_cast<int64_t>(p.b[at]); }, x);
    const auto expected = times(p.n, [&](size_t at) { return static_cast<int64_t>(p.a[at]); }, of_b);
    const auto found = times(p.n, [&](size_t at) {
        const double value = element(result, bytes, at);
        const bool whole = std::fabs(value) < std::ldexp(1, 53) && value == std::trunc(value);
        return whole ? static_cast<int64_t>(value) : INT64_MIN;
    }, x);
    for (int row = 0; row < p.n; row++)
        if (found[row] != expected[row])
            return wrong_in(p, result, row);
    return PASSED;
}

/* ---- The speed ---- */

static double now()
{
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

/* Seconds of `count` products; a status of cuBLAS ends them. */
static int timed(cublasHandle_t handle, Product *p, int count, double *seconds)
{
    const double begin = now();
    for (int i = 0; i < count; i++) {
        const cublasStatus_t status = multiply(handle, p);
        if (status != CUBLAS_STATUS_SUCCESS)
            return failed("cuBLAS, " + std::string(p->precision->name) + ": status " +
                          std::to_string(static_cast<int>(status)));
    }
    TRY(cudaDeviceSynchronize());
    *seconds = now() - begin;
    return PASSED;
}

static int rate_of(cublasHandle_t handle, Product *p, double seconds, double *gflops)
{
    double took = 0, rates[BATCHES];
    if (timed(handle, p, 2, &took) != PASSED || timed(handle, p, 1, &took) != PASSED)
        return FAILED; /* the first ones load the kernels */
    const double batch = seconds / BATCHES / std::max(took, 1e-6);
    const int count = std::max(1, static_cast<int>(std::min(batch, 1e4)));
    TRY(cudaMemset(p->on_c.data, 0xFF, p->result_size())); /* no number */
    for (double &rate : rates) {
        if (timed(handle, p, count, &took) != PASSED)
            return FAILED;
        rate = took > 0 ? 2e-9 * p->n * p->n * p->n * count / took : 0;
    }
    std::sort(rates, rates + BATCHES);
    *gflops = rates[BATCHES / 2];
    return *gflops > 0 ? PASSED : failed("a product took no time that the clock can tell");
}

static int multiply_on(int number, const Precision &precision, int n, double seconds, double *gflops)
{
    Product p = {&precision, n, made(n, precision, true), made(n, precision, false), {}, {}, {}};
    cublasHandle_t handle;
    TRY(cudaSetDevice(number));
    const cublasStatus_t status = cublasCreate(&handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return failed("cublasCreate: status " + std::to_string(static_cast<int>(status)));
    int outcome = send(&p);
    if (outcome == PASSED)
        outcome = rate_of(handle, &p, seconds, gflops);
    cublasDestroy(handle);
    if (outcome == PASSED)
        outcome = compare(p);
    if (outcome != PASSED)
        fprintf(stderr, "on GPU %d\n", number);
    return outcome;
}

/* Every GPU that can; those before Volta have no tensor cores. */
static int multiply_on_all(const Precision &precision, int n, double seconds)
{
    int count = 0, able = 0;
    double least = 0;
    cudaDeviceProp properties = {};
    TRY(cudaGetDeviceCount(&count));
    if (count < 1)
        return failed("cudaGetDeviceCount: 0 GPUs");
    for (int number = 0; number < count; number++) {
        double gflops = 0;
        TRY(cudaGetDeviceProperties(&properties, number));
        if (precision.bytes == 2 && properties.major < FIRST_WITH_TENSOR_CORES)
            continue;
        if (multiply_on(number, precision, n, seconds, &gflops) != PASSED)
            return FAILED;
        least = able++ == 0 ? gflops : std::min(least, gflops);
    }
    if (able == 0) {
        printf("data: {\"applies\": false}\nno tensor cores: compute capability %d.%d of %s\n",
               properties.major, properties.minor, properties.name);
        return SKIPPED;
    }
    printf("data: {\"gpus\": %d, \"size\": %d, \"gflop_per_s\": %.3f}\n"
           "%s: %.0f GFLOP/s on the slowest of %d GPU%s, %d x %d, every element equals the CPU's\n",
           able, n, least, precision.name, least, able, able == 1 ? "" : "s", n, n);
    return PASSED;
}

int main(int argc, char **argv)
{
    const int n = argc > 2 ? atoi(argv[2]) : MOST;
    const double seconds = argc > 3 ? atof(argv[3]) : 1;
    for (const Precision &precision : PRECISIONS)
        if (argc > 1 && argc < 5 && n > 0 && n <= MOST && seconds > 0 &&
            strcmp(argv[1], precision.name) == 0)
            return multiply_on_all(precision, n, seconds);
    printf("usage: cuda-gemm double|single|tensor [SIZE [SECONDS]], SIZE at most %d\n", MOST);
    return USAGE;
}
