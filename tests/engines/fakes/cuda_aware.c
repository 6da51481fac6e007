/* An MPI that says that it takes pointers into a GPU's memory: loaded before it (LD_PRELOAD). */
int MPIX_Query_cuda_support(void) { return 1; }
