/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_TASKS_H
#define GH_TASKS_H

/* Tests that run in a stopped thread of the job (csrc/shim/pause.c) or in a process of our own (the native library):
 * the same code, so that the figures are comparable. A task takes a few seconds at most, allocates what it needs,
 * gives all of it back but an open listener, and never ends the process: trouble is an errno and a sentence.
 */

#include <stdbool.h>
#include <stdint.h>

#include "mail.h"

#define GH_TASK_GEMM 1u      /* gemm.c */
#define GH_TASK_BANDWIDTH 2u /* bandwidth.c */
#define GH_TASK_LISTEN 3u    /* link.c */
#define GH_TASK_EXCHANGE 4u  /* link.c */
#define GH_TASK_CLOSE 5u     /* link.c: let the listener go */

struct gh_task {
    uint32_t kind;
    int64_t arg[GH_TASK_ARGS];
    char text[GH_TASK_TEXT];
};

struct gh_result {
    int32_t status;
    uint32_t count;
    int64_t value[GH_TASK_VALUES];
    char said[GH_TASK_TEXT];
};

/* Whether the task may go on; asked between repeats and while waiting. Once false it stays false. */
struct gh_leave {
    bool (*stands)(void *self);
    void *self;
};

/* Fills `out`. An unknown kind is ENOSYS. */
void gh_task_run(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out);

__attribute__((weak)) void gh_task_gemm(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out);
__attribute__((weak)) void gh_task_bandwidth(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out);
__attribute__((weak)) void gh_task_listen(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out);
__attribute__((weak)) void gh_task_exchange(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out);
__attribute__((weak)) void gh_task_close(void); /* also called when a pause ends, whoever ended it */

#endif
