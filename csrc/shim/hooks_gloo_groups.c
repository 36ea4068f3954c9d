/* SPDX-License-Identifier: Apache-2.0 */
/* Process groups of Gloo in PyTorch: their making, identity and names.
 *
 * All ranks of a group build it on stores with the same chain of prefixes ("default_pg", "0/", "cpu/"), and
 * no other group of the job has that chain, so a hash of the chain and the size is an identity that needs no
 * talking. The chain is followed through the constructors of c10d::PrefixStore, which are hooked too.
 */

#if defined(__x86_64__)

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "export.h"
#include "ring.h"
#include "shim.h"

static const char *const sonames[] = {"libtorch_cpu.so", NULL};

struct string { /* std::string of libstdc++'s C++11 ABI */
    const char *data;
    uint64_t size;
};

/* ---- prefix stores ---- */

/* By address; the newest wins. A freed store's address may come back as another kind of store, which its
 * virtual table gives away. Bounded: an entry pushed out makes a group's identity shorter, not wrong. */
#define STORES 4096u
#define PROBES 8u

static struct store {
    const void *at, *kind;
    uint64_t hash, age;
} stores[STORES];
static uint64_t now;
static pthread_mutex_t storing = PTHREAD_MUTEX_INITIALIZER;

static struct store *store_at(const void *at, unsigned probe)
{
    return &stores[((unsigned)(((uintptr_t)at >> 4) * 0x9e3779b97f4a7c15ull >> 52) + probe) & (STORES - 1)];
}

/* The lock is held. 0 = not a prefix store: the bottom of the chain. */
static uint64_t store_hash(const void *at)
{
    const struct store *found = NULL;
    for (unsigned i = 0; i < PROBES; i++) {
        const struct store *s = store_at(at, i);
        if (s->at == at && (!found || s->age > found->age))
            found = s;
    }
    return found && *(const void *const *)at == found->kind ? found->hash : 0;
}

static void store_put(const void *at, uint64_t hash)
{
    struct store *best = store_at(at, 0);
    for (unsigned i = 0; i < PROBES; i++) {
        struct store *s = store_at(at, i);
        if (s->at == at || !s->at) {
            best = s;
            break;
        }
        if (s->age < best->age)
            best = s;
    }
    *best = (struct store){at, *(const void *const *)at, hash, ++now};
}

void gh_gloo_forget(void)
{
    pthread_mutex_init(&storing, NULL);
}

#define PREFIX_STORE                                                                                        \
    "_ZN4c10d11PrefixStoreC1ENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEN3c1013intrusive_ptrI"     \
    "NS_5StoreENS7_6detail34intrusive_target_default_null_typeIS9_EEEE"

GH_EXPORT void gh_gloo_prefix_store(void *self, const struct string *prefix, void **under)
    __asm__(PREFIX_STORE);
void gh_gloo_prefix_store(void *self, const struct string *prefix, void **under)
{
    static void *cache;
    void (*real)(void *, const struct string *, void **);
    *(void **)&real = gh_real(&cache, PREFIX_STORE, sonames);
    uint64_t hash = 0;
    if (!gh_disabled) {
        pthread_mutex_lock(&storing);
        hash = gh_hash(prefix->data, prefix->size, *under ? store_hash(*under) : 0);
        pthread_mutex_unlock(&storing);
    }
    real(self, prefix, under); /* moves out of both arguments */
    if (hash) {
        pthread_mutex_lock(&storing);
        store_put(self, hash);
        pthread_mutex_unlock(&storing);
    }
}

/* ---- groups ---- */

/* A ProcessGroup and its Gloo backend are different objects; it is named right after the backend was made,
 * by the thread that made it. */
static GH_TLS const void *unnamed;

#define GROUP_MADE                                                                                          \
    "_ZN4c10d16ProcessGroupGlooC1ERKN3c1013intrusive_ptrINS_5StoreENS1_6detail34intrusive_target_default_"  \
    "null_typeIS3_EEEEiiNS2_INS0_7OptionsENS5_ISA_EEEE"

GH_EXPORT void gh_gloo_group_made(void *self, void **store, int rank, int size, void *options)
    __asm__(GROUP_MADE);
void gh_gloo_group_made(void *self, void **store, int rank, int size, void *options)
{
    static void *cache;
    void (*real)(void *, void **, int, int, void *);
    *(void **)&real = gh_real(&cache, GROUP_MADE, sonames);
    uint64_t chain = 0;
    if (!gh_disabled) {
        gh_gloo_prepare();
        pthread_mutex_lock(&storing);
        chain = *store ? store_hash(*store) : 0;
        pthread_mutex_unlock(&storing);
    }
    real(self, store, rank, size, options); /* throws if the ranks cannot meet; then there is no group */
    if (gh_disabled)
        return;
    char path[GH_PATH_BYTES];
    gh_comm_add(self, gh_hash2(chain, (uint64_t)size), 0, size, rank, GH_BACKEND_GLOO, "");
    gh_object_path(cache, path, sizeof path);
    gh_ring_backend(GH_BACKEND_GLOO, path);
    unnamed = self;
}

#define GROUP_GONE(which)                                                                                   \
    GH_EXPORT void gh_gloo_group_gone_##which(void *self) __asm__("_ZN4c10d16ProcessGroupGloo" #which "Ev"); \
    void gh_gloo_group_gone_##which(void *self)                                                             \
    {                                                                                                       \
        static void *cache;                                                                                 \
        void (*real)(void *);                                                                               \
        *(void **)&real = gh_real(&cache, "_ZN4c10d16ProcessGroupGloo" #which "Ev", sonames);               \
        gh_comm_drop(self);                                                                                 \
        if (unnamed == self)                                                                                \
            unnamed = NULL;                                                                                 \
        real(self);                                                                                         \
    }

GROUP_GONE(D0) /* by `delete`: by way of the virtual table */
GROUP_GONE(D1)

static void name_group(const struct string *text)
{
    char name[GH_NAME_BYTES];
    if (!unnamed || !text->size || !strcmp(text->data, "undefined"))
        return;
    snprintf(name, sizeof name, "%s", text->data);
    gh_comm_name(unnamed, name);
}

#define SET(what)                                                                                           \
    "_ZN4c10d12ProcessGroup12setGroup" what "ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

#define NAMING(own, what, LAST)                                                                             \
    GH_EXPORT void gh_gloo_##own(void *self, const struct string *text) __asm__(SET(what));                 \
    void gh_gloo_##own(void *self, const struct string *text)                                               \
    {                                                                                                       \
        static void *cache;                                                                                 \
        void (*real)(void *, const struct string *);                                                        \
        *(void **)&real = gh_real(&cache, SET(what), sonames);                                              \
        name_group(text);                                                                                   \
        if (LAST)                                                                                           \
            unnamed = NULL;                                                                                 \
        real(self, text);                                                                                   \
    }

NAMING(set_name, "Name", false)
NAMING(set_desc, "Desc", true) /* the description, set after the name, is the better name for people */

#endif
