/* SPDX-License-Identifier: Apache-2.0 */
/* Bandwidth of a GPU's memory: copies of one array to another on the same device. Both directions are counted. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_bed.h"
#include "gpu_numbers.h"

#define BYTES (2ll << 30) /* of both arrays together */
#define LEAST_BYTES (256ll << 20) /* no less, unless it was asked for: a cache would hold it */
#define LOOKS 64
#define LOOK_BYTES 65536

struct copy {
    int64_t bytes; /* of an array */
    gh_cu_memory from, to;
    float *numbers; /* what the source holds, twice the period and more */
    char *seen;
};

#define NUMBERS (GH_GPU_PERIOD + LOOK_BYTES / 4)

static bool fill(struct gh_gpu *g, const struct copy *c)
{
    size_t all = (size_t)c->bytes, filled = 4 * GH_GPU_PERIOD;
    filled = filled < all ? filled : all;
    if (!gh_gpu_good(g, g->cu->put_on(c->from, c->numbers, filled, g->stream), "cuMemcpyHtoDAsync") ||
        !gh_gpu_wait(g, NULL))
        return false;
    while (filled < all) {
        size_t more = filled < all - filled ? filled : all - filled;
        if (!gh_gpu_good(g, g->cu->copy_on(c->from + filled, c->from, more, g->stream), "cuMemcpyDtoDAsync"))
            return false;
        filled += more;
    }
    return true;
}

static bool prepare(struct gh_gpu *g, struct copy *c)
{
    int16_t *numbers = malloc(NUMBERS * sizeof *numbers);
    c->numbers = malloc(NUMBERS * sizeof *c->numbers);
    c->seen = malloc(LOOK_BYTES);
    if (!numbers || !c->numbers || !c->seen) {
        free(numbers);
        return gh_gpu_fail(g, ENOMEM, "the system gave no memory");
    }
    gh_gpu_numbers(numbers, NUMBERS, 1);
    gh_gpu_write(c->numbers, numbers, NUMBERS, GH_GPU_FP32);
    free(numbers);
    return gh_gpu_ready(g) && (c->from = gh_gpu_take(g, c->bytes)) && (c->to = gh_gpu_take(g, c->bytes)) &&
           fill(g, c);
}

static bool step(struct gh_gpu *g, void *self)
{
    const struct copy *c = self;
    return gh_gpu_good(g, g->cu->copy_on(c->to, c->from, (size_t)c->bytes, g->stream), "cuMemcpyDtoDAsync");
}

static bool spoil(struct gh_gpu *g, void *self)
{
    const struct copy *c = self;
    return gh_gpu_good(g, g->cu->set_on(c->to, UINT32_MAX, (size_t)c->bytes / 4, g->stream), "cuMemsetD32Async");
}

static bool right(struct gh_gpu *g, void *self, bool last)
{
    const struct copy *c = self;
    int64_t stride = c->bytes / LOOKS / 4 * 4;
    (void)last;
    for (int64_t at = 0; at < c->bytes; at += stride) {
        size_t bytes = (size_t)(c->bytes - at < LOOK_BYTES ? c->bytes - at : LOOK_BYTES);
        if (!gh_gpu_good(g, g->cu->get_on(c->seen, c->to + (gh_cu_memory)at, bytes, g->stream), "cuMemcpyDtoHAsync") ||
            !gh_gpu_wait(g, NULL) || !gh_gpu_stands(g))
            return false;
        if (memcmp(c->seen, c->numbers + at / 4 % GH_GPU_PERIOD, bytes))
            return gh_gpu_fail(g, EBADMSG, "a copy was wrong");
    }
    return true;
}

void gh_gpu_copy(struct gh_gpu *g, const struct gh_task *task)
{
    int64_t asked = task->arg[GH_TEST_SIZE], both = asked ? asked : BYTES;
    while (both > g->room && both / 2 >= LEAST_BYTES)
        both /= 2;
    struct copy c = {.bytes = both / 2 / 1024 * 1024};
    g->out->value[GH_HEAD_SIZE] = 2 * c.bytes;
    if (!c.bytes || both > g->room) {
        gh_gpu_fail(g, c.bytes ? ENOMEM : EINVAL, "%s", c.bytes ? "the test would take over half of the GPU's memory "
                                                                  "that is left" : "size out of range");
        return;
    }
    struct gh_gpu_work work = {step, spoil, right, 2 * c.bytes, &c};
    if (prepare(g, &c))
        gh_gpu_windows(g, task, &work);
    free(c.numbers);
    free(c.seen);
}
