/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of NCCL's ABI: who they are.
 *
 * Identity, equal on all ranks without talking: a hash of the unique id all ranks were given; for a split, of
 * the parent's identity, how many splits the parent has seen (splitting is collective, so all ranks count
 * alike) and the colour; for a shrink, of the parent's, the excluded ranks and how often that was done. A
 * grown communicator is known by its unique id where a rank was given one; ranks of the old communicator that
 * were not, hash the parent and a count, which the new ranks cannot know: a reader sees two halves.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "export.h"
#include "hooks_nccl.h"
#include "ring.h"

static const char *const sonames[] = {"libnccl.so.2", "libnccl.so", "librccl.so.1", "librccl.so", NULL};

static const void *object_of(const void *function)
{
    Dl_info info;
    return function && dladdr(function, &info) ? info.dli_fbase : NULL;
}

void *gh_nccl_find(const char *suffix)
{
    char name[64], twin[64];
    snprintf(name, sizeof name, "nccl%s", suffix);
    snprintf(twin, sizeof twin, "pnccl%s", suffix);
    void *real = gh_resolve(name, sonames);
    if (!real)
        return NULL;
    /* The twin only if it is in the same file: else a tool between us and the library would be passed over. */
    void *other = gh_resolve(twin, sonames);
    return other && object_of(other) == object_of(real) ? other : real;
}

/* ---- what a configuration says ---- */

/* ncclConfig_t as far as the name, which came with 2.27. The struct says its own size and version. */
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga, min_ctas, max_ctas;
    const char *net;
    int split_share, traffic_class;
    const char *name;
};

static const char *name_in(const struct config *c)
{
    bool has = c && c->size >= sizeof *c && c->magic == 0xcafebeef && c->version >= 22700;
    return has && c->name ? c->name : "";
}

/* ---- registering ---- */

/* In a group, NCCL may fill in the handle only at the group's end. */
#define PENDING 64
static GH_TLS struct pending {
    gh_nccl_comm *at;
    uint64_t id, parent;
    int size, rank; /* size -1: to be asked of the library */
    char name[GH_NAME_BYTES];
} pending[PENDING];
static GH_TLS unsigned pending_n;

static void ask(gh_nccl_comm comm, const char *suffix, int *out)
{
    int (*get)(gh_nccl_comm, int *);
    int value;
    *(void **)&get = gh_nccl_find(suffix);
    if (get && get(comm, &value) == GH_NCCL_SUCCESS)
        *out = value;
}

static void add(gh_nccl_comm comm, uint64_t id, uint64_t parent, int size, int rank, const char *name)
{
    char path[GH_PATH_BYTES];
    if (size < 0) {
        ask(comm, "CommCount", &size);
        ask(comm, "CommUserRank", &rank);
    }
    gh_comm_add(comm, id, parent, size, rank, GH_BACKEND_NCCL, name);
    gh_object_path(gh_nccl_find("GroupStart"), path, sizeof path);
    gh_ring_backend(GH_BACKEND_NCCL, path);
}

static void made(int result, gh_nccl_comm *at, uint64_t id, uint64_t parent, int size, int rank,
                 const char *name)
{
    if (gh_disabled || gh_nccl_depth || !at ||
        (result != GH_NCCL_SUCCESS && result != GH_NCCL_IN_PROGRESS))
        return;
    if (gh_nccl_in_group()) {
        if (pending_n < PENDING) {
            struct pending *p = &pending[pending_n++];
            *p = (struct pending){at, id, parent, size, rank, ""};
            snprintf(p->name, sizeof p->name, "%s", name);
        }
    } else if (*at) {
        add(*at, id, parent, size, rank, name);
    }
}

void gh_nccl_group_done(void)
{
    for (unsigned i = 0; i < pending_n; i++)
        if (*pending[i].at)
            add(*pending[i].at, pending[i].id, pending[i].parent, pending[i].size, pending[i].rank,
                pending[i].name);
    pending_n = 0;
}

static uint64_t id_of(gh_nccl_comm comm)
{
    struct gh_comm_info info;
    return gh_comm_find(comm, &info) ? info.id : 0;
}

/* ---- the hooks ---- */

