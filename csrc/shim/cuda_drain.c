/* SPDX-License-Identifier: Apache-2.0 */
/* Is the work done that this process has put on its streams? Asked when it stands at a boundary (pause.c).
 *
 * A stream that a call once named may be destroyed by now, and to ask about one that is would be a crash of the job.
 * So while a pause is asked for, an event of our own is recorded behind each batch, and the events are asked. Beside
 * them only streams that are sure to be alive: the one named in the call that is being made, and the default stream,
 * which stands for all blocking streams of its context, so for torch's usual compute stream. Other streams of the
 * program that NCCL is not called on are not seen.
 */

#include <time.h>

#include "cuda_events.h"
#include "cuda_spans.h"

#define LANES 64
#define POLL_NS 100000l
#define OPEN_NS 60000000000ll /* a stream that was last used so long ago is not waited for */

static struct lane {
    uint64_t key;          /* of stream, context, thread; 0 = no entry */
    struct gh_span *span;  /* its `end` is used; NULL until there is one, never given back */
    struct gh_place *place; /* to be read once there is a span */
    uint32_t making;
    uint32_t open; /* work was put on it behind which no event stands */
    int64_t used_ns;
} lanes[LANES];
static uint32_t unseen; /* more streams than there is room for */

static uint64_t key_of(gh_cu_stream stream, gh_cu_context context)
{
    static GH_TLS char me; /* the per-thread default stream is another in each thread */
    uint64_t key = gh_hash2((uintptr_t)stream, (uintptr_t)context);
    if (stream == GH_CU_PER_THREAD)
        key = gh_hash2(key, (uintptr_t)&me);
    return key | 1;
}

static struct lane *lane_of(gh_cu_stream stream, gh_cu_context context)
{
    uint64_t key = key_of(stream, context);
    for (unsigned i = 0; i < LANES; i++) {
        uint64_t seen = 0;
        if (__atomic_compare_exchange_n(&lanes[i].key, &seen, key, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
            seen == key)
            return &lanes[i];
    }
    return NULL;
}

static struct gh_span *span_of(const struct gh_cuda *cu, struct lane *lane, gh_cu_context context)
{
    struct gh_span *span = __atomic_load_n(&lane->span, __ATOMIC_ACQUIRE);
    if (span || __atomic_exchange_n(&lane->making, 1, __ATOMIC_ACQUIRE))
        return span;
    struct gh_place *place = gh_place_of(cu, context);
    span = place ? gh_span_take(place) : NULL;
    lane->place = place;
    __atomic_store_n(&lane->span, span, __ATOMIC_RELEASE);
    if (!span)
        __atomic_store_n(&lane->making, 0, __ATOMIC_RELEASE);
    return span;
}

void gh_cuda_lane_used(const struct gh_cuda *cu, gh_cu_stream stream, gh_cu_context context, bool whole)
{
    struct lane *lane = context ? lane_of(stream, context) : NULL;
    bool pushed, good = false;
    if (!lane) {
        __atomic_store_n(&unseen, 1, __ATOMIC_RELAXED);
        return;
    }
    struct gh_span *span = whole ? span_of(cu, lane, context) : NULL;
    if (span && __atomic_load_n(&lane->place->state, __ATOMIC_ACQUIRE) == GH_PLACE_READY &&
        gh_cuda_enter(cu, context, &pushed)) {
        good = cu->record(span->end, stream) == GH_CU_SUCCESS;
        gh_cuda_leave(cu, pushed);
    }
    __atomic_store_n(&lane->used_ns, gh_now_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&lane->open, !good, __ATOMIC_RELEASE);
}

/* ---- asking ---- */

static bool stream_done(const struct gh_cuda *cu, gh_cu_stream stream)
{
    gh_cu_context context;
    bool pushed;
    if (gh_cuda_captured(cu, stream) || !(context = gh_cuda_context(cu, stream)) ||
        !gh_cuda_enter(cu, context, &pushed))
        return false;
    int result = cu->stream_query(stream);
    gh_cuda_leave(cu, pushed);
    return result == GH_CU_SUCCESS;
}

static bool lane_done(const struct gh_cuda *cu, const struct lane *lane)
{
    const struct gh_span *span = __atomic_load_n(&lane->span, __ATOMIC_ACQUIRE);
    bool pushed;
    if (__atomic_load_n(&lane->open, __ATOMIC_ACQUIRE))
        return gh_now_ns() - __atomic_load_n(&lane->used_ns, __ATOMIC_RELAXED) > OPEN_NS;
    if (!span || __atomic_load_n(&lane->place->state, __ATOMIC_ACQUIRE) != GH_PLACE_READY)
        return true; /* nothing yet; or the context is gone, and all work on it */
    if (!gh_cuda_enter(cu, lane->place->context, &pushed))
        return false;
    int result = cu->query(span->end);
    gh_cuda_leave(cu, pushed);
    return result == GH_CU_SUCCESS;
}

static bool lanes_done(const struct gh_cuda *cu)
{
    for (unsigned i = 0; i < LANES && __atomic_load_n(&lanes[i].key, __ATOMIC_ACQUIRE); i++)
        if (!lane_done(cu, &lanes[i]))
            return false;
    return true;
}

static bool done(const struct gh_cuda *cu)
{
    gh_cu_context context = NULL;
    gh_cu_stream now = (gh_cu_stream)(uintptr_t)gh_cuda_at;
    if (cu->context(&context) == GH_CU_SUCCESS && context && !stream_done(cu, GH_CU_LEGACY))
        return false;
    if (now > GH_CU_PER_THREAD && !stream_done(cu, now))
        return false;
    return lanes_done(cu);
}

bool gh_cuda_drained(int64_t until_ns)
{
    const struct gh_cuda *cu = gh_cuda_load();
    const struct timespec step = {0, POLL_NS};
    int mode = GH_CU_MODE_RELAXED;
    gh_cu_context context;
    if (!cu || gh_cuda_over() || cu->context(&context) == GH_CU_NOT_INITIALIZED)
        return true;
    if (__atomic_load_n(&unseen, __ATOMIC_RELAXED))
        return false;
    if (cu->exchange_mode(&mode) != GH_CU_SUCCESS) /* relaxed, or a query could spoil another thread's capture */
        return false;
    bool clean = done(cu);
    while (!clean && gh_now_ns() < until_ns) {
        nanosleep(&step, NULL);
        clean = done(cu);
    }
    cu->exchange_mode(&mode);
    return clean;
}

void gh_cuda_lanes_forget(void)
{
    for (unsigned i = 0; i < LANES; i++)
        lanes[i] = (struct lane){0};
    unseen = 0;
}
