/* SPDX-License-Identifier: Apache-2.0 */
/* GH_TASK_NCCL_EXCHANGE: two ranks of a job that stands still exchange data on one of its communicators.
 *
 * First rule: a send or receive is put on a stream only if the other end does its part, for one without the other keeps
 * the GPU for ever. Before each step the end that waited says that it is ready; from then on it is bound. The end that
 * connected, ready as well, answers that it is done, and both put their parts on their streams whatever becomes of the
 * leave. What remains is that a rank dies, or is stopped for seconds, between two such instructions: the job would not
 * survive the first in any case. After an error that may have left something on the stream, nothing is begun again in
 * this process, and buffers that the device may still write to are left to it; unless it was only late, and is done
 * when the next exchange is asked for.
 *
 * A thread of its own does it: the thread that stands may be in a group of the library, which would take our calls for
 * its own. While it works nobody else is in the library (nccl_gate.c).
 */

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "nccl_p2p.h"

#define STEP_NS 200000l
#define INSIDE_NS 200000000ll  /* for a thread that is in the library at this moment */
#define BOUND_NS 5000000000ll  /* for the other end's word, once this one is bound */
#define BEYOND_NS 10000000000ll /* over the limit of the task: the library does not come back */
#define WARM_UP (1 << 20)
#define MOST_PINGS 256

struct exchange {
    struct gh_task task;
    struct gh_result out;
    struct gh_meeting meeting;
    struct gh_leave leave; /* of the worker: asks `stands` */
    struct gh_p2p p2p;
    int comm_rank, fd;
    int64_t most; /* bytes that both ends have room for */
    int stands, done;
};

static int broken;         /* an exchange did not end */

static bool stands(void *self)
{
    return __atomic_load_n((int *)self, __ATOMIC_ACQUIRE);
}

static bool always(void *self)
{
    (void)self;
    return true;
}

/* ---- both or none ---- */

static int ready(struct exchange *x)
{
    int status = gh_meeting_goes_on(&x->meeting, "exchanging by NCCL");
    return status ? status : gh_p2p_sound(&x->p2p);
}

