/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: a program (-DMAIN) or library that uses NCCL's ABI as a training job does. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nccl_calls.h"

#define EXPORT __attribute__((visibility("default")))

#define DECLARE(name, operation, PARAMS, ARGS, COUNT, PEER) extern int nccl##name PARAMS;
GH_NCCL_DATA_CALLS(DECLARE)
extern int ncclSignal(int, int, int, unsigned, gh_nccl_comm, gh_stream);
extern int ncclWaitSignal(int, int *, gh_nccl_comm, gh_stream);
extern int ncclGroupStart(void), ncclGroupEnd(void);
extern int ncclGetUniqueId(gh_nccl_id *), ncclCommInitRank(gh_nccl_comm *, int, gh_nccl_id, int);
extern int ncclCommInitAll(gh_nccl_comm *, int, const int *);
extern int ncclCommInitRankConfig(gh_nccl_comm *, int, gh_nccl_id, int, void *);
extern int ncclCommSplit(gh_nccl_comm, int, int, gh_nccl_comm *, void *);
extern int ncclCommShrink(gh_nccl_comm, int *, int, gh_nccl_comm *, void *, int);
extern int ncclCommDestroy(gh_nccl_comm), ncclCommAbort(gh_nccl_comm);
extern int fake_calls(void);
extern void fake_give(int);
extern unsigned long fake_noted(void);

/* n all-reduces of 4 * 1000 bytes, on a communicator of `size`. */
EXPORT int drive_simple(int size, int rank, int n)
{
    gh_nccl_id id;
    gh_nccl_comm comm;
    float a[1000] = {1}, b[1000];
    ncclGetUniqueId(&id);
    if (ncclCommInitRank(&comm, size, id, rank))
        return 1;
    for (int i = 0; i < n; i++)
        if (ncclAllReduce(a, b, 1000, 7, 0, comm, (gh_stream)0x5))
            return 2;
    return ncclCommDestroy(comm) || b[0] != 1;
}

/* Every function once. Prints what the library noted, which must not depend on the shim. */
EXPORT int drive_all(int size, int rank)
{
    gh_nccl_id id;
    gh_nccl_comm comm, half[2], shrunk, grouped = NULL, all[2];
    char a[4096] = {1}, b[4096];
    int wait[4] = {1, 3, 0, 0}, bad = 0, excluded[1] = {1};
    gh_stream s = (gh_stream)0x10;
    struct {
        size_t size;
        unsigned magic, version;
        int n[4];
        const char *net;
        int m[2];
        const char *name;
    } config = {sizeof config, 0xcafebeef, 23203, {0}, NULL, {0}, "named_by_config"};
    ncclGetUniqueId(&id);
    bad |= ncclCommInitRankConfig(&comm, size, id, rank, &config);
    bad |= ncclAllReduce(a, b, 10, 7, 0, comm, s);
    bad |= ncclAllReduceConfig(a, b, 10, 9, 0, comm, s, NULL);
    bad |= ncclBroadcast(a, b, 10, 0, 1, comm, s);
    bad |= ncclBroadcastConfig(a, b, 10, 1, 1, comm, s, NULL);
    bad |= ncclBcast(a, 10, 2, 1, comm, s);
    bad |= ncclReduce(a, b, 10, 3, 0, 2, comm, s);
    bad |= ncclReduceConfig(a, b, 10, 4, 0, 2, comm, s, NULL);
    bad |= ncclAllGather(a, b, 10, 5, comm, s);
    bad |= ncclAllGatherConfig(a, b, 10, 6, comm, s, NULL);
    bad |= ncclReduceScatter(a, b, 10, 8, 0, comm, s);
    bad |= ncclReduceScatterConfig(a, b, 10, 10, 0, comm, s, NULL);
    bad |= ncclAlltoAll(a, b, 10, 7, comm, s);
    bad |= ncclAlltoAllConfig(a, b, 10, 7, comm, s, NULL);
    bad |= ncclGather(a, b, 10, 7, 0, comm, s);
    bad |= ncclGatherConfig(a, b, 10, 7, 0, comm, s, NULL);
    bad |= ncclScatter(a, b, 10, 7, 0, comm, s);
    bad |= ncclScatterConfig(a, b, 10, 7, 0, comm, s, NULL);
    bad |= ncclGroupStart();
    bad |= ncclSend(a, 10, 11, 1, comm, s);
    bad |= ncclRecv(b, 10, 11, 3, comm, s);
    bad |= ncclGroupEnd();
    bad |= ncclPutSignal(a, 10, 7, 1, NULL, 0, 0, 0, 0, comm, s);
    bad |= ncclSignal(2, 0, 0, 0, comm, s);
    bad |= ncclWaitSignal(1, wait, comm, s);
    bad |= ncclAllReduce(a, b, 10, 99, 0, comm, s); /* no such type */
    bad |= ncclCommSplit(comm, rank % 2, rank / 2, &half[0], NULL);
    bad |= ncclCommSplit(comm, 0, rank, &half[1], NULL);
    bad |= ncclCommShrink(comm, excluded, 1, &shrunk, NULL, 0);
    bad |= ncclGroupStart();
    bad |= ncclCommInitRank(&grouped, size, id, rank);
    bad |= ncclGroupEnd();
    bad |= ncclCommInitAll(all, 2, NULL);
    bad |= ncclAllReduce(a, b, 1, 7, 0, half[0], s);
    bad |= ncclAllReduce(a, b, 2, 7, 0, half[1], s);
    bad |= ncclAllReduce(a, b, 3, 7, 0, shrunk, s);
    bad |= ncclAllReduce(a, b, 4, 7, 0, grouped, s);
    bad |= ncclAllReduce(a, b, 5, 7, 0, all[1], s);
    fake_give(6); /* a result is handed back as it is */
    bad |= ncclAllReduce(a, b, 6, 7, 0, comm, s) != 6;
    fake_give(0);
    bad |= ncclCommDestroy(half[0]) | ncclCommDestroy(half[1]) | ncclCommDestroy(shrunk);
    bad |= ncclCommDestroy(grouped) | ncclCommDestroy(all[0]) | ncclCommDestroy(all[1]);
    bad |= ncclCommAbort(comm);
    printf("%d %d %lx\n", bad, fake_calls(), fake_noted());
    fflush(stdout);
    return bad;
}

