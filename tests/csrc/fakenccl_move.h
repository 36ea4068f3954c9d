/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: the part of fakenccl.c with sends and receives that really move data between processes, through files
 * in FAKE_NCCL_DIR that all ranks map. As in NCCL they keep the stream until the other end has done its part, for ever
 * if it never does. FAKE_NCCL_RATE: MB/s; FAKE_NCCL_SLOW=A-B=MB/s: of one pair, A under B. What goes wrong, counted in
 * groups that have sends or receives, from 1: FAKE_NCCL_DIES_AT (the process, before it launches), FAKE_NCCL_FAILS_AT
 * (nothing is launched), FAKE_NCCL_CORRUPT_AT (what it receives), FAKE_NCCL_ERROR_AT (from then on the communicator has
 * one). FAKE_NCCL_POLLS=n: non-blocking, each launch is in progress for n looks. FAKE_NCCL_LATE_MS: a launch takes so
 * long. FAKE_NCCL_DIR/count-RANK counts sends, receives and groups that were launched.
 */

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHANNEL_BYTES (8 << 20)
#define OPS 8
#define JOBS 1024
#define RANKS 16

struct channel {
    uint64_t posted, taken, bytes;
    unsigned char data[CHANNEL_BYTES];
};

struct count {
    uint64_t sends, receives, groups;
};

struct op {
    bool sends;
    void *at;
    size_t bytes;
    int peer, rank;
};

static _Thread_local struct job {
    gh_stream stream;
    int n, number;
    struct op op[OPS];
} group;
static struct job jobs[JOBS];
static unsigned jobs_in, jobs_out;
static pthread_mutex_t moving_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t moving_once = PTHREAD_ONCE_INIT;
static const char *folder;
static struct count *counted;
static void (*issue)(void *), (*finish)(void *);
static void *(*range)(unsigned long long, size_t);
static int groups_seen, polls_left, polls;

