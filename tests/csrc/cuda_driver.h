/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

/* FOR TESTS ONLY: what the scenarios of cuda_driver share. */

#include "fakecuda.h"
#include "nccl_calls.h"

#define S 1000000000ll /* of the streams' clock: so long that no delay of the host can look like a part of it */

extern int ncclCommInitRank(gh_nccl_comm *, int, gh_nccl_id, int), ncclCommDestroy(gh_nccl_comm);
extern int ncclCommAbort(gh_nccl_comm);
extern int ncclAllReduce(const void *, void *, size_t, int, int, gh_nccl_comm, gh_stream);
extern int ncclAllGather(const void *, void *, size_t, int, gh_nccl_comm, gh_stream);
extern int ncclSend(const void *, size_t, int, int, gh_nccl_comm, gh_stream);
extern int ncclRecv(void *, size_t, int, int, gh_nccl_comm, gh_stream);
extern int ncclGroupStart(void), ncclGroupEnd(void), ncclGroupSimulateEnd(void *);
extern void fake_give(int), fake_delay(long);
#ifdef WHOLE_SHIM /* the program has the shim in it, so it can ask what pause.c asks */
extern _Bool gh_cuda_drained(int64_t);
extern int64_t gh_now_ns(void);
#endif

extern gh_nccl_comm comm, other; /* of four ranks */
extern void *s, *t;              /* streams on which a kernel takes one and two seconds */
extern int contexts, lost;       /* how many there have been; spans of one that is gone */

void nap(void); /* a millisecond of the host's */
void naps(int n);
void move(int64_t ns); /* the streams' clock */
void wait_for(int what, long least);
int reduce(size_t count, gh_nccl_comm on, void *stream);
/* Calls until the shim has made its events. Nothing of it is looked at: its calls are those of one element. */
void ready(void *stream);
/* `spans` more are complete and have been asked for all they can say. */
void settle(long finished_before, long spans);

/* A scenario: its exit status, 0 = as it should be. `early`: before the shim has made events. */
struct scenario {
    const char *name;
    int (*run)(void);
    int early;
};
extern const struct scenario usual[], faults[]; /* cuda_usual.c, cuda_faults.c; a name of NULL ends them */

#endif
