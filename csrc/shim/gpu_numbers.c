/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in the GPU's formats, and what their product is to be. */

#include "gpu_numbers.h"

#include <math.h>
#include <string.h>

void gh_gpu_numbers(int16_t *to, int64_t count, uint32_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        if (i >= GH_GPU_PERIOD) {
            to[i] = to[i - GH_GPU_PERIOD];
            continue;
        }
        seed = seed * 1664525u + 1013904223u;
        to[i] = (int16_t)((seed >> 16) % 7) - 3;
    }
}

int gh_gpu_bytes(int format)
{
    return format == GH_GPU_FP8 ? 1 : format == GH_GPU_FP32 ? 4 : 2;
}

void gh_gpu_write(void *to, const int16_t *from, int64_t count, int format)
{
    static const uint8_t fp8[] = {0, 0x38, 0x40, 0x44}; /* 0 to 3; the highest bit is the sign */
    static const uint16_t fp16[] = {0, 0x3c00, 0x4000, 0x4200}, bf16[] = {0, 0x3f80, 0x4000, 0x4040};
    for (int64_t i = 0; i < count; i++) {
        int sign = from[i] < 0, size = sign ? -from[i] : from[i];
        if (format == GH_GPU_FP8)
            ((uint8_t *)to)[i] = (uint8_t)(fp8[size] | sign << 7);
        else if (format == GH_GPU_FP32)
            ((float *)to)[i] = from[i];
        else
            ((uint16_t *)to)[i] = (uint16_t)((format == GH_GPU_FP16 ? fp16 : bf16)[size] | sign << 15);
    }
}

static double half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, rest = bits & 1023;
    double size = exponent == 31 ? (rest ? NAN : INFINITY)
                  : exponent     ? ldexp(1024 + rest, exponent - 25)
                                 : ldexp(rest, -24);
    return bits >> 15 ? -size : size;
}

double gh_gpu_read(const void *from, int64_t at, int format)
{
    uint16_t bits;
    uint32_t wide;
    float value;
    if (format == GH_GPU_FP32) {
        memcpy(&value, (const char *)from + 4 * at, 4);
        return value;
    }
    memcpy(&bits, (const char *)from + 2 * at, 2);
    if (format == GH_GPU_FP16)
        return half(bits);
    wide = (uint32_t)bits << 16;
    memcpy(&value, &wide, 4);
    return value;
}

void gh_gpu_column(int32_t *to, const int16_t *a, const int16_t *b, int64_t edge, int64_t j)
{
    const int16_t *column = b + j * edge % GH_GPU_PERIOD;
    for (int64_t i = 0; i < edge; i++) {
        const int16_t *row = a + i * edge % GH_GPU_PERIOD;
        int32_t sum = 0;
        if (i >= GH_GPU_PERIOD) {
            to[i] = to[i - GH_GPU_PERIOD];
            continue;
        }
        for (int64_t k = 0; k < edge; k++)
            sum += row[k] * column[k];
        to[i] = sum;
    }
}
