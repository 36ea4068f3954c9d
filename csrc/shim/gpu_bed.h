/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_GPU_BED_H
#define GH_GPU_BED_H

/* What the tests of a rank's GPU stand on, in the thread that is stopped at a boundary: the job's own context, a
 * stream, memory and events of our own, and the windows that are timed. Tested against a libcuda without a device;
 * never run on a GPU.
 *
 * The job is not to notice. The capture mode of the thread is relaxed, so that nothing here spoils a capture of
 * another thread. Nothing that is called waits for the device: memory comes from a pool of our own and goes back in
 * the stream's order, and a stream or event may be destroyed while work is on it. So whatever the device does, and it
 * may hang, the thread goes on as soon as its leave ends.
 */

#include "cuda_api.h"
#include "tasks/tasks.h"

#define GH_GPU_DEPTH 4   /* batches that are on the stream at most */
#define GH_GPU_BUFFERS 4

struct gh_gpu {
    const struct gh_cuda *cu;
    const struct gh_leave *leave;
    struct gh_result *out; /* the first trouble is what is said */
    gh_cu_context context; /* current from gh_gpu_enter on */
    int device;
    int64_t room; /* bytes of the device's memory that this rank may take */
    gh_cu_stream stream;
    gh_cu_pool pool;
    gh_cu_memory buffer[GH_GPU_BUFFERS];
    unsigned buffers;
    gh_cu_event begin, end, batch[GH_GPU_DEPTH];
    int mode; /* of capture, as it was */
    bool relaxed, entered, pushed;
};

/* Steps of one kind, which take the device a millisecond or so each. Each gives false with the trouble in `out`. */
struct gh_gpu_work {
    bool (*step)(struct gh_gpu *g, void *self);             /* puts one on the stream */
    bool (*spoil)(struct gh_gpu *g, void *self);            /* wipes what steps make, so that they must make it anew */
    bool (*right)(struct gh_gpu *g, void *self, bool last); /* looks at what they made; EBADMSG if it is wrong */
    int64_t per_step;                                       /* flops, or bytes moved */
    void *self;
};

/* All of it is undone by gh_gpu_close, whatever came of it. */
bool gh_gpu_enter(struct gh_gpu *g, int64_t together); /* ENODEV: there is no GPU in use; EBUSY: a capture */
bool gh_gpu_ready(struct gh_gpu *g);                   /* stream, pool, events */
gh_cu_memory gh_gpu_take(struct gh_gpu *g, int64_t bytes); /* 0 = no room */
bool gh_gpu_wait(struct gh_gpu *g, gh_cu_event event);     /* NULL: for all that is on the stream */
void gh_gpu_close(struct gh_gpu *g);

/* Warms up, does the windows that the task asks for, and fills the head and rows of `out`, but for GH_HEAD_KERNEL,
 * GH_HEAD_CHECKSUM and GH_HEAD_SIZE. */
bool gh_gpu_windows(struct gh_gpu *g, const struct gh_task *task, const struct gh_gpu_work *work);

bool gh_gpu_stands(struct gh_gpu *g); /* false, with ECANCELED, once the leave has ended */
bool gh_gpu_good(struct gh_gpu *g, int result, const char *what); /* false for an error of the driver */
__attribute__((format(printf, 3, 4))) bool gh_gpu_fail(struct gh_gpu *g, int status, const char *format, ...);

/* gpu_gemm.c, gpu_copy.c: one test, on a bed that is entered */
void gh_gpu_gemm(struct gh_gpu *g, const struct gh_task *task);
void gh_gpu_copy(struct gh_gpu *g, const struct gh_task *task);
int64_t gh_gpu_edge(int64_t edge, int format, int64_t room); /* that fits, 0 = none; `edge` 0 is the default */

#endif
