/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: a program that uses NCCL's ABI on streams of fakecuda.c, in one of the ways below. What the shim makes
 * of it, the test reads from the ring. The clock of the streams stands still but for move().   cuda_driver SCENARIO */

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "fakecuda.h"
#include "nccl_calls.h"

#define S 1000000000ll /* of the streams' clock: so long that no delay of the host can look like a part of it */

extern int ncclCommInitRank(gh_nccl_comm *, int, gh_nccl_id, int), ncclCommDestroy(gh_nccl_comm);
extern int ncclCommAbort(gh_nccl_comm);
extern int ncclAllReduce(const void *, void *, size_t, int, int, gh_nccl_comm, gh_stream);
extern int ncclAllGather(const void *, void *, size_t, int, gh_nccl_comm, gh_stream);
extern int ncclSend(const void *, size_t, int, int, gh_nccl_comm, gh_stream);
extern int ncclRecv(void *, size_t, int, int, gh_nccl_comm, gh_stream);
extern int ncclGroupStart(void), ncclGroupEnd(void), ncclGroupSimulateEnd(void *);
extern void fake_give(int), fake_delay(long);
#ifdef WHOLE_SHIM /* the program has the shim in it, so it can ask what pause.c asks */
extern _Bool gh_cuda_drained(int64_t);
extern int64_t gh_now_ns(void);
#endif

static gh_nccl_comm comm, other;
static void *s, *t;
static int contexts = 1, lost; /* spans of a context that is gone */

