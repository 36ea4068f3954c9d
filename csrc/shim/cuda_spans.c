/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of spans, the side of threads that make calls: no lock, no allocation, no waiting. */

#include "cuda_spans.h"

#define PROBES 4

struct gh_place gh_places[GH_PLACES];

struct gh_place *gh_place_of(const struct gh_cuda *cu, gh_cu_context context)
{
    unsigned long long id = 0;
    if (!context || (cu->context_id && cu->context_id(context, &id) != GH_CU_SUCCESS))
        return NULL;
    for (unsigned i = 0; i < GH_PLACES; i++) {
        struct gh_place *place = &gh_places[i];
        uint32_t state = __atomic_load_n(&place->state, __ATOMIC_ACQUIRE);
        gh_cu_context nothing = NULL;
        if (state == GH_PLACE_NONE &&
            __atomic_compare_exchange_n(&place->context, &nothing, context, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
            place->id = id;
            __atomic_store_n(&place->state, GH_PLACE_NEW, __ATOMIC_RELEASE);
            return place;
        }
        if (state == GH_PLACE_NONE) /* another thread has taken it this moment: there will be another call */
            return NULL;
        if (place->context == context && place->id == id)
            return state == GH_PLACE_DEAD ? NULL : place;
    }
    return NULL;
}

struct gh_span *gh_span_take(struct gh_place *place)
{
    if (__atomic_load_n(&place->state, __ATOMIC_ACQUIRE) != GH_PLACE_READY)
        return NULL;
    for (int i = 0; i < PROBES; i++) {
        uint64_t ticket = __atomic_fetch_add(&place->tickets, 1, __ATOMIC_RELAXED);
        struct gh_span *span = &place->span[ticket % GH_SPANS];
        uint32_t free = GH_SPAN_FREE;
        if (__atomic_compare_exchange_n(&span->state, &free, GH_SPAN_TAKEN, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
            span->ticket = ticket;
            return span;
        }
    }
    return NULL;
}

bool gh_cuda_enter(const struct gh_cuda *cu, gh_cu_context context, bool *pushed)
{
    gh_cu_context current = NULL;
    if (cu->context(&current) != GH_CU_SUCCESS)
        return false;
    *pushed = current != context;
    return !*pushed || cu->push(context) == GH_CU_SUCCESS;
}

void gh_cuda_leave(const struct gh_cuda *cu, bool pushed)
{
    gh_cu_context was;
    if (pushed)
        cu->pop(&was);
}
