/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

/* FOR TESTS ONLY: how a test moves the libcuda of fakecuda.c. */

#include <stddef.h>
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
    FAKE_ALLOCS,
    FAKE_COPIES,
    FAKE_LIVE_EVENTS,  /* these three: how many there are now */
    FAKE_LIVE_STREAMS, /* of cuStreamCreate */
    FAKE_LIVE_MEMORY,  /* bytes */
    FAKE_LIVE_POOLS,
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

extern int cuMemGetInfo_v2(size_t *, size_t *);
extern int cuMemAlloc_v2(unsigned long long *, size_t);
extern int cuMemFree_v2(unsigned long long);
extern int cuMemcpyHtoD_v2(unsigned long long, const void *, size_t);
extern int cuMemcpyDtoH_v2(void *, unsigned long long, size_t);
extern int cuMemcpyHtoDAsync_v2(unsigned long long, const void *, size_t, void *);
extern int cuMemcpyDtoHAsync_v2(void *, unsigned long long, size_t, void *);
extern int cuMemsetD32Async(unsigned long long, unsigned, size_t, void *);
extern int cuStreamCreate(void **, unsigned);
extern int cuStreamDestroy_v2(void *);
extern int cuStreamSynchronize(void *);

extern int cuMemcpyDtoDAsync_v2(unsigned long long, unsigned long long, size_t, void *);
extern int cuMemPoolCreate(void **, const void *);
extern int cuMemPoolDestroy(void *);
extern int cuMemAllocFromPoolAsync(unsigned long long *, size_t, void *, void *);
extern int cuMemFreeAsync(unsigned long long, void *);
extern int cuDeviceGetAttribute(int *, int, int);
extern int cuDeviceGetName(char *, int, int);
extern int cuDeviceGetUuid_v2(unsigned char *, int);
extern int cuDeviceGetPCIBusId(char *, int, int);

extern void fake_cuda_device(int);
extern void fake_cuda_reset(int);
extern void *fake_cuda_stream(int64_t takes);
extern void fake_cuda_destroy(void *stream);
extern void fake_cuda_set(void *stream, int what, int64_t value);
extern void fake_cuda_kernel(void *stream);
extern void fake_cuda_busy(void *stream, int64_t ns); /* work of another library that takes so long */
extern void *fake_cuda_range(unsigned long long at, size_t bytes); /* NULL unless it is all in one allocation */
extern void fake_cuda_issue(void *stream);  /* work that ends with ... */
extern void fake_cuda_finish(void *stream); /* ... this, from any thread */
extern void fake_cuda_advance(int64_t ns);
extern long fake_cuda_count(int what);
extern long fake_cuda_records(void *stream);

#endif
