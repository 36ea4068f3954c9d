/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: a program into which the whole shim is built (so that a sanitizer sees it), whose threads
 * make, use, split and destroy communicators at the same time.  threads THREADS ROUNDS [FILE]: with a file, until it exists */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_calls.h"

extern int ncclCommInitRank(gh_nccl_comm *, int, gh_nccl_id, int);
extern int ncclCommSplit(gh_nccl_comm, int, int, gh_nccl_comm *, void *), ncclCommDestroy(gh_nccl_comm);
extern int ncclAllReduce(const void *, void *, size_t, int, int, gh_nccl_comm, gh_stream);

static gh_nccl_comm shared;
static int rounds;
static const char *until;

static void *work(void *arg)
{
    gh_nccl_id id;
    float a[8] = {0}, b[8];
    memset(&id, (int)(uintptr_t)arg, sizeof id);
    for (int i = 0; until ? access(until, F_OK) : i < rounds; i++) {
        gh_nccl_comm own, half;
        ncclCommInitRank(&own, 2, id, 0);
        ncclCommSplit(own, 0, 0, &half, NULL);
        for (int k = 0; k < 50; k++) {
            ncclAllReduce(a, b, 8, 7, 0, shared, NULL);
            ncclAllReduce(a, b, 4, 7, 0, half, NULL);
        }
        ncclCommDestroy(half);
        ncclCommDestroy(own);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    gh_nccl_id id = {"shared"};
    pthread_t thread[64];
    int n = atoi(argv[1]);
    rounds = atoi(argv[2]);
    until = argc > 3 ? argv[3] : NULL;
    ncclCommInitRank(&shared, 2, id, 0);
    for (int i = 0; i < n; i++)
        pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    return ncclCommDestroy(shared);
}