#ifdef MAIN
/* The first argument says how the process behaves and ends; the second how many calls it makes. */
int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "simple";
    int rank = getenv("RANK") ? atoi(getenv("RANK")) : 0, n = argc > 2 ? atoi(argv[2]) : 100;
    gh_nccl_id id;
    gh_nccl_comm comm;
    float a[8] = {0}, b[8];
    if (!strcmp(how, "all"))
        return drive_all(4, rank);
    if (!strcmp(how, "simple"))
        return drive_simple(4, rank, n);
    if (!strcmp(how, "nothing")) /* makes no communicator */
        return 0;
    if (!strcmp(how, "nap")) { /* what "exec" becomes */
        puts("exec'ed");
        fflush(stdout);
        return getchar() == EOF ? 0 : 0;
    }
    ncclGetUniqueId(&id);
    ncclCommInitRank(&comm, 4, id, rank);
    for (int i = 0; i < n; i++)
        ncclAllReduce(a, b, 8, 7, 0, comm, NULL);
    if (!strcmp(how, "hold")) { /* calls on for every byte it reads, until end of input */
        puts("ready");
        fflush(stdout);
        while (getchar() != EOF) {
            ncclAllReduce(a, b, 8, 7, 0, comm, NULL);
            puts("called");
            fflush(stdout);
        }
        return 3; /* without destroying the communicator */
    }
    if (!strcmp(how, "quick"))
        _exit(4);
    if (!strcmp(how, "exec"))
        execl(argv[0], argv[0], argc > 3 ? argv[3] : "nap", "7", NULL);
    if (!strcmp(how, "fork") || !strcmp(how, "fork-comm")) {
        pid_t child = fork();
        if (!child) {
            ncclAllReduce(a, b, 8, 7, 0, comm, NULL); /* on its parent's communicator: nobody's call */
            if (!strcmp(how, "fork-comm"))
                exit(drive_simple(4, 2, 5));
            exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status)
            return 9;
        ncclAllReduce(a, b, 8, 7, 0, comm, NULL);
        return 5;
    }
    return 8;
}
#endif
