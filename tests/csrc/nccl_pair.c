/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: one rank of two, on the tests' libcuda and libnccl, with the shim in it. It says where it listens,
 * hears where the other one does, runs GH_TASK_NCCL_EXCHANGE as a stopped thread would, and says what came of it and
 * what is left of what was taken.   nccl_pair RANK WAYS REPEATS SOFT_MS HARD_MS LEAVE_MS SIZES...
 * PAIR_HOW: plain, probe (no sizes), twice, later (twice, with four seconds between), group (an open group), calls (a
 * group with a call), inside (another thread in the library, for good), thread (another one that calls all the time),
 * captured, destroyed, finalized, device (the thread is on another), stranger (an unknown communicator). */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_driver.h"
#include "shim/hooks_nccl.h"
#include "tasks/tasks.h"

extern int ncclCommFinalize(gh_nccl_comm);

static void wait_ms(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000l}, NULL);
}

struct other {
    gh_nccl_comm comm;
    void *stream;
    int stop;
    long calls;
};

static void *calls_all_the_time(void *self)
{
    struct other *o = self;
    for (; !__atomic_load_n(&o->stop, __ATOMIC_ACQUIRE); __atomic_fetch_add(&o->calls, 1, __ATOMIC_RELAXED))
        ncclAllReduce(NULL, NULL, 1, 7, 0, o->comm, o->stream);
    return NULL;
}

static bool before(void *until_ns)
{
    return gh_now_ns() < *(int64_t *)until_ns;
}

static void print(const struct gh_result *r)
{
    printf("%d %u", r->status, r->count);
    for (uint32_t i = 0; i < r->count; i++)
        printf(" %lld", (long long)r->value[i]);
    printf("\n%s\n", r->said);
}

int main(int argc, char **argv)
{
    if (argc < 7)
        return 2;
    static gh_nccl_comm pair; /* a leak checker still sees it after main */
    gh_nccl_id id = {"pair"};
    int rank = atoi(argv[1]);
    const char *how = getenv("PAIR_HOW") ? getenv("PAIR_HOW") : "plain";
    int64_t until = gh_now_ns() + atoll(argv[6]) * 1000000;
    struct gh_leave leave = {before, &until};
    struct gh_task listen = {.kind = GH_TASK_LISTEN, .text = "127.0.0.1"}, task = {.kind = GH_TASK_NCCL_EXCHANGE};
    struct gh_result place, result;
    struct gh_comm_info info;
    fake_cuda_device(1);
    fake_cuda_device(0);
    void *stream = fake_cuda_stream(1000);
    ncclCommInitRank(&pair, 2, id, rank);
    if (!gh_comm_find(pair, &info))
        return 3;
    gh_task_run(&listen, &leave, &place);
    if (place.status)
        return 4;
    printf("%s\n", place.said);
    fflush(stdout);
    if (!fgets(task.text, sizeof task.text, stdin))
        return 5;
    task.text[strcspn(task.text, "\n")] = 0;
    int64_t rest[] = {!rank, 77, -5, atoi(argv[2]), atoi(argv[3]), 4, atoi(argv[4]), atoi(argv[5]), (int64_t)info.id,
                      !rank, strcmp(how, "probe") ? argc - 7 : 0};
    memcpy(task.arg, rest, sizeof rest);
    for (int i = 7; i < argc; i++)
        task.arg[GH_NCCL_SIZE + i - 7] = atoll(argv[i]);

    if (!strcmp(how, "group") || !strcmp(how, "calls"))
        ncclGroupStart();
    if (!strcmp(how, "calls"))
        ncclAllReduce(NULL, NULL, 1, 7, 0, pair, stream);
    if (!strcmp(how, "inside"))
        gh_nccl_inside++;
    if (!strcmp(how, "captured"))
        fake_cuda_set(stream, FAKE_CAPTURE, 1); /* the default stream then does not answer */
    if (!strcmp(how, "destroyed"))
        ncclCommDestroy(pair);
    if (!strcmp(how, "finalized"))
        ncclCommFinalize(pair);
    if (!strcmp(how, "device"))
        fake_cuda_device(1);
    if (!strcmp(how, "stranger"))
        task.arg[GH_NCCL_COMM]++;
    long live[3] = {fake_cuda_count(FAKE_LIVE_EVENTS), fake_cuda_count(FAKE_LIVE_STREAMS),
                    fake_cuda_count(FAKE_LIVE_MEMORY)};
    struct other o = {pair, stream, 0, 0};
    pthread_t thread;
    if (!strcmp(how, "thread")) {
        pthread_create(&thread, NULL, calls_all_the_time, &o);
        while (__atomic_load_n(&o.calls, __ATOMIC_RELAXED) < 100)
            wait_ms(1);
    }
    bool later = !strcmp(how, "later");
    for (int i = 0; i < 1 + (later || !strcmp(how, "twice")); i++) {
        if (i && later)
            wait_ms(4000);
        gh_task_run(&task, &leave, &result);
        print(&result);
    }
    printf("%ld %ld %ld\n", fake_cuda_count(FAKE_LIVE_EVENTS) - live[0], fake_cuda_count(FAKE_LIVE_STREAMS) - live[1],
           fake_cuda_count(FAKE_LIVE_MEMORY) - live[2]);
    if (!strcmp(how, "thread")) { /* it goes on */
        long done = __atomic_load_n(&o.calls, __ATOMIC_RELAXED);
        while (__atomic_load_n(&o.calls, __ATOMIC_RELAXED) < done + 100)
            wait_ms(1);
        __atomic_store_n(&o.stop, 1, __ATOMIC_RELEASE);
        pthread_join(thread, NULL);
    }
    if (!strcmp(how, "group"))
        ncclAllReduce(NULL, NULL, 1, 7, 0, pair, stream);
    if (!strcmp(how, "group") || !strcmp(how, "calls"))
        ncclGroupEnd();
    gh_task_close();
    fflush(stdout);
    return gh_nccl_inside == !strcmp(how, "inside") ? 0 : 6;
}
