/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: a libcuda.so.1 without a device. What is put on a stream takes time on a clock of its own, which
 * stands still until the test moves it (with FAKE_CUDA_REAL=1 it is CLOCK_MONOTONIC). Each call is checked as hard as
 * a driver never would: right context current, event and stream alive and of that context, nothing recorded on a
 * captured stream, nothing asked that could spoil a capture. A call that fails a check ends the process with a message.
 */

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fakecuda.h"

#define API __attribute__((visibility("default")))
#define STREAM 0x5712ea3ull
#define EVENT 0xe4e27ull
#define CONTEXT 0xc0732ull
#define DEAD 0xdeadull
#define NOT_INITIALIZED 3
#define NOT_READY 600
#define CONTEXT_GONE 709
#define IMPLICIT 906
#define GLOBAL 0
#define RELAXED 2
#define ENDED 256

struct context;

struct stream {
    uint64_t magic;
    struct context *context;
    int64_t busy, takes; /* time at which its work is done; how long a kernel takes */
    int capture, fails, never;
    long records, kernels;
    long issued, finished; /* work that another library does, and says when it is done */
    int64_t ended[ENDED];
    int made; /* by cuStreamCreate */
};

struct context {
    uint64_t magic;
    unsigned long long id;
    struct stream legacy;
};

struct event {
    uint64_t magic;
    struct context *context;
    unsigned long long id; /* of the context: another may come to its address */
    int64_t time;
    long after; /* that much of the stream's work is before it */
    int recorded;
    struct stream *stream;
};

