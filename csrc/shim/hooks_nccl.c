/* SPDX-License-Identifier: Apache-2.0 */
/* Data and group calls of NCCL's ABI. Nothing here calls CUDA; cuda_events.c does, while a profile or a pause is
 * asked for. */

#include "hooks_nccl.h"

#include "cuda_events.h"
#include "export.h"

/* ncclDataType_t -> ours. */
static const uint8_t types[] = {
    GH_DT_INT8,    GH_DT_UINT8,   GH_DT_INT32,   GH_DT_UINT32,   GH_DT_INT64,       GH_DT_UINT64,
    GH_DT_FLOAT16, GH_DT_FLOAT32, GH_DT_FLOAT64, GH_DT_BFLOAT16, GH_DT_FLOAT8_E4M3, GH_DT_FLOAT8_E5M2,
};

static const uint8_t type_bytes[] = {
#define X(upper, lower, size) size,
    GH_DTYPES(X)
#undef X
};

GH_TLS int gh_nccl_depth;
static GH_TLS int group_depth;
static GH_TLS int group_calls; /* calls in the outermost group */

bool gh_nccl_in_group(void)
{
    return group_depth > 0;
}

bool gh_nccl_in_group_with_calls(void)
{
    return group_depth > 0 && group_calls > 0;
}

static void fill(struct gh_call *c, size_t count, int datatype)
{
    if ((unsigned)datatype < sizeof types) {
        c->dtype = types[datatype];
        c->bytes = (int64_t)(count * type_bytes[c->dtype]);
    } else {
        c->flags |= GH_FLAG_BYTES_UNKNOWN;
    }
    if (group_depth > 0)
        c->flags |= GH_FLAG_GROUPED;
}

static inline void find_comm(struct gh_call *c, gh_nccl_comm comm, struct gh_comm_info *info)
{
    if (GH_UNLIKELY(!gh_comm_find(comm, info)))
        gh_comm_unmatched();
    c->comm = info->id;
}

static int device_of(gh_nccl_comm comm)
{
    static void *cache;
    int (*real)(gh_nccl_comm, int *);
    int device;
    *(void **)&real = gh_nccl_real(&cache, "CommCuDevice");
    return real && real(comm, &device) == GH_NCCL_SUCCESS ? device : -1;
}

/* Record the call. True: it is launched now and watched, so gh_cuda_launched() is to follow. */
static inline bool record(const struct gh_call *c, gh_nccl_comm comm, const struct gh_comm_info *info)
{
    struct gh_cuda_comm about = {.size = info->size, .device = -1, .sampled = true};
    bool alone = group_depth == 0;
    if (GH_UNLIKELY(gh_cuda_every > 1) && c->op != GH_OP_SEND && c->op != GH_OP_RECV)
        about.sampled = gh_comm_nth(comm) % gh_cuda_every == 0; /* the same ones on all ranks */
    gh_cuda_at = c->lane;
    int64_t seq = gh_call(c);
    gh_cuda_at = 0;
    group_calls += !alone;
    if (GH_LIKELY(!gh_cuda_watching()))
        return false;
    if (c->lane <= 2) /* a default stream, of whichever device */
        about.device = device_of(comm);
    gh_cuda_call(c, seq, &about);
    if (alone)
        gh_cuda_launch(1);
    return alone;
}

