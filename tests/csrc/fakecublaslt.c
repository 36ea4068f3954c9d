/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: a libcublasLt that multiplies on the host, in memory and on streams of fakecuda.c. It takes only
 * what the real one takes for square matrices with the first transposed, and ends the process with a message otherwise:
 * right sizes of attributes, types that go together, matrices and workspace that are allocated, an algorithm that it
 * found.
 * FAKE_LT_NS: a multiplication takes so long on its stream (1 ms). FAKE_LT_NOTHING=1: no algorithm is found.
 * FAKE_LT_WRONG=n: an element of the n-th product is wrong; negative: of all from there on. FAKE_LT_HANGS=n: the n-th
 * never ends. FAKE_LT_CLEARS=1: a product is left out, as if nothing was written.
 */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fakecuda.h"

#define API __attribute__((visibility("default")))
#define FOUND 0x90d7ull
enum { HANDLE = 0xc0b1a5, PRODUCT, LAYOUT, WISH };
enum { F32 = 0, F16 = 2, BF16 = 14, F8 = 28 };

struct object {
    int is;
    int compute, scale, transposed_a, transposed_b;      /* of a product */
    int type;                                            /* of a layout */
    uint64_t rows, columns;
    int64_t stride;
    uint64_t workspace; /* of a wish */
    uint32_t reductions;
};

struct found {
    uint64_t algorithm[8];
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
};

static long live, handles, products;

__attribute__((weak)) int fault(void); /* the test program's: this call is to fail */

static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("fakecublaslt: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

static long said(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static struct object *object(void *handle, int is, const char *who)
{
    struct object *o = handle;
    if (!o || o->is != is)
        die("%s: a handle that is none, or of something else, or destroyed", who);
    return o;
}

static int make(void **out, struct object like)
{
    if (fault && fault())
        return 3;
    struct object *o = malloc(sizeof *o);
    *o = like;
    *out = o;
    live++;
    return 0;
}

static int end(void *handle, int is, const char *who)
{
    object(handle, is, who)->is = 0;
    free(handle);
    live--;
    return 0;
}

API long fake_lt_live(void)
{
    return live;
}

API long fake_lt_handles(void)
{
    return handles;
}

API long fake_lt_products(void)
{
    return products;
}

API size_t cublasLtGetVersion(void)
{
    return 120903;
}

API int cublasLtCreate(void **out)
{
    int result = make(out, (struct object){.is = HANDLE});
    live -= !result; /* kept for good: counted apart */
    handles += !result;
    return result;
}

API int cublasLtMatmulDescCreate(void **out, int compute, int scale)
{
    if (compute != 68 || scale != F32)
        die("cublasLtMatmulDescCreate: compute type %d with scale type %d", compute, scale);
    return make(out, (struct object){.is = PRODUCT});
}

API int cublasLtMatmulDescDestroy(void *product)
{
    return end(product, PRODUCT, "cublasLtMatmulDescDestroy");
}

API int cublasLtMatmulDescSetAttribute(void *product, int what, const void *value, size_t bytes)
{
    struct object *p = object(product, PRODUCT, "cublasLtMatmulDescSetAttribute");
    int32_t number;
    if (fault && fault())
        return 14;
    if ((what != 3 && what != 4) || bytes != sizeof number)
        die("cublasLtMatmulDescSetAttribute: attribute %d of %zu bytes", what, bytes);
    memcpy(&number, value, bytes);
    if (number != 0 && number != 1)
        die("cublasLtMatmulDescSetAttribute: operation %d", number);
    *(what == 3 ? &p->transposed_a : &p->transposed_b) = number;
    return 0;
}

API int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns, int64_t stride)
{
    if ((type != F32 && type != F16 && type != BF16 && type != F8) || !rows || !columns || stride < (int64_t)rows)
        die("cublasLtMatrixLayoutCreate: type %d, %lu by %lu, stride %ld", type, rows, columns, stride);
    return make(out, (struct object){.is = LAYOUT, .type = type, .rows = rows, .columns = columns, .stride = stride});
}

API int cublasLtMatrixLayoutDestroy(void *layout)
{
    return end(layout, LAYOUT, "cublasLtMatrixLayoutDestroy");
}

API int cublasLtMatmulPreferenceCreate(void **out)
{
    return make(out, (struct object){.is = WISH, .reductions = 7});
}

API int cublasLtMatmulPreferenceDestroy(void *wish)
{
    return end(wish, WISH, "cublasLtMatmulPreferenceDestroy");
}

API int cublasLtMatmulPreferenceSetAttribute(void *wish, int what, const void *value, size_t bytes)
{
    struct object *w = object(wish, WISH, "cublasLtMatmulPreferenceSetAttribute");
    if (fault && fault())
        return 14;
    if (what == 1 && bytes == sizeof w->workspace)
        memcpy(&w->workspace, value, bytes);
    else if (what == 3 && bytes == sizeof w->reductions)
        memcpy(&w->reductions, value, bytes);
    else
        die("cublasLtMatmulPreferenceSetAttribute: attribute %d of %zu bytes", what, bytes);
    return 0;
}

static void fit(const struct object *p, const struct object *a, const struct object *b, const struct object *c,
                const struct object *d)
{
    uint64_t n = a->rows;
    if (!p->transposed_a || p->transposed_b)
        die("a product that is not of the form that FP8 takes");
    if (a->columns != n || b->rows != n || b->columns != n || c->rows != n || c->columns != n || d->rows != n ||
        d->columns != n)
        die("matrices that are not square and alike");
    if (a->type != b->type || c->type != d->type || d->type != (a->type == F8 ? BF16 : a->type))
        die("types %d, %d, %d, %d do not go together", a->type, b->type, c->type, d->type);
    if (a->type == F8 && (n % 16 || a->stride % 16 || b->stride % 16))
        die("FP8 of edge %lu", n);
}

API int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *wish,
                                       int most, struct found *out, int *found)
{
    const char *who = "cublasLtMatmulAlgoGetHeuristic";
    object(handle, HANDLE, who);
    fit(object(product, PRODUCT, who), object(a, LAYOUT, who), object(b, LAYOUT, who), object(c, LAYOUT, who),
        object(d, LAYOUT, who));
    const struct object *w = object(wish, WISH, who);
    if (fault && fault())
        return 14;
    if (most < 1 || w->reductions != 2)
        die("%s: at most %d with reductions %u", who, most, w->reductions);
    *found = 0;
    if (said("FAKE_LT_NOTHING", 0))
        return 0;
    *out = (struct found){.algorithm = {FOUND}, .workspace = w->workspace / 2, .waves = 1};
    *found = 1;
    return 0;
}

