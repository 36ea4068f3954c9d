/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_CONTROL_SHIM_H
#define GH_CONTROL_SHIM_H

#include <stdbool.h>

#include "control.h"
#include "ring.h"

extern struct gh_control *gh_control_page; /* never NULL */

void gh_control_open(int dir); /* of the job whose directory this is; stays as it is if that cannot be */
void gh_control_release(void); /* in a forked child */

/* Something is asked for or has changed: is tracking on? Writes what it took into the ring's live page. */
bool gh_control_look(struct gh_live *live);

/* Once a call: one cache line, no clock. */
static inline bool gh_control_tracking(struct gh_live *live)
{
    const struct gh_control *page = gh_control_page;
    int64_t asked = __atomic_load_n(&page->off_until_ns, __ATOMIC_RELAXED) |
                    __atomic_load_n(&page->profile_until_ns, __ATOMIC_RELAXED) |
                    __atomic_load_n(&page->pause_until_ns, __ATOMIC_RELAXED);
    if (__builtin_expect(!asked && __atomic_load_n(&page->epoch, __ATOMIC_RELAXED) ==
                                       __atomic_load_n(&live->control_epoch, __ATOMIC_RELAXED) &&
                             __atomic_load_n(&live->tracking, __ATOMIC_RELAXED),
                         1))
        return true;
    return gh_control_look(live);
}

/* Is a pause asked for; the lease is looked at by whoever finds that it is. */
static inline bool gh_control_pausing(void)
{
    return __atomic_load_n(&gh_control_page->pause_until_ns, __ATOMIC_RELAXED) != 0;
}

#endif
