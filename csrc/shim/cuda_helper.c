/* SPDX-License-Identifier: Apache-2.0 */
/* The helper thread: makes events, asks them what they say, writes the rows.
 *
 * One a process, made when a profile or a pause is first asked for, with all signals blocked. It looks every
 * millisecond while something is asked for or under way, and sleeps for good otherwise. Its capture mode is relaxed, so
 * that a query never spoils a capture of another thread (pytorch#148594).
 *
 * When did it begin? Durations are the device's own (0.5 us, CUDA's resolution). Their place on the host's clock is
 * not: the device's clock is tied to it by what is certain, that nothing begins before it was put on its stream and
 * that nothing is seen complete before it is. So the error is at most the time between two looks (1 ms, more if this
 * thread is kept from running) when the device lags behind the host, and some tens of microseconds when it does not.
 * It moves the rows of a context together: gaps between them are exact but for the moves.
 *
 * A duration begins with the event before the launch. On a stream with nothing to do it therefore holds the time the
 * host took to launch, tens of microseconds; where that is most of it (a connection is made first) it is invalid.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "control_shim.h"
#include "cuda_spans.h"

#define LOOK_NS 1000000l
#ifndef GH_CUDA_AGE_NS /* a test does not wait so long */
#define GH_CUDA_AGE_NS 600000000000ll /* what takes longer is a hang, or a collective whose peer is gone */
#endif
#define ENQUEUE_NS 200000       /* a launch that takes longer than that is more than a launch */
#define REBASE_NS 4000000000ll  /* CUDA gives times as float ms: at 4 s still good to 0.25 us */
#define STACK_BYTES (1u << 20)  /* thread-local storage of the program's libraries is in it, too */
#define EXIT_WAIT_NS 100000000l /* how long an exit waits for this thread to come out of the driver */
#define NOT_TELLING 900         /* 900 to 910: the event was caught in a capture */
#define NOT_TELLING_LAST 910

enum { NONE, RUNNING, FAILED };
static uint32_t helper, idle;
static uint32_t inside; /* this thread is in the driver or writes rows */
static uint32_t ending; /* the process ends; or never again, in the child of a process that used CUDA */

bool gh_cuda_over(void)
{
    return __atomic_load_n(&ending, __ATOMIC_RELAXED);
}

/* ---- what a finished span says ---- */

static void invalid(const struct gh_span *s)
{
    gh_exec_timed(&s->call, s->seq, s->before_ns, -1);
}

/* Time of a complete event on the device's clock, ns. */
static bool device_time(const struct gh_cuda *cu, const struct gh_place *place, gh_cu_event event, int64_t *out)
{
    float ms;
    if (cu->elapsed(&ms, place->reference, event) != GH_CU_SUCCESS)
        return false;
    *out = place->reference_ns + (int64_t)((double)ms * 1e6);
    return true;
}

static int64_t host_begin(const struct gh_cuda *cu, struct gh_place *place, struct gh_span *s, int64_t dur_ns,
                          int64_t seen_ns)
{
    int64_t at = 0;
    if (!place->has_reference || !device_time(cu, place, s->begin, &at)) {
        gh_cu_event spare = place->reference;
        at = place->reference_ns = 0;
        place->reference = s->begin;
        s->begin = spare;
        place->offset_ns = seen_ns - dur_ns - LOOK_NS / 2;
        place->has_reference = true;
    } else if (at - place->reference_ns > REBASE_NS) {
        gh_cu_event old = place->reference;
        place->reference = s->begin;
        place->reference_ns = at;
        s->begin = old;
    }
    /* It ended before it was seen, and began after it was put there; this last, should the two ever disagree. */
    int64_t least = s->before_ns - at, most = seen_ns - dur_ns - at;
    if (place->offset_ns > most)
        place->offset_ns = most;
    if (place->offset_ns < least)
        place->offset_ns = least;
    return at + place->offset_ns;
}

static void finish(const struct gh_cuda *cu, struct gh_place *place, struct gh_span *s)
{
    float ms = 0;
    if (s->said)
        return;
    if (__atomic_load_n(&s->dropped, __ATOMIC_RELAXED) || cu->elapsed(&ms, s->begin, s->end) != GH_CU_SUCCESS ||
        !(ms > 0)) {
        invalid(s);
        return;
    }
    int64_t dur = (int64_t)((double)ms * 1e6), begin = host_begin(cu, place, s, dur, gh_now_ns());
    int64_t launch = s->after_ns - begin;
    gh_exec_timed(&s->call, s->seq, begin, launch > ENQUEUE_NS && launch > dur / 2 ? -1 : dur);
}

/* ---- looking ---- */