#define DATA_CALL(name, operation, PARAMS, ARGS, COUNT, PEER)                                               \
    GH_EXPORT int nccl##name PARAMS;                                                                        \
    int nccl##name PARAMS                                                                                   \
    {                                                                                                       \
        static void *cache;                                                                                 \
        int(*real) PARAMS;                                                                                  \
        *(void **)&real = gh_nccl_real(&cache, #name);                                                      \
        if (GH_UNLIKELY(!real))                                                                             \
            return GH_NCCL_INVALID_USAGE;                                                                   \
        bool watched = false, outer = gh_nccl_depth == 0;                                                   \
        if (outer)                                                                                          \
            gh_nccl_enter();                                                                                \
        if (outer && gh_ring_is_open()) {                                                                   \
            struct gh_comm_info info;                                                                       \
            struct gh_call c = {                                                                            \
                .op = GH_OP_##operation, .flags = GH_FLAG_ASYNC, .lane = (uintptr_t)stream, .peer = PEER};   \
            find_comm(&c, comm, &info);                                                                     \
            fill(&c, COUNT, datatype);                                                                      \
            watched = record(&c, comm, &info);                                                              \
        }                                                                                                   \
        gh_nccl_depth++; /* the library may use its own public functions: that is still this call */        \
        int result = real ARGS;                                                                             \
        gh_nccl_depth--;                                                                                    \
        if (GH_UNLIKELY(watched))                                                                           \
            gh_cuda_launched(result == GH_NCCL_SUCCESS);                                                    \
        if (outer)                                                                                          \
            gh_nccl_leave();                                                                                \
        return result;                                                                                      \
    }

GH_NCCL_DATA_CALLS(DATA_CALL)
GH_RCCL_DATA_CALLS(DATA_CALL)

GH_EXPORT int ncclSignal(int peer, int signal, int ctx, unsigned flags, gh_nccl_comm comm, gh_stream stream);
int ncclSignal(int peer, int signal, int ctx, unsigned flags, gh_nccl_comm comm, gh_stream stream)
{
    static void *cache;
    int (*real)(int, int, int, unsigned, gh_nccl_comm, gh_stream);
    *(void **)&real = gh_nccl_real(&cache, "Signal");
    if (!real)
        return GH_NCCL_INVALID_USAGE;
    bool watched = false, outer = gh_nccl_depth == 0;
    if (outer)
        gh_nccl_enter();
    if (outer && gh_ring_is_open()) {
        struct gh_comm_info info;
        struct gh_call c = {
            .op = GH_OP_PUT_SIGNAL, .flags = GH_FLAG_ASYNC, .lane = (uintptr_t)stream, .peer = peer};
        find_comm(&c, comm, &info);
        fill(&c, 0, 0);
        watched = record(&c, comm, &info);
    }
    int result = real(peer, signal, ctx, flags, comm, stream);
    if (watched)
        gh_cuda_launched(result == GH_NCCL_SUCCESS);
    if (outer)
        gh_nccl_leave();
    return result;
}

struct wait_desc { /* ncclWaitSignalDesc_t */
    int count, peer, signal, ctx;
};

GH_EXPORT int ncclWaitSignal(int n, struct wait_desc *descs, gh_nccl_comm comm, gh_stream stream);
int ncclWaitSignal(int n, struct wait_desc *descs, gh_nccl_comm comm, gh_stream stream)
{
    static void *cache;
    int (*real)(int, struct wait_desc *, gh_nccl_comm, gh_stream);
    *(void **)&real = gh_nccl_real(&cache, "WaitSignal");
    if (!real)
        return GH_NCCL_INVALID_USAGE;
    bool watched = false, outer = gh_nccl_depth == 0;
    if (outer)
        gh_nccl_enter();
    if (outer && gh_ring_is_open()) {
        struct gh_comm_info info;
        struct gh_call c = {.op = GH_OP_WAIT_SIGNAL, .flags = GH_FLAG_ASYNC, .lane = (uintptr_t)stream,
                            .peer = n == 1 && descs ? descs->peer : -1};
        find_comm(&c, comm, &info);
        fill(&c, 0, 0);
        watched = record(&c, comm, &info);
    }
    int result = real(n, descs, comm, stream);
    if (watched)
        gh_cuda_launched(result == GH_NCCL_SUCCESS);
    if (outer)
        gh_nccl_leave();
    return result;
}

/* ---- groups ---- */

GH_EXPORT int ncclGroupStart(void);
int ncclGroupStart(void)
{
    static void *cache;
    int (*real)(void);
    *(void **)&real = gh_nccl_real(&cache, "GroupStart");
    if (!real)
        return GH_NCCL_INVALID_USAGE;
    int result = real();
    if (result == GH_NCCL_SUCCESS && gh_nccl_depth == 0 && group_depth++ == 0)
        group_calls = 0;
    return result;
}

static void group_left(void)
{
    if (gh_nccl_depth == 0 && group_depth > 0 && --group_depth == 0) {
        gh_nccl_group_done();
        gh_nccl_leave();
    }
}

GH_EXPORT int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
    static void *cache;
    int (*real)(void);
    *(void **)&real = gh_nccl_real(&cache, "GroupEnd");
    if (!real)
        return GH_NCCL_INVALID_USAGE;
    bool outermost = gh_nccl_depth == 0 && group_depth == 1;
    bool watched = outermost && group_calls && gh_cuda_watching();
    if (outermost)
        gh_nccl_enter();
    if (GH_UNLIKELY(watched))
        gh_cuda_launch(group_calls);
    gh_nccl_depth++;
    int result = real();
    gh_nccl_depth--;
    if (GH_UNLIKELY(watched))
        gh_cuda_launched(result == GH_NCCL_SUCCESS);
    else if (outermost)
        gh_cuda_cancel();
    group_left(); /* also when it failed: NCCL has left the group then */
    return result;
}

GH_EXPORT int ncclGroupSimulateEnd(void *info);
int ncclGroupSimulateEnd(void *info)
{
    static void *cache;
    int (*real)(void *);
    *(void **)&real = gh_nccl_real(&cache, "GroupSimulateEnd");
    if (!real)
        return GH_NCCL_INVALID_USAGE;
    int result = real(info);
    if (gh_nccl_depth == 0 && group_depth == 1)
        gh_cuda_cancel();
    group_left();
    return result;
}
