/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the CPU tests with several sizes, kernels and threads, for the sanitizers; prints how many went through. */

#include <errno.h>
#include <stdio.h>

#include "tasks/tasks.h"

static bool until_asked(void *self)
{
    int *left = self;
    return (*left)-- > 0;
}

static int run(uint32_t kind, int64_t size, int64_t threads, int64_t kernel, int asks)
{
    static struct gh_result result;
    struct gh_task task = {.kind = kind, .arg = {size, 2, threads, 2000000, kernel}};
    struct gh_leave leave = {until_asked, &asks};
    gh_task_run(&task, &leave, &result);
    if (result.status && result.status != ECANCELED && result.status != EINVAL) {
        printf("kind %u size %ld: %s\n", kind, (long)size, result.said);
        return 0;
    }
    return result.status == 0;
}

int main(void)
{
    static const int64_t edges[] = {1, 2, 7, 16, 33, 97, 193, 260};
    int done = 0;
    for (int64_t threads = 1; threads <= 3; threads++) {
        for (unsigned i = 0; i < sizeof edges / sizeof *edges; i++)
            for (int64_t kernel = 0; kernel <= 3; kernel++)
                done += run(GH_TASK_GEMM, edges[i], threads, kernel, 1000000);
        done += run(GH_TASK_BANDWIDTH, 3 << 20, threads, 0, 1000000);
        run(GH_TASK_GEMM, 64, threads, 0, 3); /* the leave ends on the way */
        run(GH_TASK_BANDWIDTH, 3 << 20, threads, 0, 3);
    }
    printf("%d\n", done);
    return 0;
}