static void give_back(struct gh_span *s, uint32_t state)
{
    s->said = false;
    __atomic_store_n(&s->state, state, __ATOMIC_RELEASE);
}

/* The context is gone, and its events with it: they are not touched again. */
static void bury(struct gh_place *place)
{
    __atomic_store_n(&place->state, GH_PLACE_DEAD, __ATOMIC_RELEASE);
    for (unsigned k = 0; k < GH_SPANS; k++) {
        struct gh_span *s = &place->span[k];
        if (__atomic_load_n(&s->state, __ATOMIC_ACQUIRE) == GH_SPAN_RECORDED) {
            if (!s->said)
                invalid(s);
            give_back(s, GH_SPAN_EMPTY);
        }
    }
}

static void fill(const struct gh_cuda *cu, struct gh_place *place)
{
    bool good = cu->create(&place->reference, 0) == GH_CU_SUCCESS;
    for (unsigned k = 0; good && k < GH_SPANS; k++) {
        struct gh_span *s = &place->span[k];
        good = cu->create(&s->begin, 0) == GH_CU_SUCCESS;
        if (good && cu->create(&s->end, 0) != GH_CU_SUCCESS) {
            cu->destroy(s->begin);
            good = false;
        }
        if (good)
            __atomic_store_n(&s->state, GH_SPAN_FREE, __ATOMIC_RELEASE);
        else if (!k)
            cu->destroy(place->reference);
    }
    /* With fewer events than wanted, fewer calls are timed. */
    uint32_t state = place->span[0].state == GH_SPAN_EMPTY ? GH_PLACE_DEAD : GH_PLACE_READY;
    __atomic_store_n(&place->state, state, __ATOMIC_RELEASE);
}

/* One span; false = the context is gone. `*waits`: it is not done. */
static bool look_at(const struct gh_cuda *cu, struct gh_place *place, struct gh_span *s, bool *waits)
{
    int result = cu->query(s->end);
    *waits = result == GH_CU_NOT_READY;
    if (*waits) {
        if (!s->said && gh_now_ns() - s->after_ns > GH_CUDA_AGE_NS) {
            s->said = true;
            invalid(s);
        }
    } else if (result == GH_CU_SUCCESS) {
        finish(cu, place, s);
        give_back(s, GH_SPAN_FREE);
    } else if (result >= NOT_TELLING && result <= NOT_TELLING_LAST) {
        if (!s->said)
            invalid(s);
        give_back(s, GH_SPAN_EMPTY);
    } else {
        return false;
    }
    return true;
}

/* The recorded spans of a context, in the order in which they were taken. */
static unsigned in_order(struct gh_place *place, struct gh_span **out)
{
    unsigned n = 0;
    for (unsigned k = 0; k < GH_SPANS; k++) {
        struct gh_span *s = &place->span[k];
        if (__atomic_load_n(&s->state, __ATOMIC_ACQUIRE) != GH_SPAN_RECORDED)
            continue;
        unsigned at = n++;
        for (; at > 0 && out[at - 1]->ticket > s->ticket; at--)
            out[at] = out[at - 1];
        out[at] = s;
    }
    return n;
}

#define BLOCKED 16

/* Spans that are not done. A stream works in order, so behind one that is not done nothing is asked. */
static unsigned look_through(const struct gh_cuda *cu, struct gh_place *place)
{
    struct gh_span *due[GH_SPANS];
    uint64_t blocked[BLOCKED];
    unsigned n = in_order(place, due), left = 0, streams = 0;
    for (unsigned i = 0; i < n; i++) {
        bool waits = false;
        uint64_t stream = due[i]->call.lane;
        for (unsigned k = 0; k < streams && stream != (uintptr_t)GH_CU_PER_THREAD; k++)
            waits |= blocked[k] == stream;
        if (!waits) {
            if (!look_at(cu, place, due[i], &waits)) {
                bury(place);
                return 0;
            }
            if (waits && streams < BLOCKED)
                blocked[streams++] = stream;
        }
        left += waits;
    }
    return left;
}

static unsigned look(const struct gh_cuda *cu, struct gh_place *place)
{
    static GH_TLS bool relaxed;
    uint32_t state = __atomic_load_n(&place->state, __ATOMIC_ACQUIRE);
    unsigned long long id = 0;
    unsigned left = 0;
    if (state != GH_PLACE_NEW && state != GH_PLACE_READY)
        return 0;
    if (cu->push(place->context) != GH_CU_SUCCESS) {
        bury(place);
        return 0;
    }
    int mode = GH_CU_MODE_RELAXED;
    if (!relaxed)
        relaxed = cu->exchange_mode(&mode) == GH_CU_SUCCESS;
    if (!relaxed)
        bury(place); /* not without: it could spoil a capture */
    else if (cu->context_id && (cu->context_id(place->context, &id) != GH_CU_SUCCESS || id != place->id))
        bury(place);
    else if (state == GH_PLACE_NEW)
        fill(cu, place);
    else
        left = look_through(cu, place);
    gh_cu_context was;
    cu->pop(&was);
    return left;
}

