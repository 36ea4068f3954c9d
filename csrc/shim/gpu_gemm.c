/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix multiplication as a test of a GPU, by the cuBLASLt that the job has loaded: FP8 e4m3 to BF16, or FP16, BF16 or
 * FP32 to the same; sums in FP32. Square, the first matrix transposed, which is the form that FP8 has on all devices.
 *
 * All sums are whole numbers under 2^24, so exact in FP32 in any order, and a product of FP16, BF16 or FP32 is theirs,
 * rounded once (partial sums in the format of the output are ruled out). FP8 may lose bits on the way
 * (Hopper's tensor cores keep some 14 of a sum), so it has room for that.
 */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cublaslt_api.h"
#include "gpu_bed.h"
#include "gpu_numbers.h"

#define EDGE 8192
#define LEAST_EDGE 1024 /* a smaller one than that does not fill a GPU; only if it was asked for */
#define STEP 16         /* FP8 takes no other edges than multiples of that */
#define WORKSPACE (32ll << 20)
#define SAMPLED_BYTES (16ll << 20) /* of whole columns, in which the first product and the last are compared */
#define ADA 89                     /* the first compute capability with FP8 */
#define FP8_ROOM 0.05              /* of the greatest element */

static const struct format {
    int in, out, element; /* cudaDataType of both, and what an element of the product is read as */
    double rounding;      /* half of a unit in the last place, relative */
    double room;          /* of the greatest element */
    const char *name;
} formats[GH_GPU_FORMATS] = {
    [GH_GPU_FP8] = {GH_LT_R_8F_E4M3, GH_LT_R_16BF, GH_GPU_BF16, 0x1p-8, FP8_ROOM, "FP8"},
    [GH_GPU_FP16] = {GH_LT_R_16F, GH_LT_R_16F, GH_GPU_FP16, 0x1p-11, 0, "FP16"},
    [GH_GPU_BF16] = {GH_LT_R_16BF, GH_LT_R_16BF, GH_GPU_BF16, 0x1p-8, 0, "BF16"},
    [GH_GPU_FP32] = {GH_LT_R_32F, GH_LT_R_32F, GH_GPU_FP32, 0, 0, "FP32"},
};

struct gemm {
    const struct gh_cublaslt *lt;
    const struct format *format;
    int kind;
    int64_t edge;
    gh_lt_handle handle;
    gh_lt_product product;
    gh_lt_layout in, to;
    gh_lt_wish wish;
    struct gh_lt_found found;
    gh_cu_memory a, b, c, workspace;
    int16_t *numbers[2]; /* of a and b */
    int32_t *wanted;
    void *column;
    uint64_t checksum;
};

/* ---- size ---- */

static int64_t need(int64_t edge, int format)
{
    return edge * edge * (2 * gh_gpu_bytes(format) + gh_gpu_bytes(formats[format].element)) + WORKSPACE;
}

int64_t gh_gpu_edge(int64_t edge, int format, int64_t room)
{
    edge = (edge ? edge : EDGE) / STEP * STEP;
    while (need(edge, format) > room && edge / 2 >= LEAST_EDGE)
        edge = edge / 2 / STEP * STEP;
    return need(edge, format) > room ? 0 : edge;
}

static bool known_format(struct gh_gpu *g, int64_t format)
{
    int major = 0, minor = 0;
    if (format <= 0 || format >= GH_GPU_FORMATS)
        return gh_gpu_fail(g, EINVAL, "no such format");
    if (format != GH_GPU_FP8)
        return true;
    if (!gh_gpu_good(g, g->cu->attribute(&major, GH_CU_MAJOR, g->device), "cuDeviceGetAttribute") ||
        !gh_gpu_good(g, g->cu->attribute(&minor, GH_CU_MINOR, g->device), "cuDeviceGetAttribute"))
        return false;
    return 10 * major + minor >= ADA || gh_gpu_fail(g, ENOTSUP, "this GPU has no FP8");
}

/* ---- what cuBLASLt is to do ---- */

static bool good(struct gh_gpu *g, int status, const char *what)
{
    if (status == GH_LT_SUCCESS)
        return true;
    return gh_gpu_fail(g, status == GH_LT_NO_MEMORY ? ENOMEM : EIO, "%s gave cuBLASLt's status %d", what, status);
}

static bool describe(struct gh_gpu *g, struct gemm *m)
{
    const struct gh_cublaslt *lt = m->lt;
    uint64_t n = (uint64_t)m->edge, workspace = WORKSPACE;
    uint32_t reductions = GH_LT_IN_COMPUTE_TYPE;
    int32_t transposed = GH_LT_TRANSPOSED;
    return good(g, gh_cublaslt_handle(lt, g->cu, g->context, &m->handle), "cublasLtCreate") &&
           good(g, lt->product_create(&m->product, GH_LT_COMPUTE_32F, GH_LT_R_32F), "cublasLtMatmulDescCreate") &&
           good(g, lt->product_set(m->product, GH_LT_TRANS_A, &transposed, sizeof transposed),
                "cublasLtMatmulDescSetAttribute") &&
           good(g, lt->layout_create(&m->in, m->format->in, n, n, m->edge), "cublasLtMatrixLayoutCreate") &&
           good(g, lt->layout_create(&m->to, m->format->out, n, n, m->edge), "cublasLtMatrixLayoutCreate") &&
           good(g, lt->wish_create(&m->wish), "cublasLtMatmulPreferenceCreate") &&
           good(g, lt->wish_set(m->wish, GH_LT_WORKSPACE, &workspace, sizeof workspace),
                "cublasLtMatmulPreferenceSetAttribute") &&
           good(g, lt->wish_set(m->wish, GH_LT_REDUCTIONS, &reductions, sizeof reductions),
                "cublasLtMatmulPreferenceSetAttribute");
}

static bool find(struct gh_gpu *g, struct gemm *m)
{
    int found = 0;
    int status = m->lt->find(m->handle, m->product, m->in, m->in, m->to, m->to, m->wish, 1, &m->found, &found);
    if (status == GH_LT_NO_MEMORY)
        return good(g, status, "cublasLtMatmulAlgoGetHeuristic");
    if (status != GH_LT_SUCCESS || found < 1 || m->found.status != GH_LT_SUCCESS ||
        m->found.workspace > (size_t)WORKSPACE)
        return gh_gpu_fail(g, ENOTSUP, "cuBLASLt knows no way to multiply %s here", m->format->name);
    return true;
}

/* ---- matrices ---- */

static bool fill(struct gh_gpu *g, gh_cu_memory to, const int16_t *numbers, int64_t count, int format)
{
    char pattern[4 * GH_GPU_PERIOD];
    size_t all = (size_t)(count * gh_gpu_bytes(format)), filled = (size_t)(GH_GPU_PERIOD * gh_gpu_bytes(format));
    gh_gpu_write(pattern, numbers, GH_GPU_PERIOD, format);
    filled = filled < all ? filled : all;
    if (!gh_gpu_good(g, g->cu->put_on(to, pattern, filled, g->stream), "cuMemcpyHtoDAsync") || !gh_gpu_wait(g, NULL))
        return false;
    while (filled < all) {
        size_t more = filled < all - filled ? filled : all - filled;
        if (!gh_gpu_good(g, g->cu->copy_on(to + filled, to, more, g->stream), "cuMemcpyDtoDAsync"))
            return false;
        filled += more;
    }
    return true;
}

static bool prepare(struct gh_gpu *g, struct gemm *m)
{
    int64_t elements = m->edge * m->edge, in = elements * gh_gpu_bytes(m->kind);
    int64_t out = elements * gh_gpu_bytes(m->format->element), numbers = GH_GPU_PERIOD + m->edge;
    for (int i = 0; i < 2; i++)
        m->numbers[i] = malloc((size_t)numbers * sizeof **m->numbers);
    m->wanted = malloc((size_t)m->edge * sizeof *m->wanted);
    m->column = malloc((size_t)(m->edge * 4));
    if (!m->numbers[0] || !m->numbers[1] || !m->wanted || !m->column)
        return gh_gpu_fail(g, ENOMEM, "the system gave no memory");
    for (int i = 0; i < 2; i++)
        gh_gpu_numbers(m->numbers[i], numbers, (uint32_t)i + 1);
    return gh_gpu_ready(g) && (m->a = gh_gpu_take(g, in)) && (m->b = gh_gpu_take(g, in)) &&
           (m->c = gh_gpu_take(g, out)) && (m->workspace = gh_gpu_take(g, WORKSPACE)) &&
           fill(g, m->a, m->numbers[0], elements, m->kind) && fill(g, m->b, m->numbers[1], elements, m->kind);
}

/* ---- the work ---- */

static bool step(struct gh_gpu *g, void *self)
{
    const struct gemm *m = self;
    const float one = 1, zero = 0;
    void *a = (void *)(uintptr_t)m->a, *b = (void *)(uintptr_t)m->b, *c = (void *)(uintptr_t)m->c;
    return good(g, m->lt->multiply(m->handle, m->product, &one, a, m->in, b, m->in, &zero, c, m->to, c, m->to,
                                   &m->found.algorithm, (void *)(uintptr_t)m->workspace, (size_t)WORKSPACE, g->stream),
                "cublasLtMatmul");
}

static bool spoil(struct gh_gpu *g, void *self)
{
    const struct gemm *m = self;
    size_t words = (size_t)(m->edge * m->edge * gh_gpu_bytes(m->format->element) / 4);
    return gh_gpu_good(g, g->cu->set_on(m->c, UINT32_MAX, words, g->stream), "cuMemsetD32Async"); /* no numbers */
}

static bool get_column(struct gh_gpu *g, struct gemm *m, int64_t j)
{
    size_t bytes = (size_t)(m->edge * gh_gpu_bytes(m->format->element));
    return gh_gpu_good(g, g->cu->get_on(m->column, m->c + (gh_cu_memory)j * bytes, bytes, g->stream),
                       "cuMemcpyDtoHAsync") &&
           gh_gpu_wait(g, NULL);
}

static bool exact(struct gh_gpu *g, struct gemm *m, int64_t j)
{
    double greatest = 0;
    if (!get_column(g, m, j))
        return false;
    gh_gpu_column(m->wanted, m->numbers[0], m->numbers[1], m->edge, j);
    for (int64_t i = 0; i < m->edge; i++)
        greatest = fmax(greatest, fabs((double)m->wanted[i]));
    for (int64_t i = 0; i < m->edge; i++) {
        double wanted = m->wanted[i], off = fabs(gh_gpu_read(m->column, i, m->format->element) - wanted);
        if (!(off <= m->format->rounding * fabs(wanted) + m->format->room * greatest))
            return gh_gpu_fail(g, EBADMSG, "a product was wrong");
    }
    return true;
}

/* Columns over all of the matrix. */
static bool sample(struct gh_gpu *g, struct gemm *m, uint64_t *checksum)
{
    int64_t bytes = m->edge * gh_gpu_bytes(m->format->element), columns = SAMPLED_BYTES / bytes;
    int64_t stride = columns < m->edge ? m->edge / columns : 1;
    *checksum = 0;
    for (int64_t j = 0; j < m->edge; j += stride) {
        const uint64_t *words = m->column;
        if (!get_column(g, m, j) || !gh_gpu_stands(g))
            return false;
        for (int64_t i = 0; i < bytes / 8; i++)
            *checksum = (*checksum ^ words[i]) * 0x9e3779b97f4a7c15ull;
    }
    return true;
}

static bool right(struct gh_gpu *g, void *self, bool last)
{
    struct gemm *m = self;
    uint64_t now;
    if (!last)
        return exact(g, m, m->edge / 3) && exact(g, m, m->edge - 1) && sample(g, m, &m->checksum);
    if (!sample(g, m, &now))
        return false;
    return now == m->checksum || gh_gpu_fail(g, EBADMSG, "the last product was not the first");
}

static void forget(struct gemm *m)
{
    if (m->wish)
        m->lt->wish_destroy(m->wish);
    if (m->to)
        m->lt->layout_destroy(m->to);
    if (m->in)
        m->lt->layout_destroy(m->in);
    if (m->product)
        m->lt->product_destroy(m->product);
    free(m->column);
    free(m->wanted);
    free(m->numbers[0]);
    free(m->numbers[1]);
}

void gh_gpu_gemm(struct gh_gpu *g, const struct gh_task *task)
{
    int64_t format = task->arg[GH_TEST_KERNEL];
    struct gemm m = {.lt = gh_cublaslt_loaded()};
    if (!m.lt) {
        gh_gpu_fail(g, ENOSYS, "the job has no cuBLASLt loaded");
        return;
    }
    if (!known_format(g, format))
        return;
    m.kind = (int)format;
    m.format = &formats[format];
    m.edge = gh_gpu_edge(task->arg[GH_TEST_SIZE], m.kind, g->room);
    g->out->value[GH_HEAD_KERNEL] = format;
    g->out->value[GH_HEAD_SIZE] = m.edge;
    if (!m.edge) {
        gh_gpu_fail(g, ENOMEM, "the test would take over half of the GPU's memory that is left");
        return;
    }
    struct gh_gpu_work work = {step, spoil, right, 2 * m.edge * m.edge * m.edge, &m};
    if (describe(g, &m) && find(g, &m) && prepare(g, &m))
        gh_gpu_windows(g, task, &work);
    g->out->value[GH_HEAD_CHECKSUM] = (int64_t)(m.checksum >> 1);
    forget(&m);
}
