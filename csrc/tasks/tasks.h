/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_TASKS_H
#define GH_TASKS_H

/* Tests that run in a stopped thread of the job (csrc/shim/pause.c) or in a process of our own (the native library):
 * the same code, so that the figures are comparable. A task takes a few seconds at most, allocates what it needs,
 * gives all of it back but an open listener, and never ends the process: trouble is an errno and a sentence.
 */

#include <stdbool.h>
#include <stdint.h>

#include "mail.h"

#define GH_TASK_GEMM 1u      /* gemm.c */
#define GH_TASK_BANDWIDTH 2u /* bandwidth.c */
#define GH_TASK_LISTEN 3u    /* meeting.c */
#define GH_TASK_EXCHANGE 4u  /* link.c */
#define GH_TASK_CLOSE 5u     /* meeting.c: let the listener go */
/* These are in the shim alone; in our own processes they are ENOSYS. */
#define GH_TASK_GPU_GEMM 6u      /* csrc/shim/gpu_gemm.c */
#define GH_TASK_GPU_COPY 7u      /* csrc/shim/gpu_copy.c */
#define GH_TASK_NCCL_EXCHANGE 8u /* csrc/shim/nccl_exchange.c */

/* GH_TASK_GEMM: square matrices of floats, GH_TEST_SIZE is their edge, 1 to 8192; each thread multiplies its own.
 * GH_TASK_BANDWIDTH: a triad over three arrays that take GH_TEST_SIZE bytes together, up to 4 GiB; each thread has
 * its share of them.
 * In both, after a warm-up, each repeat is a window of fixed length in which as many steps as fit are done and counted:
 * so all ranks that are tested at once contend for all of it. A CPU quota is seen in windows of whole periods of it, of
 * 100 ms as a rule: 400 ms do.
 * EBADMSG: a result was wrong. ENOMEM: there is no room without harm. ECANCELED: the leave ended. */
enum gh_test_arg {
    GH_TEST_SIZE,
    GH_TEST_REPEATS, /* 1 to GH_TEST_MOST */
    GH_TEST_THREADS, /* 1 to 512 */
    GH_TEST_WINDOW,  /* ns, up to 10 s */
    GH_TEST_KERNEL,  /* GEMM: 0 the best for this CPU, 1 plain, 2 AVX2 with FMA, 3 AVX-512; GPU: GH_GPU_FP8 ... */
    GH_TEST_TOGETHER, /* ranks of this host (GPU: on this device) that do the same now; the memory that is left is for
                         all of them; 0 is 1 */
};
#define GH_TEST_MOST 16

/* Their values: the head, then for each repeat done a row. -1 is not known. Python has the same names (job/task.py). */
enum gh_test_head {
    GH_HEAD_REPEATS,
    GH_HEAD_KERNEL,
    GH_HEAD_THREADS,
    GH_HEAD_CPUS,     /* the thread may run on */
    GH_HEAD_QUOTA,    /* us of CPU for each ... */
    GH_HEAD_PERIOD,   /* us; the tightest of the cgroup and its parents */
    GH_HEAD_CHECKSUM, /* of what the last repeat made */
    GH_HEAD_SIZE,     /* GPU: the edge or the bytes that were used; else 0 */
    GH_HEAD_COUNT = 8
};
enum gh_test_row {
    GH_ROW_T,         /* when it began, ns since the epoch */
    GH_ROW_WALL,      /* ns, mean over the threads */
    GH_ROW_CPU,       /* ns of CPU that the threads used together */
    GH_ROW_WORK,      /* flops or bytes, of the threads together; a triad moves three arrays, as STREAM counts */
    GH_ROW_FORCED,    /* involuntary context switches of the threads */
    GH_ROW_WAITED,    /* ns on a run queue, of the threads together; throttled time is in it */
    GH_ROW_THROTTLED, /* ns that the cgroup (or the parent that was longest) was throttled */
    GH_ROW_PERIODS,   /* of the quota */
    GH_ROW_HELD,      /* ... in which it was throttled */
    GH_ROW_BUSY,      /* ns of CPU used on the whole host */
    GH_ROW_STEAL,     /* ns taken from this virtual machine by its host, all CPUs */
    GH_ROW_KHZ,       /* clock of the CPU at the end */
    GH_ROW_COUNT
};

/* GH_TASK_GPU_GEMM: on the device of the stopped thread's context, by the cuBLASLt that the job has loaded, in the
 * format GH_TEST_KERNEL; GH_TEST_SIZE is the edge, up to 32768, rounded down to a multiple of 16, 0 is 8192.
 * GH_TASK_GPU_COPY: copies in the device's memory between two arrays of GH_TEST_SIZE bytes together, up to 64 GiB, 0 is
 * 2 GiB. A test takes no more than half of the memory that is free: a size that needs more is halved, as long as it
 * still fills the device. A window holds as many steps as should take so long. Times are the device's; what is known
 * of a CPU is -1. `said` is then "PCI-BUS-ID UUID NAME". With GH_TEST_REPEATS 0 nothing is done; the values are the
 * head and enum gh_gpu_fact.
 * ENODEV: this rank's thread uses no GPU. ENOSYS: no cuBLASLt is loaded. ENOTSUP: the device has no such format.
 * EBUSY: a stream is being captured. EIO: the driver or the library failed. Else as above. */
