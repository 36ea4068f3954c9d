/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_GEMM_KERNEL_H
#define GH_GEMM_KERNEL_H

/* c = a b for square matrices of floats, row by row. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gh_kernel {
    const char *name;
    int rows, cols; /* of the tile that one call of `inner` makes */
    void (*inner)(int64_t depth, const float *a, const float *b, float *c, int64_t stride, bool add);
};

/* The kernel with that number: 0 the best for this CPU, 1 plain, 2 AVX2 with FMA, 3 AVX-512. NULL if this CPU
 * cannot run it. `number` receives which it is. */
const struct gh_kernel *gh_kernel_pick(int64_t wanted, int64_t *number);

/* Floats from one row of `c` to the next, and rows of `c`: whole tiles. */
int64_t gh_gemm_stride(const struct gh_kernel *kernel, int64_t edge);
int64_t gh_gemm_rows(const struct gh_kernel *kernel, int64_t edge);

/* Bytes of working memory of one gh_gemm at a time. */
size_t gh_gemm_scratch(const struct gh_kernel *kernel, int64_t edge);

/* `c` (gh_gemm_rows by gh_gemm_stride) and `scratch` begin at 64 bytes. */
void gh_gemm(const struct gh_kernel *kernel, int64_t edge, const float *a, const float *b, float *c, void *scratch);

#endif
