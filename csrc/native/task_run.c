/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a task in the calling thread of our own process, for Python. */

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "export.h"
#include "tasks/gemm_kernel.h"
#include "tasks/tasks.h"

static bool stands_until(void *self)
{
    const int64_t *until_ns = self;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec < *until_ns;
}

/* `args` has GH_TASK_ARGS numbers, `text` ends with a zero; until_ns is CLOCK_MONOTONIC. */
GH_EXPORT void gh_native_task(uint32_t kind, const int64_t *args, const char *text, int64_t until_ns,
                              struct gh_result *out)
{
    struct gh_task task = {.kind = kind};
    struct gh_leave leave = {stands_until, &until_ns};
    memcpy(task.arg, args, sizeof task.arg);
    strncpy(task.text, text, sizeof task.text - 1);
    gh_task_run(&task, &leave, out);
}

/* c = a b for matrices of `edge` x `edge` floats, for tests and benchmarks; 0 if there is no such kernel or memory. */
GH_EXPORT int gh_native_gemm(int64_t number, int64_t edge, const float *a, const float *b, float *c)
{
    const struct gh_kernel *kernel = gh_kernel_pick(number, &number);
    if (!kernel)
        return 0;
    int64_t stride = gh_gemm_stride(kernel, edge);
    size_t c_bytes = sizeof(float) * (size_t)(stride * gh_gemm_rows(kernel, edge));
    char *own = NULL;
    if (posix_memalign((void **)&own, 64, c_bytes + gh_gemm_scratch(kernel, edge)))
        return 0;
    gh_gemm(kernel, edge, a, b, (float *)own, own + c_bytes);
    for (int64_t i = 0; i < edge; i++)
        memcpy(c + i * edge, own + i * stride * (int64_t)sizeof(float), sizeof(float) * (size_t)edge);
    free(own);
    return 1;
}
