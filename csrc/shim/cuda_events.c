/* SPDX-License-Identifier: Apache-2.0 */
/* Recording events around what NCCL launches, on the thread that calls: no lock, no allocation, nothing that waits.
 *
 * Which call is a span the duration of? A call that is alone on its communicator and its stream has it to itself.
 * Collectives of one kind on one communicator are fused by the library and end together: one row with the number of
 * the first and the bytes of all. Sends to and receives from every rank are an all-to-all. Anything else in one group
 * cannot be told apart (a send that shares its kernel with a receive takes as long as the later peer of both): one
 * row, marked invalid, with the number of the first call.
 */

#include "cuda_events.h"

#include <stdlib.h>

#include "control_shim.h"
#include "cuda_spans.h"

#define LANES 8 /* streams of one batch; what is on others is not timed */

struct lane {
    gh_cu_stream stream;
    gh_cu_context context; /* of a default stream, as at the call: the thread may change it before the group ends */
    struct gh_call call;   /* the first one, with the bytes of those it was fused with */
    struct gh_span *span;
    int64_t seq, sent, send_sum, recv_sum;
    int size, calls, sends, recvs;
    bool apart, sampled, captured, full, elsewhere; /* apart: not one execution */
};

static GH_TLS struct batch {
    int n, calls;
    int64_t before_ns;
    struct lane lane[LANES];
} batch;

GH_TLS uint64_t gh_cuda_at;
uint32_t gh_cuda_every = 1;

bool gh_cuda_watching(void)
{
    return gh_control_pausing() || gh_profiling();
}

/* ---- what is in the batch ---- */

static bool is_pair(const struct gh_call *c)
{
    return c->op == GH_OP_SEND || c->op == GH_OP_RECV;
}

static void count_pair(struct lane *l, const struct gh_call *c)
{
    int64_t square = (int64_t)c->peer * c->peer + c->peer; /* of all ranks there is one sum of these */
    if (c->op == GH_OP_SEND) {
        l->sends++;
        l->sent += c->bytes;
        l->send_sum += square;
    } else if (c->op == GH_OP_RECV) {
        l->recvs++;
        l->recv_sum += square;
    }
}

static void add_to(struct lane *l, const struct gh_call *c)
{
    l->calls++;
    count_pair(l, c);
    if (c->comm != l->call.comm || !c->comm) {
        l->apart = true;
    } else if (!is_pair(c) || !is_pair(&l->call)) {
        if (c->op != l->call.op || c->peer != l->call.peer || c->op == GH_OP_PUT_SIGNAL ||
            c->op == GH_OP_WAIT_SIGNAL)
            l->apart = true;
        l->call.bytes += c->bytes;
        l->call.flags |= c->flags & GH_FLAG_BYTES_UNKNOWN;
        if (c->dtype != l->call.dtype)
            l->call.dtype = GH_DT_UNKNOWN;
    }
}

/* A group of sends and receives is one execution only if it is an all-to-all. */
static void settle(struct lane *l)
{
    if (l->apart || l->calls == 1 || !is_pair(&l->call))
        return;
    int64_t n = l->size, all = (n - 1) * n * (2 * n - 1) / 6 + n * (n - 1) / 2;
    l->apart = n < 3 || l->sends != n || l->recvs != n || l->send_sum != all || l->recv_sum != all;
    if (!l->apart) {
        l->call.op = GH_OP_ALL_TO_ALL;
        l->call.bytes = l->sent;
        l->call.peer = -1;
    }
}

/* A default stream is one of the current context, and the library launches on the communicator's device. */
static bool is_elsewhere(const struct gh_cuda *cu, gh_cu_stream stream, int device)
{
    int current;
    return stream <= GH_CU_PER_THREAD && (cu->device(&current) != GH_CU_SUCCESS || current != device);
}

void gh_cuda_call(const struct gh_call *call, int64_t seq, const struct gh_cuda_comm *comm)
{
    gh_cu_stream stream = (gh_cu_stream)(uintptr_t)call->lane;
    gh_cu_context context = NULL;
    const struct gh_cuda *cu = gh_cuda_loaded();
    struct lane *found = NULL;
    if (gh_cuda_over())
        return;
    gh_cuda_helper_start();
    gh_cuda_helper_wake();
    if (!cu)
        return;
    batch.calls++;
    if (stream <= GH_CU_PER_THREAD)
        context = gh_cuda_context(cu, stream);
    for (int i = 0; i < batch.n; i++) {
        struct lane *l = &batch.lane[i];
        if (l->stream == stream && l->context == context)
            found = l;
        else if (l->call.comm == call->comm)
            l->apart = true; /* the library joins the streams of one communicator */
    }
    if (found) {
        add_to(found, call);
        return;
    }
    if (batch.n == LANES)
        return;
    struct lane *l = &batch.lane[batch.n++];
    *l = (struct lane){.stream = stream, .context = context, .call = *call, .seq = seq, .size = comm->size,
                       .calls = 1, .sampled = comm->sampled};
    l->apart = l->elsewhere = is_elsewhere(cu, stream, comm->device);
    for (int i = 0; i < batch.n - 1; i++)
        l->apart |= batch.lane[i].call.comm == call->comm;
    count_pair(l, call);
}

