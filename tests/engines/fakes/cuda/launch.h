/* How the kernels of cuda-compute.cu run on the processor: put after them. */
#include <pthread.h>

#include <thread>

thread_local dim3 blockIdx, threadIdx;
dim3 blockDim, gridDim;
static pthread_barrier_t barrier;
void __syncthreads() { pthread_barrier_wait(&barrier); }

template <typename T> static T argument(void **arguments, int number)
{
    return *static_cast<T *>(arguments[number]);
}

static void add_in(void **arguments, dim3 blocks, dim3 threads)
{
    float *sum = argument<float *>(arguments, 2);
    const int n = argument<int>(arguments, 3) - fake("unwritten", 0);
    for (blockIdx.x = 0; blockIdx.x < blocks.x; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads.x; threadIdx.x++)
            add(argument<const float *>(arguments, 0), argument<const float *>(arguments, 1), sum, n);
    sum[77] += static_cast<float>(fake("add", 0));
}

static void reduce_in(void **arguments, dim3 blocks, dim3 threads)
{
    double *sums = argument<double *>(arguments, 2);
    unsigned long long *whole = argument<unsigned long long *>(arguments, 3);
    pthread_barrier_init(&barrier, nullptr, threads.x);
    for (unsigned block = 0; block < blocks.x; block++) {
        std::vector<std::thread> running;
        for (unsigned thread = 0; thread < threads.x; thread++)
            running.emplace_back([=] {
                blockIdx.x = block;
                threadIdx.x = thread;
                reduce(argument<const float *>(arguments, 0), argument<int>(arguments, 1), sums,
                       whole);
            });
        for (std::thread &one : running)
            one.join();
    }
    sums[0] += fake("shared", 0);
    *whole += static_cast<unsigned long long>(fake("atomic", 0));
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 blocks, dim3 threads, void **arguments,
                             std::size_t, cudaStream_t)
{
    static int launched;
    blockDim = threads;
    gridDim = blocks;
    if (launched++ >= fake("after", 0) && fake("launch", 0) != 0)
        return fake_error("launch");
    if (kernel == reinterpret_cast<const void *>(add))
        add_in(arguments, blocks, threads);
    else
        reduce_in(arguments, blocks, threads);
    return cudaSuccess;
}
