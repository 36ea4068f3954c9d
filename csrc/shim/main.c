/* SPDX-License-Identifier: Apache-2.0 */
/* Coming and going of the shim in a process. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "hooks_nccl.h"
#include "shim.h"

bool gh_disabled;

/* Is the marker that this process finds first (resolve.c) the one of this copy? */
static bool is_first_copy(void)
{
    Dl_info first, own;
    void *marker = dlsym(RTLD_DEFAULT, "gh_shim_abi");
    return marker && dladdr(marker, &first) && dladdr((void *)is_first_copy, &own) &&
           first.dli_fbase == own.dli_fbase;
}

static void in_child(void)
{
    gh_ring_release();
    gh_comm_forget();
    gh_cuda_forget();
    gh_nccl_gate_forget();
#if defined(__x86_64__)
    gh_gloo_forget();
#endif
}

__attribute__((constructor)) static void shim_begin(void)
{
    const char *off = getenv("GHT_OFF");
    /* Of several copies only the first in the search order records; the others forward to one another. */
    gh_disabled = (off && *off && *off != '0') || !is_first_copy();
    gh_cuda_prepare();
    if (!gh_disabled)
        pthread_atfork(NULL, NULL, in_child);
}

__attribute__((destructor)) static void shim_end(void)
{
    gh_ring_end();
}
