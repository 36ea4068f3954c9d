/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_SHIM_H
#define GH_SHIM_H

/* What the shim's files know of each other. Hooks know nothing of the ring's layout, the ring knows nothing
 * of the hooks: hooks call gh_call(), gh_comm_*() and gh_resolve(), and that is all. */

#include <stdbool.h>
#include <stdint.h>

#include "ops.h"

#define GH_LIKELY(x) __builtin_expect(!!(x), 1)
#define GH_UNLIKELY(x) __builtin_expect(!!(x), 0)
/* A preloaded library is there when the process starts, so its thread-locals can have a fixed place. */
#define GH_TLS _Thread_local __attribute__((tls_model("initial-exec")))

/* main.c */
extern bool gh_disabled; /* a second copy of the shim in this process, or GHT_OFF=1: only forward */

/* rank_env.c: who this process is, from its environment (DESIGN section 4). -1 = not said. */
struct gh_rank {
    int rank, local_rank, world_size, node_rank, restart_count;
};
void gh_rank_read(struct gh_rank *out);

/* identity.c */
void gh_job_id(char *out, unsigned long cap);                  /* job id, safe as a directory name */
void gh_job_safe(char *out, unsigned long cap, const char *in); /* the same made of any text */
uint64_t gh_start_ticks(int pid);                              /* 0 = no such process */
uint64_t gh_hash(const void *data, unsigned long n, uint64_t seed);
uint64_t gh_hash2(uint64_t a, uint64_t b);

/* ring.c */
struct gh_call {
    uint64_t comm, lane;
    int64_t bytes;
    int32_t peer;
    uint16_t flags;
    uint8_t op, dtype;
};
bool gh_ring_open(int comm_rank, int comm_size); /* at the first communicator; false = pass through */
void gh_ring_release(void);                      /* in a forked child */
void gh_ring_end(void);                          /* at exit */
int64_t gh_call(const struct gh_call *call);     /* the hot path: record one call now; its seq, -1 = not recorded */
bool gh_profiling(void);                         /* does the control page ask for executions to be timed */
int64_t gh_now_ns(void);                         /* CLOCK_MONOTONIC */
/* The execution of call `seq`: it began at begin_ns (CLOCK_MONOTONIC) and has ended now. */
void gh_exec(const struct gh_call *call, int64_t seq, int64_t begin_ns);
/* The same, measured by other means; dur_ns -1: asked for and not to be had. */
void gh_exec_timed(const struct gh_call *call, int64_t seq, int64_t begin_ns, int64_t dur_ns);
extern struct gh_ring *gh_ring_now;
static inline bool gh_ring_is_open(void)
{
    return __atomic_load_n(&gh_ring_now, __ATOMIC_ACQUIRE);
}
void gh_ring_backend(uint32_t backend, const char *path);

/* comm.c: handles (ncclComm_t, ProcessGroupGloo*) and the table of communicators in the ring */
struct gh_comm_info {
    uint64_t id;
    int32_t size, comm_rank;
};
void gh_comm_add(const void *handle, uint64_t id, uint64_t parent, int size, int comm_rank, uint32_t backend,
                 const char *name);
bool gh_comm_find(const void *handle, struct gh_comm_info *out); /* hot path */
bool gh_comm_handle(uint64_t id, const void **handle, struct gh_comm_info *out); /* false: none, or several */
void gh_comm_name(const void *handle, const char *name);
void gh_comm_drop(const void *handle);
uint32_t gh_comm_next_child(const void *handle); /* 0, 1, ...: number of the next split of this one */
uint64_t gh_comm_nth(const void *handle);        /* 0, 1, ...: how often this was asked of it before */
bool gh_comm_known(uint64_t id);                 /* was there ever one with this id in this process */
void gh_comm_unmatched(void);
void gh_comm_forget(void); /* in a forked child */

/* hooks_gloo.c */
void gh_gloo_prepare(void); /* find what sizes are read with; before the first group is used */

extern GH_TLS struct gh_gloo_current {
    int64_t seq; /* -1 = this thread is in no call, or in one whose execution is not to be timed */
    struct gh_call call;
} gh_gloo_current;

/* hooks_gloo_exec.c */
bool gh_gloo_drained(void); /* every collective that was enqueued has been executed */

/* cuda_events.c, cuda_drain.c */
void gh_cuda_prepare(void);             /* read the environment */
void gh_cuda_drop_comm(uint64_t comm);  /* what is under way on it will say nothing */
void gh_cuda_forget(void);              /* in a forked child */
/* Is all work done that was put on the streams of NCCL's calls and on the default stream of the current context?
 * Asks until then (CLOCK_MONOTONIC), at least once; true where no CUDA is used. False also means "cannot tell". */
bool gh_cuda_drained(int64_t until_ns);

/* nccl_gate.c: a thread that waits in a pause is not inside NCCL meanwhile */
bool gh_nccl_step_aside(void); /* to be handed to ... */
void gh_nccl_step_back(bool aside);

/* hooks_gloo_groups.c */
void gh_gloo_forget(void); /* in a forked child */

/* resolve.c: the real function behind a hooked one */
void *gh_resolve(const char *name, const char *const *sonames); /* sonames ends with NULL */
static inline void *gh_real(void **cache, const char *name, const char *const *sonames)
{
    void *real = __atomic_load_n(cache, __ATOMIC_RELAXED);
    if (GH_UNLIKELY(!real)) {
        real = gh_resolve(name, sonames);
        __atomic_store_n(cache, real, __ATOMIC_RELAXED);
    }
    return real;
}
void gh_object_path(const void *address, char *out, unsigned long cap);

#endif
