/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_TEAM_H
#define GH_TEAM_H

/* The frame of a test of a CPU: some threads do the same small step over and over for a fixed window, several times. */

#include "tasks.h"

struct gh_work {
    void (*step)(void *self, unsigned thread);  /* some milliseconds of work at most */
    bool (*sound)(void *self, unsigned thread); /* whether what the steps made is right; after each window */
    int64_t per_step;                           /* flops, or bytes moved */
    void *self;
};

/* Checks GH_TEST_REPEATS, GH_TEST_THREADS and GH_TEST_WINDOW; false, with the reason in `out`, if they are no good. */
bool gh_team_asked(const struct gh_task *task, struct gh_result *out);

/* Memory that is zero and begins at a page, or NULL with the reason in `out`. Given back by munmap. */
void *gh_team_memory(const struct gh_task *task, size_t bytes, struct gh_result *out);

/* Sets the status and all values but GH_HEAD_KERNEL and GH_HEAD_CHECKSUM, which are the caller's. The calling thread
 * is one of the threads; the others are joined before this returns. */
void gh_team_run(const struct gh_task *task, const struct gh_leave *leave, const struct gh_work *work,
                 struct gh_result *out);

#endif
