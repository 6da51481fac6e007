/*
 * A libnccl.so.2 for GPUs whose memory is the host's: it reduces when a group ends. FAKE_NCCL says
 * what is wrong with it: lost (the last rank is left out, where there are several), unwritten, later
 * (unwritten from the second group on), group
 * (an error at the end of a group), init.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { INT64 = 4, FLOAT64 = 8, SUM = 0, MOST = 64 };
static int ranks, n_calls;
static struct call {
    const void *from;
    void *to;
    size_t count;
    int type, operation;
} calls[MOST];

static int is(const char *way)
{
    const char *said = getenv("FAKE_NCCL");
    return said != NULL && strcmp(said, way) == 0;
}

int ncclGetVersion(int *version) { return *version = 22203, 0; }
const char *ncclGetErrorString(int error) { return error == 5 ? "invalid usage" : "no error"; }
int ncclCommInitAll(void **communicators, int count, const int *devices)
{
    (void)devices;
    ranks = count;
    for (int i = 0; i < count; i++)
        communicators[i] = &ranks;
    return is("init") ? 5 : 0;
}
int ncclCommDestroy(void *communicator) { return communicator == NULL; }
int ncclGroupStart(void)
{
    n_calls = 0;
    return 0;
}
int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
                  void *communicator, void *stream)
{
    const struct call call = {from, to, count, type, operation};
    (void)communicator;
    (void)stream;
    calls[n_calls++] = call;
    return 0;
}

/* Each rank has as many calls, of the same kinds: the sums of all ranks, and their maxima. */
static void reduce(int kind)
{
    const int kinds = n_calls / ranks;
    const int last = is("lost") && ranks > 1 ? ranks - 1 : ranks;
    for (size_t i = 0; i < calls[kind].count; i++) {
        double sum = 0;
        int64_t most = INT64_MIN;
        for (int rank = 0; rank < last; rank++) {
            const struct call *call = &calls[kinds * rank + kind];
            if (call->type == FLOAT64)
                sum += ((const double *)call->from)[i];
            else if (((const int64_t *)call->from)[i] > most)
                most = ((const int64_t *)call->from)[i];
        }
        for (int rank = 0; rank < ranks; rank++)
            if (calls[kind].type == FLOAT64)
                ((double *)calls[kinds * rank + kind].to)[i] = sum;
            else
                ((int64_t *)calls[kinds * rank + kind].to)[i] = most;
    }
}
int ncclGroupEnd(void)
{
    if (is("group"))
        return 5;
    static int groups;
    if (is("later") && groups++ > 0)
        return 0;
    for (int kind = 0; kind < n_calls / ranks && !is("unwritten"); kind++)
        reduce(kind);
    return 0;
}
