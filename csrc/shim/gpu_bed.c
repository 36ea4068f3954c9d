/* SPDX-License-Identifier: Apache-2.0 */
/* Taking and giving back what the tests of a GPU need. */

#include "gpu_bed.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "cuda_events.h"
#include "cuda_spans.h"

#define POLL_NS 50000l
#define SETTLE_NS 100000000ll /* after the end of the leave, for what is on the stream already */

bool gh_gpu_fail(struct gh_gpu *g, int status, const char *format, ...)
{
    if (!g->out->status) {
        va_list args;
        va_start(args, format);
        vsnprintf(g->out->said, sizeof g->out->said, format, args);
        va_end(args);
        g->out->status = status;
    }
    return false;
}

bool gh_gpu_good(struct gh_gpu *g, int result, const char *what)
{
    if (result == GH_CU_SUCCESS)
        return true;
    if (result == GH_CU_OUT_OF_MEMORY)
        return gh_gpu_fail(g, ENOMEM, "the GPU has no memory left (%s)", what);
    return gh_gpu_fail(g, EIO, "%s gave CUDA's error %d", what, result);
}

bool gh_gpu_stands(struct gh_gpu *g)
{
    bool stands = g->leave->stands(g->leave->self) && !gh_cuda_over();
    return stands || gh_gpu_fail(g, ECANCELED, "the time given was over");
}

/* ---- the context ---- */

static bool whole(const struct gh_cuda *cu)
{
    return cu->mem_info && cu->put_on && cu->get_on && cu->set_on && cu->copy_on && cu->stream_create &&
           cu->stream_destroy && cu->pool_create && cu->pool_destroy && cu->alloc_on && cu->free_on && cu->attribute &&
           cu->name && cu->uuid && cu->pci;
}

static bool find_context(struct gh_gpu *g, gh_cu_stream stream)
{
    g->cu = gh_cuda_load();
    if (!g->cu || gh_cuda_over())
        return gh_gpu_fail(g, ENODEV, "CUDA is not in use in this process");
    if (!whole(g->cu))
        return gh_gpu_fail(g, ENODEV, "this driver is too old: CUDA 11.2 is needed");
    g->mode = GH_CU_MODE_RELAXED;
    g->relaxed = g->cu->exchange_mode(&g->mode) == GH_CU_SUCCESS;
    g->context = g->relaxed ? gh_cuda_context(g->cu, stream) : NULL;
    g->entered = g->context && gh_cuda_enter(g->cu, g->context, &g->pushed);
    return g->entered || gh_gpu_fail(g, ENODEV, "this thread of the rank uses no GPU");
}

bool gh_gpu_enter(struct gh_gpu *g, int64_t together)
{
    gh_cu_stream stream = (gh_cu_stream)(uintptr_t)gh_cuda_at;
    size_t unused = 0, total;
    if (!find_context(g, stream))
        return false;
    if (gh_cuda_captured(g->cu, stream) || gh_cuda_captured(g->cu, GH_CU_LEGACY))
        return gh_gpu_fail(g, EBUSY, "a stream is being captured into a graph");
    if (!gh_gpu_good(g, g->cu->device(&g->device), "cuCtxGetDevice") ||
        !gh_gpu_good(g, g->cu->mem_info(&unused, &total), "cuMemGetInfo"))
        return false;
    g->room = (int64_t)(unused / 2) / (together > 1 ? together : 1);
    return true;
}

/* ---- stream, memory, events ---- */

static gh_cu_event *event_at(struct gh_gpu *g, unsigned i)
{
    return i == 0 ? &g->begin : i == 1 ? &g->end : &g->batch[i - 2];
}

bool gh_gpu_ready(struct gh_gpu *g)
{
    struct gh_cu_pool_is is = {.kind = 1, .where = 1, .device = g->device};
    int pools = 0;
    if (!gh_gpu_good(g, g->cu->attribute(&pools, GH_CU_POOLS, g->device), "cuDeviceGetAttribute"))
        return false;
    if (!pools)
        return gh_gpu_fail(g, ENOTSUP, "this GPU has no pools of memory");
    if (!gh_gpu_good(g, g->cu->stream_create(&g->stream, GH_CU_NON_BLOCKING), "cuStreamCreate")) {
        g->stream = NULL;
        return false;
    }
    if (!gh_gpu_good(g, g->cu->pool_create(&g->pool, &is), "cuMemPoolCreate")) {
        g->pool = NULL;
        return false;
    }
    for (unsigned i = 0; i < 2 + GH_GPU_DEPTH; i++)
        if (!gh_gpu_good(g, g->cu->create(event_at(g, i), 0), "cuEventCreate")) {
            *event_at(g, i) = NULL;
            return false;
        }
    return true;
}

gh_cu_memory gh_gpu_take(struct gh_gpu *g, int64_t bytes)
{
    gh_cu_memory at = 0;
    if (g->buffers == GH_GPU_BUFFERS || bytes > g->room) {
        gh_gpu_fail(g, ENOMEM, "the test would take over half of the GPU's memory that is left");
        return 0;
    }
    if (!gh_gpu_good(g, g->cu->alloc_on(&at, (size_t)bytes, g->pool, g->stream), "cuMemAllocFromPoolAsync"))
        return 0;
    g->room -= bytes;
    g->buffer[g->buffers++] = at;
    return at;
}

bool gh_gpu_wait(struct gh_gpu *g, gh_cu_event event)
{
    const struct timespec step = {0, POLL_NS};
    for (;;) {
        int result = event ? g->cu->query(event) : g->cu->stream_query(g->stream);
        if (result != GH_CU_NOT_READY)
            return gh_gpu_good(g, result, event ? "cuEventQuery" : "cuStreamQuery");
        if (!gh_gpu_stands(g))
            return false;
        nanosleep(&step, NULL);
    }
}

/* The job is to find the device as quiet as it left it, and its memory given back; but it does not wait for one that
 * hangs. */
static void settle(struct gh_gpu *g)
{
    const struct timespec step = {0, POLL_NS};
    int64_t until = gh_now_ns() + SETTLE_NS;
    while (g->cu->stream_query(g->stream) == GH_CU_NOT_READY && gh_now_ns() < until)
        nanosleep(&step, NULL);
}

void gh_gpu_close(struct gh_gpu *g)
{
    for (unsigned i = 0; i < g->buffers; i++)
        g->cu->free_on(g->buffer[i], g->stream);
    if (g->stream)
        settle(g);
    for (unsigned i = 0; i < 2 + GH_GPU_DEPTH; i++)
        if (*event_at(g, i))
            g->cu->destroy(*event_at(g, i));
    if (g->pool)
        g->cu->pool_destroy(g->pool);
    if (g->stream)
        g->cu->stream_destroy(g->stream);
    if (g->entered)
        gh_cuda_leave(g->cu, g->pushed);
    if (g->relaxed)
        g->cu->exchange_mode(&g->mode);
}
