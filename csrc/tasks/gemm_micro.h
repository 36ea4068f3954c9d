/* SPDX-License-Identifier: Apache-2.0 */
/* One inner kernel: `c` (ROWS x VECS vectors) = or += a strip of `a` times a strip of `b`. Included once for each
 * vector width, with NAME, TARGET, VEC_BYTES, ROWS and VECS defined; so there is no include guard.
 * The sums fill the registers that TARGET has, less VECS for `b` and one for an element of `a`. */

TARGET static void NAME(int64_t depth, const float *a, const float *b, float *c, int64_t stride, bool add)
{
    typedef float vec __attribute__((vector_size(VEC_BYTES)));
    enum { LANES = VEC_BYTES / sizeof(float) };
    vec sum[ROWS][VECS] = {{{0}}};
    for (int64_t k = 0; k < depth; k++, a += ROWS, b += VECS * LANES) {
        vec right[VECS];
#pragma GCC unroll 8
        for (int v = 0; v < VECS; v++)
            right[v] = *(const vec *)(b + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int v = 0; v < VECS; v++)
                sum[r][v] += a[r] * right[v];
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECS; v++) {
            vec *to = (vec *)(c + r * stride + v * LANES);
            *to = add ? *to + sum[r][v] : sum[r][v];
        }
}

#undef NAME
#undef TARGET
#undef VEC_BYTES
#undef ROWS
#undef VECS
