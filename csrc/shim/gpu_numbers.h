/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_GPU_NUMBERS_H
#define GH_GPU_NUMBERS_H

/* What the matrices hold, so that the host knows every element of their product: whole numbers from -3 to 3, which all
 * formats have, in a sequence that repeats. The period is a prime, so rows of a matrix are not alike, and there are
 * no more different elements in a column of a product than that. */

#include "tasks/tasks.h"

#define GH_GPU_PERIOD 4093

void gh_gpu_numbers(int16_t *to, int64_t count, uint32_t seed);
int gh_gpu_bytes(int format); /* of an element */
void gh_gpu_write(void *to, const int16_t *from, int64_t count, int format); /* FP8 is e4m3 */
double gh_gpu_read(const void *from, int64_t at, int format);                /* not of FP8 */

/* Column `j` of the product of a transposed and b, both of `edge` columns of `edge` elements of the two sequences, one
 * column after the other: `edge` numbers. `a` and `b` hold GH_GPU_PERIOD + edge of their sequence. */
void gh_gpu_column(int32_t *to, const int16_t *a, const int16_t *b, int64_t edge, int64_t j);

#endif
