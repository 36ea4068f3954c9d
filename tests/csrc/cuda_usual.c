/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: what jobs do. */

#include <pthread.h>
#include <stdlib.h>

#include "cuda_driver.h"

static int plain(void)
{
    long before = fake_cuda_count(FAKE_FINISHED);
    for (int i = 1; i <= 5; i++) {
        fake_cuda_set(s, FAKE_TAKES, i * S);
        reduce(10 * (size_t)i, comm, s);
    }
    move(100 * S);
    settle(before, getenv("GHT_PROFILE_EVERY") ? 2 : 5);
    return 0;
}

static int several_streams(void)
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
    return 0;
}

static int groups(void)
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
    return 0;
}

static int captured(void)
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
    return fake_cuda_records(t) != on_t ? 21 : 0;
}

static int exhausted(void)
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
    return 0;
}

static void *per_thread(void *unused)
{
    fake_cuda_device(0);
    fake_cuda_set((void *)2, FAKE_TAKES, 4 * S);
    reduce(30, comm, (void *)2);
    return unused;
}

static int default_streams(void)
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
    return 0;
}

/* One process, two devices; a group is launched while the other device is current. */
static int devices(void)
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
    return 0;
}

static int off(void)
{
    for (int i = 0; i < 100; i++)
        reduce(10, comm, s);
    return fake_cuda_count(FAKE_EVENTS) + fake_cuda_count(FAKE_RECORDS) + fake_cuda_count(FAKE_OTHER) != 0;
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

static int threads(void)
{
    pthread_t thread[6];
    for (int i = 0; i < 6; i++)
        pthread_create(&thread[i], NULL, one_of_many, NULL);
    for (int i = 0; i < 6; i++)
        pthread_join(thread[i], NULL);
    return 0;
}

const struct scenario usual[] = {
    {"plain", plain, 0},
    {"streams", several_streams, 0},
    {"groups", groups, 0},
    {"capture", captured, 0},
    {"exhaust", exhausted, 0},
    {"default", default_streams, 0},
    {"devices", devices, 0},
    {"off", off, 1},
    {"threads", threads, 1},
    {NULL, NULL, 0},
};
