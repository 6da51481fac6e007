/*
 * cuda-blas   cuBLAS's matrix products on each GPU, in single, double and half precision
 *
 * Each element is compared with one of more digits from the host. Whichever order the k products
 * are added in, and whether they are fused or not, the error of c = sum of a*b is at most
 *
 *     gamma(k) * sum of |a|*|b|,   gamma(k) = k*u / (1 - k*u)
 *
 * with the unit roundoff u (2^-24 in single, 2^-53 in double precision): N. J. Higham, Accuracy and
 * Stability of Numerical Algorithms, section 3.5. Half precision stands for factors of 11 bits
 * whose exact products are added in single precision, as tensor cores do; they cut off where
 * others round, and align the products of one step to the largest of them, so their bound is taken
 * four times: M. Fasi, N. J. Higham, M. Mikaitis, S. Pranesh, Numerical behavior of NVIDIA tensor
 * cores, PeerJ Computer Science 7:e330. The bound grows with k and what a lower precision does with
 * its root, so k is small: factors cut to 11 bits (TF32), or sums in half precision, are far
 * outside. The result is spoilt before, so that what is not written stays wrong.
 *
 * Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
 * `data: {JSON}` stands before it: for each precision the largest error as part of its bound.
 */
#include "cuda-check.h"

#include <cublas_v2.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

enum Precision { SINGLE, DOUBLE, HALF, PRECISIONS };
static const char *const NAMES[] = {"single", "double", "half"};
static const double ROUNDOFF[] = {std::ldexp(1, -24), std::ldexp(1, -53), std::ldexp(1, -24)};
static const double SLACK[] = {1, 1, 4};
static const int DIGITS[] = {23, 52, 10}; /* binary ones of each factor */
static const size_t BYTES[] = {4, 8, 2}, RESULT_BYTES[] = {4, 8, 4};

/* Sizes that fit no tile, and some that tensor cores take. */
static const struct Size {
    int m, n, k;
} SIZES[] = {{257, 193, 129}, {256, 192, 128}};

static std::string status_name(cublasStatus_t status)
{
    switch (static_cast<int>(status)) {
    case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3: return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7: return "CUBLAS_STATUS_INVALID_VALUE";
    case 8: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case 11: return "CUBLAS_STATUS_MAPPING_ERROR";
    case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case 15: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "status " + std::to_string(static_cast<int>(status));
    }
}

/* ---- Matrices, by columns; each element is exact in the precision that it is for ---- */

struct Matrix {
    int rows, columns;
    std::vector<double> elements;
    double operator()(int row, int column) const
    {
        return elements[static_cast<size_t>(column) * rows + row];
    }
};

/* Numbers between -1 and 1 without an order: a linear congruential generator's upper bits. */
static Matrix made(int rows, int columns, Precision precision, uint64_t seed)
{
    Matrix matrix = {rows, columns, {}};
    uint64_t state = seed;
    for (int i = 0; i < rows * columns; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const double unit = std::ldexp(static_cast<double>(state >> 11), -52) - 1;
        const double whole = std::trunc(std::ldexp(unit, DIGITS[precision]));
        matrix.elements.push_back(std::ldexp(whole, -DIGITS[precision]));
    }
    return matrix;
}

/* The bits of a number between -1 and 1 with at most 10 binary digits, in half precision. */
static uint16_t half_bits(double value)
{
    int exponent;
    const double fraction = std::frexp(std::fabs(value), &exponent); /* 0.5 to 1 */
    const int digits = static_cast<int>(fraction * 2048);            /* 11 of them, the first 1 */
    if (value == 0)
        return 0;
    return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | (exponent + 14) << 10 |
                                 (digits - 1024));
}

static std::vector<unsigned char> bytes_of(const Matrix &matrix, Precision precision)
{
    std::vector<unsigned char> bytes(matrix.elements.size() * BYTES[precision]);
    for (size_t i = 0; i < matrix.elements.size(); i++) {
        const double value = matrix.elements[i];
        const float single = static_cast<float>(value);
        const uint16_t half = half_bits(value);
        const void *source = precision == SINGLE   ? static_cast<const void *>(&single)
                             : precision == DOUBLE ? static_cast<const void *>(&value)
                                                   : static_cast<const void *>(&half);
        memcpy(&bytes[i * BYTES[precision]], source, BYTES[precision]);
    }
    return bytes;
}

/* ---- The product ---- */

struct Product {
    Precision precision;
    Size size;
    bool transposed; /* the first factor is stored by rows */
    Matrix a, b;
    Device<unsigned char> on_a, on_b, on_c;
};

