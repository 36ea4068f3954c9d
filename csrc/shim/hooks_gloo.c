/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo in PyTorch: the virtual functions of c10d::ProcessGroupGloo, entered by way of symbols of the same
 * mangled names. The vtable's entries are ordinary dynamic relocations, so a preloaded symbol takes them.
 *
 * A method returns an intrusive_ptr<Work>, which the x86-64 C++ ABI passes as a hidden first argument; other
 * machines pass it in a register that C cannot name, so this front end is for x86-64 only. A torch whose
 * symbols differ never comes here: it is "not hooked", and nothing else. C++ exceptions pass through these
 * frames (-fexceptions), undoing the depth count on their way.
 *
 * Sizes are read by torch's own exported C functions (aoti_torch_*), never from its private structs. What is
 * read directly is the public ABI: std::vector and std::string of libstdc++, at::Tensor as one pointer, and
 * the plain option structs of c10d's headers.
 */

#if defined(__x86_64__)

#include <pthread.h>
#include <string.h>

#include "export.h"
#include "ring.h"
#include "shim.h"

#define GLOO "_ZN4c10d16ProcessGroupGloo"
#define TENSORS "RSt6vectorIN2at6TensorESaIS3_EE"
#define LISTS "RSt6vectorIS1_IN2at6TensorESaIS3_EESaIS5_EE"

static const char *const sonames[] = {"libtorch_cpu.so", NULL};

struct vector {
    char *begin, *end, *cap;
};

/* ---- what torch is asked ---- */

static int (*torch_numel)(const void *tensor, int64_t *out);
static int (*torch_dtype)(const void *tensor, int32_t *out);
static uint64_t (*torch_version)(void);
static pthread_once_t asked = PTHREAD_ONCE_INIT;

static void ask_torch(void)
{
    *(void **)&torch_dtype = gh_resolve("aoti_torch_get_dtype", sonames);
    *(void **)&torch_version = gh_resolve("aoti_torch_abi_version", sonames);
    void *numel = gh_resolve("aoti_torch_get_numel", sonames);
    __atomic_store_n((void **)&torch_numel, torch_dtype ? numel : NULL, __ATOMIC_RELEASE);
}

void gh_gloo_prepare(void)
{
    pthread_once(&asked, ask_torch);
}

/* at::ScalarType -> our code and bytes an element. */
static const struct {
    uint8_t dtype, bytes;
} scalars[] = {
    [0] = {GH_DT_UINT8, 1},   [1] = {GH_DT_INT8, 1},         [2] = {GH_DT_INT16, 2},
    [3] = {GH_DT_INT32, 4},   [4] = {GH_DT_INT64, 8},        [5] = {GH_DT_FLOAT16, 2},
    [6] = {GH_DT_FLOAT32, 4}, [7] = {GH_DT_FLOAT64, 8},      [8] = {GH_DT_UNKNOWN, 4}, /* complex of halves */
    [9] = {GH_DT_COMPLEX64, 8}, [10] = {GH_DT_COMPLEX128, 16}, [11] = {GH_DT_BOOL, 1},
    [12] = {GH_DT_INT8, 1},   [13] = {GH_DT_UINT8, 1},       [14] = {GH_DT_INT32, 4}, /* quantised */
    [15] = {GH_DT_BFLOAT16, 2}, [23] = {GH_DT_FLOAT8_E5M2, 1}, [24] = {GH_DT_FLOAT8_E4M3, 1},
    [25] = {GH_DT_FLOAT8_E5M2, 1}, [26] = {GH_DT_FLOAT8_E4M3, 1}, [27] = {GH_DT_UNKNOWN, 2}, /* uint16 */
    [28] = {GH_DT_UINT32, 4}, [29] = {GH_DT_UINT64, 8},
};

static void add_tensor(struct gh_call *c, const void *tensor)
{
    int64_t numel;
    int32_t type;
    if (!torch_numel || torch_numel(tensor, &numel) || torch_dtype(tensor, &type) || type < 0 ||
        (unsigned)type >= sizeof scalars / sizeof *scalars || !scalars[type].bytes) {
        c->flags |= GH_FLAG_BYTES_UNKNOWN;
        return;
    }
    c->dtype = scalars[type].dtype;
    c->bytes += numel * scalars[type].bytes;
}