static long moving_said(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static void moving_die(const char *why)
{
    fprintf(stderr, "fakenccl: %s\n", why);
    abort();
}

static void *map(const char *name, size_t bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        moving_die("cannot make a file");
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        moving_die("cannot map a file");
    return at;
}

static struct channel *channel(int from, int to)
{
    static struct channel *made[RANKS][RANKS];
    char name[64];
    snprintf(name, sizeof name, "%d-%d", from, to);
    if (!made[from][to])
        made[from][to] = map(name, sizeof(struct channel));
    return made[from][to];
}

static uint64_t seen(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static void short_nap(void)
{
    nanosleep(&(struct timespec){0, 20000}, NULL);
}

static int64_t monotonic(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static double rate(int a, int b) /* bytes a nanosecond */
{
    int one, other, low = a < b ? a : b, high = a < b ? b : a;
    double mb;
    const char *slow = getenv("FAKE_NCCL_SLOW");
    if (slow && sscanf(slow, "%d-%d=%lf", &one, &other, &mb) == 3 && one == low && other == high)
        return mb / 1e3;
    const char *usual = getenv("FAKE_NCCL_RATE");
    return usual ? atof(usual) / 1e3 : 1;
}

static void perform(const struct job *job)
{
    for (int i = 0; i < job->n; i++) {
        const struct op *op = &job->op[i];
        if (!op->sends)
            continue;
        struct channel *c = channel(op->rank, op->peer);
        if (seen(&c->posted) != seen(&c->taken))
            moving_die("a send before the one before it was received");
        memcpy(c->data, op->at, op->bytes);
        c->bytes = op->bytes;
        __atomic_fetch_add(&c->posted, 1, __ATOMIC_RELEASE);
    }
    for (int i = 0; i < job->n; i++) {
        const struct op *op = &job->op[i];
        if (op->sends)
            continue;
        struct channel *c = channel(op->peer, op->rank);
        while (seen(&c->posted) == seen(&c->taken))
            short_nap();
        if (c->bytes != op->bytes)
            moving_die("a receive of another size than the send");
        int64_t until = monotonic() + (int64_t)((double)op->bytes / rate(op->rank, op->peer));
        memcpy(op->at, c->data, op->bytes);
        if (job->number == moving_said("FAKE_NCCL_CORRUPT_AT", 0))
            ((unsigned char *)op->at)[op->bytes - 1] ^= 1;
        while (monotonic() < until)
            short_nap();
        __atomic_fetch_add(&c->taken, 1, __ATOMIC_RELEASE);
    }
    for (int i = 0; i < job->n; i++) {
        struct channel *c = channel(job->op[i].rank, job->op[i].peer);
        while (job->op[i].sends && seen(&c->posted) != seen(&c->taken))
            short_nap();
    }
}

static void *device(void *unused)
{
    (void)unused;
    for (;; short_nap()) {
        pthread_mutex_lock(&moving_lock);
        bool some = jobs_out != jobs_in && !polls_left;
        struct job job = jobs[jobs_out % JOBS];
        jobs_out += some;
        pthread_mutex_unlock(&moving_lock);
        if (some) {
            perform(&job);
            finish(job.stream);
        }
    }
    return NULL;
}

static void moving_begin(void)
{
    pthread_t thread;
    *(void **)&issue = dlsym(RTLD_DEFAULT, "fake_cuda_issue");
    *(void **)&finish = dlsym(RTLD_DEFAULT, "fake_cuda_finish");
    *(void **)&range = dlsym(RTLD_DEFAULT, "fake_cuda_range");
    polls = (int)moving_said("FAKE_NCCL_POLLS", 0);
    if (!issue || !finish || !range || pthread_create(&thread, NULL, device, NULL))
        moving_die("there is no fakecuda");
    pthread_detach(thread);
}

/* The library takes one thread at a time; two at once are the end of the process. */
static int in_use;

static void one_at_a_time(bool comes)
{
    if (folder && __atomic_exchange_n(&in_use, comes, __ATOMIC_ACQ_REL) == comes)
        moving_die("two threads at once");
    if (folder && comes)
        short_nap(); /* or they would hardly ever meet */
}

static int launch_job(struct job job)
{
    job.number = ++groups_seen;
    if (job.number == moving_said("FAKE_NCCL_DIES_AT", 0))
        raise(SIGKILL);
    if (job.number == moving_said("FAKE_NCCL_FAILS_AT", 0))
        return 3;
    if (moving_said("FAKE_NCCL_LATE_MS", 0))
        usleep((useconds_t)moving_said("FAKE_NCCL_LATE_MS", 0) * 1000);
    pthread_mutex_lock(&moving_lock);
    if (jobs_in - jobs_out == JOBS)
        moving_die("more groups than a test needs");
    issue(job.stream);
    jobs[jobs_in++ % JOBS] = job;
    polls_left = polls;
    pthread_mutex_unlock(&moving_lock);
    counted->groups++;
    for (int i = 0; i < job.n; i++)
        job.op[i].sends ? counted->sends++ : counted->receives++;
    return polls ? GH_NCCL_IN_PROGRESS : 0;
}

static int moving_launch(void)
{
    struct job job = group;
    group.n = 0;
    if (!job.n)
        return 0;
    one_at_a_time(true);
    int result = launch_job(job);
    one_at_a_time(false);
    return result;
}

static int moving_op(bool sends, const void *at, size_t bytes, int peer, gh_nccl_comm comm, gh_stream stream)
{
    const struct comm *c = comm;
    char name[32];
    pthread_once(&moving_once, moving_begin);
    if (polls_left)
        moving_die("a call while another is in progress");
    if (!counted) {
        snprintf(name, sizeof name, "count-%d", c->rank);
        counted = map(name, sizeof *counted);
    }
    if (!range((uintptr_t)at, bytes))
        moving_die("memory that is not allocated");
    if (group.n == OPS || peer < 0 || peer >= c->size || peer == c->rank || (group.n && group.stream != stream))
        moving_die("a send or receive that makes no sense");
    group.stream = stream;
    group.op[group.n++] = (struct op){sends, (void *)(uintptr_t)at, bytes, peer, c->rank};
    return depth ? 0 : moving_launch();
}
