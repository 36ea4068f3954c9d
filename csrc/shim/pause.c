/* SPDX-License-Identifier: Apache-2.0 */
/* The rank's side of a pause at a boundary (DESIGN section 5).
 *
 * A tool names a call for each rank, the first one of the same iteration, and the rank stops before it: it has then
 * issued all it owes the iterations before, so nobody waits for it. The thread that makes the call waits here and runs
 * tasks; a thread that comes with a later call waits with it. All of it hangs on the lease in the mailbox: whatever
 * becomes of the tool, the rank goes on when it has run out. A rank that has made the call already says so and
 * does not stop.
 */

#define _GNU_SOURCE
#include "pause.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>

#include "ring_shim.h"
#include "tasks/tasks.h"

#define MOST_NS 120000000000ll   /* however often the lease is renewed: no tool holds a job longer */
#define STEP_NS 1000000l         /* between looks at the mailbox */
#define COMING_NS 20000000ll     /* a thread that makes the named call at this moment has that long to say so */

static uint64_t decided; /* the pause for which it is settled whether this rank stops */
static uint64_t holding; /* the pause in which a thread of this rank stands, 0 = none */

static void nap(void)
{
    struct timespec step = {0, STEP_NS};
    nanosleep(&step, NULL);
}

/* ---- the lease ---- */

struct hold {
    struct gh_mail *mail;
    uint64_t pause;
    int64_t latest_ns;
};

static bool stands(void *self)
{
    const struct hold *h = self;
    int64_t now = gh_now_ns();
    return __atomic_load_n(&h->mail->pause, __ATOMIC_ACQUIRE) == h->pause &&
           __atomic_load_n(&h->mail->released, __ATOMIC_ACQUIRE) < h->pause && now < h->latest_ns &&
           now < __atomic_load_n(&h->mail->until_ns, __ATOMIC_RELAXED);
}

/* ---- one thread stands ---- */

static void answer(struct gh_mail *mail, uint32_t state)
{
    __atomic_store_n(&mail->state, state, __ATOMIC_RELEASE);
}

static bool drained(struct hold *h)
{
    int64_t until = gh_now_ns() + __atomic_load_n(&h->mail->drain_ns, __ATOMIC_RELAXED);
    while (!gh_gloo_drained()) {
        if (gh_now_ns() >= until || !stands(h))
            return false;
        nap();
    }
    int64_t lease = __atomic_load_n(&h->mail->until_ns, __ATOMIC_RELAXED);
    return gh_cuda_drained(until < lease ? until : lease);
}

static void run_task(struct hold *h, uint64_t number)
{
    struct gh_mail *mail = h->mail;
    struct gh_leave leave = {stands, h};
    struct gh_result result;
    struct gh_task task;
    task.kind = mail->kind;
    memcpy(task.arg, mail->arg, sizeof task.arg);
    memcpy(task.text, mail->text, sizeof task.text);
    task.text[sizeof task.text - 1] = 0;
    gh_task_run(&task, &leave, &result);
    mail->status = result.status;
    mail->count = result.count;
    memcpy(mail->value, result.value, sizeof mail->value);
    memcpy(mail->said, result.said, sizeof mail->said);
    __atomic_store_n(&mail->done, number, __ATOMIC_RELEASE);
}

static void hold(struct gh_mail *mail, uint64_t pause, int64_t seq)
{
    int saved = errno;
    struct hold h = {mail, pause, gh_now_ns() + MOST_NS};
    mail->tid = (uint32_t)syscall(SYS_gettid);
    mail->at_seq = seq;
    mail->arrived_ns = gh_now_ns();
    mail->drained_ns = mail->left_ns = 0;
    answer(mail, GH_PAUSE_ARRIVED);
    __atomic_store_n(&mail->answered, pause, __ATOMIC_RELEASE);
    bool clean = drained(&h);
    mail->drained_ns = gh_now_ns();
    answer(mail, clean ? GH_PAUSE_DRAINED : GH_PAUSE_UNDRAINED);
    while (stands(&h)) {
        uint64_t task = __atomic_load_n(&mail->task, __ATOMIC_ACQUIRE);
        if (clean && task != mail->done)
            run_task(&h, task);
        else
            nap();
    }
    gh_task_close();
    mail->left_ns = gh_now_ns();
    answer(mail, GH_PAUSE_LEFT);
    errno = saved;
}

static void refuse(struct gh_mail *mail, uint64_t pause, int64_t seq)
{
    mail->at_seq = seq;
    answer(mail, GH_PAUSE_REFUSED);
    __atomic_store_n(&mail->answered, pause, __ATOMIC_RELEASE);
}

/* ---- every call, while a pause is asked for ---- */

static bool settle(uint64_t before, uint64_t pause)
{
    return before != pause && __atomic_compare_exchange_n(&decided, &before, pause, 0, __ATOMIC_ACQ_REL,
                                                          __ATOMIC_RELAXED);
}

bool gh_pause(struct gh_mail *mail, int64_t seq)
{
    uint64_t pause = __atomic_load_n(&mail->pause, __ATOMIC_ACQUIRE);
    struct hold h = {mail, pause, INT64_MAX};
    if (!pause || !stands(&h))
        return false;
    int64_t stop = __atomic_load_n(&mail->stop_seq, __ATOMIC_RELAXED);
    if (seq < stop)
        return false;
    uint64_t before = __atomic_load_n(&decided, __ATOMIC_ACQUIRE);
    if (seq == stop) {
        if (!settle(before, pause))
            return false;
        bool aside = gh_nccl_step_aside();
        __atomic_store_n(&holding, pause, __ATOMIC_RELEASE);
        hold(mail, pause, seq);
        gh_nccl_step_back(aside);
        __atomic_store_n(&holding, 0, __ATOMIC_RELEASE);
        return true;
    }
    int64_t until = gh_now_ns() + COMING_NS;
    while (before != pause && gh_now_ns() < until) {
        nap();
        before = __atomic_load_n(&decided, __ATOMIC_ACQUIRE);
    }
    if (before != pause && settle(before, pause)) {
        refuse(mail, pause, seq);
        return false;
    }
    if (__atomic_load_n(&holding, __ATOMIC_ACQUIRE) != pause)
        return false;
    bool aside = gh_nccl_step_aside();
    while (__atomic_load_n(&holding, __ATOMIC_ACQUIRE) == pause)
        nap();
    gh_nccl_step_back(aside);
    return true;
}
