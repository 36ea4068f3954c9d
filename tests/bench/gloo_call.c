/* SPDX-License-Identifier: Apache-2.0 */
/* FOR BENCHMARKS ONLY: the cost of the Gloo hook. Preloaded behind the shim, this library offers an all-reduce
 * and a constructor of c10d::ProcessGroupGloo that do nothing, so what is timed is the hook itself, with real
 * tensors whose sizes it reads by real torch. bench_gloo() is called by Python through ctypes. With `works` an
 * all-reduce enqueues a work and executes it, as torch does on another thread. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define ALL_REDUCE "_ZN4c10d16ProcessGroupGloo9allreduceERSt6vectorIN2at6TensorESaIS3_EERKNS_16AllreduceOptionsE"
#define MADE                                                                                                \
    "_ZN4c10d16ProcessGroupGlooC1ERKN3c1013intrusive_ptrINS_5StoreENS1_6detail34intrusive_target_default_"  \
    "null_typeIS3_EEEEiiNS2_INS0_7OptionsENS5_ISA_EEEE"

#define WORK "N3c1013intrusive_ptrINS0_9AsyncWorkENS1_6detail34intrusive_target_default_null_typeIS3_EEEE"
#define ENQUEUE "_ZN4c10d16ProcessGroupGloo7enqueueE" WORK
#define EXECUTE                                                                                             \
    "_ZN4c10d16ProcessGroupGloo9AsyncWork7executeERKN3c1013intrusive_ptrIS1_NS2_6detail34intrusive_target_" \
    "default_null_typeIS1_EEEE"

static int works;
static char work_object[64];
static void (*enqueue)(void *, void **), (*execute)(void **); /* the shim's, or the bare ones */

static __attribute__((noinline)) void bare_enqueue(void *self, void **work)
{
    __asm__ volatile("" : : "r"(self), "r"(work) : "memory");
}

static __attribute__((noinline)) void bare_execute(void **work)
{
    __asm__ volatile("" : : "r"(work) : "memory");
}

EXPORT void offered_enqueue(void *self, void **work) __asm__(ENQUEUE);
void offered_enqueue(void *self, void **work)
{
    bare_enqueue(self, work);
}

EXPORT void offered_execute(void **work) __asm__(EXECUTE);
void offered_execute(void **work)
{
    bare_execute(work);
}

/* The bare call has a name of its own: by the mangled one even this library would get the shim's. */
static __attribute__((noinline)) void *bare_all_reduce(void *ret, void *self, void *tensors, void *options)
{
    __asm__ volatile("" : : "r"(self), "r"(tensors), "r"(options) : "memory");
    if (works) {
        void *work = work_object;
        enqueue(self, &work);
        execute(&work);
    }
    return ret;
}

EXPORT void *offered_all_reduce(void *ret, void *self, void *tensors, void *options) __asm__(ALL_REDUCE);
void *offered_all_reduce(void *ret, void *self, void *tensors, void *options)
{
    return bare_all_reduce(ret, self, tensors, options);
}

EXPORT void bare_made(void *self, void **store, int rank, int size, void *options) __asm__(MADE);
void bare_made(void *self, void **store, int rank, int size, void *options)
{
    (void)self;
    (void)store;
    (void)rank;
    (void)size;
    (void)options;
}

typedef void *all_reduce(void *, void *, void *, void *);

static double block(all_reduce *f, void *group, void *tensors, int calls)
{
    struct timespec a, b;
    void *ret = NULL, *options[8] = {0};
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < calls; i++)
        f(&ret, group, tensors, options);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / calls;
}

static void choose(int hooked)
{
    enqueue = bare_enqueue;
    execute = bare_execute;
    if (hooked) {
        *(void **)&enqueue = dlsym(RTLD_DEFAULT, ENQUEUE);
        *(void **)&execute = dlsym(RTLD_DEFAULT, EXECUTE);
    }
}

/* impl: TensorImpl* of a tensor (Tensor._cdata). Fills ns a call of `blocks` blocks each, bare and hooked. */
EXPORT int bench_gloo(void *impl, int blocks, int calls, int with_works, double *without, double *with)
{
    static char group[64];
    void *tensor = impl, *store = NULL;
    char *tensors[3] = {(char *)&tensor, (char *)(&tensor + 1), (char *)(&tensor + 1)};
    void (*made)(void *, void **, int, int, void *);
    all_reduce *hooked;
    *(void **)&made = dlsym(RTLD_DEFAULT, MADE); /* the shim's, being first */
    *(void **)&hooked = dlsym(RTLD_DEFAULT, ALL_REDUCE);
    made(group, &store, 0, 2, NULL);
    works = with_works;
    for (int i = 0; i < blocks; i++) {
        choose(0);
        without[i] = block(bare_all_reduce, group, tensors, calls);
        choose(1);
        with[i] = block(hooked, group, tensors, calls);
    }
    Dl_info own, theirs;
    return dladdr((void *)hooked, &theirs) && dladdr((void *)bench_gloo, &own) && own.dli_fbase != theirs.dli_fbase;
}
