/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: the tasks on a GPU, with the shim in the program, on the devices of fakecuda.c. After each task
 * nothing may be left: no memory, stream, event, pool or description, and the thread is as it was.
 *   gpu_run HOW KIND SIZE REPEATS WINDOW_NS FORMAT [TOGETHER]
 * HOW: once prints status, values and what was said; faults has each call of driver and library fail once, leaves ends
 * the leave ever later, both until a task goes through; the others are named below. */

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fakecuda.h"
#include "shim/cuda_events.h"
#include "shim/cublaslt_api.h"
#include "tasks/tasks.h"

long fake_lt_live(void) __attribute__((weak));
long fake_lt_handles(void) __attribute__((weak));
long fake_lt_products(void) __attribute__((weak));
extern int fault(void); /* also called by fakecublaslt.c */

static struct gh_task task;
static struct gh_result result;
static struct gh_cuda *cu, real;
static long calls, fails; /* the call that fails, 0 = none */
static int harmless;      /* ... was one after which a task may well say that all is good */

static void die(const char *what, long a, long b)
{
    fprintf(stderr, "gpu_run: %s (%ld, %ld) status %d: %s\n", what, a, b, result.status, result.said);
    exit(20);
}

/* ---- calls that fail ---- */

int fault(void)
{
    return ++calls == fails;
}

static int lets(int result_)
{
    if (!fault())
        return result_;
    harmless = 1;
    return 999;
}

#define FAILING(member, PARAMS, ARGS) \
    static int member##_ PARAMS { return fault() ? 999 : real.member ARGS; }
#define RELEASING(member, PARAMS, ARGS) \
    static int member##_ PARAMS { return lets(real.member ARGS); }

FAILING(context, (gh_cu_context * o), (o))
FAILING(device, (int *o), (o))
FAILING(context_id, (gh_cu_context c, unsigned long long *o), (c, o))
FAILING(capturing, (gh_cu_stream s, int *o), (s, o))
FAILING(create, (gh_cu_event * o, unsigned f), (o, f))
FAILING(record, (gh_cu_event e, gh_cu_stream s), (e, s))
FAILING(query, (gh_cu_event e), (e))
FAILING(elapsed, (float *m, gh_cu_event a, gh_cu_event b), (m, a, b))
FAILING(mem_info, (size_t * a, size_t *b), (a, b))
FAILING(put_on, (gh_cu_memory a, const void *b, size_t n, gh_cu_stream s), (a, b, n, s))
FAILING(get_on, (void *a, gh_cu_memory b, size_t n, gh_cu_stream s), (a, b, n, s))
FAILING(set_on, (gh_cu_memory a, unsigned v, size_t n, gh_cu_stream s), (a, v, n, s))
FAILING(copy_on, (gh_cu_memory a, gh_cu_memory b, size_t n, gh_cu_stream s), (a, b, n, s))
FAILING(stream_create, (gh_cu_stream * o, unsigned f), (o, f))
FAILING(pool_create, (gh_cu_pool * o, const struct gh_cu_pool_is *is), (o, is))
FAILING(alloc_on, (gh_cu_memory * o, size_t n, gh_cu_pool p, gh_cu_stream s), (o, n, p, s))
FAILING(attribute, (int *o, int w, int d), (o, w, d))
FAILING(name, (char *o, int n, int d), (o, n, d))
FAILING(uuid, (unsigned char *o, int d), (o, d))
FAILING(pci, (char *o, int n, int d), (o, n, d))
static int exchange_mode_(int *m) /* as it was, or relaxed for good: the test puts it back */
{
    if (!fault())
        return real.exchange_mode(m);
    harmless = 1;
    return 999;
}
RELEASING(stream_query, (gh_cu_stream s), (s))
RELEASING(destroy, (gh_cu_event e), (e))
RELEASING(stream_destroy, (gh_cu_stream s), (s))
RELEASING(pool_destroy, (gh_cu_pool p), (p))
RELEASING(free_on, (gh_cu_memory a, gh_cu_stream s), (a, s))

static void take_over(void)
{
    cu = (struct gh_cuda *)(uintptr_t)gh_cuda_load();
    real = *cu;
#define OURS(member) cu->member = member##_;
    OURS(context) OURS(device) OURS(context_id) OURS(capturing) OURS(create) OURS(record) OURS(query) OURS(elapsed)
    OURS(mem_info) OURS(put_on) OURS(get_on) OURS(set_on) OURS(copy_on) OURS(stream_create) OURS(pool_create)
    OURS(alloc_on) OURS(attribute) OURS(name) OURS(uuid) OURS(pci) OURS(exchange_mode) OURS(stream_query)
    OURS(destroy) OURS(stream_destroy) OURS(pool_destroy) OURS(free_on)
}

