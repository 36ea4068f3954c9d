/* SPDX-License-Identifier: Apache-2.0 */
/* The tool's side of a mailbox (mail.h): the order of its writes is here and nowhere else. */

#include "mail.h"

#include <string.h>

#include "export.h"

/* Ask for pause `pause`, a number over all before, with a lease until `until_ns` (CLOCK_MONOTONIC). */
GH_EXPORT void gh_mail_ask(void *page, uint64_t pause, int64_t stop_seq, int64_t until_ns, int64_t drain_ns)
{
    struct gh_mail *mail = page;
    __atomic_store_n(&mail->stop_seq, stop_seq, __ATOMIC_RELAXED);
    __atomic_store_n(&mail->drain_ns, drain_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&mail->until_ns, until_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&mail->pause, pause, __ATOMIC_RELEASE);
}

GH_EXPORT void gh_mail_renew(void *page, int64_t until_ns)
{
    __atomic_store_n(&((struct gh_mail *)page)->until_ns, until_ns, __ATOMIC_RELEASE);
}

GH_EXPORT void gh_mail_release(void *page, uint64_t pause)
{
    __atomic_store_n(&((struct gh_mail *)page)->released, pause, __ATOMIC_RELEASE);
}

GH_EXPORT uint64_t gh_mail_number(const void *page)
{
    return __atomic_load_n(&((const struct gh_mail *)page)->pause, __ATOMIC_ACQUIRE);
}

/* The rank's state in pause `pause`, GH_PAUSE_NONE if it has not answered it. */
GH_EXPORT uint32_t gh_mail_state(const void *page, uint64_t pause)
{
    const struct gh_mail *mail = page;
    if (__atomic_load_n(&mail->answered, __ATOMIC_ACQUIRE) != pause)
        return GH_PAUSE_NONE;
    return __atomic_load_n(&mail->state, __ATOMIC_ACQUIRE);
}

/* Hand over a task; its number. The one before must be done. `arg` has GH_TASK_ARGS numbers, `text` is zero ended. */
GH_EXPORT uint64_t gh_mail_task(void *page, uint32_t kind, const int64_t *arg, const char *text)
{
    struct gh_mail *mail = page;
    mail->kind = kind;
    memcpy(mail->arg, arg, sizeof mail->arg);
    strncpy(mail->text, text, sizeof mail->text - 1);
    return __atomic_add_fetch(&mail->task, 1, __ATOMIC_RELEASE);
}

/* Whether task `number` is done. */
GH_EXPORT int gh_mail_done(const void *page, uint64_t number)
{
    return __atomic_load_n(&((const struct gh_mail *)page)->done, __ATOMIC_ACQUIRE) == number;
}