static void add_tensors(struct gh_call *c, const struct vector *v)
{
    for (const char *t = v->begin; t < v->end; t += sizeof(void *))
        add_tensor(c, t);
}

/* The root of ReduceOptions comes after a ReduceOp, whose size changed when torch 2.10 put both reference
 * counts into one word. Taken only if what stands beside it is what the header says. */
static int32_t reduce_root(const void *options, int size)
{
    uint64_t version = torch_version ? torch_version() >> 48 : 0; /* major, minor */
    const int64_t *at = options;
    if (version < 0x0201)
        return -1;
    at += version >= 0x020a ? 4 : 5;
    return at[0] >= 0 && at[0] < size && at[1] == 0 ? (int32_t)at[0] : -1;
}

/* ---- the hooks ---- */

static GH_TLS int depth; /* a method that calls another method of the group is one call */

GH_TLS struct gh_gloo_current gh_gloo_current = {.seq = -1};

static void leave(int *unused)
{
    (void)unused;
    if (--depth == 0)
        gh_gloo_current.seq = -1;
}

static void record(const void *group, struct gh_call *c)
{
    struct gh_comm_info comm;
    if (GH_UNLIKELY(!gh_comm_find(group, &comm)))
        gh_comm_unmatched();
    c->comm = comm.id;
    if (GH_UNLIKELY(c->flags & GH_FLAG_BYTES_UNKNOWN))
        c->bytes = 0;
    int64_t seq = gh_call(c);
    if (GH_UNLIKELY(gh_profiling())) {
        gh_gloo_current.call = *c;
        gh_gloo_current.seq = seq;
    }
}

static int group_size(const void *group)
{
    struct gh_comm_info comm;
    return gh_comm_find(group, &comm) ? comm.size : 0;
}

#define ENTER                                                                                               \
    int guard __attribute__((cleanup(leave), unused)) = ++depth;                                            \
    if (depth == 1 && gh_ring_is_open())

