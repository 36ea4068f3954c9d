/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: a library with NCCL's ABI over host memory. It talks to nobody by itself; it does what one can see
 * from outside: handles, results, data of this rank copied through, and a note of the arguments it was given,
 * so that a test can tell whether a call came through the shim unchanged.
 *
 * -DWITH_TWINS gives every function its pnccl twin, as NCCL does. Like NCCL it uses its own public functions
 * by way of the symbol table (Bcast calls Broadcast), which a hook must not count twice. Where the libcuda of
 * fakecuda.c is loaded, each communicator and stream of a group gets one kernel when the group ends.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_calls.h"

#ifdef HIDDEN
#define API __attribute__((visibility("hidden")))
#else
#define API __attribute__((visibility("default")))
#endif

/* name and, when there are twins, the second name for the same code */
#ifdef WITH_TWINS
#define TWIN(name) API extern __typeof(nccl##name) pnccl##name __attribute__((alias("nccl" #name)));
#else
#define TWIN(name)
#endif

struct comm {
    int size, rank, device;
};

static int device_now(void)
{
    int (*get)(int *), device = 0;
    *(void **)&get = dlsym(RTLD_DEFAULT, "cuCtxGetDevice");
    return get && get(&device) == 0 ? device : 0;
}

static _Thread_local int result_to_give, calls;
static long delay_ns; /* how long the library takes over a call */
static _Thread_local uint64_t noted;

/* What the tests ask. */
API void fake_give(int result) { result_to_give = result; }
API void fake_delay(long ns) { delay_ns = ns; }
API int fake_calls(void) { return calls; }
API uint64_t fake_noted(void) { return noted; }

static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* ---- kernels ---- */

static _Thread_local int depth;
static _Thread_local struct kernel {
    gh_nccl_comm comm;
    gh_stream stream;
} kernels[64];
static _Thread_local int kernels_n;
static void (*launch)(void *);

static void launch_all(void)
{
    bool good = result_to_give == GH_NCCL_SUCCESS || result_to_give == GH_NCCL_IN_PROGRESS;
    for (int i = 0; i < kernels_n && good; i++)
        launch(kernels[i].stream);
    kernels_n = 0;
}

static void add_kernel(gh_nccl_comm comm, gh_stream stream)
{
    int i = 0;
    while (i < kernels_n && (kernels[i].comm != comm || kernels[i].stream != stream))
        i++;
    if (i == kernels_n && kernels_n < 64)
        kernels[kernels_n++] = (struct kernel){comm, stream};
    if (!depth)
        launch_all();
}

#include "fakenccl_move.h"

__attribute__((constructor)) static void find_launch(void)
{
    *(void **)&launch = dlsym(RTLD_DEFAULT, "fake_cuda_kernel");
    folder = getenv("FAKE_NCCL_DIR");
}

static int note(const char *name, size_t count, int datatype, gh_nccl_comm comm, gh_stream stream, int peer)
{
    calls++;
    one_at_a_time(true);
    if (delay_ns)
        nanosleep(&(struct timespec){0, delay_ns}, NULL);
    for (; *name; name++)
        noted = noted * 31 + (unsigned char)*name;
    noted = noted * 31 + count;
    noted = noted * 31 + (unsigned)datatype;
    noted = noted * 31 + (uintptr_t)stream;
    noted = noted * 31 + (unsigned)peer;
    noted = noted * 31 + (comm ? (unsigned)((struct comm *)comm)->size : 0);
    if (launch)
        add_kernel(comm, stream);
    one_at_a_time(false);
    return result_to_give;
}

static size_t width(int datatype)
{
    return (unsigned)datatype < sizeof sizes / sizeof *sizes ? (size_t)sizes[datatype] : 1;
}

struct size_of {
    int size;
};

