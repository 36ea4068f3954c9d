/* SPDX-License-Identifier: Apache-2.0 */

#define _GNU_SOURCE /* RUSAGE_THREAD */

#include "team.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "facts.h"

#define MOST_THREADS 512
#define MOST_WINDOW_NS 10000000000ll

_Static_assert(GH_HEAD_COUNT + GH_TEST_MOST * GH_ROW_COUNT <= GH_TASK_VALUES, "all repeats fit a mailbox");

/* What one thread did in one window. */
struct share {
    int64_t wall_ns, cpu_ns, steps, forced, waited_ns;
    bool wrong;
};

struct team {
    const struct gh_leave *leave;
    const struct gh_work *work;
    int64_t window_ns; /* of the round under way */
    unsigned threads;
    struct share *share;
    bool gone; /* the leave has ended; read and set by all, so atomic */
    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    unsigned round, ended; /* under the lock; so is over */
    bool over;
};

struct member {
    struct team *team;
    unsigned number;
    pthread_t thread;
};

static int64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int64_t forced_switches(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) ? 0 : usage.ru_nivcsw;
}

static bool still(struct team *team, unsigned number)
{
    if (number == 0 && !team->leave->stands(team->leave->self)) /* it may look at thread-local state: the caller asks */
        __atomic_store_n(&team->gone, true, __ATOMIC_RELAXED);
    return !__atomic_load_n(&team->gone, __ATOMIC_RELAXED);
}

static void do_round(struct team *team, unsigned number)
{
    const struct gh_work *work = team->work;
    struct share *share = &team->share[number];
    int64_t waited = gh_facts_waited_ns(), forced = forced_switches(), steps = 0;
    int64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID), from = clock_ns(CLOCK_MONOTONIC), now;
    do {
        work->step(work->self, number);
        steps++;
        now = clock_ns(CLOCK_MONOTONIC);
    } while (now - from < team->window_ns && still(team, number));
    share->wall_ns = now - from;
    share->cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
    share->steps = steps;
    share->forced = forced_switches() - forced;
    share->waited_ns = waited < 0 ? -1 : gh_facts_waited_ns() - waited;
    share->wrong = !work->sound(work->self, number);
}

static void *member_main(void *arg)
{
    struct member *member = arg;
    struct team *team = member->team;
    unsigned seen = 0;
    pthread_mutex_lock(&team->lock);
    for (;;) {
        while (team->round == seen && !team->over)
            pthread_cond_wait(&team->begin, &team->lock);
        if (team->over)
            break;
        seen = team->round;
        pthread_mutex_unlock(&team->lock);
        do_round(team, member->number);
        pthread_mutex_lock(&team->lock);
        if (++team->ended == team->threads - 1)
            pthread_cond_signal(&team->end);
    }
    pthread_mutex_unlock(&team->lock);
    return NULL;
}

/* One window on all threads. */
static void team_round(struct team *team, int64_t window_ns)
{
    pthread_mutex_lock(&team->lock);
    team->window_ns = window_ns;
    team->ended = 0;
    team->round++;
    pthread_cond_broadcast(&team->begin);
    pthread_mutex_unlock(&team->lock);
    do_round(team, 0);
    pthread_mutex_lock(&team->lock);
    while (team->ended < team->threads - 1)
        pthread_cond_wait(&team->end, &team->lock);
    pthread_mutex_unlock(&team->lock);
}

/* A row of values from what the threads did. */
static void put_row(const struct team *team, int64_t *row, const struct gh_cpu_facts *before, int64_t began_ns)
{
    struct gh_cpu_facts after;
    gh_facts_read(&after);
    struct gh_level throttled = gh_facts_throttled(before, &after);
    int64_t wall = 0;
    row[GH_ROW_T] = began_ns;
    row[GH_ROW_THROTTLED] = throttled.throttled_ns;
    row[GH_ROW_PERIODS] = throttled.periods;
    row[GH_ROW_HELD] = throttled.periods_throttled;
    row[GH_ROW_BUSY] = after.busy_ns < 0 || before->busy_ns < 0 ? -1 : after.busy_ns - before->busy_ns;
    row[GH_ROW_STEAL] = after.steal_ns < 0 || before->steal_ns < 0 ? -1 : after.steal_ns - before->steal_ns;
    row[GH_ROW_KHZ] = after.khz;
    for (unsigned i = 0; i < team->threads; i++) {
        const struct share *share = &team->share[i];
        wall += share->wall_ns;
        row[GH_ROW_CPU] += share->cpu_ns;
        row[GH_ROW_WORK] += share->steps * team->work->per_step;
        row[GH_ROW_FORCED] += share->forced;
        row[GH_ROW_WAITED] += share->waited_ns;
    }
    row[GH_ROW_WALL] = wall / team->threads;
    if (team->share[0].waited_ns < 0)
        row[GH_ROW_WAITED] = -1;
}

