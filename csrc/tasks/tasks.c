/* SPDX-License-Identifier: Apache-2.0 */
/* Which function a task is. */

#include "tasks.h"

#include <errno.h>
#include <string.h>

void gh_task_run(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out)
{
    memset(out, 0, sizeof *out);
    switch (task->kind) {
    case GH_TASK_GEMM:
        gh_task_gemm(task, leave, out);
        break;
    case GH_TASK_BANDWIDTH:
        gh_task_bandwidth(task, leave, out);
        break;
    case GH_TASK_LISTEN:
        gh_task_listen(task, leave, out);
        break;
    case GH_TASK_EXCHANGE:
        gh_task_exchange(task, leave, out);
        break;
    case GH_TASK_CLOSE:
        gh_task_close();
        break;
    case GH_TASK_GPU_GEMM:
    case GH_TASK_GPU_COPY:
        if (gh_task_gpu)
            gh_task_gpu(task, leave, out);
        else
            out->status = ENOSYS;
        break;
    case GH_TASK_NCCL_EXCHANGE:
        if (gh_task_nccl_exchange)
            gh_task_nccl_exchange(task, leave, out);
        else
            out->status = ENOSYS;
        break;
    default:
        out->status = ENOSYS;
    }
}
