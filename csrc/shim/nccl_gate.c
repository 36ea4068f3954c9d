/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses NCCL: the threads of the job, or a task of a pause; never both. */

#include <time.h>

#include "hooks_nccl.h"

#define STEP_NS 200000l
#define PATIENCE_NS 30000000000ll /* a task that is stuck in the library holds nobody for longer */

int gh_nccl_inside;
bool gh_nccl_taken;
GH_TLS bool gh_nccl_counted;

static void nap(void)
{
    nanosleep(&(struct timespec){0, STEP_NS}, NULL);
}

void gh_nccl_wait_task(int64_t most_ns)
{
    int64_t until = gh_now_ns() + most_ns;
    while (__atomic_load_n(&gh_nccl_taken, __ATOMIC_SEQ_CST) && gh_now_ns() < until)
        nap();
}

/* Either this thread sees that the library is taken, or the task sees that this thread is inside: both write first and
 * look then. */
void gh_nccl_wait_turn(void)
{
    int64_t until = gh_now_ns() + PATIENCE_NS;
    do {
        __atomic_fetch_sub(&gh_nccl_inside, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&gh_nccl_taken, __ATOMIC_SEQ_CST) && gh_now_ns() < until)
            nap();
        __atomic_fetch_add(&gh_nccl_inside, 1, __ATOMIC_SEQ_CST);
    } while (__atomic_load_n(&gh_nccl_taken, __ATOMIC_SEQ_CST) && gh_now_ns() < until);
}

bool gh_nccl_take(int64_t until_ns)
{
    bool was = false;
    if (!__atomic_compare_exchange_n(&gh_nccl_taken, &was, true, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return false;
    while (__atomic_load_n(&gh_nccl_inside, __ATOMIC_SEQ_CST) > 0) {
        if (gh_now_ns() >= until_ns) {
            gh_nccl_give();
            return false;
        }
        nap();
    }
    return true;
}

void gh_nccl_give(void)
{
    __atomic_store_n(&gh_nccl_taken, false, __ATOMIC_SEQ_CST);
}

bool gh_nccl_step_aside(void)
{
    if (!gh_nccl_counted)
        return false;
    gh_nccl_leave();
    return !gh_nccl_counted;
}

void gh_nccl_step_back(bool aside)
{
    if (aside)
        gh_nccl_enter();
}

void gh_nccl_gate_forget(void)
{
    gh_nccl_inside = 0;
    gh_nccl_taken = gh_nccl_counted = false;
}
