/*
 * A cuBLAS on the processor. FAKE_BLAS says how it multiplies: nothing (each product and sum rounded
 * once), backwards (the sum from its end), fused, cut (sums are cut off, as tensor cores do), tf32
 * (factors of 11 bits), halfsums (sums of 11 bits), single (doubles in single precision), bfloat
 * (factors of 8 bits), unwritten (the last element is not), transposed (the wrong factor), or an
 * error's number.
 */
#ifndef FAKE_CUBLAS_H
#define FAKE_CUBLAS_H

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#ifndef CUBLAS
#define CUBLAS 12
#endif

typedef struct {
} *cublasHandle_t;
enum { MAJOR_VERSION, MINOR_VERSION };
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0 };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType { CUDA_R_32F, CUDA_R_16F };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F };
enum { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 };

inline std::string how()
{
    const char *said = std::getenv("FAKE_BLAS");
    return said == nullptr ? "" : said;
}
inline cublasStatus_t cublasGetProperty(int which, int *version)
{
    *version = which == MAJOR_VERSION ? CUBLAS : 4;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    *handle = nullptr;
    return static_cast<cublasStatus_t>(how() == "create" ? 1 : 0);
}
inline cublasStatus_t cublasDestroy(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }

/* A number with as many binary digits. */
inline double rounded(double value, int digits)
{
    int exponent;
    const double fraction = std::frexp(value, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(fraction, digits)), exponent - digits);
}

inline double half_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, digits = bits & 1023;
    const double size = exponent == 0 ? std::ldexp(digits, -24)
                                      : std::ldexp(1024 + digits, exponent - 25);
    return bits & 0x8000 ? -size : size;
}

inline double value_of(float value) { return value; }
inline double value_of(double value) { return value; }
inline double value_of(uint16_t bits) { return half_value(bits); }

template <typename Factor, typename Result>
cublasStatus_t product(cublasOperation_t op, int m, int n, int k, const Factor *a, int lda,
                       const Factor *b, int ldb, Result *c, int ldc)
{
    const std::string way = how();
    const int bits = way == "tf32" ? 11 : way == "bfloat" ? 8 : 53;
    const bool transposed = (op == CUBLAS_OP_T) != (way == "transposed" && m == k);
    if (!way.empty() && way.find_first_not_of("0123456789") == std::string::npos)
        return static_cast<cublasStatus_t>(std::atoi(way.c_str()));
    std::fesetround(way == "cut" ? FE_TOWARDZERO : FE_TONEAREST);
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            volatile Result sum = 0;
            for (int i = 0; i < k; i++) {
                const int at = way == "backwards" ? k - 1 - i : i;
                const double x = rounded(value_of(transposed ? a[row * lda + at] : a[at * lda + row]), bits);
                const double y = rounded(value_of(b[column * ldb + at]), bits);
                if (way == "fused") {
                    sum = std::fma(static_cast<Result>(x), static_cast<Result>(y), sum);
                } else {
                    volatile Result one = static_cast<Result>(x * y);
                    sum = sum + one;
                }
                if (way == "halfsums")
                    sum = static_cast<Result>(rounded(sum, 11));
                if (way == "single")
                    sum = static_cast<float>(sum);
            }
            if (way != "unwritten" || row != m - 1 || column != n - 1)
                c[column * ldc + row] = sum;
        }
    std::fesetround(FE_TONEAREST);
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasSgemm(cublasHandle_t, cublasOperation_t op, cublasOperation_t, int m,
                                  int n, int k, const float *, const float *a, int lda,
                                  const float *b, int ldb, const float *, float *c, int ldc)
{
    return product(op, m, n, k, a, lda, b, ldb, c, ldc);
}
inline cublasStatus_t cublasDgemm(cublasHandle_t, cublasOperation_t op, cublasOperation_t, int m,
                                  int n, int k, const double *, const double *a, int lda,
                                  const double *b, int ldb, const double *, double *c, int ldc)
{
    return product(op, m, n, k, a, lda, b, ldb, c, ldc);
}
template <typename Compute>
cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t op, cublasOperation_t, int m, int n,
                            int k, const void *, const void *a, cudaDataType, int lda, const void *b,
                            cudaDataType, int ldb, const void *, void *c, cudaDataType, int ldc,
                            Compute, int)
{
    return product(op, m, n, k, static_cast<const uint16_t *>(a), lda,
                   static_cast<const uint16_t *>(b), ldb, static_cast<float *>(c), ldc);
}

#endif
