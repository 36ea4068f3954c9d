/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a task in the calling thread of our own process, for Python. */

#include <string.h>
#include <time.h>

#include "export.h"
#include "tasks/tasks.h"

static bool stands_until(void *self)
{
    const int64_t *until_ns = self;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec < *until_ns;
}

/* `args` has GH_TASK_ARGS numbers, `text` ends with a zero; until_ns is CLOCK_MONOTONIC. */
GH_EXPORT void gh_native_task(uint32_t kind, const int64_t *args, const char *text, int64_t until_ns,
                              struct gh_result *out)
{
    struct gh_task task = {.kind = kind};
    struct gh_leave leave = {stands_until, &until_ns};
    memcpy(task.arg, args, sizeof task.arg);
    strncpy(task.text, text, sizeof task.text - 1);
    gh_task_run(&task, &leave, out);
}
