/* SPDX-License-Identifier: Apache-2.0 */
/* A link between two ranks, measured over TCP: one end listens, the other connects.
 *
 * Where and how they meet is in meeting.c. Everything but the listener is given back when the task returns.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "meeting.h"

#define CHUNK (256 << 10)
#define WARM_UP (4 << 20)
#define MOST_PINGS 256

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Half of the median round trip of eight bytes; the first is not counted. */
static int ping(struct gh_meeting *job, int fd, bool first, int count, int64_t *latency)
{
    int64_t took[MOST_PINGS], at, began, word = 0;
    char *bytes = (char *)&word;
    for (int i = 0; i <= count; i++) {
        began = gh_clock_ns(CLOCK_MONOTONIC);
        int status = 0;
        for (int turn = 0; turn < 2 && !status; turn++) {
            bool sends = first == (turn == 0);
            status = gh_meeting_move(job, fd, bytes, sends ? 8 : 0, bytes, sends ? 0 : 8, 8, &at,
                                     "measuring the latency");
        }
        if (status)
            return status;
        if (i)
            took[i - 1] = gh_clock_ns(CLOCK_MONOTONIC) - began;
    }
    if (count) {
        qsort(took, (size_t)count, sizeof *took, by_value);
        *latency = took[count / 2] / 2;
    }
    return 0;
}

static int transfers(struct gh_meeting *job, int fd, const int64_t *arg, char *buffer, struct gh_result *out)
{
    bool first = arg[GH_LINK_CONNECTS] == 1; /* the end that connects */
    int sizes = (int)arg[GH_LINK_SIZES], repeats = (int)arg[GH_LINK_REPEATS], value = GH_LINK_FIRST;
    const int64_t *size = arg + GH_LINK_SIZE;
    int64_t soft_ns = gh_clock_ns(CLOCK_MONOTONIC) + arg[GH_LINK_SOFT_MS] * 1000000;
    int64_t at, warm = size[0] < WARM_UP ? size[0] : WARM_UP;
    int status = ping(job, fd, first, (int)arg[GH_LINK_PINGS], first ? &out->value[GH_LINK_LATENCY] : &at);
    if (!status)
        status = gh_meeting_move(job, fd, buffer, warm, buffer + CHUNK, warm, CHUNK, &at, "warming up");
    int64_t cpu = gh_clock_ns(CLOCK_THREAD_CPUTIME_ID), wall = gh_clock_ns(CLOCK_MONOTONIC);
    bool go = true;
    for (int repeat = 0; repeat < repeats && go && !status; repeat++) {
        for (int i = 0; i < sizes && go && !status; i++) {
            for (int way = 0; way < 3 && go && !status; way++) {
                if (!(arg[GH_LINK_WAYS] & (1 << way)))
                    continue;
                /* 0: who connects sends, 1: who accepts does, 2: both */
                bool sends = way == 2 || first == (way == 0), receives = way == 2 || !sends;
                go = gh_clock_ns(CLOCK_MONOTONIC) < soft_ns;
                status = gh_meeting_agree(job, fd, &go);
                if (status || !go)
                    break;
                int64_t began = gh_clock_ns(CLOCK_MONOTONIC);
                status = gh_meeting_move(job, fd, buffer, sends ? size[i] : 0, buffer + CHUNK,
                                         receives ? size[i] : 0, CHUNK, &at, "in a transfer");
                if (!status && receives)
                    out->value[value] = at - began;
                value++;
            }
        }
    }
    out->value[GH_LINK_CPU] = gh_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
    out->value[GH_LINK_WALL] = gh_clock_ns(CLOCK_MONOTONIC) - wall;
    if (go && !status) {
        go = false;
        status = gh_meeting_agree(job, fd, &go); /* what was sent has arrived */
    }
    return status;
}

/* How many transfers a size and a repeat have. */
static int64_t ways_of(const int64_t *arg)
{
    return __builtin_popcount((unsigned)arg[GH_LINK_WAYS]);
}

static bool between(int64_t low, int64_t value, int64_t high)
{
    return low <= value && value <= high;
}

static bool sound(const int64_t *arg)
{
    const int64_t hour_ms = 3600000;
    if (!between(0, arg[GH_LINK_CONNECTS], 1) || !between(1, arg[GH_LINK_WAYS], 7) ||
        !between(1, arg[GH_LINK_SIZES], GH_TASK_ARGS - GH_LINK_SIZE) || !between(0, arg[GH_LINK_PINGS], MOST_PINGS) ||
        !between(0, arg[GH_LINK_SOFT_MS], hour_ms) || !between(1, arg[GH_LINK_HARD_MS], hour_ms))
        return false;
    for (int i = 0; i < arg[GH_LINK_SIZES]; i++)
        if (!between(1, arg[GH_LINK_SIZE + i], 1ll << 40))
            return false;
    return between(1, arg[GH_LINK_REPEATS], (GH_TASK_VALUES - GH_LINK_FIRST) / (arg[GH_LINK_SIZES] * ways_of(arg)));
}

void gh_task_exchange(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out)
{
    const int64_t *arg = task->arg;
    struct gh_meeting job = {leave, gh_clock_ns(CLOCK_MONOTONIC), out->said};
    char *buffer = NULL;
    int fd, status;
    if (!sound(arg) || (arg[GH_LINK_CONNECTS] == 0 && !gh_meeting_listens())) {
        out->status = gh_meeting_say(&job, EINVAL, "reading the task");
        return;
    }
    job.until_ns += arg[GH_LINK_HARD_MS] * 1000000;
    out->count = (uint32_t)(GH_LINK_FIRST + arg[GH_LINK_REPEATS] * arg[GH_LINK_SIZES] * ways_of(arg));
    for (uint32_t i = 0; i < out->count; i++)
        out->value[i] = -1;
    status = gh_meeting_open(&job, arg[GH_LINK_CONNECTS] == 1, task->text, &arg[GH_LINK_TOKEN], &fd);
    if (status)
        goto out;
    buffer = malloc(2 * CHUNK);
    if (!buffer) {
        status = gh_meeting_say(&job, ENOMEM, "taking a buffer");
        goto out;
    }
    memset(buffer, 0x5a, 2 * CHUNK);
    status = transfers(&job, fd, arg, buffer, out);
out:
    free(buffer);
    if (fd >= 0)
        close(fd);
    out->status = status;
}
