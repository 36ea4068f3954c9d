/* SPDX-License-Identifier: Apache-2.0 */
/* FP32 matrix multiplication as a test of a CPU. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "gemm_kernel.h"
#include "team.h"

#define MOST_EDGE 8192

struct gemm {
    const struct gh_kernel *kernel;
    int64_t edge, stride;
    float *a, *b;
    double *probe, *wanted; /* a b probe = wanted */
    char *own;              /* for each thread a `c` and a scratch, `each` bytes */
    size_t each, c_bytes;
    double checksum;
};

static size_t whole_lines(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Whole numbers from -8 to 7: every product and every sum up to MOST_EDGE of them is exact in a float, in any order. */
static void fill(float *to, int64_t count, uint32_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = (float)(int32_t)(seed >> 28) - 8;
    }
}

/* Freivalds: a b = c is told from a (b x) = c x, in time of the square; one wrong element cannot hide, as no x is 0. */
static void prepare_probe(struct gemm *g)
{
    double *middle = g->wanted + g->edge;
    for (int64_t i = 0; i < g->edge; i++)
        g->probe[i] = (double)(1 + i % 3);
    for (int64_t i = 0; i < g->edge; i++) {
        middle[i] = 0;
        for (int64_t j = 0; j < g->edge; j++)
            middle[i] += g->b[i * g->edge + j] * g->probe[j];
    }
    for (int64_t i = 0; i < g->edge; i++) {
        g->wanted[i] = 0;
        for (int64_t j = 0; j < g->edge; j++)
            g->wanted[i] += g->a[i * g->edge + j] * middle[j];
    }
}

static void step(void *self, unsigned thread)
{
    struct gemm *g = self;
    char *own = g->own + thread * g->each;
    gh_gemm(g->kernel, g->edge, g->a, g->b, (float *)own, own + g->c_bytes);
}

static bool sound(void *self, unsigned thread)
{
    struct gemm *g = self;
    float *c = (float *)(g->own + thread * g->each);
    double checksum = 0;
    bool right = true;
    for (int64_t i = 0; i < g->edge; i++) {
        double sum = 0;
        for (int64_t j = 0; j < g->edge; j++)
            sum += c[i * g->stride + j] * g->probe[j];
        right = right && sum == g->wanted[i];
        checksum += sum;
    }
    if (thread == 0)
        g->checksum = right ? checksum : 0;
    memset(c, 0, g->c_bytes); /* so that the next repeat has to make it again */
    return right;
}

void gh_task_gemm(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out)
{
    int64_t edge = task->arg[GH_TEST_SIZE];
    struct gemm g = {.edge = edge};
    if (!gh_team_asked(task, out))
        return;
    g.kernel = gh_kernel_pick(task->arg[GH_TEST_KERNEL], &out->value[GH_HEAD_KERNEL]);
    if (edge < 1 || edge > MOST_EDGE || !g.kernel) {
        out->status = EINVAL;
        snprintf(out->said, sizeof out->said, "%s", g.kernel ? "edge out of range" : "this CPU has no such kernel");
        return;
    }
    size_t matrix = whole_lines(sizeof(float) * (size_t)(edge * edge));
    size_t vectors = whole_lines(sizeof(double) * 3 * (size_t)edge);
    g.stride = gh_gemm_stride(g.kernel, edge);
    g.c_bytes = whole_lines(sizeof(float) * (size_t)(g.stride * gh_gemm_rows(g.kernel, edge)));
    g.each = whole_lines(g.c_bytes + gh_gemm_scratch(g.kernel, edge));
    size_t bytes = 2 * matrix + vectors + (size_t)task->arg[GH_TEST_THREADS] * g.each;
    char *memory = gh_team_memory(task, bytes, out);
    if (!memory)
        return;
    g.a = (float *)memory;
    g.b = (float *)(memory + matrix);
    g.probe = (double *)(memory + 2 * matrix);
    g.wanted = g.probe + edge;
    g.own = memory + 2 * matrix + vectors;
    fill(g.a, edge * edge, 1);
    fill(g.b, edge * edge, 2);
    prepare_probe(&g);
    struct gh_work work = {step, sound, 2 * edge * edge * edge, &g};
    gh_team_run(task, leave, &work, out);
    out->value[GH_HEAD_CHECKSUM] = (int64_t)g.checksum;
    munmap(memory, bytes);
}
