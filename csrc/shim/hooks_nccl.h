/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_HOOKS_NCCL_H
#define GH_HOOKS_NCCL_H

#include "nccl_calls.h"
#include "shim.h"

extern GH_TLS int gh_nccl_depth; /* inside a call of the library, made by this thread */
bool gh_nccl_in_group(void);
void gh_nccl_group_done(void); /* the outermost group has ended: communicators asked for in it are there */

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