enum gh_gpu_fact { /* from GH_HEAD_COUNT on */
    GH_GPU_ROOM,       /* bytes a test may take */
    GH_GPU_CAPABILITY, /* of computing, 90 is 9.0 */
    GH_GPU_CUBLASLT,   /* its version, -1 = none is loaded */
    GH_GPU_EDGE,       /* that a test takes by itself, in the format that needs most, 0 = there is no room */
    GH_GPU_COUNT
};
enum gh_gpu_format { GH_GPU_FP8 = 1, /* e4m3 */ GH_GPU_FP16, GH_GPU_BF16, GH_GPU_FP32, GH_GPU_FORMATS };

/* GH_TASK_LISTEN: `text` is an address of this host, an interface, or empty: then GLOO_SOCKET_IFNAME, else the address
 * of the host's name, else 127.0.0.1, as Gloo chooses. `said` is then "ADDRESS PORT INTERFACE". The listener stays
 * open until GH_TASK_CLOSE; another GH_TASK_LISTEN opens a new one. ENODEV: no such interface or address here.
 *
 * GH_TASK_EXCHANGE: one end connects to `text`, "ADDRESS PORT", from the address of its own listener if it has one; the
 * other waits on its listener and drops who does not show the token. Then pings, a warm-up, and for each repeat, each
 * size and each way of GH_LINK_WAYS a transfer, which both ends begin together. ECONNREFUSED and the like, ETIMEDOUT
 * (GH_LINK_HARD_MS), ECANCELED (the leave ended), ECONNRESET (the other end has gone): what was measured stands. */
enum gh_link_arg {
    GH_LINK_CONNECTS, /* 1: this end connects, 0: it waits */
    GH_LINK_TOKEN,    /* two numbers, the same at both ends and never used before */
    GH_LINK_TOKEN_2,
    GH_LINK_WAYS,    /* bits: 1 who connects sends, 2 who waits sends, 4 both at once */
    GH_LINK_REPEATS, /* 1 and more; values must have room */
    GH_LINK_PINGS,   /* 0 to 256 */
    GH_LINK_SOFT_MS, /* no transfer begins later than this after the first, at either end */
    GH_LINK_HARD_MS, /* the whole task takes no longer */
    GH_LINK_SIZES,   /* how many sizes follow */
    GH_LINK_SIZE,    /* bytes of each, the same at both ends */
};
enum gh_link_value {
    GH_LINK_LATENCY, /* ns, half of the median round trip of 8 bytes; -1 at the end that waits */
    GH_LINK_CPU,     /* ns of this thread's CPU time in the transfers */
    GH_LINK_WALL,    /* ns that the transfers took */
    GH_LINK_FIRST,   /* from here: ns from the begin until all was received, by repeat, size, way; -1: this end did not
                        receive, or the transfer was left out */
};

/* GH_TASK_NCCL_EXCHANGE: the same between two ranks of one of the job's NCCL communicators, from device to device by
 * the library's own ncclSend and ncclRecv, on a stream and in buffers of its own. The first eight arguments are those
 * of GH_TASK_EXCHANGE, so are `text` and the values, but: each value is the mean of GH_NCCL_RUN transfers, one after
 * another, by CUDA events; GH_LINK_LATENCY is the mean half round trip of 8 bytes from device to device; GH_LINK_CPU is
 * -1, for the CPU has no part in it; `said` may say that a size was left out, with status 0. Without sizes nothing is exchanged: could it be, as far as one can see here?
 *
 * A send whose other end does not come would keep the GPU for ever. So both ends meet over TCP first, and before
 * anything is put on a stream each has said that it can and will do its part; then both do.
 *
 * ENOSYS (no NCCL or CUDA that can), ENODEV (no such communicator, or not on the device of this thread), EBUSY
 * (another thread is in the library, this one is in a group that has calls, or its stream is captured) and ENOMEM:
 * nothing was exchanged. EREMOTEIO: the other end cannot. EBADMSG: what came is not what was sent. EIO: the library or
 * the driver failed. ENOTRECOVERABLE: an earlier exchange of this rank has not ended; it begins no other one. */
enum gh_nccl_arg {
    GH_NCCL_COMM = GH_LINK_SIZES, /* the communicator's identity, as in the ring */
    GH_NCCL_PEER,                 /* the other end's rank in it */
    GH_NCCL_SIZES,                /* how many sizes follow; 0: only whether it could */
    GH_NCCL_SIZE,                 /* bytes of each, up to GH_NCCL_MOST */
};
#define GH_NCCL_RUN 4
#define GH_NCCL_MOST (256ll << 20)

struct gh_task {
    uint32_t kind;
    int64_t arg[GH_TASK_ARGS];
    char text[GH_TASK_TEXT];
};

struct gh_result {
    int32_t status;
    uint32_t count;
    int64_t value[GH_TASK_VALUES];
    char said[GH_TASK_TEXT];
};

/* Whether the task may go on; asked between repeats and while waiting. Once false it stays false. */
struct gh_leave {
    bool (*stands)(void *self);
    void *self;
};

/* Fills `out`. An unknown kind is ENOSYS. */
void gh_task_run(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out);

void gh_task_gemm(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out);
void gh_task_bandwidth(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out);
void gh_task_listen(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out);
void gh_task_exchange(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out);
/* In the shim, else NULL. */
__attribute__((weak)) void gh_task_gpu(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out);
__attribute__((weak)) void gh_task_nccl_exchange(const struct gh_task *task, const struct gh_leave *leave,
                                                 struct gh_result *out);
void gh_task_close(void); /* also called when a pause ends, whoever ended it */

#endif