#define DATA(name, operation, PARAMS, ARGS, COUNT, PEER)                                                    \
    API int nccl##name PARAMS;                                                                              \
    int nccl##name PARAMS                                                                                   \
    {                                                                                                       \
        struct size_of info = {((struct comm *)comm)->size};                                                \
        (void)info;                                                                                         \
        (void)width;                                                                                        \
        BODY_##name;                                                                                        \
        return note(#name, COUNT, datatype, comm, stream, PEER);                                            \
    }                                                                                                       \
    TWIN(name)

#define COPY                                                                                                \
    if (sendbuff && recvbuff && sendbuff != recvbuff)                                                       \
    memcpy(recvbuff, sendbuff, count *width(datatype))
#define BODY_AllReduce (void)op; COPY
#define BODY_AllReduceConfig (void)op; (void)config; COPY
#define BODY_Broadcast COPY
#define BODY_BroadcastConfig (void)config; COPY
#define BODY_Bcast return ncclBroadcast(buff, buff, count, datatype, root, comm, stream)
#define BODY_Reduce (void)op; COPY
#define BODY_ReduceConfig (void)op; (void)config; COPY
#define BODY_AllGather COPY
#define BODY_AllGatherConfig (void)config; COPY
#define BODY_ReduceScatter (void)op; COPY
#define BODY_ReduceScatterConfig (void)op; (void)config; COPY
#define BODY_AlltoAll COPY
#define BODY_AlltoAllConfig (void)config; COPY
#define BODY_Gather COPY
#define BODY_GatherConfig (void)config; COPY
#define BODY_Scatter COPY
#define BODY_ScatterConfig (void)config; COPY
#define BODY_Send                                                                                           \
    if (folder)                                                                                             \
    return moving_op(true, sendbuff, count *width(datatype), peer, comm, stream)
#define BODY_Recv                                                                                           \
    if (folder)                                                                                             \
    return moving_op(false, recvbuff, count *width(datatype), peer, comm, stream)
#define BODY_PutSignal (void)localbuff; (void)window; (void)offset; (void)signal; (void)ctx; (void)flags

GH_NCCL_DATA_CALLS(DATA)

API int ncclSignal(int peer, int signal, int ctx, unsigned flags, gh_nccl_comm comm, gh_stream stream);
int ncclSignal(int peer, int signal, int ctx, unsigned flags, gh_nccl_comm comm, gh_stream stream)
{
    (void)ctx;
    return note("Signal", (size_t)signal + flags, 0, comm, stream, peer);
}
TWIN(Signal)

API int ncclWaitSignal(int n, int *descs, gh_nccl_comm comm, gh_stream stream);
int ncclWaitSignal(int n, int *descs, gh_nccl_comm comm, gh_stream stream)
{
    return note("WaitSignal", (size_t)n, 0, comm, stream, descs[1]);
}
TWIN(WaitSignal)

/* ---- groups: what is asked for in a group comes at its end ---- */

static _Thread_local struct {
    gh_nccl_comm *at, value;
} later[64];
static _Thread_local int later_n;

static void give(gh_nccl_comm *at, int size, int rank)
{
    struct comm *c = malloc(sizeof *c);
    *c = (struct comm){size, rank, device_now()};
    if (depth && later_n < 64) {
        later[later_n].at = at;
        later[later_n++].value = c;
    } else {
        *at = c;
    }
}

API int ncclGroupStart(void);
int ncclGroupStart(void)
{
    depth++;
    return 0;
}
TWIN(GroupStart)

API int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
    if (--depth == 0) {
        for (int i = 0; i < later_n; i++)
            *later[i].at = later[i].value;
        later_n = 0;
        launch_all();
        if (group.n)
            return moving_launch();
    }
    return result_to_give;
}
TWIN(GroupEnd)

API int ncclGroupSimulateEnd(void *info);
int ncclGroupSimulateEnd(void *info)
{
    (void)info;
    depth--;
    kernels_n = 0;
    return 0;
}
TWIN(GroupSimulateEnd)

/* ---- communicators ---- */

API int ncclGetUniqueId(gh_nccl_id *id);
int ncclGetUniqueId(gh_nccl_id *id)
{
    memset(id, 7, sizeof *id);
    return 0;
}
TWIN(GetUniqueId)

API int ncclCommInitRankConfig(gh_nccl_comm *c, int n, gh_nccl_id id, int rank, void *config);
int ncclCommInitRankConfig(gh_nccl_comm *c, int n, gh_nccl_id id, int rank, void *config)
{
    (void)id;
    (void)config;
    if (!result_to_give)
        give(c, n, rank);
    return result_to_give;
}
TWIN(CommInitRankConfig)

API int ncclCommInitRank(gh_nccl_comm *c, int n, gh_nccl_id id, int rank);
int ncclCommInitRank(gh_nccl_comm *c, int n, gh_nccl_id id, int rank)
{
    return ncclCommInitRankConfig(c, n, id, rank, NULL);
}
TWIN(CommInitRank)