static void nap(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void wait_for(int what, long least)
{
    for (int i = 0; i < 20000 && fake_cuda_count(what) < least; i++)
        nap();
    if (fake_cuda_count(what) < least) {
        fprintf(stderr, "count %d is %ld, should be %ld\n", what, fake_cuda_count(what), least);
        exit(20);
    }
}

static void move(int64_t ns)
{
    fake_cuda_advance(ns);
}

static void naps(int n)
{
    while (n-- > 0)
        nap();
}

static int reduce(size_t count, gh_nccl_comm on, void *stream)
{
    return ncclAllReduce(NULL, NULL, count, 7, 0, on, stream);
}

/* Calls until the shim has made its events. Nothing of it is timed: its calls are those of one element. */
static void ready(void *stream)
{
    long events = 513L * contexts;
    for (int i = 0; i < 20000 && fake_cuda_count(FAKE_EVENTS) < events; i++, nap())
        reduce(1, comm, stream);
    /* The last event is made a moment before the shim takes them into use. */
    for (long before = fake_cuda_count(FAKE_RECORDS); fake_cuda_count(FAKE_RECORDS) == before; nap())
        reduce(1, comm, stream);
    move(100 * S);
    wait_for(FAKE_FINISHED, fake_cuda_count(FAKE_RECORDS) / 2 - lost);
}

/* `spans` more are complete and have been asked for all they can say. */
static void settle(long finished_before, long spans)
{
    wait_for(FAKE_FINISHED, finished_before + spans);
    naps(20);
}

static void plain(void)
{
    long before = fake_cuda_count(FAKE_FINISHED);
    for (int i = 1; i <= 5; i++) {
        fake_cuda_set(s, FAKE_TAKES, i * S);
        reduce(10 * (size_t)i, comm, s);
    }
    move(100 * S);
    settle(before, getenv("GHT_PROFILE_EVERY") ? 2 : 5);
}

static void several_streams(void)
{
    long before = fake_cuda_count(FAKE_FINISHED);
    fake_cuda_set(s, FAKE_TAKES, 50 * S);
    for (int i = 0; i < 3; i++) {
        reduce(10, comm, s);
        reduce(20, other, t); /* takes 2 s each */
    }
    move(7 * S);
    settle(before, 3); /* those of t, while s has only begun */
    move(200 * S);
    settle(before, 6);
}

static void groups(void)
{
    long before = fake_cuda_count(FAKE_FINISHED);
    ncclGroupStart(); /* as torch does around each collective */
    reduce(10, comm, s);
    ncclGroupEnd();
    ncclGroupStart(); /* fused */
    ncclGroupStart();
    for (int i = 0; i < 3; i++)
        ncclAllGather(NULL, NULL, 20, 7, comm, s);
    ncclGroupEnd();
    ncclGroupEnd();
    ncclGroupStart(); /* a pipeline's exchange */
    ncclSend(NULL, 30, 7, 1, comm, s);
    ncclRecv(NULL, 30, 7, 2, comm, s);
    ncclGroupEnd();
    ncclGroupStart();
    for (int i = 0; i < 4; i++) { /* to and from all of four */
        ncclSend(NULL, 40, 7, i, comm, s);
        ncclRecv(NULL, 40, 7, 3 - i, comm, s);
    }
    ncclGroupEnd();
    ncclGroupStart();
    for (int i = 0; i < 4; i++) { /* as many, but to one */
        ncclSend(NULL, 50, 7, 1, comm, s);
        ncclRecv(NULL, 50, 7, 1, comm, s);
    }
    ncclGroupEnd();
    ncclGroupStart(); /* two communicators on a stream */
    reduce(60, comm, s);
    reduce(60, other, s);
    ncclGroupEnd();
    ncclGroupStart(); /* one communicator on two streams */
    reduce(70, comm, s);
    reduce(70, comm, t);
    ncclGroupEnd();
    ncclGroupStart(); /* each its own */
    reduce(80, comm, s);
    reduce(90, other, t);
    ncclGroupEnd();
    ncclGroupStart(); /* nothing is launched */
    reduce(100, comm, s);
    ncclGroupSimulateEnd(NULL);
    ncclSend(NULL, 110, 7, 1, comm, s);
    move(100 * S);
    settle(before, 6);
}

static void captured(void)
{
    long before = fake_cuda_count(FAKE_FINISHED), on_t = fake_cuda_records(t);
    reduce(10, comm, s); /* asked about while t is captured */
    for (int state = 1; state <= 2; state++) {
        fake_cuda_set(t, FAKE_CAPTURE, state);
        reduce(20, comm, t);
        ncclGroupStart();
        reduce(30, comm, t);
        ncclGroupEnd();
        reduce(40, comm, NULL); /* the default stream cannot be used now; the shim must not try */
        naps(20);
    }
    fake_cuda_set(t, FAKE_CAPTURE, 1);
    move(100 * S);
    settle(before, 1);
    fake_cuda_set(t, FAKE_CAPTURE, 0);
    if (fake_cuda_records(t) != on_t)
        exit(21);
}

static void exhausted(void)
{
    long before = fake_cuda_count(FAKE_FINISHED);
    for (int i = 0; i < 300; i++)
        reduce(10, comm, s);
    move(1000 * S);
    settle(before, 256);
    for (int i = 0; i < 10; i++)
        reduce(20, comm, s);
    move(1000 * S);
    settle(before, 266);
}

static void *per_thread(void *unused)
{
    fake_cuda_device(0);
    fake_cuda_set((void *)2, FAKE_TAKES, 4 * S);
    reduce(30, comm, (void *)2);
    return unused;
}

static void default_streams(void)
{
    long before = fake_cuda_count(FAKE_FINISHED);
    pthread_t thread;
    fake_cuda_set(NULL, FAKE_TAKES, 2 * S);
    fake_cuda_set((void *)2, FAKE_TAKES, 3 * S);
    reduce(10, comm, NULL);
    reduce(20, comm, (void *)1);
    reduce(30, comm, (void *)2);
    pthread_create(&thread, NULL, per_thread, NULL);
    pthread_join(thread, NULL);
    move(100 * S);
    settle(before, 4);
}

/* One process, two devices; a group is launched while the other device is current. */
static void devices(void)
{
    long before = fake_cuda_count(FAKE_FINISHED);
    fake_cuda_set(NULL, FAKE_TAKES, 2 * S); /* of device 0 */
    fake_cuda_device(1);
    void *there = fake_cuda_stream(4 * S);
    fake_cuda_set(NULL, FAKE_TAKES, 3 * S);
    ncclGroupStart();
    reduce(1, other, there);
    ncclGroupEnd();
    wait_for(FAKE_EVENTS, 2 * 513);
    naps(100);
    ncclGroupStart();
    fake_cuda_device(0);
    reduce(10, comm, s);
    reduce(20, other, there);
    ncclGroupEnd();
    reduce(30, other, there);
    reduce(40, comm, NULL);
    fake_cuda_device(1);
    reduce(50, comm, NULL); /* on the default stream of device 0, whatever is current */
    move(100 * S);
    settle(before, 4);
}

static void failing(void)
{
    long before = fake_cuda_count(FAKE_FINISHED);
    fake_cuda_set(s, FAKE_FAILS, 1);
    reduce(10, comm, s); /* no first event */
    fake_cuda_set(s, FAKE_FAILS, 2);
    reduce(20, comm, s); /* no second one */
    fake_give(GH_NCCL_IN_PROGRESS);
    reduce(30, comm, s);
    fake_give(3);
    reduce(40, comm, s);
    fake_give(0);
    fake_cuda_set(s, FAKE_TAKES, 0);
    reduce(50, comm, s);
    fake_cuda_set(s, FAKE_TAKES, S);
    reduce(60, comm, s);
    move(100 * S);
    settle(before, 2);
}

/* On the host's clock: work of a millisecond that the library takes 200 to launch, on a stream with nothing to do. */
static void connecting(void)
{
    for (int i = 0; i < 10; i++, nap())
        reduce(1, comm, s);
    long before = fake_cuda_count(FAKE_FINISHED);
    fake_cuda_set(s, FAKE_TAKES, S / 1000);
    fake_delay(200000000);
    reduce(10, comm, s);
    fake_delay(0);
    settle(before, 1);
}

/* Nothing ever comes of s; the work of t is done when it has been given up. */
static void old(void)
{
    long before = fake_cuda_count(FAKE_FINISHED);
    fake_cuda_set(s, FAKE_NEVER, 1);
    reduce(10, comm, s);
    reduce(20, other, t);
    naps(400);
    move(100 * S);
    settle(before, 1);
    for (int i = 0; i < 5; i++)
        reduce(30, other, t);
    move(100 * S);
    settle(before, 6);
}

static void gone(void)
{
    reduce(10, comm, s);
    fake_cuda_reset(0);
    fake_cuda_device(0); /* the same address, another context */
    naps(200);
    void *fresh = fake_cuda_stream(2 * S);
    contexts = 2;
    lost = 1;
    ready(fresh);
    long before = fake_cuda_count(FAKE_FINISHED);
    reduce(20, comm, fresh);
    move(100 * S);
    settle(before, 1);
}

static void aborted(void)
{
    long before = fake_cuda_count(FAKE_FINISHED);
    reduce(10, comm, s);
    reduce(20, other, t);
    ncclCommAbort(comm);
    comm = NULL;
    move(100 * S);
    settle(before, 2);
}

/* A profile is asked for between two calls of one group. */
static void in_the_middle(void)
{
    char path[4096];
    long before = fake_cuda_count(FAKE_FINISHED);
    snprintf(path, sizeof path, "%s/t/control", getenv("GHT_DIR"));
    int fd = open(path, O_RDWR);
    struct gh_control *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int64_t until = page->profile_until_ns;
    page->profile_until_ns = 0;
    page->epoch++;
    ncclGroupStart();
    reduce(10, comm, s);
    page->profile_until_ns = until;
    reduce(20, comm, s);
    ncclGroupEnd();
    reduce(30, comm, s);
    move(100 * S);
    settle(before, 1);
    close(fd);
}

static int forked(void)
{
    int status;
    reduce(10, comm, s);
    pid_t child = fork();
    if (!child) {
        long records = fake_cuda_count(FAKE_RECORDS);
        gh_nccl_comm mine;
        gh_nccl_id id = {"child"};
        reduce(20, comm, s);
        setenv("RANK", "2", 1);
        ncclCommInitRank(&mine, 4, id, 2); /* it has a ring of its own now, and the page says: profile */
        for (int i = 0; i < 30; i++, nap())
            reduce(20, mine, s);
        exit(fake_cuda_count(FAKE_RECORDS) != records);
    }
    if (waitpid(child, &status, 0) != child || status)
        return 22;
    move(100 * S);
    settle(1, 1);
    return 0;
}

/* Calls until the lease has run out by itself; then the helper asks nothing any more. */
static void leased(void)
{
    long records = -1;
    while (fake_cuda_count(FAKE_RECORDS) != records) {
        records = fake_cuda_count(FAKE_RECORDS);
        for (int i = 0; i < 20; i++, nap()) {
            reduce(10, comm, s);
            move(2 * S);
        }
    }
    naps(50);
    long all = 0, again = 0;
    for (int i = 0; i < FAKE_COUNTS; i++)
        all += fake_cuda_count(i);
    naps(100);
    for (int i = 0; i < FAKE_COUNTS; i++)
        again += fake_cuda_count(i);
    if (all != again)
        exit(23);
}

static void *one_of_many(void *arg)
{
    fake_cuda_device(0);
    void *mine = fake_cuda_stream(1000);
    for (int i = 0; i < 400; i++) {
        reduce(10, comm, i % 2 ? mine : s);
        ncclGroupStart();
        reduce(20, other, mine);
        ncclGroupEnd();
        if (i % 50 == 0)
            nap();
    }
    return arg;
}

static void threads(void)
{
    pthread_t thread[6];
    for (int i = 0; i < 6; i++)
        pthread_create(&thread[i], NULL, one_of_many, NULL);
    for (int i = 0; i < 6; i++)
        pthread_join(thread[i], NULL);
}

static int drained(void)
{
#ifdef WHOLE_SHIM
    int64_t no_wait = 0;
    if (!gh_cuda_drained(no_wait)) /* nothing is under way */
        return 30;
    reduce(10, comm, s);
    if (gh_cuda_drained(gh_now_ns() + 3000000)) /* it waits, in vain */
        return 31;
    move(S / 2);
    if (gh_cuda_drained(no_wait))
        return 32;
    move(100 * S);
    if (!gh_cuda_drained(no_wait))
        return 33;
    fake_cuda_kernel(NULL); /* the program's own work on the default stream */
    if (gh_cuda_drained(no_wait))
        return 34;
    move(100 * S);
    reduce(10, other, t);
    move(100 * S);
    fake_cuda_destroy(t); /* is not asked about */
    if (!gh_cuda_drained(no_wait))
        return 35;
    fake_give(GH_NCCL_IN_PROGRESS);
    reduce(10, comm, s);
    fake_give(0);
    move(100 * S);
    if (gh_cuda_drained(no_wait)) /* when it is launched, nobody says */
        return 36;
    reduce(10, comm, s);
    move(100 * S);
    if (!gh_cuda_drained(no_wait))
        return 37;
    void *u = fake_cuda_stream(S);
    fake_cuda_set(u, FAKE_CAPTURE, 1);
    reduce(10, comm, u);
    return gh_cuda_drained(no_wait) ? 38 : 0; /* the default stream cannot be asked */
#else
    return 39;
#endif
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "plain";
    gh_nccl_id id = {"a"}, id2 = {"b"};
    int result = 0;
#ifdef WHOLE_SHIM
    if (!strcmp(how, "drain") && !gh_cuda_drained(0)) /* CUDA is loaded and not in use */
        return 29;
#endif
    fake_cuda_device(0);
    s = fake_cuda_stream(strcmp(how, "connect") ? S : 1000);
    t = fake_cuda_stream(2 * S);
    ncclCommInitRank(&comm, 4, id, 0);
    ncclCommInitRank(&other, 4, id2, 0);
    if (!strcmp(how, "threads")) {
        threads();
        return 0;
    }
    if (!strcmp(how, "off")) {
        for (int i = 0; i < 100; i++)
            reduce(10, comm, s);
        return fake_cuda_count(FAKE_EVENTS) + fake_cuda_count(FAKE_RECORDS) + fake_cuda_count(FAKE_OTHER) != 0;
    }
    if (strcmp(how, "drain"))
        ready(s);
    if (!strcmp(how, "drain")) {
        for (long before = 0; fake_cuda_count(FAKE_RECORDS) == before; nap())
            reduce(1, comm, s);
        move(100000 * S);
        result = drained();
    } else if (!strcmp(how, "plain"))
        plain();
    else if (!strcmp(how, "streams"))
        several_streams();
    else if (!strcmp(how, "groups"))
        groups();
    else if (!strcmp(how, "capture"))
        captured();
    else if (!strcmp(how, "exhaust"))
        exhausted();
    else if (!strcmp(how, "default"))
        default_streams();
    else if (!strcmp(how, "devices"))
        devices();
    else if (!strcmp(how, "fail"))
        failing();
    else if (!strcmp(how, "gone"))
        gone();
    else if (!strcmp(how, "connect"))
        connecting();
    else if (!strcmp(how, "middle"))
        in_the_middle();
    else if (!strcmp(how, "old"))
        old();
    else if (!strcmp(how, "abort"))
        aborted();
    else if (!strcmp(how, "fork"))
        result = forked();
    else if (!strcmp(how, "lease"))
        leased();
    else if (!strcmp(how, "exit") || !strcmp(how, "quick")) {
        for (int i = 0; i < 10; i++)
            reduce(10, comm, s);
        fake_cuda_set(s, FAKE_NEVER, 1);
        if (!strcmp(how, "quick"))
            _exit(0);
        exit(0);
    } else
        result = 41;
    if (comm)
        ncclCommDestroy(comm);
    ncclCommDestroy(other);
    return result;
}
