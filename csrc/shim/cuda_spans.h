/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_CUDA_SPANS_H
#define GH_CUDA_SPANS_H

/* Spans: pairs of events, made beforehand for each context by the helper thread, taken by threads that make calls,
 * given back by the helper. What both sides share. Nobody waits: who finds no free span does not time its call. */

#include "cuda_api.h"
#include "shim.h"

#define GH_SPANS 256u /* a context: two events each */
#define GH_PLACES 8u  /* contexts */

enum { GH_SPAN_EMPTY, GH_SPAN_FREE, GH_SPAN_TAKEN, GH_SPAN_RECORDED };
enum { GH_PLACE_NONE, GH_PLACE_NEW, GH_PLACE_READY, GH_PLACE_DEAD };

struct gh_span {
    _Alignas(64) uint32_t state; /* what follows belongs to whoever took it, then to the helper */
    uint32_t dropped;            /* its communicator was aborted */
    uint64_t comm;               /* as in call, to be read by anyone */
    bool said;                   /* the helper has given it up; its events may still be under way */
    gh_cu_event begin, end;
    struct gh_call call;
    int64_t seq, before_ns, after_ns; /* CLOCK_MONOTONIC before `begin` was recorded and after the launch */
    uint64_t ticket;                  /* grows with each span of the context that is taken */
};

struct gh_place {
    gh_cu_context context;
    unsigned long long id; /* tells a context from a later one at the same address; 0 where the driver cannot */
    uint32_t state;
    uint64_t tickets;
    struct gh_span span[GH_SPANS];
    /* The helper's own. A time on the device's clock is counted from `reference`. */
    gh_cu_event reference; /* until the first span is complete, a spare event */
    bool has_reference;
    int64_t reference_ns, offset_ns; /* offset: CLOCK_MONOTONIC less the device's clock */
};

extern struct gh_place gh_places[GH_PLACES];

/* cuda_spans.c */
struct gh_place *gh_place_of(const struct gh_cuda *cu, gh_cu_context context); /* NULL = no room; made if need be */
struct gh_span *gh_span_take(struct gh_place *place);                          /* NULL = none is free */
bool gh_cuda_enter(const struct gh_cuda *cu, gh_cu_context context, bool *pushed);
void gh_cuda_leave(const struct gh_cuda *cu, bool pushed);

/* cuda_helper.c */
void gh_cuda_helper_start(void); /* unless it is there; at most a thread is made */
void gh_cuda_helper_wake(void);  /* there may be something to do */
bool gh_cuda_over(void);         /* the process ends, or is a child of one that used CUDA: touch nothing */
void gh_cuda_helper_forget(void);

/* cuda_drain.c */
void gh_cuda_lane_used(const struct gh_cuda *cu, gh_cu_stream stream, gh_cu_context context, bool whole);
void gh_cuda_lanes_forget(void);

#endif
