/* SPDX-License-Identifier: Apache-2.0 */
/* Blocked as in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): a block of `b`
 * is packed into strips as wide as a tile, a block of `a` that fits the second-level cache into strips as high as one. */

#include "gemm_kernel.h"

#define DEPTH 256  /* of a block, elements */
#define BLOCK_A 192 /* its rows; whole tiles of every kernel */
#define BLOCK_B 2048 /* its columns; the same */

#define NAME inner_plain
#define TARGET
#define VEC_BYTES 16
#define ROWS 4
#define VECS 2
#include "gemm_micro.h"

#if defined __x86_64__
#define NAME inner_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define VEC_BYTES 32
#define ROWS 6
#define VECS 2
#include "gemm_micro.h"

#define NAME inner_avx512
#define TARGET __attribute__((target("avx512f")))
#define VEC_BYTES 64
#define ROWS 12
#define VECS 2
#include "gemm_micro.h"
#endif

static const struct gh_kernel kernels[] = {
    {"plain", 4, 8, inner_plain},
#if defined __x86_64__
    {"avx2", 6, 16, inner_avx2},
    {"avx512", 12, 32, inner_avx512},
#endif
};

static bool can_run(int64_t number)
{
#if defined __x86_64__
    __builtin_cpu_init();
    if (number == 2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (number == 3)
        return __builtin_cpu_supports("avx512f");
#endif
    return number == 1;
}

const struct gh_kernel *gh_kernel_pick(int64_t wanted, int64_t *number)
{
    int64_t last = sizeof kernels / sizeof *kernels;
    if (wanted < 0 || wanted > last || (wanted && !can_run(wanted)))
        return NULL;
    while (!wanted && !can_run(last))
        last--;
    *number = wanted ? wanted : last;
    return &kernels[*number - 1];
}

static int64_t round_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t gh_gemm_stride(const struct gh_kernel *kernel, int64_t edge)
{
    return round_up(round_up(edge, kernel->cols), 16); /* rows begin at 64 bytes */
}

int64_t gh_gemm_rows(const struct gh_kernel *kernel, int64_t edge)
{
    return round_up(edge, kernel->rows);
}

size_t gh_gemm_scratch(const struct gh_kernel *kernel, int64_t edge)
{
    return sizeof(float) * DEPTH * (size_t)(BLOCK_A + least(BLOCK_B, gh_gemm_stride(kernel, edge)));
}

/* Rows [top, top + high) of `a`, columns [left, left + deep): strips of `tile` rows, column by column, zeros below. */
static void pack_rows(const float *a, int64_t edge, int64_t top, int64_t high, int64_t left, int64_t deep, int tile,
                      float *to)
{
    for (int64_t strip = 0; strip < high; strip += tile)
        for (int64_t k = 0; k < deep; k++)
            for (int r = 0; r < tile; r++)
                *to++ = strip + r < high ? a[(top + strip + r) * edge + left + k] : 0;
}

/* Rows [top, top + deep) of `b`, columns [left, left + wide): strips of `tile` columns, row by row, zeros beside. */
static void pack_columns(const float *b, int64_t edge, int64_t top, int64_t deep, int64_t left, int64_t wide, int tile,
                         float *to)
{
    for (int64_t strip = 0; strip < wide; strip += tile)
        for (int64_t k = 0; k < deep; k++) {
            const float *from = b + (top + k) * edge + left + strip;
            for (int c = 0; c < tile; c++)
                *to++ = strip + c < wide ? from[c] : 0;
        }
}

void gh_gemm(const struct gh_kernel *kernel, int64_t edge, const float *a, const float *b, float *c, void *scratch)
{
    int64_t stride = gh_gemm_stride(kernel, edge);
    float *block_a = scratch, *block_b = block_a + DEPTH * BLOCK_A;
    for (int64_t left = 0; left < edge; left += BLOCK_B) {
        int64_t wide = least(BLOCK_B, edge - left);
        for (int64_t at = 0; at < edge; at += DEPTH) {
            int64_t deep = least(DEPTH, edge - at);
            pack_columns(b, edge, at, deep, left, wide, kernel->cols, block_b);
            for (int64_t top = 0; top < edge; top += BLOCK_A) {
                int64_t high = least(BLOCK_A, edge - top);
                pack_rows(a, edge, top, high, at, deep, kernel->rows, block_a);
                for (int64_t col = 0; col < wide; col += kernel->cols)
                    for (int64_t row = 0; row < high; row += kernel->rows)
                        kernel->inner(deep, block_a + row * deep, block_b + col * deep,
                                      c + (top + row) * stride + left + col, stride, at > 0);
            }
        }
    }
}
