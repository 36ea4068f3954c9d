/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_NCCL_P2P_H
#define GH_NCCL_P2P_H

/* Sends and receives of our own on a communicator of the job: what an exchange between two ranks needs of NCCL and of
 * the driver. One thread uses it, which has the library for itself (nccl_gate.c). */

#include "cuda_api.h"
#include "hooks_nccl.h"
#include "tasks/meeting.h"

#define GH_P2P_PIECES 16        /* of what was received that are looked at */
#define GH_P2P_PIECE (64 << 10) /* bytes of each */

struct gh_p2p {
    struct gh_meeting *meeting;
    const struct gh_cuda *cu;
    gh_cu_context context;
    const void *comm;
    uint64_t id; /* of the communicator */
    int peer;
    gh_cu_stream stream;
    gh_cu_event begin, end;
    gh_cu_memory out, in;
    int64_t room;         /* bytes of each of the two */
    unsigned char *mine;  /* what is sent, then what is to come, then a piece of what has come */
    bool under_way;       /* something was put on the stream and is not known to be done */
};

/* All of these return 0 or an errno, which is noted in the meeting's `said`. */
int gh_p2p_prepare(void);               /* ENOSYS: no library or driver that can */
int gh_p2p_find(struct gh_p2p *p);      /* by `id` and `peer`: the communicator, the device's context; ENODEV, EBUSY */
int gh_p2p_sound(struct gh_p2p *p);     /* it is still there and has no error */
/* Two buffers for the largest of the sizes that do no harm here. `told`: numbers of the pattern, ours and theirs. */
int gh_p2p_take(struct gh_p2p *p, const int64_t *size, int sizes, const uint64_t *told);
void gh_p2p_give_back(struct gh_p2p *p); /* but what is under way */
bool gh_p2p_reap(struct gh_p2p *p);      /* what was under way is done by now, and was given back */
int gh_p2p_clear(struct gh_p2p *p, int64_t bytes); /* so that what is there afterwards has come */
int gh_p2p_check(struct gh_p2p *p, int64_t bytes);
/* One group: a send, a receive, or both, of so many bytes. */
int gh_p2p_group(struct gh_p2p *p, bool sends, bool receives, int64_t bytes);
int gh_p2p_mark(struct gh_p2p *p, gh_cu_event event);
int gh_p2p_wait(struct gh_p2p *p);                   /* until all that was put on the stream is done */
int gh_p2p_took(struct gh_p2p *p, int64_t *took_ns); /* between the two events */

#endif
