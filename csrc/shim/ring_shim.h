/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_RING_SHIM_H
#define GH_RING_SHIM_H

/* What ring.c and comm.c share: the open ring. */

#include "mail.h"
#include "ring.h"
#include "shim.h"
#include "tally.h"

struct gh_ring {
    struct gh_header *header;
    struct gh_live *live;
    struct gh_mail *mail;
    struct gh_tally *tallies;
    struct gh_comm *comms;
    struct gh_slot *slots;
    uint64_t mask;
    int64_t clock_offset_ns;
};

/* gh_ring_now is NULL until the first communicator, in a forked child, and when there is no room: then all
 * passes through. */
static inline struct gh_ring *gh_ring_get(void)
{
    return __atomic_load_n(&gh_ring_now, __ATOMIC_ACQUIRE);
}

#endif
