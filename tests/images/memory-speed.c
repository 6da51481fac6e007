/*
 * memory-speed [MIB [TIMES]]
 *
 * How fast memory is read and written, by the four kernels of J. D. McCalpin's STREAM, with all
 * threads of OpenMP: copy (c = a), scale (b = s c), add (c = a + b) and triad (a = b + s c), the
 * best of TIMES rounds over arrays of MIB mebibytes each. It is no STREAM: do not publish its
 * figures as such. Arrays should be at least four times as large as all caches together.
 *
 * All values are dyadic fractions with few enough digits that each sum and product is exact, with
 * fused multiply-add or without: after the rounds every element is compared for equality.
 *
 * Exit status: 0 measured and right, 1 wrong, 2 bad usage. The last line of standard output is
 * the finding; a line `data: {JSON}` stands before it, rates in GB/s of 10^9 bytes.
 */
#define _POSIX_C_SOURCE 200809L

#include <omp.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_TIMES = 20 }; /* 1.25 to the 20th is exact in a double: 5^20 has 47 bits */
enum { COPY, SCALE, ADD, TRIAD, KERNELS };

static const char *const NAMES[] = {"copy", "scale", "add", "triad"};
static const int ARRAYS[] = {2, 2, 3, 3}; /* read or written by each kernel */
static const double S = 0.5;

static double *a, *b, *c;
static long n;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Each thread writes its part first: that decides on which NUMA node the part lies. */
static void fill(void)
{
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++) {
        a[i] = 1.0;
        b[i] = 2.0;
        c[i] = 0.0;
    }
}

static void run(int kernel)
{
    if (kernel == COPY) {
#pragma omp parallel for schedule(static)
        for (long i = 0; i < n; i++)
            c[i] = a[i];
    } else if (kernel == SCALE) {
#pragma omp parallel for schedule(static)
        for (long i = 0; i < n; i++)
            b[i] = S * c[i];
    } else if (kernel == ADD) {
#pragma omp parallel for schedule(static)
        for (long i = 0; i < n; i++)
            c[i] = a[i] + b[i];
    } else {
#pragma omp parallel for schedule(static)
        for (long i = 0; i < n; i++)
            a[i] = b[i] + S * c[i];
    }
}

/* The number of elements that are not what the rounds make of one element. */
static long wrong(int times)
{
    double x = 1.0, y = 2.0, z = 0.0;
    long found = 0;
    for (int i = 0; i < times; i++) {
        z = x;
        y = S * z;
        z = x + y;
        x = y + S * z;
    }
#pragma omp parallel for schedule(static) reduction(+ : found)
    for (long i = 0; i < n; i++)
        found += a[i] != x || b[i] != y || c[i] != z;
    return found;
}

static void measure(int times, double best[KERNELS])
{
    for (int round = 0; round < times; round++)
        for (int kernel = 0; kernel < KERNELS; kernel++) {
            double begin = now(), took;
            run(kernel);
            took = now() - begin;
            if (round == 0 || took < best[kernel])
                best[kernel] = took;
        }
}

static double rate(int kernel, const double best[KERNELS])
{
    return best[kernel] > 0 ? 1e-9 * ARRAYS[kernel] * (double)n * sizeof(double) / best[kernel] : 0;
}

static int report(long mib, int times, const double best[KERNELS])
{
    long bad = wrong(times);
    printf("data: {\"threads\": %d, \"mebibytes\": %ld", omp_get_max_threads(), mib);
    for (int kernel = 0; kernel < KERNELS; kernel++)
        printf(", \"%s_gb_per_s\": %.3f", NAMES[kernel], rate(kernel, best));
    puts("}");
    if (bad != 0) {
        printf("%ld of %ld elements are wrong after %d rounds\n", bad, n, times);
        return 1;
    }
    for (int kernel = 0; kernel < KERNELS; kernel++) {
        if (rate(kernel, best) <= 0) {
            printf("%s took no time that the clock can tell\n", NAMES[kernel]);
            return 1;
        }
        printf("%s %.2f GB/s, ", NAMES[kernel], rate(kernel, best));
    }
    printf("%d thread%s, 3 arrays of %ld MiB, all values right\n", omp_get_max_threads(),
           omp_get_max_threads() == 1 ? "" : "s", mib);
    return 0;
}

static long number(const char *text, long least, long most)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*text != '\0' && *end == '\0' && value >= least && value <= most)
        return value;
    printf("usage: memory-speed [MIB [TIMES]], TIMES at most %d\n", MOST_TIMES);
    exit(2);
}

int main(int argc, char **argv)
{
    double best[KERNELS] = {0};
    long mib = argc > 1 ? number(argv[1], 1, 1L << 20) : 512;
    int times = (int)(argc > 2 ? number(argv[2], 1, MOST_TIMES) : 10);
    n = mib * (1L << 20) / (long)sizeof(double);
    a = malloc((size_t)n * sizeof *a);
    b = malloc((size_t)n * sizeof *b);
    c = malloc((size_t)n * sizeof *c);
    if (argc > 3 || a == NULL || b == NULL || c == NULL) {
        puts(argc > 3 ? "usage: memory-speed [MIB [TIMES]]" : "not enough memory");
        return argc > 3 ? 2 : 1;
    }
    fill();
    measure(times, best);
    return report(mib, times, best);
}
