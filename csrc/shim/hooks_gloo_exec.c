/* SPDX-License-Identifier: Apache-2.0 */
/* Executions of Gloo's collectives in PyTorch, timed while the control page asks for it.
 *
 * A collective is a work object: the calling thread enqueues it, a worker thread of the group executes it. Both
 * are functions of libtorch_cpu that it calls by way of its symbol table. So each execution is known to belong
 * to one call, and its record carries that call's number; a call on several tensors may be several works. Send
 * and receive make no such object: not timed.
 */

#if defined(__x86_64__)

#include <stddef.h>

#include "export.h"
#include "shim.h"

#define WORK "N3c1013intrusive_ptrINS0_9AsyncWorkENS1_6detail34intrusive_target_default_null_typeIS3_EEEE"
#define ENQUEUE "_ZN4c10d16ProcessGroupGloo7enqueueE" WORK
#define EXECUTE                                                                                             \
    "_ZN4c10d16ProcessGroupGloo9AsyncWork7executeERKN3c1013intrusive_ptrIS1_NS2_6detail34intrusive_target_" \
    "default_null_typeIS1_EEEE"

static const char *const sonames[] = {"libtorch_cpu.so", NULL};

/* Works under way. The thread that enqueues writes an entry before torch's own queue hands the work to the
 * thread that executes it, and that lock orders the two; only taking a place needs an atomic here. */
#define CAP 1024u
#define PROBES 16u

static struct under_way {
    const void *work;
    int64_t seq;
    struct gh_call call;
} under_way[CAP];

static struct under_way *place(const void *work, unsigned probe)
{
    return &under_way[((unsigned)(((uintptr_t)work >> 4) * 0x9e3779b97f4a7c15ull >> 54) + probe) & (CAP - 1)];
}

static void remember(const void *work)
{
    for (unsigned i = 0; i < PROBES; i++) {
        struct under_way *u = place(work, i);
        const void *empty = NULL;
        if (__atomic_load_n(&u->work, __ATOMIC_RELAXED) == work ||
            __atomic_compare_exchange_n(&u->work, &empty, work, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            u->seq = gh_gloo_current.seq;
            u->call = gh_gloo_current.call;
            return;
        }
    }
}

static bool recall(const void *work, struct under_way *out)
{
    for (unsigned i = 0; i < PROBES; i++) {
        struct under_way *u = place(work, i);
        if (__atomic_load_n(&u->work, __ATOMIC_RELAXED) == work) {
            *out = *u;
            __atomic_store_n(&u->work, NULL, __ATOMIC_RELEASE);
            return true;
        }
    }
    return false;
}

/* On a cache line of its own: it changes with every collective, on two threads. */
static struct {
    _Alignas(64) int64_t n;
    char rest[56];
} enqueued;

bool gh_gloo_drained(void)
{
    return __atomic_load_n(&enqueued.n, __ATOMIC_ACQUIRE) <= 0;
}

static void executed(int *unused)
{
    (void)unused;
    __atomic_fetch_sub(&enqueued.n, 1, __ATOMIC_RELEASE);
}

GH_EXPORT void gh_gloo_enqueue(void *self, void **work) __asm__(ENQUEUE);
void gh_gloo_enqueue(void *self, void **work)
{
    static void *cache;
    void (*real)(void *, void **);
    *(void **)&real = gh_real(&cache, ENQUEUE, sonames);
    if (GH_UNLIKELY(gh_gloo_current.seq >= 0))
        remember(*work);
    __atomic_fetch_add(&enqueued.n, 1, __ATOMIC_RELAXED);
    real(self, work);
}

GH_EXPORT void gh_gloo_execute(void **work) __asm__(EXECUTE);
void gh_gloo_execute(void **work)
{
    static void *cache;
    static int ever; /* nothing is looked for until a profile has been asked for once */
    void (*real)(void **);
    struct under_way was;
    *(void **)&real = gh_real(&cache, EXECUTE, sonames);
    if (GH_UNLIKELY(!__atomic_load_n(&ever, __ATOMIC_RELAXED) && gh_profiling()))
        __atomic_store_n(&ever, 1, __ATOMIC_RELAXED);
    bool known = __atomic_load_n(&ever, __ATOMIC_RELAXED) && recall(*work, &was);
    int64_t begin = known ? gh_now_ns() : 0;
    int guard __attribute__((cleanup(executed), unused)) = 0; /* an exception of the collective passes through here */
    real(work);
    if (known)
        gh_exec(&was.call, was.seq, begin);
}

#else

#include "shim.h"

bool gh_gloo_drained(void)
{
    return true;
}

#endif
