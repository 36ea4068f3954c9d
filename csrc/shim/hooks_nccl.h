/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_HOOKS_NCCL_H
#define GH_HOOKS_NCCL_H

#include "nccl_calls.h"
#include "shim.h"

extern GH_TLS int gh_nccl_depth; /* inside a call of the library, made by this thread */
bool gh_nccl_in_group(void);
bool gh_nccl_in_group_with_calls(void);
void gh_nccl_group_done(void); /* the outermost group has ended: communicators asked for in it are there */

/* Who is inside the library. A thread is, from before its call is recorded until the library has returned, and in a
 * group with calls until the group has ended. A thread that stands in a pause is not, unless it is in such a group. A
 * task of a pause may use the library only when nobody is, and whoever comes meanwhile waits for it: a communicator
 * takes one thread at a time. */
extern int gh_nccl_inside;       /* how many threads */
extern bool gh_nccl_taken;       /* a task has it */
extern GH_TLS bool gh_nccl_counted; /* this thread is one of them */
void gh_nccl_wait_turn(void);

static inline void gh_nccl_enter(void)
{
    if (gh_nccl_counted)
        return;
    gh_nccl_counted = true;
    __atomic_fetch_add(&gh_nccl_inside, 1, __ATOMIC_SEQ_CST);
    if (GH_UNLIKELY(__atomic_load_n(&gh_nccl_taken, __ATOMIC_SEQ_CST)))
        gh_nccl_wait_turn();
}

static inline void gh_nccl_leave(void)
{
    if (gh_nccl_counted && !gh_nccl_in_group_with_calls()) {
        gh_nccl_counted = false;
        __atomic_fetch_sub(&gh_nccl_inside, 1, __ATOMIC_RELEASE);
    }
}

/* nccl_gate.c: false = somebody is inside, and stays there. */
bool gh_nccl_take(int64_t until_ns);
void gh_nccl_give(void);
void gh_nccl_wait_task(int64_t most_ns); /* for a task that has the library, so long at most */
void gh_nccl_gate_forget(void);          /* in a forked child */

/* The library's function `suffix` (without "nccl"), by its pnccl twin where there is one. NULL = no library. */
void *gh_nccl_find(const char *suffix);

static inline void *gh_nccl_real(void **cache, const char *suffix)
{
    void *real = __atomic_load_n(cache, __ATOMIC_RELAXED);
    if (GH_UNLIKELY(!real)) {
        real = gh_nccl_find(suffix);
        __atomic_store_n(cache, real, __ATOMIC_RELAXED);
    }
    return real;
}

#endif
