/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_RING_PUT_H
#define GH_RING_PUT_H

/* Writing one record: the hot path's core, alone so that the thread tests can be built around it. */

#include <string.h>

#include "ring.h"

/* Writers never wait. A writer that finds its slot held by another (one of them was stopped for a whole lap)
 * or already passed gives its own record up. */
static inline void gh_ring_put(struct gh_live *live, struct gh_slot *slots, uint64_t mask,
                               const struct gh_record *record)
{
    uint64_t n = __atomic_fetch_add(&live->written, 1, __ATOMIC_RELAXED);
    struct gh_slot *slot = &slots[n & mask];
    uint64_t seen = __atomic_load_n(&slot->publish, __ATOMIC_RELAXED);
    if (__builtin_expect((seen & 1) || seen > 2 * n ||
                             !__atomic_compare_exchange_n(&slot->publish, &seen, 2 * n + 1, 0,
                                                          __ATOMIC_ACQUIRE, __ATOMIC_RELAXED),
                         0)) {
        __atomic_fetch_add(&live->dropped, 1, __ATOMIC_RELAXED);
        return;
    }
    /* A reader that sees any word of this record must also see the slot as taken when it looks again. */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    uint64_t word[GH_RECORD_WORDS];
    memcpy(word, record, sizeof word);
    for (unsigned i = 0; i < GH_RECORD_WORDS; i++)
        __atomic_store_n(&slot->word[i], word[i], __ATOMIC_RELAXED);
    __atomic_store_n(&slot->publish, 2 * n + 2, __ATOMIC_RELEASE);
}

#endif
