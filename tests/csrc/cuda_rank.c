/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: one rank of a training job on NCCL's ABI, with the streams of fakecuda.c on the host's clock
 * (FAKE_CUDA_REAL=1). The libraries talk to nobody, so the program itself has each collective last until the slowest
 * rank has come: `work` ms before each, LATE times as much on the late rank, and 1 ms of transfer, or so much that the
 * device falls behind.   cuda_rank ITERATIONS WORK_MS LATE LATE_RANK [TRANSFER_MS] */

#include <stdlib.h>
#include <time.h>

#include "fakecuda.h"
#include "nccl_calls.h"

#define MS 1000000ll
#define COLLECTIVES 4

extern int ncclCommInitRank(gh_nccl_comm *, int, gh_nccl_id, int), ncclCommDestroy(gh_nccl_comm);
extern int ncclAllReduce(const void *, void *, size_t, int, int, gh_nccl_comm, gh_stream);
extern int ncclAllGather(const void *, void *, size_t, int, gh_nccl_comm, gh_stream);
extern int ncclGroupStart(void), ncclGroupEnd(void);

static void wait_until(int64_t at)
{
    struct timespec t = {at / 1000000000, at % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    int iterations = atoi(argv[1]), rank = atoi(getenv("RANK"));
    int64_t work = atoi(argv[2]) * MS, slowest = (int64_t)((double)work * atof(argv[3]));
    int64_t own = rank == atoi(argv[4]) ? slowest : work, at;
    int64_t transfer = argc > 5 ? atoi(argv[5]) * MS : MS;
    gh_nccl_id id = {"job"};
    gh_nccl_comm comm;
    struct timespec t;
    fake_cuda_device(0);
    void *stream = fake_cuda_stream(MS);
    ncclCommInitRank(&comm, 4, id, rank);
    clock_gettime(CLOCK_MONOTONIC, &t);
    at = t.tv_sec * 1000000000ll + t.tv_nsec;
    for (int i = 0; i < iterations; i++)
        for (int k = 0; k < COLLECTIVES; k++) {
            wait_until(at + own);
            fake_cuda_set(stream, FAKE_TAKES, slowest - own + transfer);
            ncclGroupStart();
            if (k + 1 < COLLECTIVES)
                ncclAllGather(NULL, NULL, 1 << 16, 7, comm, stream);
            else
                ncclAllReduce(NULL, NULL, 1 << 20, 7, 0, comm, stream);
            ncclGroupEnd();
            at += slowest + MS;
            wait_until(at); /* the next layer needs the result */
        }
    return ncclCommDestroy(comm);
}
