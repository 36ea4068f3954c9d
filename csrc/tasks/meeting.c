/* SPDX-License-Identifier: Apache-2.0 */
/* Where two ranks meet: sockets, the listener, the token.
 *
 * Sockets never block: every wait is a poll of some milliseconds between looks at the leave and at the deadline. The
 * listener stays open from GH_TASK_LISTEN to GH_TASK_CLOSE.
 */

#define _GNU_SOURCE
#include "meeting.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "address.h"

#define POLL_MS 20
#define STRANGERS 8 /* connections that have not shown the token, at a time */
#define BACKLOG 32
#define HELLO 0x6768746c696e6b31ull

static _Atomic int listener = -1;

struct hello {
    uint64_t magic;
    int64_t token[2];
};

int64_t gh_clock_ns(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

int gh_meeting_say(struct gh_meeting *job, int status, const char *what)
{
    if (!job->said[0])
        snprintf(job->said, GH_TASK_TEXT, "%s: %s", what, strerror(status));
    return status;
}

int gh_meeting_goes_on(struct gh_meeting *job, const char *what)
{
    if (!job->leave->stands(job->leave->self))
        return gh_meeting_say(job, ECANCELED, what);
    if (gh_clock_ns(CLOCK_MONOTONIC) > job->until_ns)
        return gh_meeting_say(job, ETIMEDOUT, what);
    return 0;
}

static int wait_for(struct gh_meeting *job, struct pollfd *fds, nfds_t n, const char *what)
{
    for (;;) {
        int ready = poll(fds, n, POLL_MS);
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return gh_meeting_say(job, errno, what);
        int status = gh_meeting_goes_on(job, what);
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

int gh_meeting_move(struct gh_meeting *job, int fd, char *out, int64_t to_send, char *in, int64_t to_receive,
                    int64_t room, int64_t *received_ns, const char *what)
{
    int64_t sent = 0, received = 0;
    *received_ns = gh_clock_ns(CLOCK_MONOTONIC);
    while (sent < to_send || received < to_receive) {
        bool moved = false;
        if (sent < to_send) {
            ssize_t n = send(fd, out + sent % room, part(sent, to_send, room), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0 && errno != EAGAIN && errno != EINTR)
                return gh_meeting_say(job, errno, what);
            if (n > 0)
                sent += n, moved = true;
        }
        if (received < to_receive) {
            ssize_t n = recv(fd, in + received % room, part(received, to_receive, room), MSG_DONTWAIT);
            if (n == 0)
                return gh_meeting_say(job, ECONNRESET, what);
            if (n < 0 && errno != EAGAIN && errno != EINTR)
                return gh_meeting_say(job, errno, what);
            if (n > 0) {
                received += n, moved = true;
                if (received == to_receive)
                    *received_ns = gh_clock_ns(CLOCK_MONOTONIC);
            }
        }
        struct pollfd ready = {fd, (short)((sent < to_send ? POLLOUT : 0) | (received < to_receive ? POLLIN : 0)), 0};
        int status = moved || !ready.events ? gh_meeting_goes_on(job, what) : wait_for(job, &ready, 1, what);
        if (status)
            return status;
    }
    return 0;
}

int gh_meeting_agree(struct gh_meeting *job, int fd, bool *go)
{
    char mine = *go, theirs = 0;
    int64_t at;
    int status = gh_meeting_move(job, fd, &mine, 1, &theirs, 1, 1, &at, "waiting for the other end");
    *go = mine && theirs;
    return status;
}

static int accept_one(struct gh_meeting *job, const struct hello *expected, int *made)
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
            status = gh_meeting_goes_on(job, what); /* strangers alone must not keep it here */
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
                status = gh_meeting_say(job, errno, what);
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
static int connect_to(struct gh_meeting *job, const char *where, int *made)
{
    struct sockaddr_storage to, from;
    socklen_t size = sizeof from;
    if (!gh_address_parse(where, &to))
        return gh_meeting_say(job, EINVAL, "reading the address to connect to");
    int fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *made = fd;
    if (fd < 0)
        return gh_meeting_say(job, errno, "making a socket");
    int open = listener;
    if (open >= 0 && !getsockname(open, (struct sockaddr *)&from, &size) && from.ss_family == to.ss_family) {
        gh_address_set_port(&from, 0);
        if (bind(fd, (struct sockaddr *)&from, size))
            return gh_meeting_say(job, errno, "using the chosen address");
    }
    if (!connect(fd, (struct sockaddr *)&to, gh_address_size(&to)))
        return 0;
    if (errno != EINPROGRESS)
        return gh_meeting_say(job, errno, "connecting");
    struct pollfd ready = {fd, POLLOUT, 0};
    int status = wait_for(job, &ready, 1, "connecting");
    int error = 0;
    size = sizeof error;
    if (!status && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size))
        error = errno;
    return status ? status : error ? gh_meeting_say(job, error, "connecting") : 0;
}

bool gh_meeting_listens(void)
{
    return listener >= 0;
}

int gh_meeting_open(struct gh_meeting *job, bool connects, const char *where, const int64_t *token, int *made)
{
    struct hello mine = {HELLO, {token[0], token[1]}}, theirs = {0, {0, 0}};
    int64_t at;
    *made = -1;
    int status = connects ? connect_to(job, where, made) : accept_one(job, &mine, made);
    if (status)
        return status;
    setsockopt(*made, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    /* Who connects shows the token first; who accepts has seen it by now and answers with it. */
    status = gh_meeting_move(job, *made, (char *)&mine, sizeof mine, (char *)&theirs, connects ? sizeof theirs : 0,
                             sizeof mine, &at, "greeting the other end");
    if (!status && connects && memcmp(&mine, &theirs, sizeof mine))
        status = gh_meeting_say(job, EPROTO, "greeting the other end");
    return status;
}

void gh_task_listen(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out)
{
    struct sockaddr_storage at;
    char interface[GH_ADDRESS_NAME];
    struct gh_meeting job = {leave, 0, out->said};
    socklen_t size = sizeof at;
    gh_task_close();
    int status = gh_address_choose(task->text, &at, interface);
    if (status) {
        out->status = gh_meeting_say(&job, status, "choosing an address");
        return;
    }
    int fd = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, gh_address_size(&at)) || listen(fd, BACKLOG) ||
        getsockname(fd, (struct sockaddr *)&at, &size)) {
        out->status = gh_meeting_say(&job, errno, "listening");
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
