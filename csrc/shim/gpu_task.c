/* SPDX-License-Identifier: Apache-2.0 */
/* The tasks on a rank's GPU. The library of our own processes has none. */

#include <errno.h>
#include <stdio.h>

#include "cublaslt_api.h"
#include "gpu_bed.h"
#include "gpu_numbers.h"

#define MOST_WINDOW_NS 10000000000ll
#define MOST_BYTES (64ll << 30)
#define MOST_EDGE 32768

static bool asked(struct gh_gpu *g, const struct gh_task *task)
{
    const int64_t *arg = task->arg;
    int64_t most = task->kind == GH_TASK_GPU_GEMM ? MOST_EDGE : MOST_BYTES;
    if (arg[GH_TEST_REPEATS] < 0 || arg[GH_TEST_REPEATS] > GH_TEST_MOST || arg[GH_TEST_WINDOW] < 0 ||
        arg[GH_TEST_WINDOW] > MOST_WINDOW_NS)
        return gh_gpu_fail(g, EINVAL, "repeats or window out of range");
    if (arg[GH_TEST_SIZE] < 0 || arg[GH_TEST_SIZE] > most ||
        (task->kind == GH_TASK_GPU_GEMM && arg[GH_TEST_SIZE] > 0 && arg[GH_TEST_SIZE] < 16))
        return gh_gpu_fail(g, EINVAL, "size out of range");
    return true;
}

/* "PCI-BUS-ID UUID NAME" */
static bool identify(struct gh_gpu *g, char *to, unsigned long cap)
{
    unsigned char uuid[16];
    char pci[32] = "", name[128] = "", text[37], *at = text;
    if (!gh_gpu_good(g, g->cu->pci(pci, sizeof pci, g->device), "cuDeviceGetPCIBusId") ||
        !gh_gpu_good(g, g->cu->uuid(uuid, g->device), "cuDeviceGetUuid") ||
        !gh_gpu_good(g, g->cu->name(name, sizeof name, g->device), "cuDeviceGetName"))
        return false;
    for (int i = 0; i < 16; i++)
        at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
    snprintf(to, cap, "%.31s %s %.127s", pci, text, name);
    return true;
}

static bool facts(struct gh_gpu *g)
{
    const struct gh_cublaslt *lt = gh_cublaslt_loaded();
    int64_t *fact = g->out->value + GH_HEAD_COUNT;
    int major = 0, minor = 0;
    if (!gh_gpu_good(g, g->cu->attribute(&major, GH_CU_MAJOR, g->device), "cuDeviceGetAttribute") ||
        !gh_gpu_good(g, g->cu->attribute(&minor, GH_CU_MINOR, g->device), "cuDeviceGetAttribute"))
        return false;
    fact[GH_GPU_ROOM] = g->room;
    fact[GH_GPU_CAPABILITY] = 10 * major + minor;
    fact[GH_GPU_CUBLASLT] = lt ? (int64_t)lt->version() : -1;
    fact[GH_GPU_EDGE] = gh_gpu_edge(0, GH_GPU_FP32, g->room);
    g->out->count = GH_HEAD_COUNT + GH_GPU_COUNT;
    return true;
}

void gh_task_gpu(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out)
{
    struct gh_gpu g = {.leave = leave, .out = out};
    char who[sizeof out->said];
    if (asked(&g, task) && gh_gpu_enter(&g, task->arg[GH_TEST_TOGETHER]) && identify(&g, who, sizeof who)) {
        out->value[GH_HEAD_THREADS] = 1;
        out->value[GH_HEAD_CPUS] = out->value[GH_HEAD_QUOTA] = out->value[GH_HEAD_PERIOD] = -1;
        out->count = GH_HEAD_COUNT;
        if (!task->arg[GH_TEST_REPEATS])
            facts(&g);
        else if (task->kind == GH_TASK_GPU_GEMM)
            gh_gpu_gemm(&g, task);
        else
            gh_gpu_copy(&g, task);
        if (!out->status)
            snprintf(out->said, sizeof out->said, "%s", who);
    }
    gh_gpu_close(&g);
}
