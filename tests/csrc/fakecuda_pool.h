/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: the part of fakecuda.c with pools of memory, copies on the device, and what a device is. A copy is
 * made at once, and then takes FAKE_CUDA_COPY_NS of the stream's time (0). FAKE_CUDA_CAPABILITY: 90, that is 9.0.
 * FAKE_CUDA_POOLS=0: the device has none. FAKE_CUDA_BAD_COPY=n: the n-th copy on the device leaves something out.
 * The device's UUID ends with the rank.
 */

#define POOLS 16
#define POOL 0x9001ull

static struct pool {
    uint64_t magic;
    struct context *context;
} pools[POOLS];

struct pool_is {
    int kind, handles, where, device;
    void *security;
    unsigned char rest[64];
};

static struct pool *pool_of(const char *who, void *handle)
{
    struct pool *p = handle;
    if (p < pools || p >= pools + POOLS || p->magic != POOL)
        die("%s: %p is no pool, or a destroyed one", who, handle);
    return p;
}

static void takes(const char *who, struct stream *s, int64_t ns)
{
    if (s->context != current(who))
        die("%s: a stream of another context", who);
    if (s->capture)
        die("%s: on a stream that is captured", who);
    s->busy = (s->busy > now() ? s->busy : now()) + ns;
}

API void fake_cuda_busy(void *stream, int64_t ns)
{
    pthread_mutex_lock(&lock);
    takes("work", stream_of("work", stream), ns);
    pthread_mutex_unlock(&lock);
}

API int cuMemPoolCreate(void **out, const void *is)
{
    const struct pool_is *asked = is;
    static const unsigned char zeros[64];
    enter(FAKE_OTHER);
    safe("cuMemPoolCreate");
    struct context *c = current("cuMemPoolCreate");
    if (asked->kind != 1 || asked->handles || asked->where != 1 || asked->device != (int)(c - contexts) ||
        asked->security || memcmp(asked->rest, zeros, sizeof zeros))
        die("cuMemPoolCreate: asked for what makes no sense here");
    for (int i = 0; i < POOLS; i++)
        if (pools[i].magic != POOL) {
            pools[i] = (struct pool){POOL, c};
            counts[FAKE_LIVE_POOLS]++;
            *out = &pools[i];
            return leave(0);
        }
    die("more pools than a test needs");
    return leave(OUT_OF_MEMORY);
}

API int cuMemPoolDestroy(void *pool)
{
    enter(FAKE_OTHER);
    struct pool *p = pool_of("cuMemPoolDestroy", pool);
    for (int i = 0; i < ALLOCATIONS; i++)
        if (allocations[i].at && allocations[i].pool == p)
            die("cuMemPoolDestroy: memory of it was not given back");
    p->magic = DEAD;
    counts[FAKE_LIVE_POOLS]--;
    return leave(0);
}

API int cuMemAllocFromPoolAsync(unsigned long long *out, size_t bytes, void *pool, void *stream)
{
    enter(FAKE_ALLOCS);
    struct pool *p = pool_of("cuMemAllocFromPoolAsync", pool);
    takes("cuMemAllocFromPoolAsync", stream_of("cuMemAllocFromPoolAsync", stream), 0);
    if (!bytes)
        die("cuMemAllocFromPoolAsync: of nothing");
    if (counts[FAKE_ALLOCS] == said("FAKE_CUDA_ALLOC_FAILS", 0))
        return leave(OUT_OF_MEMORY);
    for (int i = 0; i < ALLOCATIONS; i++)
        if (!allocations[i].at) {
            allocations[i] = (struct allocation){aligned_alloc(256, (bytes + 255) / 256 * 256), bytes, p->context, p};
            memset(allocations[i].at, 0xa5, bytes);
            counts[FAKE_LIVE_MEMORY] += (long)bytes;
            *out = (uintptr_t)allocations[i].at;
            return leave(0);
        }
    die("more allocations than a test needs");
    return leave(OUT_OF_MEMORY);
}

API int cuMemFreeAsync(unsigned long long at, void *stream)
{
    enter(FAKE_OTHER);
    takes("cuMemFreeAsync", stream_of("cuMemFreeAsync", stream), 0);
    for (int i = 0; i < ALLOCATIONS; i++)
        if (at && (uintptr_t)allocations[i].at == at && allocations[i].pool) {
            counts[FAKE_LIVE_MEMORY] -= (long)allocations[i].bytes;
            free(allocations[i].at);
            allocations[i].at = NULL;
            return leave(0);
        }
    die("cuMemFreeAsync: %llx is not of a pool, or was given back before", at);
    return leave(1);
}

API int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void *stream)
{
    static long copies;
    enter(FAKE_COPIES);
    unsigned char *target = range("cuMemcpyDtoDAsync", to, bytes);
    const unsigned char *source = range("cuMemcpyDtoDAsync", from, bytes);
    if (to < from + bytes && from < to + bytes)
        die("cuMemcpyDtoDAsync: a range onto itself");
    memcpy(target, source, bytes);
    if (++copies == said("FAKE_CUDA_BAD_COPY", 0))
        target[0] ^= 1;
    takes("cuMemcpyDtoDAsync", stream_of("cuMemcpyDtoDAsync", stream), said("FAKE_CUDA_COPY_NS", 0));
    return leave(0);
}

API int cuDeviceGetAttribute(int *out, int which, int device)
{
    long capability = said("FAKE_CUDA_CAPABILITY", 90);
    enter(FAKE_OTHER);
    if (device < 0 || device >= 8)
        die("cuDeviceGetAttribute: device %d", device);
    if (which != 75 && which != 76 && which != 115)
        die("cuDeviceGetAttribute: attribute %d", which);
    *out = (int)(which == 115 ? said("FAKE_CUDA_POOLS", 1) : which == 75 ? capability / 10 : capability % 10);
    return leave(0);
}

API int cuDeviceGetName(char *out, int cap, int device)
{
    snprintf(out, (size_t)cap, "Fake GPU of type %d", device / 8);
    return 0;
}

API int cuDeviceGetUuid_v2(unsigned char *out, int device)
{
    for (int i = 0; i < 16; i++)
        out[i] = (unsigned char)(16 * i);
    out[14] = (unsigned char)device;
    out[15] = (unsigned char)said("RANK", 0);
    return 0;
}

API int cuDeviceGetPCIBusId(char *out, int cap, int device)
{
    snprintf(out, (size_t)cap, "0000:%02lx:00.0", 16 * said("RANK", 0) + device);
    return 0;
}
