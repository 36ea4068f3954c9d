/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: a program that uses NCCL's ABI on streams of fakecuda.c, in one of the ways of cuda_usual.c and
 * cuda_faults.c. What the shim makes of it, the test reads from the ring. The clock of the streams stands still but
 * for move().   cuda_driver SCENARIO */

#include "cuda_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

gh_nccl_comm comm, other;
void *s, *t;
int contexts = 1, lost;

void nap(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

void wait_for(int what, long least)
{
    for (int i = 0; i < 20000 && fake_cuda_count(what) < least; i++)
        nap();
    if (fake_cuda_count(what) < least) {
        fprintf(stderr, "count %d is %ld, should be %ld\n", what, fake_cuda_count(what), least);
        exit(20);
    }
}

void move(int64_t ns)
{
    fake_cuda_advance(ns);
}

void naps(int n)
{
    while (n-- > 0)
        nap();
}

int reduce(size_t count, gh_nccl_comm on, void *stream)
{
    return ncclAllReduce(NULL, NULL, count, 7, 0, on, stream);
}

void ready(void *stream)
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

void settle(long finished_before, long spans)
{
    wait_for(FAKE_FINISHED, finished_before + spans);
    naps(20);
}

static int run(const struct scenario *all, const char *name)
{
    for (; all->name; all++)
        if (!strcmp(all->name, name)) {
            if (!all->early)
                ready(s);
            return all->run();
        }
    return -1;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "plain";
    gh_nccl_id id = {"a"}, id2 = {"b"};
#ifdef WHOLE_SHIM
    if (!gh_cuda_drained(0)) /* CUDA is loaded and not in use */
        return 29;
#endif
    fake_cuda_device(0);
    s = fake_cuda_stream(strcmp(how, "connect") ? S : 1000);
    t = fake_cuda_stream(2 * S);
    ncclCommInitRank(&comm, 4, id, 0);
    ncclCommInitRank(&other, 4, id2, 0);
    int result = run(usual, how);
    if (result < 0)
        result = run(faults, how);
    if (comm)
        ncclCommDestroy(comm);
    ncclCommDestroy(other);
    return result < 0 ? 41 : result;
}