/* HOOK(own name, mangled name, parameters after `this`, arguments, operation, what fills in the rest) */
#define HOOK(name, mangled, PARAMS, ARGS, operation, FILL)                                                  \
    GH_EXPORT void *gh_gloo_##name(void *ret, void *self, REMOVE_PARENS PARAMS) __asm__(GLOO mangled);      \
    void *gh_gloo_##name(void *ret, void *self, REMOVE_PARENS PARAMS)                                       \
    {                                                                                                       \
        static void *cache;                                                                                 \
        void *(*real)(void *, void *, REMOVE_PARENS PARAMS);                                                \
        *(void **)&real = gh_real(&cache, GLOO mangled, sonames);                                           \
        ENTER                                                                                               \
        {                                                                                                   \
            struct gh_call c = {.op = GH_OP_##operation, .peer = -1, .flags = GH_FLAG_ASYNC};               \
            FILL;                                                                                           \
            record(self, &c);                                                                               \
        }                                                                                                   \
        return real(ret, self, REMOVE_PARENS ARGS);                                                         \
    }
#define REMOVE_PARENS(...) __VA_ARGS__

#define ROOT(options) (int32_t)(*(const int64_t *)(options))

HOOK(allreduce, "9allreduceE" TENSORS "RKNS_16AllreduceOptionsE", (struct vector * tensors, void *options),
     (tensors, options), ALL_REDUCE, add_tensors(&c, tensors))

HOOK(allreduce_coalesced, "19allreduce_coalescedE" TENSORS "RKNS_25AllreduceCoalescedOptionsE",
     (struct vector * tensors, void *options), (tensors, options), ALL_REDUCE, add_tensors(&c, tensors))

HOOK(allreduce_sparse, "16allreduce_sparseE" TENSORS "RKNS_16AllreduceOptionsE",
     (struct vector * tensors, void *options), (tensors, options), ALL_REDUCE,
     c.flags |= GH_FLAG_BYTES_UNKNOWN)

HOOK(broadcast, "9broadcastE" TENSORS "RKNS_16BroadcastOptionsE", (struct vector * tensors, void *options),
     (tensors, options), BROADCAST, add_tensors(&c, tensors);
     c.peer = ROOT(options))

HOOK(reduce, "6reduceE" TENSORS "RKNS_13ReduceOptionsE", (struct vector * tensors, void *options),
     (tensors, options), REDUCE, add_tensors(&c, tensors);
     c.peer = reduce_root(options, group_size(self)))

HOOK(allgather, "9allgatherE" LISTS "RS5_RKNS_16AllgatherOptionsE",
     (struct vector * out, struct vector *in, void *options), (out, in, options), ALL_GATHER,
     add_tensors(&c, in))

HOOK(allgather_base, "15_allgather_baseERN2at6TensorES3_RKNS_16AllgatherOptionsE",
     (void *out, void *in, void *options), (out, in, options), ALL_GATHER, add_tensor(&c, in))

HOOK(allgather_coalesced, "19allgather_coalescedE" LISTS "RS5_RKNS_16AllgatherOptionsE",
     (struct vector * out, struct vector *in, void *options), (out, in, options), ALL_GATHER,
     add_tensors(&c, in))

HOOK(allgather_into_tensor_coalesced,
     "31allgather_into_tensor_coalescedE" TENSORS "S6_RKNS_16AllgatherOptionsE",
     (struct vector * out, struct vector *in, void *options), (out, in, options), ALL_GATHER,
     add_tensors(&c, in))

HOOK(reduce_scatter, "14reduce_scatterE" TENSORS "RS1_IS5_SaIS5_EERKNS_20ReduceScatterOptionsE",
     (struct vector * out, struct vector *in, void *options), (out, in, options), REDUCE_SCATTER,
     add_tensors(&c, out))

HOOK(reduce_scatter_base, "20_reduce_scatter_baseERN2at6TensorES3_RKNS_20ReduceScatterOptionsE",
     (void *out, void *in, void *options), (out, in, options), REDUCE_SCATTER, add_tensor(&c, out))

HOOK(reduce_scatter_tensor_coalesced,
     "31reduce_scatter_tensor_coalescedE" TENSORS "S6_RKNS_20ReduceScatterOptionsE",
     (struct vector * out, struct vector *in, void *options), (out, in, options), REDUCE_SCATTER,
     add_tensors(&c, out))

HOOK(alltoall_base, "13alltoall_baseERN2at6TensorES3_RSt6vectorIlSaIlEES7_RKNS_15AllToAllOptionsE",
     (void *out, void *in, void *out_counts, void *in_counts, void *options),
     (out, in, out_counts, in_counts, options), ALL_TO_ALL, add_tensor(&c, in))

HOOK(alltoall, "8alltoallE" TENSORS "S6_RKNS_15AllToAllOptionsE",
     (struct vector * out, struct vector *in, void *options), (out, in, options), ALL_TO_ALL,
     add_tensors(&c, in))

HOOK(gather, "6gatherE" LISTS "RS5_RKNS_13GatherOptionsE",
     (struct vector * out, struct vector *in, void *options), (out, in, options), GATHER,
     add_tensors(&c, in);
     c.peer = ROOT(options))

HOOK(scatter, "7scatterE" TENSORS "RS1_IS5_SaIS5_EERKNS_14ScatterOptionsE",
     (struct vector * out, struct vector *in, void *options), (out, in, options), SCATTER,
     add_tensors(&c, out);
     c.peer = ROOT(options))

HOOK(send, "4sendE" TENSORS "ii", (struct vector * tensors, int peer, int tag), (tensors, peer, tag), SEND,
     add_tensors(&c, tensors);
     c.peer = peer)

HOOK(recv, "4recvE" TENSORS "ii", (struct vector * tensors, int peer, int tag), (tensors, peer, tag), RECV,
     add_tensors(&c, tensors);
     c.peer = peer)

HOOK(recv_anysource, "13recvAnysourceE" TENSORS "i", (struct vector * tensors, int tag), (tensors, tag),
     RECV, add_tensors(&c, tensors))

HOOK(barrier, "7barrierERKNS_14BarrierOptionsE", (void *options), (options), BARRIER, )

/* Returns nothing, and returns when all have come. */
#define MONITORED GLOO "16monitoredBarrierERKNS_14BarrierOptionsEb"
GH_EXPORT void gh_gloo_monitored_barrier(void *self, void *options, bool all) __asm__(MONITORED);
void gh_gloo_monitored_barrier(void *self, void *options, bool all)
{
    static void *cache;
    void (*real)(void *, void *, bool);
    *(void **)&real = gh_real(&cache, MONITORED, sonames);
    ENTER
    {
        struct gh_call c = {.op = GH_OP_BARRIER, .peer = -1};
        record(self, &c);
    }
    real(self, options, all);
}

#endif