#define REAL(suffix, ...)                                                                                   \
    static void *cache;                                                                                     \
    int (*real)(__VA_ARGS__);                                                                               \
    *(void **)&real = gh_nccl_real(&cache, #suffix);                                                        \
    if (!real)                                                                                              \
    return GH_NCCL_INVALID_USAGE

#define CALL(...)                                                                                           \
    bool outer = gh_nccl_depth == 0;                                                                        \
    if (outer)                                                                                              \
        gh_nccl_enter();                                                                                    \
    gh_nccl_depth++;                                                                                        \
    int result = real(__VA_ARGS__);                                                                         \
    gh_nccl_depth--;                                                                                        \
    if (outer)                                                                                              \
    gh_nccl_leave()

GH_EXPORT int ncclCommInitRank(gh_nccl_comm *comm, int nranks, gh_nccl_id id, int rank);
int ncclCommInitRank(gh_nccl_comm *comm, int nranks, gh_nccl_id id, int rank)
{
    REAL(CommInitRank, gh_nccl_comm *, int, gh_nccl_id, int);
    CALL(comm, nranks, id, rank);
    made(result, comm, gh_hash(&id, sizeof id, 0), 0, nranks, rank, "");
    return result;
}

GH_EXPORT int ncclCommInitRankConfig(gh_nccl_comm *comm, int nranks, gh_nccl_id id, int rank, void *config);
int ncclCommInitRankConfig(gh_nccl_comm *comm, int nranks, gh_nccl_id id, int rank, void *config)
{
    REAL(CommInitRankConfig, gh_nccl_comm *, int, gh_nccl_id, int, void *);
    CALL(comm, nranks, id, rank, config);
    made(result, comm, gh_hash(&id, sizeof id, 0), 0, nranks, rank, name_in(config));
    return result;
}

GH_EXPORT int ncclCommInitRankScalable(gh_nccl_comm *comm, int nranks, int rank, int n, gh_nccl_id *ids,
                                       void *config);
int ncclCommInitRankScalable(gh_nccl_comm *comm, int nranks, int rank, int n, gh_nccl_id *ids, void *config)
{
    REAL(CommInitRankScalable, gh_nccl_comm *, int, int, int, gh_nccl_id *, void *);
    uint64_t id = ids && n > 0 ? gh_hash(ids, sizeof *ids * (size_t)n, 0) : 0;
    CALL(comm, nranks, rank, n, ids, config);
    made(result, comm, id, 0, nranks, rank, name_in(config));
    return result;
}

GH_EXPORT int ncclCommInitAll(gh_nccl_comm *comms, int n, const int *devices);
int ncclCommInitAll(gh_nccl_comm *comms, int n, const int *devices)
{
    REAL(CommInitAll, gh_nccl_comm *, int, const int *);
    CALL(comms, n, devices);
    /* All members are in this process: any number that no other communicator of the job has will do. */
    static uint64_t count;
    uint64_t own = gh_hash2((uint64_t)getpid(), gh_start_ticks(getpid()));
    uint64_t id = gh_hash2(own, __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED));
    for (int i = 0; comms && i < n; i++)
        made(result, &comms[i], id, 0, n, i, "");
    return result;
}

GH_EXPORT int ncclCommSplit(gh_nccl_comm comm, int color, int key, gh_nccl_comm *out, void *config);
int ncclCommSplit(gh_nccl_comm comm, int color, int key, gh_nccl_comm *out, void *config)
{
    REAL(CommSplit, gh_nccl_comm, int, int, gh_nccl_comm *, void *);
    uint64_t parent = id_of(comm), nth = gh_comm_next_child(comm); /* ranks without a colour count too */
    uint64_t id = gh_hash2(gh_hash2(parent, nth), (uint64_t)(uint32_t)color);
    CALL(comm, color, key, out, config);
    if (color != GH_NCCL_NO_COLOR)
        made(result, out, id, parent, -1, -1, name_in(config));
    return result;
}

GH_EXPORT int ncclCommShrink(gh_nccl_comm comm, int *excluded, int n, gh_nccl_comm *out, void *config,
                             int flags);
int ncclCommShrink(gh_nccl_comm comm, int *excluded, int n, gh_nccl_comm *out, void *config, int flags)
{
    REAL(CommShrink, gh_nccl_comm, int *, int, gh_nccl_comm *, void *, int);
    uint64_t parent = id_of(comm);
    uint64_t list = excluded && n > 0 ? gh_hash(excluded, sizeof *excluded * (size_t)n, 1) : 1;
    uint64_t id = gh_hash2(parent, list);
    while (gh_comm_known(id)) /* the same ranks were left out before */
        id = gh_hash2(id, 1);
    CALL(comm, excluded, n, out, config, flags);
    made(result, out, id, parent, -1, -1, name_in(config));
    return result;
}

GH_EXPORT int ncclCommGrow(gh_nccl_comm comm, int nranks, const gh_nccl_id *given, int rank,
                           gh_nccl_comm *out, void *config);
int ncclCommGrow(gh_nccl_comm comm, int nranks, const gh_nccl_id *given, int rank, gh_nccl_comm *out,
                 void *config)
{
    REAL(CommGrow, gh_nccl_comm, int, const gh_nccl_id *, int, gh_nccl_comm *, void *);
    uint64_t parent = comm ? id_of(comm) : 0;
    uint64_t id = given ? gh_hash(given, sizeof *given, 0) : gh_hash2(parent, (uint64_t)nranks);
    while (!given && gh_comm_known(id))
        id = gh_hash2(id, 1);
    CALL(comm, nranks, given, rank, out, config);
    made(result, out, id, parent, -1, -1, name_in(config));
    return result;
}

#define TASK_STOPS_NS 2000000000ll

GH_EXPORT int ncclCommFinalize(gh_nccl_comm comm);
int ncclCommFinalize(gh_nccl_comm comm)
{
    REAL(CommFinalize, gh_nccl_comm);
    gh_comm_drop(comm); /* it can only be destroyed now */
    gh_nccl_wait_task(TASK_STOPS_NS);
    return real(comm);
}

/* Forgotten before it goes: afterwards another thread may be given the same address. A task that uses it sees that it
 * is gone and stops; but an abort must not wait for long, it is there to free who is stuck. */
GH_EXPORT int ncclCommDestroy(gh_nccl_comm comm);
int ncclCommDestroy(gh_nccl_comm comm)
{
    REAL(CommDestroy, gh_nccl_comm);
    gh_comm_drop(comm);
    gh_nccl_wait_task(TASK_STOPS_NS);
    return real(comm);
}

GH_EXPORT int ncclCommAbort(gh_nccl_comm comm);
int ncclCommAbort(gh_nccl_comm comm)
{
    REAL(CommAbort, gh_nccl_comm);
    uint64_t id = id_of(comm);
    if (id)
        gh_cuda_drop_comm(id);
    gh_comm_drop(comm);
    gh_nccl_wait_task(TASK_STOPS_NS);
    return real(comm);
}