static int send(Product *p)
{
    const std::vector<unsigned char> a = bytes_of(p->a, p->precision);
    const std::vector<unsigned char> b = bytes_of(p->b, p->precision);
    const size_t bytes = RESULT_BYTES[p->precision] * p->size.m * p->size.n;
    TRY(cudaMalloc(&p->on_a.data, a.size()));
    TRY(cudaMalloc(&p->on_b.data, b.size()));
    TRY(cudaMalloc(&p->on_c.data, bytes));
    TRY(cudaMemcpy(p->on_a.data, a.data(), a.size(), cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(p->on_b.data, b.data(), b.size(), cudaMemcpyHostToDevice));
    TRY(cudaMemset(p->on_c.data, 0xFF, bytes)); /* no number */
    return PASSED;
}

static cublasStatus_t multiply(cublasHandle_t handle, Product *p)
{
    const cublasOperation_t op = p->transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int m = p->size.m, n = p->size.n, k = p->size.k;
    const float one = 1, zero = 0;
    const double one_double = 1, zero_double = 0;
    void *a = p->on_a.data, *b = p->on_b.data, *c = p->on_c.data;
    if (p->precision == SINGLE)
        return cublasSgemm(handle, op, CUBLAS_OP_N, m, n, k, &one, static_cast<float *>(a),
                           p->a.rows, static_cast<float *>(b), k, &zero,
                           static_cast<float *>(c), m);
    if (p->precision == DOUBLE)
        return cublasDgemm(handle, op, CUBLAS_OP_N, m, n, k, &one_double, static_cast<double *>(a),
                           p->a.rows, static_cast<double *>(b), k, &zero_double,
                           static_cast<double *>(c), m);
#if CUDART_VERSION >= 11000
    return cublasGemmEx(handle, op, CUBLAS_OP_N, m, n, k, &one, a, CUDA_R_16F, p->a.rows, b,
                        CUDA_R_16F, k, &zero, c, CUDA_R_32F, m, CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT);
#else
    return cublasGemmEx(handle, op, CUBLAS_OP_N, m, n, k, &one, a, CUDA_R_16F, p->a.rows, b,
                        CUDA_R_16F, k, &zero, c, CUDA_R_32F, m, CUDA_R_32F,
                        CUBLAS_GEMM_DEFAULT_TENSOR_OP);
#endif
}

static std::string described(const Product &p)
{
    return std::string(NAMES[p.precision]) + " precision, " + std::to_string(p.size.m) + " x " +
           std::to_string(p.size.n) + " x " + std::to_string(p.size.k) +
           (p.transposed ? ", transposed" : "");
}

/* The largest error as part of its bound; more than 1 is wrong, and so is what is no number. */
static int compare(const Product &p, double *worst)
{
    const int m = p.size.m, n = p.size.n, k = p.size.k;
    const double gamma = (k + 2) * ROUNDOFF[p.precision] / (1 - (k + 2) * ROUNDOFF[p.precision]);
    std::vector<unsigned char> result(RESULT_BYTES[p.precision] * m * n);
    TRY(cudaMemcpy(result.data(), p.on_c.data, result.size(), cudaMemcpyDeviceToHost));
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            const size_t at = static_cast<size_t>(column) * m + row;
            long double sum = 0, size = 0;
            float single;
            double found;
            memcpy(&single, &result[at * RESULT_BYTES[p.precision]], sizeof single);
            found = single;
            if (p.precision == DOUBLE)
                memcpy(&found, &result[at * sizeof found], sizeof found);
            for (int i = 0; i < k; i++) {
                const long double a = p.transposed ? p.a(i, row) : p.a(row, i);
                sum += a * p.b(i, column);
                size += std::fabs(a * p.b(i, column));
            }
            const double error = static_cast<double>(std::fabs(found - sum));
            const double bound = SLACK[p.precision] * gamma * static_cast<double>(size);
            if (!(error <= bound)) {
                char text[160];
                snprintf(text, sizeof text, ": element (%d, %d) is %.17g, expected %.17g; the "
                         "error is %.2g, and at most %.2g is due to rounding", row, column, found,
                         static_cast<double>(sum), error, bound);
                return failed(described(p) + text);
            }
            if (bound > 0 && error / bound > *worst)
                *worst = error / bound;
        }
    return PASSED;
}

static int check(cublasHandle_t handle, Product *p, double *worst)
{
    const Size s = p->size;
    p->a = p->transposed ? made(s.k, s.m, p->precision, 1) : made(s.m, s.k, p->precision, 1);
    p->b = made(s.k, s.n, p->precision, 2);
    if (send(p) != PASSED)
        return FAILED;
    const cublasStatus_t status = multiply(handle, p);
    if (status != CUBLAS_STATUS_SUCCESS)
        return failed("cuBLAS, " + described(*p) + ": " + status_name(status));
    TRY(cudaDeviceSynchronize());
    return compare(*p, worst);
}

static int multiply_on(int number, double worst[PRECISIONS])
{
    cublasHandle_t handle;
    int outcome = PASSED;
    TRY(cudaSetDevice(number));
    const cublasStatus_t status = cublasCreate(&handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return failed("cublasCreate on GPU " + std::to_string(number) + ": " + status_name(status));
    for (int precision = 0; precision < PRECISIONS && outcome == PASSED; precision++)
        for (const Size &size : SIZES)
            for (int transposed = 0; transposed < 2 && outcome == PASSED; transposed++) {
                Product product = {static_cast<Precision>(precision), size, transposed != 0,
                                   {},                                {},   {}, {}, {}};
                outcome = check(handle, &product, &worst[precision]);
            }
    cublasDestroy(handle);
    if (outcome != PASSED)
        fprintf(stderr, "on GPU %d\n", number);
    return outcome;
}

int main()
{
    int count = 0;
    double worst[PRECISIONS] = {0, 0, 0};
    TRY(cudaGetDeviceCount(&count));
    for (int number = 0; number < count; number++)
        if (multiply_on(number, worst) != PASSED)
            return FAILED;
    if (count < 1)
        return failed("cudaGetDeviceCount: 0 GPUs");
    printf("data: {\"gpus\": %d, \"single\": %.3g, \"double\": %.3g, \"half\": %.3g}\n", count,
           worst[SINGLE], worst[DOUBLE], worst[HALF]);
    printf("cuBLAS multiplies right on %d GPU%s; largest error, as part of what rounding explains: "
           "single %.2f, double %.2f, half %.2f\n", count, count == 1 ? "" : "s", worst[SINGLE],
           worst[DOUBLE], worst[HALF]);
    return PASSED;
}