static int tell(struct exchange *x, bool word)
{
    char byte = word;
    return send(x->fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1
               ? 0
               : gh_meeting_say(&x->meeting, errno, "telling the other end");
}

static int hear(struct exchange *x, struct gh_meeting *how, bool *word)
{
    char byte = 2;
    int64_t at;
    int status = gh_meeting_move(how, x->fd, NULL, 0, &byte, 1, 1, &at, "waiting for the other end");
    *word = byte == 1;
    if (status && byte != 2) { /* a word that came counts, even if it was the last moment */
        how->said[0] = 0;
        status = 0;
    }
    return status;
}

static bool gone(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* `*go` is whether this end would go on, and comes back as whether both now must. With an error neither does. */
static int commit(struct exchange *x, bool *go)
{
    struct gh_leave bound_leave = {always, NULL};
    struct gh_meeting bound = {&bound_leave, 0, x->meeting.said};
    bool theirs = false;
    int trouble = *go ? ready(x) : 0, status;
    bool mine = *go && !trouble;
    *go = false;
    if (x->task.arg[GH_LINK_CONNECTS]) {
        status = hear(x, &x->meeting, &theirs);
        if (!status && mine && theirs) {
            trouble = ready(x);
            if (!trouble && gone(x->fd))
                trouble = gh_meeting_say(&x->meeting, ECONNRESET, "waiting for the other end");
        }
        mine = mine && theirs && !trouble;
        if (!status && theirs) /* who is not ready does not wait for an answer */
            status = tell(x, mine);
        *go = mine && !status;
    } else {
        status = tell(x, mine);
        if (!status && mine) {
            bound.until_ns = gh_now_ns() + BOUND_NS;
            status = hear(x, &bound, &theirs);
            *go = theirs && !status;
        }
    }
    return trouble ? trouble : status;
}

/* ---- steps ---- */

struct way {
    bool sends, receives;
};

/* 0: who connects sends, 1: who waits does, 2: both. */
static struct way way_of(const struct exchange *x, int number)
{
    bool first = x->task.arg[GH_LINK_CONNECTS] == 1, sends = number == 2 || first == (number == 0);
    return (struct way){sends, number == 2 || !sends};
}

/* One exchange that is not timed, then `run` that are, one after another; `took` is of one of them. */
static int transfer(struct exchange *x, struct way way, int64_t bytes, int run, bool *go, int64_t *took)
{
    struct gh_p2p *p = &x->p2p;
    int status = way.receives ? gh_p2p_clear(p, bytes) : 0;
    if (status)
        return status; /* the other end learns it when the connection ends */
    status = commit(x, go);
    if (status || !*go)
        return status;
    status = gh_p2p_group(p, way.sends, way.receives, bytes);
    if (!status && run)
        status = gh_p2p_mark(p, p->begin);
    for (int i = 0; i < run && !status; i++)
        status = gh_p2p_group(p, way.sends, way.receives, bytes);
    if (!status && run)
        status = gh_p2p_mark(p, p->end);
    if (!status)
        status = gh_p2p_wait(p);
    if (!status && run) {
        status = gh_p2p_took(p, took);
        *took /= run;
    }
    return status || !way.receives ? status : gh_p2p_check(p, bytes);
}

/* Eight bytes there and back, `count` times; the first is not timed. */
static int ping(struct exchange *x, int count, bool *go)
{
    struct gh_p2p *p = &x->p2p;
    bool first = x->task.arg[GH_LINK_CONNECTS] == 1;
    int64_t took = 0;
    int status = commit(x, go);
    for (int i = 0; i <= count && *go && !status; i++) {
        status = gh_p2p_group(p, first, !first, 8);
        if (!status)
            status = gh_p2p_group(p, !first, first, 8);
        if (!status && !i)
            status = gh_p2p_mark(p, p->begin);
    }
    if (status || !*go)
        return status;
    status = gh_p2p_mark(p, p->end);
    if (!status)
        status = gh_p2p_wait(p);
    if (!status)
        status = gh_p2p_took(p, &took);
    if (!status && first)
        x->out.value[GH_LINK_LATENCY] = took / (2 * count);
    return status;
}

static int transfers(struct exchange *x)
{
    const int64_t *arg = x->task.arg, *size = arg + GH_NCCL_SIZE;
    int sizes = (int)arg[GH_NCCL_SIZES], value = GH_LINK_FIRST;
    int64_t soft_ns = gh_now_ns() + arg[GH_LINK_SOFT_MS] * 1000000, none = -1;
    double slowest = 0; /* ns a byte, of what came here */
    bool go = true;
    int status = transfer(x, (struct way){true, true}, x->most < WARM_UP ? x->most : WARM_UP, 0, &go, &none);
    if (!status && go && arg[GH_LINK_PINGS])
        status = ping(x, (int)arg[GH_LINK_PINGS], &go);
    int64_t wall = gh_now_ns();
    for (int64_t i = 0; i < arg[GH_LINK_REPEATS] * sizes && go && !status; i++)
        for (int way = 0; way < 3 && go && !status; way++) {
            if (!(arg[GH_LINK_WAYS] & (1 << way)))
                continue;
            struct way w = way_of(x, way);
            int64_t bytes = size[i % sizes], took = -1;
            if (bytes <= x->most) {
                int64_t now = gh_now_ns(), end = now + (int64_t)(slowest * (double)bytes * (1 + GH_NCCL_RUN));
                go = now < soft_ns && end < x->meeting.until_ns;
                status = transfer(x, w, bytes, GH_NCCL_RUN, &go, &took);
            }
            if (!status && go && w.receives && took >= 0) {
                x->out.value[value] = took;
                slowest = (double)took / (double)bytes > slowest ? (double)took / (double)bytes : slowest;
            }
            value++;
        }
    x->out.value[GH_LINK_WALL] = gh_now_ns() - wall;
    return status;
}

/* ---- the worker ---- */

/* Who both are and what they have room for. With trouble at either end nothing is exchanged. */
static int terms(struct exchange *x, int trouble)
{
    int64_t mine[4] = {trouble, x->p2p.room, x->comm_rank, x->p2p.peer}, theirs[4], at;
    int status = gh_meeting_move(&x->meeting, x->fd, (char *)mine, sizeof mine, (char *)theirs, sizeof theirs,
                                 sizeof mine, &at, "agreeing with the other end");
    if (trouble || status)
        return trouble ? trouble : status;
    if (theirs[0])
        return gh_meeting_say(&x->meeting, EREMOTEIO, "agreeing with the other end");
    if (theirs[2] != mine[3] || theirs[3] != mine[2] || theirs[1] <= 0)
        return gh_meeting_say(&x->meeting, EPROTO, "agreeing with the other end");
    x->most = theirs[1] < mine[1] ? theirs[1] : mine[1];
    return 0;
}

static int exchange(struct exchange *x)
{
    const int64_t *arg = x->task.arg;
    bool connects = arg[GH_LINK_CONNECTS] == 1;
    uint64_t token = gh_hash2((uint64_t)arg[GH_LINK_TOKEN], (uint64_t)arg[GH_LINK_TOKEN_2]);
    uint64_t told[2] = {gh_hash2(token, connects), gh_hash2(token, !connects)};
    int trouble = gh_p2p_take(&x->p2p, arg + GH_NCCL_SIZE, (int)arg[GH_NCCL_SIZES], told);
    int status = gh_meeting_open(&x->meeting, connects, x->task.text, arg + GH_LINK_TOKEN, &x->fd);
    if (!status || trouble)
        status = status ? trouble : terms(x, trouble);
    if (!status)
        status = transfers(x);
    for (int i = 0; i < arg[GH_NCCL_SIZES] && !status; i++)
        if (arg[GH_NCCL_SIZE + i] > x->most)
            snprintf(x->out.said, sizeof x->out.said, "sizes over %lld bytes were left out: too little device memory",
                     (long long)x->most);
    if (x->fd >= 0)
        close(x->fd);
    return status;
}

static void leave_it(struct exchange *x)
{
    size_t length = strlen(x->out.said);
    snprintf(x->out.said + length, sizeof x->out.said - length, "; %lld MB of device memory are left to it",
             (long long)(2 * x->p2p.room >> 20));
    __atomic_store_n(&broken, 1, __ATOMIC_RELEASE);
}

static void *work(void *self)
{
    struct exchange *x = self;
    const struct gh_cuda *cu = x->p2p.cu;
    int mode = GH_CU_MODE_RELAXED; /* what is done here spoils no capture of another thread */
    gh_cu_context was;
    if (cu->push(x->p2p.context) != GH_CU_SUCCESS) {
        x->out.status = gh_meeting_say(&x->meeting, EIO, "using the device's context");
    } else {
        if (cu->exchange_mode(&mode) != GH_CU_SUCCESS)
            x->out.status = gh_meeting_say(&x->meeting, EIO, "using the device's context");
        else
            x->out.status = exchange(x);
        if (x->p2p.under_way) {
            x->out.status = x->out.status == ENODEV ? EIO : x->out.status; /* which says that nothing was begun */
            leave_it(x);
        }
        gh_p2p_give_back(&x->p2p);
        cu->pop(&was);
    }
    __atomic_store_n(&x->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* In a thread of its own, without signals; this one tells it when the leave ends, and does not wait for ever. */
static int run(struct exchange *x, const struct gh_leave *leave)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = pthread_create(&thread, NULL, work, x);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status)
        return gh_meeting_say(&x->meeting, status, "making a thread");
    while (!__atomic_load_n(&x->done, __ATOMIC_ACQUIRE)) {
        if (gh_now_ns() > x->meeting.until_ns + BEYOND_NS) {
            __atomic_store_n(&broken, 1, __ATOMIC_RELEASE);
            __atomic_store_n(&x->stands, 0, __ATOMIC_RELEASE);
            pthread_detach(thread);
            return -ETIMEDOUT;
        }
        if (!leave->stands(leave->self))
            __atomic_store_n(&x->stands, 0, __ATOMIC_RELEASE);
        nanosleep(&(struct timespec){0, STEP_NS}, NULL);
    }
    pthread_join(thread, NULL);
    return 0;
}

/* An earlier exchange that did not end in time has ended since. One that failed has not, whatever the stream says. */
static bool ended_since(struct exchange *x)
{
    return __atomic_load_n(&x->done, __ATOMIC_ACQUIRE) &&
           (x->out.status == ETIMEDOUT || x->out.status == ECANCELED) && gh_p2p_reap(&x->p2p);
}

/* ---- the task ---- */

static bool between(int64_t low, int64_t value, int64_t high)
{
    return low <= value && value <= high;
}

static bool sound(const int64_t *arg)
{
    const int64_t hour_ms = 3600000, ways = __builtin_popcount((unsigned)arg[GH_LINK_WAYS]);
    if (!arg[GH_NCCL_SIZES])
        return true;
    if (!between(0, arg[GH_LINK_CONNECTS], 1) || !between(1, arg[GH_LINK_WAYS], 7) ||
        !between(1, arg[GH_NCCL_SIZES], GH_TASK_ARGS - GH_NCCL_SIZE) || !between(0, arg[GH_LINK_PINGS], MOST_PINGS) ||
        !between(0, arg[GH_LINK_SOFT_MS], hour_ms) || !between(1, arg[GH_LINK_HARD_MS], hour_ms))
        return false;
    for (int i = 0; i < arg[GH_NCCL_SIZES]; i++)
        if (!between(1, arg[GH_NCCL_SIZE + i], GH_NCCL_MOST))
            return false;
    return between(1, arg[GH_LINK_REPEATS], (GH_TASK_VALUES - GH_LINK_FIRST) / (arg[GH_NCCL_SIZES] * ways));
}

static void fill(struct exchange *x, const struct gh_task *task)
{
    const int64_t *arg = task->arg;
    *x = (struct exchange){.task = *task, .fd = -1, .stands = 1};
    x->leave = (struct gh_leave){stands, &x->stands};
    x->meeting = (struct gh_meeting){&x->leave, gh_now_ns() + arg[GH_LINK_HARD_MS] * 1000000, x->out.said};
    x->p2p = (struct gh_p2p){.meeting = &x->meeting, .id = (uint64_t)arg[GH_NCCL_COMM], .peer = (int)arg[GH_NCCL_PEER]};
}

void gh_task_nccl_exchange(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out)
{
    static struct exchange x; /* one at a time; a worker that is stuck keeps it */
    const int64_t *arg = task->arg;
    struct gh_meeting first = {leave, 0, out->said};
    struct gh_comm_info info;
    const void *comm;
    if (__atomic_load_n(&broken, __ATOMIC_ACQUIRE) && ended_since(&x))
        __atomic_store_n(&broken, 0, __ATOMIC_RELEASE);
    if (!sound(arg) || (arg[GH_NCCL_SIZES] && !arg[GH_LINK_CONNECTS] && !gh_meeting_listens()))
        out->status = gh_meeting_say(&first, EINVAL, "reading the task");
    else if (__atomic_load_n(&broken, __ATOMIC_ACQUIRE))
        out->status = gh_meeting_say(&first, ENOTRECOVERABLE, "an earlier exchange did not end");
    else if (gh_p2p_prepare())
        out->status = gh_meeting_say(&first, ENOSYS, "looking for NCCL and CUDA");
    else if (!gh_nccl_take(gh_now_ns() + INSIDE_NS))
        out->status = gh_meeting_say(&first, EBUSY, "waiting for threads that are in the library");
    if (out->status)
        return;
    fill(&x, task);
    int status = gh_p2p_find(&x.p2p);
    if (!status && arg[GH_NCCL_SIZES]) {
        x.comm_rank = gh_comm_handle(x.p2p.id, &comm, &info) ? info.comm_rank : -1;
        x.out.count = (uint32_t)(GH_LINK_FIRST + arg[GH_LINK_REPEATS] * arg[GH_NCCL_SIZES] *
                                                     __builtin_popcount((unsigned)arg[GH_LINK_WAYS]));
        for (uint32_t i = 0; i < x.out.count; i++)
            x.out.value[i] = -1;
        status = run(&x, leave);
    }
    gh_nccl_give();
    if (status < 0) { /* the worker still uses it */
        out->status = gh_meeting_say(&first, -status, "the library does not come back");
        return;
    }
    *out = x.out;
    out->status = status ? status : x.out.status;
}
