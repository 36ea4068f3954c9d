/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_MEETING_H
#define GH_MEETING_H

/* Two ranks that meet over TCP before they exchange anything (link.c, and NCCL's exchange in the shim). */

#include <time.h>

#include "tasks.h"

struct gh_meeting {
    const struct gh_leave *leave;
    int64_t until_ns; /* CLOCK_MONOTONIC */
    char *said;       /* GH_TASK_TEXT bytes, takes the first trouble */
};

int64_t gh_clock_ns(clockid_t which);

/* Notes `what` failed, unless something is noted already; returns `status`. */
int gh_meeting_say(struct gh_meeting *job, int status, const char *what);
/* 0 while the leave stands and there is time; else ECANCELED or ETIMEDOUT, noted. */
int gh_meeting_goes_on(struct gh_meeting *job, const char *what);

bool gh_meeting_listens(void);
/* Connects to `where`, "ADDRESS PORT", or waits on the listener for who shows the two numbers of the token; strangers
 * are dropped. `*made` is the socket, to be closed by the caller if it is not -1, whatever is returned. */
int gh_meeting_open(struct gh_meeting *job, bool connects, const char *where, const int64_t *token, int *made);
/* Sends and receives at once, so many bytes each way; a buffer shorter than that is used again and again.
 * `received_ns` is when the last byte came in. */
int gh_meeting_move(struct gh_meeting *job, int fd, char *out, int64_t to_send, char *in, int64_t to_receive,
                    int64_t room, int64_t *received_ns, const char *what);
/* Both ends meet; `go` is whether this end wants to go on, and comes back as whether both do. */
int gh_meeting_agree(struct gh_meeting *job, int fd, bool *go);

#endif