/* ---- around the launch ---- */

static void begin(const struct gh_cuda *cu, struct lane *l)
{
    bool pushed;
    l->captured = gh_cuda_captured(cu, l->stream);
    if (l->captured || (!l->context && !(l->context = gh_cuda_context(cu, l->stream))))
        return;
    struct gh_place *place = gh_place_of(cu, l->context);
    if (!place || !gh_profiling() || !l->sampled || l->seq < 0)
        return;
    settle(l);
    if (l->apart)
        return;
    l->span = gh_span_take(place);
    l->full = !l->span && __atomic_load_n(&place->state, __ATOMIC_RELAXED) == GH_PLACE_READY;
    if (!l->span)
        return;
    bool good = gh_cuda_enter(cu, l->context, &pushed);
    if (good) {
        good = cu->record(l->span->begin, l->stream) == GH_CU_SUCCESS;
        gh_cuda_leave(cu, pushed);
    }
    if (!good) {
        __atomic_store_n(&l->span->state, GH_SPAN_FREE, __ATOMIC_RELEASE);
        l->span = NULL;
    }
}

void gh_cuda_launch(int calls)
{
    const struct gh_cuda *cu = gh_cuda_loaded();
    if (batch.calls != calls) /* asked for in the middle of a group: its first calls are not known */
        gh_cuda_cancel();
    if (!batch.n || !cu || gh_cuda_over())
        return;
    batch.before_ns = gh_now_ns();
    for (int i = 0; i < batch.n; i++)
        begin(cu, &batch.lane[i]);
}

static bool record_end(const struct gh_cuda *cu, const struct lane *l)
{
    bool pushed;
    if (!gh_cuda_enter(cu, l->context, &pushed))
        return false;
    bool good = cu->record(l->span->end, l->stream) == GH_CU_SUCCESS;
    gh_cuda_leave(cu, pushed);
    return good;
}

static void end(const struct gh_cuda *cu, struct lane *l, bool whole, int64_t now_ns)
{
    bool timed = false;
    if (l->span) {
        struct gh_span *span = l->span;
        timed = whole && record_end(cu, l);
        span->call = l->call;
        __atomic_store_n(&span->comm, l->call.comm, __ATOMIC_RELAXED);
        span->seq = l->seq;
        span->before_ns = batch.before_ns;
        span->after_ns = now_ns;
        __atomic_store_n(&span->dropped, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&span->state, timed ? GH_SPAN_RECORDED : GH_SPAN_FREE, __ATOMIC_RELEASE);
    }
    /* A row for each duration that was asked for and is not to be had. */
    if (!timed && l->sampled && l->seq >= 0 && (l->span || l->apart || l->full || l->captured) && gh_profiling()) {
        l->call.flags |= l->captured ? GH_FLAG_CAPTURE : 0;
        gh_exec_timed(&l->call, l->seq, batch.before_ns, -1);
    }
    if (gh_control_pausing() && !l->captured)
        gh_cuda_lane_used(cu, l->stream, l->context, whole && !l->elsewhere);
}

void gh_cuda_launched(bool whole)
{
    const struct gh_cuda *cu = gh_cuda_loaded();
    if (batch.n && cu && !gh_cuda_over()) {
        int64_t now_ns = gh_now_ns();
        for (int i = 0; i < batch.n; i++)
            end(cu, &batch.lane[i], whole, now_ns);
        gh_cuda_helper_wake();
    }
    gh_cuda_cancel();
}

void gh_cuda_cancel(void)
{
    batch.n = batch.calls = 0;
}

/* ---- all of it ---- */

void gh_cuda_prepare(void)
{
    const char *given = getenv("GHT_PROFILE_EVERY");
    unsigned long every = given ? strtoul(given, NULL, 10) : 1;
    gh_cuda_every = every >= 1 && every <= UINT32_MAX ? (uint32_t)every : 1;
}

void gh_cuda_drop_comm(uint64_t comm)
{
    for (unsigned i = 0; i < GH_PLACES; i++) {
        if (__atomic_load_n(&gh_places[i].state, __ATOMIC_ACQUIRE) == GH_PLACE_NONE)
            return;
        for (unsigned k = 0; k < GH_SPANS; k++) {
            struct gh_span *span = &gh_places[i].span[k];
            if (__atomic_load_n(&span->state, __ATOMIC_ACQUIRE) == GH_SPAN_RECORDED &&
                __atomic_load_n(&span->comm, __ATOMIC_RELAXED) == comm)
                __atomic_store_n(&span->dropped, 1, __ATOMIC_RELAXED);
        }
    }
}

void gh_cuda_forget(void)
{
    gh_cuda_cancel();
    gh_cuda_helper_forget();
    gh_cuda_lanes_forget();
    gh_cuda_api_forget();
    for (unsigned i = 0; i < GH_PLACES && gh_places[i].state != GH_PLACE_NONE; i++) {
        for (unsigned k = 0; k < GH_SPANS; k++)
            gh_places[i].span[k].state = GH_SPAN_EMPTY;
        gh_places[i].context = NULL;
        gh_places[i].state = GH_PLACE_NONE;
    }
}