static int bytes_of(int type)
{
    return type == F8 ? 1 : type == F32 ? 4 : 2;
}

static float wide(uint16_t bits)
{
    uint32_t all = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &all, 4);
    return value;
}

static float eight(uint8_t bits) /* e4m3: 3 bits of mantissa, bias 7 */
{
    int exponent = bits >> 3 & 15, rest = bits & 7;
    float size = exponent ? (float)(8 + rest) / 8 : (float)rest / 8;
    for (int i = exponent ? exponent : 1; i < 7; i++)
        size /= 2;
    for (int i = 7; i < exponent; i++)
        size *= 2;
    return bits >> 7 ? -size : size;
}

static float element(const void *from, uint64_t at, int type)
{
    _Float16 small;
    float value;
    uint16_t bits;
    if (type == F8)
        return eight(((const uint8_t *)from)[at]);
    if (type == F32) {
        memcpy(&value, (const char *)from + 4 * at, 4);
        return value;
    }
    memcpy(&bits, (const char *)from + 2 * at, 2);
    if (type == BF16)
        return wide(bits);
    memcpy(&small, &bits, 2);
    return (float)small;
}

static void store(void *to, uint64_t at, int type, float value)
{
    _Float16 small = (_Float16)value;
    uint32_t all;
    memcpy(&all, &value, 4);
    uint16_t bits = (uint16_t)((all + 0x7fff + (all >> 16 & 1)) >> 16); /* to nearest, ties to even */
    if (type == F32)
        memcpy((char *)to + 4 * at, &value, 4);
    else
        memcpy((char *)to + 2 * at, type == F16 ? (const void *)&small : (const void *)&bits, 2);
}

static const void *matrix(const struct object *layout, const void *at)
{
    size_t bytes = (size_t)layout->stride * layout->columns * (size_t)bytes_of(layout->type);
    void *found = fake_cuda_range((uintptr_t)at, bytes);
    if (!found || (uintptr_t)at % 256)
        die("a matrix of %zu bytes at %p is not allocated, or not at a multiple of 256", bytes, at);
    return found;
}

static void multiply(const struct object *a, const void *x, const struct object *b, const void *y,
                     const struct object *d, void *z, int spoilt)
{
    uint64_t n = d->rows;
    float *rows = malloc(2 * n * n * sizeof *rows), *columns = rows + n * n;
    for (uint64_t j = 0; j < n; j++)
        for (uint64_t k = 0; k < n; k++) {
            rows[j * n + k] = element(x, j * (uint64_t)a->stride + k, a->type);
            columns[j * n + k] = element(y, j * (uint64_t)b->stride + k, b->type);
        }
    for (uint64_t j = 0; j < n; j++)
        for (uint64_t i = 0; i < n; i++) {
            float sum = 0;
            for (uint64_t k = 0; k < n; k++)
                sum += rows[i * n + k] * columns[j * n + k];
            store(z, j * (uint64_t)d->stride + i, d->type, spoilt && i == 1 && j == n - 1 ? sum * 2 + 64 : sum);
        }
    free(rows);
}

API int cublasLtMatmul(void *handle, void *product, const void *alpha, const void *a, void *a_layout, const void *b,
                       void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                       const uint64_t *algorithm, void *workspace, size_t bytes, void *stream)
{
    const char *who = "cublasLtMatmul";
    float one, zero;
    object(handle, HANDLE, who);
    const struct object *la = object(a_layout, LAYOUT, who), *lb = object(b_layout, LAYOUT, who);
    const struct object *lc = object(c_layout, LAYOUT, who), *ld = object(d_layout, LAYOUT, who);
    fit(object(product, PRODUCT, who), la, lb, lc, ld);
    memcpy(&one, alpha, 4);
    memcpy(&zero, beta, 4);
    if (one != 1 || zero != 0 || c != d)
        die("%s: alpha %g, beta %g", who, (double)one, (double)zero);
    if (!algorithm || algorithm[0] != FOUND)
        die("%s: an algorithm that was not found", who);
    if (!fake_cuda_range((uintptr_t)workspace, bytes))
        die("%s: the workspace is not allocated", who);
    if (fault && fault())
        return 13;
    products++;
    long wrong = said("FAKE_LT_WRONG", 0), hangs = said("FAKE_LT_HANGS", 0);
    if (!said("FAKE_LT_CLEARS", 0))
        multiply(la, matrix(la, a), lb, matrix(lb, b), ld, (void *)(uintptr_t)matrix(ld, d),
                 products == wrong || (wrong < 0 && products >= -wrong));
    fake_cuda_busy(stream, said("FAKE_LT_NS", 1000000));
    if (products == hangs)
        fake_cuda_set(stream, FAKE_NEVER, 1);
    return 0;
}