static void fail(struct gh_result *out, int status, const char *said)
{
    out->status = status;
    snprintf(out->said, sizeof out->said, "%s", said);
}

static bool any_wrong(const struct team *team)
{
    for (unsigned i = 0; i < team->threads; i++)
        if (team->share[i].wrong)
            return true;
    return false;
}

static void all_rounds(struct team *team, const struct gh_task *task, struct gh_result *out)
{
    int64_t repeats = task->arg[GH_TEST_REPEATS], window = task->arg[GH_TEST_WINDOW];
    struct gh_cpu_facts before;
    gh_facts_read(&before);
    out->value[GH_HEAD_THREADS] = team->threads;
    out->value[GH_HEAD_CPUS] = gh_facts_cpus();
    out->value[GH_HEAD_QUOTA] = before.quota_us;
    out->value[GH_HEAD_PERIOD] = before.period_us;
    out->count = GH_HEAD_COUNT;
    team_round(team, window / 4); /* pages, caches, clocks */
    for (int64_t i = 0; i < repeats && still(team, 0) && !any_wrong(team); i++) {
        int64_t began_ns = clock_ns(CLOCK_REALTIME);
        gh_facts_read(&before);
        team_round(team, window);
        if (!still(team, 0))
            break; /* the window was cut short: no result */
        put_row(team, out->value + out->count, &before, began_ns);
        out->count += GH_ROW_COUNT;
        out->value[GH_HEAD_REPEATS] = i + 1;
    }
    if (any_wrong(team))
        fail(out, EBADMSG, "a result was wrong");
    else if (!still(team, 0))
        fail(out, ECANCELED, "the time given was over");
}

bool gh_team_asked(const struct gh_task *task, struct gh_result *out)
{
    const int64_t *arg = task->arg;
    bool good = arg[GH_TEST_REPEATS] >= 1 && arg[GH_TEST_REPEATS] <= GH_TEST_MOST && arg[GH_TEST_THREADS] >= 1 &&
                arg[GH_TEST_THREADS] <= MOST_THREADS && arg[GH_TEST_WINDOW] >= 0 &&
                arg[GH_TEST_WINDOW] <= MOST_WINDOW_NS;
    if (!good)
        fail(out, EINVAL, "repeats, threads or window out of range");
    return good;
}

void *gh_team_memory(const struct gh_task *task, size_t bytes, struct gh_result *out)
{
    int64_t together = task->arg[GH_TEST_TOGETHER];
    /* Where a limit is near, the system would end the job rather than refuse: so half of what is left stays. */
    if ((int64_t)bytes > gh_facts_memory() / 2 / (together > 1 ? together : 1)) {
        fail(out, ENOMEM, "the tests would take over half of the memory that is left");
        return NULL;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED)
        return memory;
    fail(out, ENOMEM, "the system gave no memory");
    return NULL;
}

void gh_team_run(const struct gh_task *task, const struct gh_leave *leave, const struct gh_work *work,
                 struct gh_result *out)
{
    unsigned threads = (unsigned)task->arg[GH_TEST_THREADS], made = 0;
    struct team team = {.leave = leave, .work = work, .threads = threads,
                        .lock = PTHREAD_MUTEX_INITIALIZER, .begin = PTHREAD_COND_INITIALIZER,
                        .end = PTHREAD_COND_INITIALIZER};
    struct member *member = calloc(threads, sizeof *member);
    sigset_t all, old;
    team.share = calloc(threads, sizeof *team.share);
    if (!member || !team.share) {
        fail(out, ENOMEM, "the system gave no memory");
        goto out;
    }
    sigfillset(&all); /* a signal to the job is not for a thread of ours */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (made = 0; made < threads - 1; made++) {
        member[made] = (struct member){.team = &team, .number = made + 1};
        if (pthread_create(&member[made].thread, NULL, member_main, &member[made]))
            break;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (made == threads - 1)
        all_rounds(&team, task, out);
    else
        fail(out, EAGAIN, "the system made no more threads");
    pthread_mutex_lock(&team.lock);
    team.over = true;
    pthread_cond_broadcast(&team.begin);
    pthread_mutex_unlock(&team.lock);
    for (unsigned i = 0; i < made; i++)
        pthread_join(member[i].thread, NULL);
out:
    free(team.share);
    free(member);
}