API int ncclCommInitRankScalable(gh_nccl_comm *c, int n, int rank, int k, gh_nccl_id *ids, void *config);
int ncclCommInitRankScalable(gh_nccl_comm *c, int n, int rank, int k, gh_nccl_id *ids, void *config)
{
    (void)k;
    return ncclCommInitRankConfig(c, n, ids[0], rank, config);
}
TWIN(CommInitRankScalable)

API int ncclCommInitAll(gh_nccl_comm *c, int n, const int *devices);
int ncclCommInitAll(gh_nccl_comm *c, int n, const int *devices)
{
    (void)devices;
    for (int i = 0; i < n; i++)
        give(&c[i], n, i);
    return result_to_give;
}
TWIN(CommInitAll)

API int ncclCommSplit(gh_nccl_comm c, int color, int key, gh_nccl_comm *out, void *config);
int ncclCommSplit(gh_nccl_comm c, int color, int key, gh_nccl_comm *out, void *config)
{
    (void)config;
    *out = NULL;
    if (color >= 0)
        give(out, (((struct comm *)c)->size + 1) / 2, key);
    return result_to_give;
}
TWIN(CommSplit)

API int ncclCommShrink(gh_nccl_comm c, int *excluded, int n, gh_nccl_comm *out, void *config, int flags);
int ncclCommShrink(gh_nccl_comm c, int *excluded, int n, gh_nccl_comm *out, void *config, int flags)
{
    (void)excluded;
    (void)config;
    (void)flags;
    give(out, ((struct comm *)c)->size - n, ((struct comm *)c)->rank);
    return result_to_give;
}
TWIN(CommShrink)

API int ncclCommGrow(gh_nccl_comm c, int n, const gh_nccl_id *id, int rank, gh_nccl_comm *out, void *config);
int ncclCommGrow(gh_nccl_comm c, int n, const gh_nccl_id *id, int rank, gh_nccl_comm *out, void *config)
{
    (void)id;
    (void)config;
    give(out, n, c ? ((struct comm *)c)->rank : rank);
    return result_to_give;
}
TWIN(CommGrow)

API int ncclCommCount(gh_nccl_comm c, int *out);
int ncclCommCount(gh_nccl_comm c, int *out)
{
    *out = ((struct comm *)c)->size;
    return 0;
}
TWIN(CommCount)

API int ncclCommCuDevice(gh_nccl_comm c, int *out);
int ncclCommCuDevice(gh_nccl_comm c, int *out)
{
    *out = ((struct comm *)c)->device;
    return 0;
}
TWIN(CommCuDevice)

API int ncclCommUserRank(gh_nccl_comm c, int *out);
int ncclCommUserRank(gh_nccl_comm c, int *out)
{
    *out = ((struct comm *)c)->rank;
    return 0;
}
TWIN(CommUserRank)

API int ncclCommGetAsyncError(gh_nccl_comm c, int *out);
int ncclCommGetAsyncError(gh_nccl_comm c, int *out)
{
    (void)c;
    long from = moving_said("FAKE_NCCL_ERROR_AT", 0);
    pthread_mutex_lock(&moving_lock);
    *out = polls_left ? GH_NCCL_IN_PROGRESS : from && groups_seen + 1 >= from ? 6 : 0;
    polls_left -= polls_left > 0;
    pthread_mutex_unlock(&moving_lock);
    return 0;
}
TWIN(CommGetAsyncError)

API int ncclCommFinalize(gh_nccl_comm c);
int ncclCommFinalize(gh_nccl_comm c)
{
    (void)c;
    return result_to_give;
}
TWIN(CommFinalize)

API int ncclCommDestroy(gh_nccl_comm c);
int ncclCommDestroy(gh_nccl_comm c)
{
    free(c);
    return result_to_give;
}
TWIN(CommDestroy)

API int ncclCommAbort(gh_nccl_comm c);
int ncclCommAbort(gh_nccl_comm c)
{
    free(c);
    return result_to_give;
}
TWIN(CommAbort)

/* What a static library cannot hide: NCCL prints such a text when NCCL_DEBUG asks for it. */
API const char *fake_version(void);
const char *fake_version(void) { return getenv("NCCL_DEBUG") ? "NCCL version 2.32.3 (a fake for tests)" : ""; }
