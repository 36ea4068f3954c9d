/* SPDX-License-Identifier: Apache-2.0 */
/* FOR BENCHMARKS ONLY: what a hooked call costs more than the bare one, in one run, by alternating blocks.
 * Built as a program against the test library with NCCL's ABI. Prints one line of the block at the lower quartile
 * (other load only ever adds): threads, ns of the bare call, ns of the hooked one.   shim_call THREADS BLOCKS CALLS
 * With -DWITH_CUDA calls go to a stream of fakecuda.c, and each block is followed by a rest in which events come back. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "nccl_calls.h"
#ifdef WITH_CUDA
#include "../csrc/fakecuda.h"
#endif

typedef int all_reduce(const void *, void *, size_t, int, int, gh_nccl_comm, gh_stream);
extern all_reduce ncclAllReduce;
extern int ncclCommInitRank(gh_nccl_comm *, int, gh_nccl_id, int);

static gh_nccl_comm comm;
static all_reduce *bare;
static int blocks, calls;
static pthread_barrier_t together;
static _Thread_local void *stream;

static void rest(void)
{
#ifdef WITH_CUDA
    nanosleep(&(struct timespec){0, 20000000}, NULL);
#endif
}

static double block(all_reduce *f)
{
    struct timespec a, b;
    pthread_barrier_wait(&together);
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < calls; i++)
        f(NULL, NULL, 1024, 7, 0, comm, stream);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / calls;
}

static int smaller(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void *work(void *arg)
{
    double *result = arg, *without = calloc((size_t)blocks, 8), *with = calloc((size_t)blocks, 8);
#ifdef WITH_CUDA
    fake_cuda_device(0);
    stream = fake_cuda_stream(100);
    for (int i = 0; i < 20; i++, rest()) /* until events have been made */
        ncclAllReduce(NULL, NULL, 1, 7, 0, comm, stream);
#endif
    for (int i = 0; i < blocks; i++, rest()) {
        without[i] = block(bare);
        with[i] = block(ncclAllReduce);
    }
    qsort(without, (size_t)blocks, 8, smaller);
    qsort(with, (size_t)blocks, 8, smaller);
    result[0] = without[blocks / 4];
    result[1] = with[blocks / 4];
    free(without);
    free(with);
    return NULL;
}

int main(int argc, char **argv)
{
    (void)argc;
    int threads = atoi(argv[1]);
    blocks = atoi(argv[2]);
    calls = atoi(argv[3]);
    gh_nccl_id id = {"bench"};
    ncclCommInitRank(&comm, 2, id, 0);
    *(void **)&bare = dlsym(RTLD_DEFAULT, "pncclAllReduce");
    pthread_barrier_init(&together, NULL, (unsigned)threads);
    pthread_t thread[64];
    double result[64][2];
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, work, result[i]);
    double without = 0, with = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        without += result[i][0] / threads;
        with += result[i][1] / threads;
    }
    printf("%d %.2f %.2f\n", threads, without, with);
    return 0;
}
