/* SPDX-License-Identifier: Apache-2.0 */
/* A link between two ranks, measured over TCP: one end listens, the other connects.
 *
 * Sockets never block: every wait is a poll of some milliseconds between looks at the leave and at the deadline. The
 * listener stays open from GH_TASK_LISTEN to GH_TASK_CLOSE, everything else is given back when a task returns.
 */

#define _GNU_SOURCE
#include "tasks.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "address.h"

#define CHUNK (256 << 10)
#define POLL_MS 20
#define STRANGERS 8 /* connections that have not shown the token, at a time */
#define BACKLOG 32
#define HELLO 0x6768746c696e6b31ull
#define WARM_UP (4 << 20)
#define MOST_PINGS 256

static _Atomic int listener = -1;

struct job {
    const struct gh_leave *leave;
    int64_t until_ns;
    char *said;
};

struct hello {
    uint64_t magic;
    int64_t token[2];
};

static int64_t clock_ns(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int say(struct job *job, int status, const char *what)
{
    if (!job->said[0])
        snprintf(job->said, GH_TASK_TEXT, "%s: %s", what, strerror(status));
    return status;
}

/* 0 while the task may go on. */
static int may_go_on(struct job *job, const char *what)
{
    if (!job->leave->stands(job->leave->self))
        return say(job, ECANCELED, what);
    if (clock_ns(CLOCK_MONOTONIC) > job->until_ns)
        return say(job, ETIMEDOUT, what);
    return 0;
}

static int wait_for(struct job *job, struct pollfd *fds, nfds_t n, const char *what)
{
    for (;;) {
        int ready = poll(fds, n, POLL_MS);
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return say(job, errno, what);
        int status = may_go_on(job, what);
        if (status)
            return status;
    }
}

/* How much may go at once from `done` of `all` on, in a buffer of `room` bytes that is used again and again. */
static size_t part(int64_t done, int64_t all, int64_t room)
{
    int64_t left = all - done, fits = room - done % room;
    return (size_t)(left < fits ? left : fits);
}

/* Sends and receives at once, so many bytes each way; a buffer shorter than that is used again and again.
 * `received_ns` is when the last byte came in. */
static int move(struct job *job, int fd, char *out, int64_t to_send, char *in, int64_t to_receive, int64_t room,
                int64_t *received_ns, const char *what)
{
    int64_t sent = 0, received = 0;
    *received_ns = clock_ns(CLOCK_MONOTONIC);
    while (sent < to_send || received < to_receive) {
        bool moved = false;
        if (sent < to_send) {
            ssize_t n = send(fd, out + sent % room, part(sent, to_send, room), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0 && errno != EAGAIN && errno != EINTR)
                return say(job, errno, what);
            if (n > 0)
                sent += n, moved = true;
        }
        if (received < to_receive) {
            ssize_t n = recv(fd, in + received % room, part(received, to_receive, room), MSG_DONTWAIT);
            if (n == 0)
                return say(job, ECONNRESET, what);
            if (n < 0 && errno != EAGAIN && errno != EINTR)
                return say(job, errno, what);
            if (n > 0) {
                received += n, moved = true;
                if (received == to_receive)
                    *received_ns = clock_ns(CLOCK_MONOTONIC);
            }
        }
        struct pollfd ready = {fd, (short)((sent < to_send ? POLLOUT : 0) | (received < to_receive ? POLLIN : 0)), 0};
        int status = moved || !ready.events ? may_go_on(job, what) : wait_for(job, &ready, 1, what);
        if (status)
            return status;
    }
    return 0;
}

/* Both ends meet; `go` is whether this end wants to go on, and comes back as whether both do. */
static int meet(struct job *job, int fd, bool *go)
{
    char mine = *go, theirs = 0;
    int64_t at;
    int status = move(job, fd, &mine, 1, &theirs, 1, 1, &at, "waiting for the other end");
    *go = mine && theirs;
    return status;
}

static int accept_one(struct job *job, const struct hello *expected, int *made)
{
    struct {
        int fd;
        size_t got;
        struct hello hello;
    } stranger[STRANGERS];
    int count = 0, status = 0, fd = -1;
    const char *what = "waiting for a connection";
    while (fd < 0) {
        struct pollfd fds[STRANGERS + 1] = {{listener, POLLIN, 0}};
        for (int i = 0; i < count; i++)
            fds[i + 1] = (struct pollfd){stranger[i].fd, POLLIN, 0};
        status = wait_for(job, fds, (nfds_t)count + 1, what);
        if (!status)
            status = may_go_on(job, what); /* strangers alone must not keep it here */
        if (status)
            break;
        for (int i = count - 1; i >= 0 && fd < 0; i--) {
            if (!fds[i + 1].revents)
                continue;
            size_t left = sizeof stranger[i].hello - stranger[i].got;
            ssize_t n = recv(stranger[i].fd, (char *)&stranger[i].hello + stranger[i].got, left, MSG_DONTWAIT);
            if (n < 0 && (errno == EAGAIN || errno == EINTR))
                continue;
            if (n > 0) {
                stranger[i].got += (size_t)n;
                if (stranger[i].got < sizeof stranger[i].hello)
                    continue;
                if (!memcmp(&stranger[i].hello, expected, sizeof *expected))
                    fd = stranger[i].fd;
            }
            if (fd < 0)
                close(stranger[i].fd);
            stranger[i] = stranger[--count];
        }
        if (fd < 0 && fds[0].revents) {
            int one = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (one < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
                status = say(job, errno, what);
                break;
            }
            if (one >= 0) {
                if (count == STRANGERS) {
                    close(stranger[0].fd);
                    stranger[0] = stranger[--count];
                }
                stranger[count].fd = one;
                stranger[count++].got = 0;
            }
        }
    }
    for (int i = 0; i < count; i++)
        close(stranger[i].fd);
    *made = fd;
    return status;
}

/* Connects from the address of this end's own listener, where there is one, so that both ends use the NIC chosen. */
static int connect_to(struct job *job, const char *where, int *made)
{
    struct sockaddr_storage to, from;
    socklen_t size = sizeof from;
    if (!gh_address_parse(where, &to))
        return say(job, EINVAL, "reading the address to connect to");
    int fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *made = fd;
    if (fd < 0)
        return say(job, errno, "making a socket");
    int open = listener;
    if (open >= 0 && !getsockname(open, (struct sockaddr *)&from, &size) && from.ss_family == to.ss_family) {
        gh_address_set_port(&from, 0);
        if (bind(fd, (struct sockaddr *)&from, size))
            return say(job, errno, "using the chosen address");
    }
    if (!connect(fd, (struct sockaddr *)&to, gh_address_size(&to)))
        return 0;
    if (errno != EINPROGRESS)
        return say(job, errno, "connecting");
    struct pollfd ready = {fd, POLLOUT, 0};
    int status = wait_for(job, &ready, 1, "connecting");
    int error = 0;
    size = sizeof error;
    if (!status && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size))
        error = errno;
    return status ? status : error ? say(job, error, "connecting") : 0;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Half of the median round trip of eight bytes; the first is not counted. */
static int ping(struct job *job, int fd, bool first, int count, int64_t *latency)
{
    int64_t took[MOST_PINGS], at, began, word = 0;
    char *bytes = (char *)&word;
    for (int i = 0; i <= count; i++) {
        began = clock_ns(CLOCK_MONOTONIC);
        int status = 0;
        for (int turn = 0; turn < 2 && !status; turn++) {
            bool sends = first == (turn == 0);
            status = move(job, fd, bytes, sends ? 8 : 0, bytes, sends ? 0 : 8, 8, &at, "measuring the latency");
        }
        if (status)
            return status;
        if (i)
            took[i - 1] = clock_ns(CLOCK_MONOTONIC) - began;
    }
    if (count) {
        qsort(took, (size_t)count, sizeof *took, by_value);
        *latency = took[count / 2] / 2;
    }
    return 0;
}

static int transfers(struct job *job, int fd, const int64_t *arg, char *buffer, struct gh_result *out)
{
    bool first = arg[GH_LINK_CONNECTS] == 1; /* the end that connects */
    int sizes = (int)arg[GH_LINK_SIZES], repeats = (int)arg[GH_LINK_REPEATS], value = GH_LINK_FIRST;
    const int64_t *size = arg + GH_LINK_SIZE;
    int64_t soft_ns = clock_ns(CLOCK_MONOTONIC) + arg[GH_LINK_SOFT_MS] * 1000000;
    int64_t at, warm = size[0] < WARM_UP ? size[0] : WARM_UP;
    int status = ping(job, fd, first, (int)arg[GH_LINK_PINGS], first ? &out->value[GH_LINK_LATENCY] : &at);
    if (!status)
        status = move(job, fd, buffer, warm, buffer + CHUNK, warm, CHUNK, &at, "warming up");
    int64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID), wall = clock_ns(CLOCK_MONOTONIC);
    bool go = true;
    for (int repeat = 0; repeat < repeats && go && !status; repeat++) {
        for (int i = 0; i < sizes && go && !status; i++) {
            for (int way = 0; way < 3 && go && !status; way++) {
                if (!(arg[GH_LINK_WAYS] & (1 << way)))
                    continue;
                /* 0: who connects sends, 1: who accepts does, 2: both */
                bool sends = way == 2 || first == (way == 0), receives = way == 2 || !sends;
                go = clock_ns(CLOCK_MONOTONIC) < soft_ns;
                status = meet(job, fd, &go);
                if (status || !go)
                    break;
                int64_t began = clock_ns(CLOCK_MONOTONIC);
                status = move(job, fd, buffer, sends ? size[i] : 0, buffer + CHUNK, receives ? size[i] : 0, CHUNK, &at,
                              "in a transfer");
                if (!status && receives)
                    out->value[value] = at - began;
                value++;
            }
        }
    }
    out->value[GH_LINK_CPU] = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
    out->value[GH_LINK_WALL] = clock_ns(CLOCK_MONOTONIC) - wall;
    if (go && !status) {
        go = false;
        status = meet(job, fd, &go); /* what was sent has arrived */
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
    struct job job = {leave, clock_ns(CLOCK_MONOTONIC), out->said};
    struct hello mine = {HELLO, {arg[GH_LINK_TOKEN], arg[GH_LINK_TOKEN_2]}}, theirs = {0, {0, 0}};
    char *buffer = NULL;
    int fd = -1, status;
    int64_t at;
    if (!sound(arg) || (arg[GH_LINK_CONNECTS] == 0 && listener < 0)) {
        out->status = say(&job, EINVAL, "reading the task");
        return;
    }
    job.until_ns += arg[GH_LINK_HARD_MS] * 1000000;
    out->count = (uint32_t)(GH_LINK_FIRST + arg[GH_LINK_REPEATS] * arg[GH_LINK_SIZES] * ways_of(arg));
    for (uint32_t i = 0; i < out->count; i++)
        out->value[i] = -1;
    status = arg[GH_LINK_CONNECTS] ? connect_to(&job, task->text, &fd) : accept_one(&job, &mine, &fd);
    if (status)
        goto out;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    /* Who connects shows the token first; who accepts has seen it by now and answers with it. */
    status = move(&job, fd, (char *)&mine, sizeof mine, (char *)&theirs, arg[GH_LINK_CONNECTS] ? sizeof theirs : 0,
                  sizeof mine, &at, "greeting the other end");
    if (!status && arg[GH_LINK_CONNECTS] && memcmp(&mine, &theirs, sizeof mine))
        status = say(&job, EPROTO, "greeting the other end");
    if (status)
        goto out;
    buffer = malloc(2 * CHUNK);
    if (!buffer) {
        status = say(&job, ENOMEM, "taking a buffer");
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

void gh_task_listen(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out)
{
    struct sockaddr_storage at;
    char interface[GH_ADDRESS_NAME];
    struct job job = {leave, 0, out->said};
    socklen_t size = sizeof at;
    gh_task_close();
    int status = gh_address_choose(task->text, &at, interface);
    if (status) {
        out->status = say(&job, status, "choosing an address");
        return;
    }
    int fd = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, gh_address_size(&at)) || listen(fd, BACKLOG) ||
        getsockname(fd, (struct sockaddr *)&at, &size)) {
        out->status = say(&job, errno, "listening");
        if (fd >= 0)
            close(fd);
        return;
    }
    listener = fd;
    gh_address_print(&at, interface, out->said, sizeof out->said);
}

void gh_task_close(void)
{
    int fd = atomic_exchange(&listener, -1);
    if (fd >= 0)
        close(fd);
}
