/* SPDX-License-Identifier: Apache-2.0 */
/* The windows of a test of a GPU: as many steps as are to take so long, put on the stream in small batches, so that it
 * never has more than AHEAD_NS to do when the leave ends (or one step, where one takes longer), and never nothing. */

#include "gpu_bed.h"

#include <errno.h>
#include <time.h>

#include "shim.h"

#define MOST_STEPS (1 << 20)
#define BATCH_NS 10000000ll
#define AHEAD_NS (GH_GPU_DEPTH * BATCH_NS)
#define OVERRUN 3 /* windows: a device that has become slower does not get all the steps */

static int64_t epoch_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static bool put_batch(struct gh_gpu *g, const struct gh_gpu_work *work, int64_t steps, gh_cu_event after)
{
    for (int64_t i = 0; i < steps; i++)
        if (!work->step(g, work->self))
            return false;
    return gh_gpu_good(g, g->cu->record(after, g->stream), "cuEventRecord") && gh_gpu_stands(g);
}

/* `*steps` of them, or how many were done; `*ns` on the device's clock. */
static bool window(struct gh_gpu *g, const struct gh_gpu_work *work, int64_t each_ns, int64_t most_ns, int64_t *steps,
                   int64_t *ns)
{
    int64_t wanted = *steps, batch = BATCH_NS / each_ns > 1 ? BATCH_NS / each_ns : 1;
    int64_t fit = AHEAD_NS / (batch * each_ns);
    unsigned ahead = fit < 1 ? 1 : fit < GH_GPU_DEPTH ? (unsigned)fit : GH_GPU_DEPTH;
    int64_t latest = gh_now_ns() + most_ns;
    float ms = 0;
    if (!gh_gpu_good(g, g->cu->record(g->begin, g->stream), "cuEventRecord"))
        return false;
    *steps = 0;
    for (unsigned k = 0; *steps < wanted && (!k || gh_now_ns() < latest); k++) {
        gh_cu_event after = g->batch[k % ahead];
        int64_t now = wanted - *steps < batch ? wanted - *steps : batch;
        if ((k >= ahead && !gh_gpu_wait(g, after)) || !put_batch(g, work, now, after))
            return false;
        *steps += now;
    }
    if (!gh_gpu_good(g, g->cu->record(g->end, g->stream), "cuEventRecord") || !gh_gpu_wait(g, g->end) ||
        !gh_gpu_good(g, g->cu->elapsed(&ms, g->begin, g->end), "cuEventElapsedTime"))
        return false;
    *ns = (int64_t)((double)ms * 1e6);
    return *ns > 0 || gh_gpu_fail(g, EIO, "the GPU's clock stood still");
}

static int64_t in_window(int64_t window_ns, int64_t each_ns)
{
    int64_t steps = window_ns / each_ns;
    return steps < 1 ? 1 : steps > MOST_STEPS ? MOST_STEPS : steps;
}

static int64_t mean(int64_t ns, int64_t steps)
{
    return ns / steps > 0 ? ns / steps : 1;
}

/* The first step apart, since the library may load its code for it; then what one takes, with clocks that came up. */
static bool warm_up(struct gh_gpu *g, const struct gh_gpu_work *work, int64_t window_ns, int64_t *each_ns)
{
    int64_t steps = 1, ns;
    if (!work->spoil(g, work->self) || !work->step(g, work->self) || !gh_gpu_wait(g, NULL) ||
        !work->right(g, work->self, false) || !window(g, work, AHEAD_NS, 0, &steps, &ns))
        return false;
    *each_ns = ns;
    steps = in_window(window_ns / 4, *each_ns);
    if (!window(g, work, *each_ns, OVERRUN * window_ns, &steps, &ns))
        return false;
    *each_ns = mean(ns, steps);
    return true;
}

static void put_row(struct gh_result *out, int64_t began_ns, int64_t ns, int64_t done)
{
    int64_t *row = out->value + out->count;
    for (int i = 0; i < GH_ROW_COUNT; i++)
        row[i] = -1;
    row[GH_ROW_T] = began_ns;
    row[GH_ROW_WALL] = ns;
    row[GH_ROW_WORK] = done;
    out->count += GH_ROW_COUNT;
    out->value[GH_HEAD_REPEATS]++;
}

bool gh_gpu_windows(struct gh_gpu *g, const struct gh_task *task, const struct gh_gpu_work *work)
{
    int64_t repeats = task->arg[GH_TEST_REPEATS], window_ns = task->arg[GH_TEST_WINDOW], each_ns, ns;
    if (!warm_up(g, work, window_ns, &each_ns))
        return false;
    for (int64_t i = 0; i < repeats; i++) {
        int64_t steps = in_window(window_ns, each_ns), began_ns;
        if (i + 1 == repeats && !work->spoil(g, work->self))
            return false;
        began_ns = epoch_ns();
        if (!window(g, work, each_ns, OVERRUN * window_ns, &steps, &ns))
            return false;
        put_row(g->out, began_ns, ns, steps * work->per_step);
    }
    return work->right(g, work->self, true);
}
