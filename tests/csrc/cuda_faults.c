/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: what goes wrong, begins or ends while spans are under way. */

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control.h"
#include "cuda_driver.h"

static int failing(void)
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
    return 0;
}

/* On the host's clock: work of a millisecond that the library takes 200 to launch, on a stream with nothing to do. */
static int connecting(void)
{
    for (int i = 0; i < 10; i++, nap())
        reduce(1, comm, s);
    long before = fake_cuda_count(FAKE_FINISHED);
    fake_cuda_set(s, FAKE_TAKES, S / 1000);
    fake_delay(200000000);
    reduce(10, comm, s);
    fake_delay(0);
    settle(before, 1);
    return 0;
}

/* Nothing ever comes of s; the work of t is done when it has been given up. */
static int old(void)
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
    return 0;
}

static int gone(void)
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
    return 0;
}

static int aborted(void)
{
    long before = fake_cuda_count(FAKE_FINISHED);
    reduce(10, comm, s);
    reduce(20, other, t);
    ncclCommAbort(comm);
    comm = NULL;
    move(100 * S);
    settle(before, 2);
    return 0;
}

static struct gh_control *control(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/t/control", getenv("GHT_DIR"));
    int fd = open(path, O_RDWR);
    void *page = mmap(NULL, sizeof(struct gh_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED)
        exit(24);
    return page;
}

static void profile_until(struct gh_control *page, int64_t until)
{
    __atomic_store_n(&page->profile_until_ns, until, __ATOMIC_RELAXED);
    __atomic_fetch_add(&page->epoch, 1, __ATOMIC_RELAXED);
}

/* A profile is asked for between two calls of one group. */
static int in_the_middle(void)
{
    struct gh_control *page = control();
    int64_t until = page->profile_until_ns;
    long before = fake_cuda_count(FAKE_FINISHED);
    profile_until(page, 0);
    ncclGroupStart();
    reduce(10, comm, s);
    profile_until(page, until);
    reduce(20, comm, s);
    ncclGroupEnd();
    reduce(30, comm, s);
    move(100 * S);
    settle(before, 1);
    return 0;
}

/* The helper threads of this process; those that would take a signal of the program count ten. */
static int helpers(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGPROF, SIGALRM};
    char path[512], line[256];
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *e; tasks && (e = readdir(tasks));) {
        unsigned long long blocked = 0;
        int mine = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *status = fopen(path, "r");
        while (status && fgets(line, sizeof line, status)) {
            mine |= !strcmp(line, "Name:\tght-cuda\n");
            sscanf(line, "SigBlk: %llx", &blocked);
        }
        if (status)
            fclose(status);
        n += mine;
        for (unsigned i = 0; mine && i < sizeof signals / sizeof *signals; i++)
            n += blocked >> (signals[i] - 1) & 1 ? 0 : 10;
    }
    closedir(tasks);
    return n;
}

/* Profile after profile: one helper, and no more events than at first. */
static int storm(void)
{
    struct gh_control *page = control();
    int64_t until = page->profile_until_ns;
    for (int i = 0; i < 100; i++) {
        profile_until(page, i % 2 ? until : 0);
        for (int k = 0; k < 3; k++)
            reduce(1, comm, s);
        move(10 * S);
        nap();
    }
    wait_for(FAKE_FINISHED, fake_cuda_count(FAKE_RECORDS) / 2);
    long before = fake_cuda_count(FAKE_FINISHED);
    reduce(10, comm, s);
    move(100 * S);
    settle(before, 1);
    return fake_cuda_count(FAKE_EVENTS) == 513 && helpers() == 1 ? 0 : 25;
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
static int leased(void)
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
    return all != again ? 23 : 0;
}

static int drained(void)
{
#ifdef WHOLE_SHIM
    int64_t no_wait = 0;
    for (long before = 0; fake_cuda_count(FAKE_RECORDS) == before; nap())
        reduce(1, comm, s);
    move(100000 * S);
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

static void leave_work(void)
{
    for (int i = 0; i < 10; i++)
        reduce(10, comm, s);
    fake_cuda_set(s, FAKE_NEVER, 1);
}

static int ended(void)
{
    leave_work();
    exit(0);
}

static int killed(void)
{
    leave_work();
    _exit(0);
}

const struct scenario faults[] = {
    {"fail", failing, 0},
    {"connect", connecting, 0},
    {"old", old, 0},
    {"gone", gone, 0},
    {"abort", aborted, 0},
    {"middle", in_the_middle, 0},
    {"storm", storm, 0},
    {"fork", forked, 0},
    {"lease", leased, 0},
    {"drain", drained, 1},
    {"exit", ended, 0},
    {"quick", killed, 0},
    {NULL, NULL, 0},
};