#define STREAMS 64
static struct context contexts[8];
static struct stream streams[STREAMS];
static unsigned n_streams, n_contexts;
static int64_t clock_now = 1000;
static long counts[FAKE_COUNTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local struct context *stack[16];
static _Thread_local int depth, mode;
static _Thread_local struct stream *own; /* the per-thread default stream; it stays when the thread ends */

static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("fakecuda: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

static int64_t now(void)
{
    static int real = -1;
    if (real < 0)
        real = getenv("FAKE_CUDA_REAL") != NULL;
    if (!real)
        return clock_now;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void enter(int what)
{
    pthread_mutex_lock(&lock);
    counts[what]++;
}

static int leave(int result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

static struct context *current(const char *who)
{
    if (!depth || !stack[depth - 1])
        die("%s: no context is current", who);
    if (stack[depth - 1]->magic != CONTEXT)
        die("%s: the current context is gone", who);
    return stack[depth - 1];
}

static struct stream *stream_of(const char *who, void *handle)
{
    if ((uintptr_t)handle > 2) {
        struct stream *s = handle;
        if (s < streams || s >= streams + STREAMS || s->magic != STREAM)
            die("%s: %p is no stream, or a destroyed one", who, handle);
        return s;
    }
    struct context *c = current(who);
    if ((uintptr_t)handle < 2)
        return &c->legacy;
    if (!own) {
        if (n_streams == STREAMS)
            die("more streams than a test needs");
        own = &streams[n_streams++];
        own->magic = STREAM;
    }
    own->context = c;
    return own;
}

static struct event *event_of(const char *who, void *handle)
{
    struct event *e = handle;
    if (!e || e->magic != EVENT)
        die("%s: %p is no event, or a destroyed one", who, handle);
    if (e->context->magic != CONTEXT || e->context->id != e->id)
        die("%s: the event's context is gone", who);
    if (e->context != current(who))
        die("%s: another context is current", who);
    return e;
}

static int captures(const struct context *of)
{
    for (unsigned i = 0; i < n_streams; i++)
        if (streams[i].magic == STREAM && streams[i].capture && (!of || streams[i].context == of))
            return 1;
    return 0;
}

static void safe(const char *who)
{
    if (mode != RELAXED && captures(NULL))
        die("%s: spoils a capture that is under way", who);
}

static int stream_done(const struct stream *s)
{
    return s->busy <= now() && !s->never && s->finished == s->issued;
}

/* When it was reached; INT64_MAX = not yet. */
static int64_t event_time(const struct event *e)
{
    const struct stream *s = e->stream;
    if (s->finished < e->after)
        return INT64_MAX;
    int64_t ended = e->after ? s->ended[e->after % ENDED] : 0;
    return e->time > ended ? e->time : ended;
}

/* ---- the driver ---- */

API int cuCtxGetCurrent(void **out)
{
    enter(FAKE_OTHER);
    *out = depth ? stack[depth - 1] : NULL;
    return leave(n_contexts ? 0 : NOT_INITIALIZED);
}

API int cuCtxPushCurrent_v2(void *context)
{
    struct context *c = context;
    enter(FAKE_PUSHES);
    if (c < contexts || c >= contexts + 8)
        die("cuCtxPushCurrent: %p is no context", context);
    if (depth == 16)
        die("cuCtxPushCurrent: never popped");
    if (c->magic != CONTEXT)
        return leave(CONTEXT_GONE);
    stack[depth++] = c;
    return leave(0);
}

API int cuCtxPopCurrent_v2(void **out)
{
    enter(FAKE_POPS);
    if (!depth)
        die("cuCtxPopCurrent: there is none");
    *out = stack[--depth];
    return leave(0);
}

API int cuCtxGetDevice(int *out)
{
    if (!depth || !stack[depth - 1])
        return 201;
    *out = (int)(current("cuCtxGetDevice") - contexts);
    return 0;
}

API int cuCtxGetId(void *context, unsigned long long *out)
{
    enter(FAKE_OTHER);
    *out = ((struct context *)context)->id;
    return leave(0);
}

API int cuStreamGetCtx(void *stream, void **out)
{
    enter(FAKE_OTHER);
    *out = stream_of("cuStreamGetCtx", stream)->context;
    return leave(0);
}

API int cuStreamIsCapturing(void *stream, int *status)
{
    enter(FAKE_OTHER);
    struct stream *s = stream_of("cuStreamIsCapturing", stream);
    *status = s->capture;
    return leave(s == &s->context->legacy && captures(s->context) ? IMPLICIT : 0);
}

API int cuStreamQuery(void *stream)
{
    enter(FAKE_STREAM_QUERIES);
    struct stream *s = stream_of("cuStreamQuery", stream);
    safe("cuStreamQuery");
    if (s->capture || (s == &s->context->legacy && captures(s->context)))
        die("cuStreamQuery: of a stream that is captured");
    return leave(stream_done(s) ? 0 : NOT_READY);
}

API int cuThreadExchangeStreamCaptureMode(int *in_out)
{
    enter(FAKE_OTHER);
    if (!n_contexts)
        return leave(NOT_INITIALIZED);
    int was = mode;
    mode = *in_out;
    *in_out = was;
    return leave(0);
}

API int cuEventCreate(void **out, unsigned flags)
{
    enter(FAKE_EVENTS);
    safe("cuEventCreate");
    if (flags)
        die("cuEventCreate: flags %u", flags);
    const char *fails = getenv("FAKE_CUDA_EVENT_FAILS"); /* the number of the one that does */
    if (fails && counts[FAKE_EVENTS] == atol(fails))
        return leave(2);
    struct event *e = calloc(1, sizeof *e);
    counts[FAKE_LIVE_EVENTS]++;
    e->magic = EVENT;
    e->context = current("cuEventCreate");
    e->id = e->context->id;
    *out = e;
    return leave(0);
}

API int cuEventDestroy_v2(void *event)
{
    enter(FAKE_OTHER);
    struct event *e = event_of("cuEventDestroy", event);
    e->magic = DEAD;
    counts[FAKE_LIVE_EVENTS]--;
    free(e);
    return leave(0);
}

API int cuEventRecord(void *event, void *stream)
{
    enter(FAKE_RECORDS);
    struct event *e = event_of("cuEventRecord", event);
    struct stream *s = stream_of("cuEventRecord", stream);
    if (s->context != e->context)
        die("cuEventRecord: event and stream are of two contexts");
    if (s->capture || (s == &s->context->legacy && captures(s->context)))
        die("cuEventRecord: on a stream that is captured");
    if (s->fails && --s->fails == 0) {
        counts[FAKE_RECORDS]--;
        return leave(999);
    }
    s->records++;
    e->recorded = 1;
    e->stream = s;
    e->after = s->issued;
    e->time = s->busy > now() ? s->busy : now();
    return leave(0);
}

API int cuEventQuery(void *event)
{
    enter(FAKE_QUERIES);
    struct event *e = event_of("cuEventQuery", event);
    safe("cuEventQuery");
    if (!e->recorded)
        die("cuEventQuery: never recorded");
    int done = event_time(e) <= now() && !e->stream->never;
    counts[FAKE_FINISHED] += done;
    return leave(done ? 0 : NOT_READY);
}

API int cuEventElapsedTime(float *ms, void *begin, void *end)
{
    enter(FAKE_ELAPSED);
    struct event *a = event_of("cuEventElapsedTime", begin), *b = event_of("cuEventElapsedTime", end);
    if (!a->recorded || !b->recorded || event_time(a) > now() || event_time(b) > now())
        die("cuEventElapsedTime: an event that is not complete");
    *ms = (float)((double)(event_time(b) - event_time(a)) / 1e6);
    return leave(0);
}

#include "fakecuda_memory.h"
#include "fakecuda_pool.h"

/* ---- what tests and the test library of NCCL's ABI do with it ---- */

API void fake_cuda_device(int i) /* as cudaSetDevice */
{
    pthread_mutex_lock(&lock);
    if (contexts[i].magic != CONTEXT) {
        contexts[i].magic = CONTEXT;
        contexts[i].id = ++n_contexts;
        contexts[i].legacy = (struct stream){.magic = STREAM, .context = &contexts[i], .takes = 1000000};
    }
    depth = depth ? depth : 1;
    stack[depth - 1] = &contexts[i];
    pthread_mutex_unlock(&lock);
}

API void fake_cuda_reset(int i) /* as cudaDeviceReset: the context is gone, and all in it */
{
    pthread_mutex_lock(&lock);
    contexts[i].magic = DEAD;
    for (unsigned k = 0; k < n_streams; k++)
        if (streams[k].context == &contexts[i])
            streams[k].magic = DEAD;
    depth = 0;
    pthread_mutex_unlock(&lock);
}

API void *fake_cuda_stream(int64_t takes)
{
    pthread_mutex_lock(&lock);
    if (n_streams == STREAMS)
        die("more streams than a test needs");
    struct stream *s = &streams[n_streams++];
    *s = (struct stream){.magic = STREAM, .context = current("fake_cuda_stream"), .takes = takes};
    pthread_mutex_unlock(&lock);
    return s;
}

API void fake_cuda_destroy(void *stream)
{
    pthread_mutex_lock(&lock);
    stream_of("fake_cuda_destroy", stream)->magic = DEAD;
    pthread_mutex_unlock(&lock);
}

API void fake_cuda_set(void *stream, int what, int64_t value)
{
    pthread_mutex_lock(&lock);
    struct stream *s = stream_of("fake_cuda_set", stream);
    if (what == FAKE_TAKES)
        s->takes = value;
    else if (what == FAKE_CAPTURE)
        s->capture = (int)value;
    else if (what == FAKE_FAILS)
        s->fails = (int)value;
    else
        s->never = (int)value;
    pthread_mutex_unlock(&lock);
}

API void fake_cuda_kernel(void *stream)
{
    pthread_mutex_lock(&lock);
    struct stream *s = stream_of("a kernel", stream);
    s->kernels++;
    if (!s->capture)
        s->busy = (s->busy > now() ? s->busy : now()) + s->takes;
    pthread_mutex_unlock(&lock);
}

API void fake_cuda_issue(void *stream)
{
    pthread_mutex_lock(&lock);
    stream_of("work", stream)->issued++;
    pthread_mutex_unlock(&lock);
}

API void fake_cuda_finish(void *stream)
{
    pthread_mutex_lock(&lock);
    struct stream *s = stream_of("the end of work", stream);
    s->finished++;
    s->ended[s->finished % ENDED] = now();
    pthread_mutex_unlock(&lock);
}

API void fake_cuda_advance(int64_t ns)
{
    pthread_mutex_lock(&lock);
    clock_now += ns;
    pthread_mutex_unlock(&lock);
}

API long fake_cuda_count(int what)
{
    pthread_mutex_lock(&lock);
    long n = counts[what];
    pthread_mutex_unlock(&lock);
    return n;
}

API long fake_cuda_records(void *stream)
{
    pthread_mutex_lock(&lock);
    long n = stream_of("fake_cuda_records", stream)->records;
    pthread_mutex_unlock(&lock);
    return n;
}
