/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_TALLY_H
#define GH_TALLY_H

/* How many calls of each kind a rank has ever made: on each communicator its collectives, and its messages to and from
 * each peer. A tool that has come late can tell with them which of its calls is the same collective as which of another
 * rank's, and so where all of a job's ranks can stop together (locate/cut.py).
 *
 * An open table in the ring file. A place is taken once and never given back. A call is counted before it gets its
 * number: a reader that finds `calls` unchanged around its reading has counts that include every call up to there.
 */

#include <assert.h>
#include <stdint.h>

#include "ops.h"
#include "ring.h"

#define GH_TALLY_CAP 1024u
#define GH_TALLY_PROBES 16u

struct gh_tally {
    uint64_t key; /* gh_tally_key; 0 = no entry */
    uint64_t count;
};

static_assert(GH_TALLY_CAP * sizeof(struct gh_tally) == GH_HEAD_PAGES * GH_PAGE - GH_TALLY_AT,
              "the tallies fill their pages");

/* Of what a call must agree with those of others: messages have a direction and a peer, the rest has neither. */
static inline uint64_t gh_tally_key(uint64_t comm, uint8_t op, int32_t peer)
{
    uint64_t kind = op == GH_OP_SEND || op == GH_OP_RECV ? (uint64_t)(uint32_t)peer << 8 | op : 0;
    uint64_t key = (comm ^ kind * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;
    key ^= key >> 32;
    return key ? key : 1;
}

static inline void gh_tally_count(struct gh_tally *tallies, uint64_t *lost, uint64_t key)
{
    for (unsigned i = 0; i < GH_TALLY_PROBES; i++) {
        struct gh_tally *t = &tallies[(key + i) & (GH_TALLY_CAP - 1)];
        uint64_t seen = __atomic_load_n(&t->key, __ATOMIC_RELAXED);
        if (seen == key ||
            (!seen && (__atomic_compare_exchange_n(&t->key, &seen, key, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
                       seen == key))) {
            __atomic_fetch_add(&t->count, 1, __ATOMIC_RELAXED);
            return;
        }
    }
    __atomic_fetch_add(lost, 1, __ATOMIC_RELAXED);
}

#endif