/* ---- a task ---- */

static bool until_asked(void *self)
{
    long *left = self;
    return (*left)-- > 0;
}

static int run(long asks)
{
    struct gh_leave leave = {until_asked, &asks};
    int mode = 0;
    void *before = NULL, *after = NULL;
    cuCtxGetCurrent(&before);
    calls = harmless = 0;
    gh_task_run(&task, &leave, &result);
    cuCtxGetCurrent(&after);
    for (int what = FAKE_LIVE_EVENTS; what <= FAKE_LIVE_POOLS; what++)
        if (fake_cuda_count(what))
            die("something is left", what, fake_cuda_count(what));
    if (fake_lt_live && (fake_lt_live() || fake_lt_handles() > 1))
        die("a description or handles are left", fake_lt_live(), fake_lt_handles());
    if (after != before || (before && (cuThreadExchangeStreamCaptureMode(&mode) || (mode && !harmless))))
        die("the thread is not as it was", mode, 0);
    if (result.status && !result.said[0])
        die("it failed without a word", calls, fails);
    return result.status;
}

static int once(void) /* GPU_RUN_ASKS: how often the leave stands */
{
    const char *asks = getenv("GPU_RUN_ASKS");
    run(asks ? atol(asks) : 1000000);
    printf("%d\n", result.status);
    for (unsigned i = 0; i < result.count; i++)
        printf(i + 1 < result.count ? "%ld " : "%ld", (long)result.value[i]);
    printf("\n%s\n", result.said);
    return 0;
}

static int faults(void)
{
    take_over();
    for (fails = 1;; fails++) {
        int status = run(1000000), failed = calls >= fails;
        if (!failed) {
            if (status)
                die("it did not go through at last", calls, fails);
            break;
        }
        if (!status && !harmless)
            die("a failed call was not noticed", calls, fails);
    }
    printf("%ld\n", fails - 1);
    return 0;
}

static int leaves(void)
{
    long asks = 0;
    for (; run(asks); asks += 1 + asks / 8)
        if (result.status != ECANCELED)
            die("not the leave's end", asks, 0);
    printf("%ld\n", asks);
    return 0;
}

static int captured(void)
{
    void *stream = fake_cuda_stream(1000);
    gh_cuda_at = (uintptr_t)stream;
    fake_cuda_set(stream, FAKE_CAPTURE, 1);
    int named = run(1000000);
    gh_cuda_at = 0;
    int blocking = run(1000000); /* the fake's streams block the default stream */
    fake_cuda_set(stream, FAKE_CAPTURE, 0);
    gh_cuda_at = (uintptr_t)stream;
    printf("%d %d %d\n", named, blocking, run(1000000));
    return 0;
}

static void *without(void *unused)
{
    printf("%d\n%s\n", run(1000000), result.said);
    return unused;
}

static int no_context(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, without, NULL);
    pthread_join(thread, NULL);
    return 0;
}

/* The context is that of the stream in the call, though the thread has another; then the first is made anew. */
static int contexts(void)
{
    void *stream = fake_cuda_stream(1000);
    gh_cuda_at = (uintptr_t)stream;
    fake_cuda_device(1);
    printf("%d %s\n", run(1000000), result.said);
    return 0;
}

static int storm(void)
{
    for (int i = 0; i < 40; i++)
        if (run(1000000))
            die("a task failed", i, 0);
    puts("40");
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } all[] = {{"once", once},         {"faults", faults},         {"leaves", leaves}, {"captured", captured},
               {"no_context", no_context}, {"contexts", contexts}, {"storm", storm}};
    if (argc < 7)
        return 2;
    if (strcmp(argv[1], "unused"))
        fake_cuda_device(0);
    task.kind = (uint32_t)atoi(argv[2]);
    for (int i = 3; i < argc && i < 8; i++)
        task.arg[(int[]){GH_TEST_SIZE, GH_TEST_REPEATS, GH_TEST_WINDOW, GH_TEST_KERNEL, GH_TEST_TOGETHER}[i - 3]] =
            atol(argv[i]);
    if (!strcmp(argv[1], "unused"))
        return once();
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(argv[1], all[i].name))
            return all[i].run();
    return 2;
}
