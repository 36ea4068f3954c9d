/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

/* FOR TESTS ONLY: how a test moves the libcuda of fakecuda.c. */

#include <stdint.h>

enum {
    FAKE_EVENTS,
    FAKE_RECORDS,
    FAKE_QUERIES,
    FAKE_FINISHED, /* queries that said "complete" */
    FAKE_ELAPSED,
    FAKE_PUSHES,
    FAKE_POPS,
    FAKE_STREAM_QUERIES,
    FAKE_OTHER,
    FAKE_COUNTS
};

enum {
    FAKE_TAKES,   /* ns a kernel takes */
    FAKE_CAPTURE, /* 0 no, 1 under way, 2 invalidated */
    FAKE_FAILS,   /* the n-th record from now on fails */
    FAKE_NEVER    /* nothing on it is ever complete */
};

extern int cuCtxGetCurrent(void **);
extern int cuCtxPushCurrent_v2(void *);
extern int cuCtxPopCurrent_v2(void **);
extern int cuCtxGetDevice(int *);
extern int cuCtxGetId(void *, unsigned long long *);
extern int cuStreamGetCtx(void *, void **);
extern int cuStreamIsCapturing(void *, int *);
extern int cuStreamQuery(void *);
extern int cuThreadExchangeStreamCaptureMode(int *);
extern int cuEventCreate(void **, unsigned);
extern int cuEventDestroy_v2(void *);
extern int cuEventRecord(void *, void *);
extern int cuEventQuery(void *);
extern int cuEventElapsedTime(float *, void *, void *);

extern void fake_cuda_device(int);
extern void fake_cuda_reset(int);
extern void *fake_cuda_stream(int64_t takes);
extern void fake_cuda_destroy(void *stream);
extern void fake_cuda_set(void *stream, int what, int64_t value);
extern void fake_cuda_kernel(void *stream);
extern void fake_cuda_advance(int64_t ns);
extern long fake_cuda_count(int what);
extern long fake_cuda_records(void *stream);

#endif
