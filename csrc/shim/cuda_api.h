/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_CUDA_API_H
#define GH_CUDA_API_H

/* The driver's functions that the shim calls, taken from the libcuda.so.1 that the program has loaded: no header,
 * no link. Contexts, streams and events are opaque pointers, enums are ints. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void *gh_cu_context;
typedef void *gh_cu_stream;
typedef void *gh_cu_event;
typedef unsigned long long gh_cu_memory; /* an address on the device */
typedef void *gh_cu_pool;

#define GH_CU_SUCCESS 0
#define GH_CU_OUT_OF_MEMORY 2
#define GH_CU_NOT_INITIALIZED 3
#define GH_CU_NOT_READY 600
#define GH_CU_CAPTURE_NONE 0
#define GH_CU_MODE_RELAXED 2
#define GH_CU_NON_BLOCKING 1u /* of a stream: it does not wait for the default stream, nor that for it */
#define GH_CU_MAJOR 75 /* attributes of a device: compute capability, and whether it has pools of memory */
#define GH_CU_MINOR 76
#define GH_CU_POOLS 115
#define GH_CU_LEGACY ((gh_cu_stream)1)
#define GH_CU_PER_THREAD ((gh_cu_stream)2)

/* CUmemPoolProps. Memory of a pool is taken and given back in the order of a stream: neither waits for the device. */
struct gh_cu_pool_is {
    int kind; /* 1 = pinned, the only one */
    int handles;
    int where; /* 1 = on a device */
    int device;
    void *security;
    size_t most;
    unsigned short usage;
    unsigned char reserved[54];
};

/* F(member, symbol, symbol of older drivers or "", needed, parameters). Those that are not needed are NULL where the
 * driver has none: who uses them asks. */
#define GH_CUDA_FUNCTIONS(F)                                                                                \
    F(context, "cuCtxGetCurrent", "", 1, (gh_cu_context * out))                                             \
    F(push, "cuCtxPushCurrent_v2", "", 1, (gh_cu_context context))                                          \
    F(pop, "cuCtxPopCurrent_v2", "", 1, (gh_cu_context * out))                                              \
    F(device, "cuCtxGetDevice", "", 1, (int *out))                                                          \
    F(context_id, "cuCtxGetId", "", 0, (gh_cu_context context, unsigned long long *out))                    \
    F(context_of, "cuStreamGetCtx", "", 1, (gh_cu_stream stream, gh_cu_context * out))                      \
    F(capturing, "cuStreamIsCapturing", "", 1, (gh_cu_stream stream, int *status))                          \
    F(stream_query, "cuStreamQuery", "", 1, (gh_cu_stream stream))                                          \
    F(create, "cuEventCreate", "", 1, (gh_cu_event * out, unsigned flags))                                  \
    F(destroy, "cuEventDestroy_v2", "", 1, (gh_cu_event event))                                             \
    F(record, "cuEventRecord", "", 1, (gh_cu_event event, gh_cu_stream stream))                             \
    F(query, "cuEventQuery", "", 1, (gh_cu_event event))                                                    \
    F(elapsed, "cuEventElapsedTime_v2", "cuEventElapsedTime", 1,                                            \
      (float *ms, gh_cu_event begin, gh_cu_event end))                                                      \
    F(exchange_mode, "cuThreadExchangeStreamCaptureMode", "", 1, (int *mode))                               \
    F(mem_info, "cuMemGetInfo_v2", "", 0, (size_t * unused, size_t *total))                                 \
    F(alloc, "cuMemAlloc_v2", "", 0, (gh_cu_memory * out, size_t bytes))                                    \
    F(free, "cuMemFree_v2", "", 0, (gh_cu_memory at))                                                       \
    F(put, "cuMemcpyHtoD_v2", "", 0, (gh_cu_memory to, const void *from, size_t bytes))                     \
    F(get, "cuMemcpyDtoH_v2", "", 0, (void *to, gh_cu_memory from, size_t bytes))                           \
    F(put_on, "cuMemcpyHtoDAsync_v2", "", 0,                                                                \
      (gh_cu_memory to, const void *from, size_t bytes, gh_cu_stream stream))                               \
    F(get_on, "cuMemcpyDtoHAsync_v2", "", 0,                                                                \
      (void *to, gh_cu_memory from, size_t bytes, gh_cu_stream stream))                                     \
    F(set_on, "cuMemsetD32Async", "", 0,                                                                    \
      (gh_cu_memory to, unsigned value, size_t words, gh_cu_stream stream))                                 \
    F(stream_create, "cuStreamCreate", "", 0, (gh_cu_stream * out, unsigned flags))                         \
    F(stream_destroy, "cuStreamDestroy_v2", "", 0, (gh_cu_stream stream))                                   \
    F(stream_wait, "cuStreamSynchronize", "", 0, (gh_cu_stream stream))                                     \
    F(copy_on, "cuMemcpyDtoDAsync_v2", "", 0,                                                               \
      (gh_cu_memory to, gh_cu_memory from, size_t bytes, gh_cu_stream stream))                              \
    F(pool_create, "cuMemPoolCreate", "", 0, (gh_cu_pool * out, const struct gh_cu_pool_is *is))            \
    F(pool_destroy, "cuMemPoolDestroy", "", 0, (gh_cu_pool pool))                                           \
    F(alloc_on, "cuMemAllocFromPoolAsync", "", 0,                                                           \
      (gh_cu_memory * out, size_t bytes, gh_cu_pool pool, gh_cu_stream stream))                             \
    F(free_on, "cuMemFreeAsync", "", 0, (gh_cu_memory at, gh_cu_stream stream))                             \
    F(attribute, "cuDeviceGetAttribute", "", 0, (int *out, int which, int device))                          \
    F(name, "cuDeviceGetName", "", 0, (char *out, int cap, int device))                                     \
    F(uuid, "cuDeviceGetUuid_v2", "cuDeviceGetUuid", 0, (unsigned char *out, int device))                   \
    F(pci, "cuDeviceGetPCIBusId", "", 0, (char *out, int cap, int device))

#define GH_CU_MEMBER_(member, symbol, older, needed, PARAMS) int(*member) PARAMS;

struct gh_cuda {
    GH_CUDA_FUNCTIONS(GH_CU_MEMBER_)
};

/* Takes the loader's lock: never on a thread of the job that makes a call. NULL = not loaded, or not such a driver. */
const struct gh_cuda *gh_cuda_load(void);
const struct gh_cuda *gh_cuda_loaded(void); /* what it found before, NULL = not asked or not found */
void gh_cuda_api_forget(void);              /* in a forked child */

/* `stream`'s context, or for a default stream the calling thread's; NULL if it has none. */
gh_cu_context gh_cuda_context(const struct gh_cuda *cu, gh_cu_stream stream);

/* Nothing may be put on a stream that is captured, or whose capture was invalidated; where the driver does not
 * answer (a default stream while a blocking stream is captured) neither. */
static inline bool gh_cuda_captured(const struct gh_cuda *cu, gh_cu_stream stream)
{
    int status = GH_CU_CAPTURE_NONE;
    return cu->capturing(stream, &status) != GH_CU_SUCCESS || status != GH_CU_CAPTURE_NONE;
}

#endif
