/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: the part of fakecuda.c with memory and streams that the program makes. Device memory is host memory.
 * Every range is checked against the allocations; memory is not to be freed while work is on a stream of
 * cuStreamCreate, for a driver would wait there. FAKE_CUDA_FREE: bytes that are free at first (8 GiB).
 * FAKE_CUDA_ALLOC_FAILS=n: the n-th allocation finds no room; FAKE_CUDA_STREAM_FAILS=n so with streams.
 */

#define OUT_OF_MEMORY 2
#define NON_BLOCKING 1u
#define ALLOCATIONS 256

static struct allocation {
    unsigned char *at;
    size_t bytes;
    struct context *context;
    void *pool; /* NULL = of cuMemAlloc */
} allocations[ALLOCATIONS];

static long said(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static void *range(const char *who, unsigned long long at, size_t bytes)
{
    for (int i = 0; i < ALLOCATIONS; i++) {
        const struct allocation *a = &allocations[i];
        if (a->at && at >= (uintptr_t)a->at && at + bytes <= (uintptr_t)a->at + a->bytes) {
            if (a->context != current(who))
                die("%s: memory of another context", who);
            return (void *)(uintptr_t)at;
        }
    }
    die("%s: %zu bytes at %llx are not allocated", who, bytes, at);
    return NULL;
}

API void *fake_cuda_range(unsigned long long at, size_t bytes) /* NULL unless it is all in one allocation */
{
    void *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < ALLOCATIONS; i++)
        if (allocations[i].at && at >= (uintptr_t)allocations[i].at &&
            at + bytes <= (uintptr_t)allocations[i].at + allocations[i].bytes)
            found = (void *)(uintptr_t)at;
    pthread_mutex_unlock(&lock);
    return found;
}

API int cuMemGetInfo_v2(size_t *unused, size_t *total)
{
    enter(FAKE_OTHER);
    current("cuMemGetInfo");
    *total = 8ull << 30;
    *unused = (size_t)(said("FAKE_CUDA_FREE", 8l << 30) - counts[FAKE_LIVE_MEMORY]);
    return leave(0);
}

API int cuMemAlloc_v2(unsigned long long *out, size_t bytes)
{
    enter(FAKE_ALLOCS);
    safe("cuMemAlloc");
    struct context *c = current("cuMemAlloc");
    if (!bytes)
        die("cuMemAlloc: of nothing");
    if (counts[FAKE_ALLOCS] == said("FAKE_CUDA_ALLOC_FAILS", 0))
        return leave(OUT_OF_MEMORY);
    for (int i = 0; i < ALLOCATIONS; i++)
        if (!allocations[i].at) {
            allocations[i] = (struct allocation){malloc(bytes), bytes, c, NULL};
            memset(allocations[i].at, 0xa5, bytes);
            counts[FAKE_LIVE_MEMORY] += (long)bytes;
            *out = (uintptr_t)allocations[i].at;
            return leave(0);
        }
    die("more allocations than a test needs");
    return leave(OUT_OF_MEMORY);
}

API int cuMemFree_v2(unsigned long long at)
{
    enter(FAKE_OTHER);
    safe("cuMemFree");
    for (unsigned i = 0; i < n_streams; i++)
        if (streams[i].magic == STREAM && streams[i].made && !stream_done(&streams[i]))
            die("cuMemFree: work is under way that may use it");
    for (int i = 0; i < ALLOCATIONS; i++)
        if (at && (uintptr_t)allocations[i].at == at) {
            if (allocations[i].context != current("cuMemFree"))
                die("cuMemFree: another context is current");
            counts[FAKE_LIVE_MEMORY] -= (long)allocations[i].bytes;
            free(allocations[i].at);
            allocations[i].at = NULL;
            return leave(0);
        }
    die("cuMemFree: %llx is not allocated, or was freed before", at);
    return leave(1);
}

API int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes)
{
    enter(FAKE_COPIES);
    safe("cuMemcpyHtoD");
    memcpy(range("cuMemcpyHtoD", to, bytes), from, bytes);
    return leave(0);
}

API int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes)
{
    enter(FAKE_COPIES);
    safe("cuMemcpyDtoH");
    memcpy(to, range("cuMemcpyDtoH", from, bytes), bytes);
    return leave(0);
}

/* A stream on which a copy may be put. The copy is made at once: what the stream still does may be overtaken. */
static void copies_on(const char *who, void *stream)
{
    struct stream *s = stream_of(who, stream);
    if (s->context != current(who))
        die("%s: a stream of another context", who);
    if (s->capture)
        die("%s: on a stream that is captured", who);
    if (s->finished != s->issued)
        die("%s: this fake copies at once, and the stream is not done", who);
}

API int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream)
{
    enter(FAKE_COPIES);
    copies_on("cuMemcpyHtoDAsync", stream);
    memcpy(range("cuMemcpyHtoDAsync", to, bytes), from, bytes);
    return leave(0);
}

API int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream)
{
    enter(FAKE_COPIES);
    copies_on("cuMemcpyDtoHAsync", stream);
    memcpy(to, range("cuMemcpyDtoHAsync", from, bytes), bytes);
    return leave(0);
}

API int cuMemsetD32Async(unsigned long long to, unsigned value, size_t words, void *stream)
{
    enter(FAKE_COPIES);
    copies_on("cuMemsetD32Async", stream);
    unsigned *at = range("cuMemsetD32Async", to, words * 4);
    for (size_t i = 0; i < words; i++)
        at[i] = value;
    return leave(0);
}

API int cuStreamCreate(void **out, unsigned flags)
{
    static long asked;
    enter(FAKE_OTHER);
    safe("cuStreamCreate");
    struct context *c = current("cuStreamCreate");
    if (flags != NON_BLOCKING)
        die("cuStreamCreate: flags %u", flags);
    if (++asked == said("FAKE_CUDA_STREAM_FAILS", 0))
        return leave(OUT_OF_MEMORY);
    struct stream *s = NULL;
    for (unsigned i = 0; n_streams == STREAMS && i < STREAMS; i++)
        if (streams[i].made && streams[i].magic == DEAD)
            s = &streams[i];
    if (!s && n_streams == STREAMS)
        die("more streams than a test needs");
    s = s ? s : &streams[n_streams++];
    *s = (struct stream){.magic = STREAM, .context = c, .made = 1};
    counts[FAKE_LIVE_STREAMS]++;
    *out = s;
    return leave(0);
}

API int cuStreamDestroy_v2(void *stream)
{
    enter(FAKE_OTHER);
    safe("cuStreamDestroy");
    struct stream *s = stream_of("cuStreamDestroy", stream);
    if (!s->made)
        die("cuStreamDestroy: the program's own stream");
    if (!stream_done(s) && !s->never)
        die("cuStreamDestroy: work is under way on it");
    s->magic = DEAD;
    counts[FAKE_LIVE_STREAMS]--;
    return leave(0);
}

API int cuStreamSynchronize(void *stream)
{
    for (int done = 0; !done;) {
        enter(FAKE_OTHER);
        safe("cuStreamSynchronize");
        done = stream_done(stream_of("cuStreamSynchronize", stream));
        leave(0);
        if (!done)
            nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return 0;
}