/* ---- the thread ---- */

static bool asked(void)
{
    int64_t profile = __atomic_load_n(&gh_control_page->profile_until_ns, __ATOMIC_RELAXED);
    int64_t pause = __atomic_load_n(&gh_control_page->pause_until_ns, __ATOMIC_RELAXED);
    int64_t until = profile > pause ? profile : pause;
    return until && gh_now_ns() < until;
}

/* Something is left to be done after this. */
static bool turn(void)
{
    static unsigned tries; /* where there is no driver (RCCL), the loader is not asked every time */
    const struct gh_cuda *cu = gh_cuda_loaded();
    unsigned left = 0;
    if (!cu && tries++ % 128 == 0)
        cu = gh_cuda_load();
    for (unsigned i = 0; cu && i < GH_PLACES; i++)
        left += look(cu, &gh_places[i]);
    return left || asked();
}

static void sleep_for_good(void)
{
    __atomic_store_n(&idle, 1, __ATOMIC_SEQ_CST);
    bool more = turn(); /* what came before this thread said that it sleeps */
    __atomic_store_n(&inside, 0, __ATOMIC_SEQ_CST);
    if (!more)
        syscall(SYS_futex, &idle, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    __atomic_store_n(&idle, 0, __ATOMIC_SEQ_CST);
}

static void *work(void *unused)
{
    const struct timespec pause = {0, LOOK_NS};
    pthread_setname_np(pthread_self(), "ght-cuda");
    while (!gh_cuda_over()) {
        __atomic_store_n(&inside, 1, __ATOMIC_SEQ_CST);
        bool more = __atomic_load_n(&ending, __ATOMIC_SEQ_CST) || turn();
        if (!more)
            sleep_for_good();
        __atomic_store_n(&inside, 0, __ATOMIC_SEQ_CST);
        if (more)
            clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
    }
    return unused;
}

void gh_cuda_helper_wake(void)
{
    if (GH_UNLIKELY(__atomic_load_n(&idle, __ATOMIC_SEQ_CST))) {
        int saved = errno;
        __atomic_store_n(&idle, 0, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &idle, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        errno = saved;
    }
}

/* The driver ends with the process, and a thread inside it then would crash. Registered after the driver's own
 * handlers, so called before them. */
static void at_exit(void)
{
    const struct timespec step = {0, LOOK_NS / 10};
    __atomic_store_n(&ending, 1, __ATOMIC_SEQ_CST);
    for (long waited = 0; __atomic_load_n(&inside, __ATOMIC_SEQ_CST) && waited < EXIT_WAIT_NS;
         waited += step.tv_nsec)
        nanosleep(&step, NULL);
    for (unsigned i = 0; i < GH_PLACES; i++)
        for (unsigned k = 0; k < GH_SPANS; k++) {
            struct gh_span *s = &gh_places[i].span[k];
            uint32_t recorded = GH_SPAN_RECORDED;
            if (__atomic_compare_exchange_n(&s->state, &recorded, GH_SPAN_EMPTY, 0, __ATOMIC_ACQ_REL,
                                            __ATOMIC_RELAXED) &&
                !s->said)
                invalid(s);
        }
}

static void start(void)
{
    static bool registered; /* a forked child has its parent's handlers */
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    bool good = false;
    if (pthread_attr_init(&attributes) == 0) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        good = !pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) &&
               !pthread_attr_setstacksize(&attributes, STACK_BYTES) &&
               !pthread_create(&thread, &attributes, work, NULL);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
    }
    if (good && !registered)
        registered = !atexit(at_exit);
    __atomic_store_n(&helper, good ? RUNNING : FAILED, __ATOMIC_RELEASE);
}

void gh_cuda_helper_start(void)
{
    uint32_t none = NONE;
    if (GH_UNLIKELY(__atomic_load_n(&helper, __ATOMIC_RELAXED) == NONE) &&
        __atomic_compare_exchange_n(&helper, &none, RUNNING, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        int saved = errno;
        start();
        errno = saved;
    }
}

void gh_cuda_helper_forget(void)
{
    ending = gh_cuda_loaded() != NULL; /* CUDA does not work in the child of a process that used it */
    helper = NONE;
    idle = inside = 0;
}
