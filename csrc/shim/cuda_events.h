/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_CUDA_EVENTS_H
#define GH_CUDA_EVENTS_H

/* How long NCCL's work took, measured with CUDA events while a profile is asked for (DESIGN section 5).
 *
 * What the library launches at once, one call or an outermost group, is a batch. The hooks say what is in it, when
 * it is about to be launched and when it has been. On each stream of the batch a timing event is then recorded
 * before and after; a helper thread (cuda_helper.c) asks later what they say. While a pause is asked for, an event
 * after the batch tells when the stream's work is done (cuda_drain.c).
 */

#include "shim.h"

extern uint32_t gh_cuda_every;     /* one in that many collectives of a communicator is timed (GHT_PROFILE_EVERY) */
extern GH_TLS uint64_t gh_cuda_at; /* the stream of the call that this thread records, else 0 */

bool gh_cuda_watching(void); /* a profile or a pause is asked for: only then are the next four of use */

struct gh_cuda_comm { /* of the call's communicator */
    int size, device;  /* -1 = not known */
    bool sampled;      /* it is this call's turn to be timed */
};

/* A call is made: to be launched at once, or at the end of the group. */
void gh_cuda_call(const struct gh_call *call, int64_t seq, const struct gh_cuda_comm *comm);
void gh_cuda_launch(int calls); /* so many calls are launched: all of them must have been said */
/* `whole`: all of it is on its streams. A non-blocking communicator that says "in progress" launches it later. */
void gh_cuda_launched(bool whole);
void gh_cuda_cancel(void); /* it will not be launched */

#endif
