/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: which handle has which identity, and the ring's table of them. */

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ring_shim.h"
#include "shim.h"

/* Open addressing by handle. Readers take no lock: a key is stored after what it stands for, and a handle
 * that someone calls with is not destroyed at that moment. */
#define CAP 4096u
#define GONE ((const void *)1)

static struct handle {
    const void *key;
    uint64_t id;
    int32_t size, comm_rank;
    uint32_t entry; /* in the ring's table, CAP_NONE = found no place there */
    uint32_t children;
    uint64_t asked; /* gh_comm_nth */
} handles[CAP];
static unsigned used; /* slots that are not empty, gone ones included */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

#define NO_ENTRY 0xffffffffu

static unsigned first_slot(const void *key)
{
    return (unsigned)(((uintptr_t)key >> 4) * 0x9e3779b97f4a7c15ull >> 52) & (CAP - 1);
}

static struct handle *find(const void *key)
{
    for (unsigned i = first_slot(key), n = 0; n < CAP; i = (i + 1) & (CAP - 1), n++) {
        const void *seen = __atomic_load_n(&handles[i].key, __ATOMIC_ACQUIRE);
        if (seen == key)
            return &handles[i];
        if (!seen)
            return NULL;
    }
    return NULL;
}

static struct handle *place(const void *key)
{
    struct handle *found = find(key);
    if (found)
        return found;
    for (unsigned i = first_slot(key), n = 0; n < CAP; i = (i + 1) & (CAP - 1), n++) {
        if (handles[i].key == GONE)
            return &handles[i];
        if (!handles[i].key) {
            if (used >= CAP * 3 / 4) /* an empty slot must remain, or a search would not end early */
                return NULL;
            used++;
            return &handles[i];
        }
    }
    return NULL;
}

static void entry_begin(struct gh_comm *c)
{
    __atomic_fetch_add(&c->version, 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

static void entry_end(struct gh_comm *c)
{
    __atomic_fetch_add(&c->version, 1, __ATOMIC_RELEASE);
}

static void entry_name(struct gh_comm *c, const char *name)
{
    char padded[GH_NAME_BYTES] = "";
    snprintf(padded, sizeof padded, "%s", name ? name : "");
    memcpy(c->name, padded, sizeof padded);
}

static uint32_t entry_add(struct gh_ring *r, const struct gh_comm *value)
{
    uint32_t n = r->live->comm_count;
    if (n >= r->header->comm_cap) {
        __atomic_fetch_add(&r->live->comm_lost, 1, __ATOMIC_RELAXED);
        return NO_ENTRY;
    }
    struct gh_comm *c = &r->comms[n];
    entry_begin(c);
    uint32_t version = c->version;
    *c = *value;
    c->version = version;
    entry_end(c);
    __atomic_store_n(&r->live->comm_count, n + 1, __ATOMIC_RELEASE);
    return n;
}

void gh_comm_add(const void *key, uint64_t id, uint64_t parent, int size, int comm_rank, uint32_t backend,
                 const char *name)
{
    if (!gh_ring_open(comm_rank, size))
        return;
    struct gh_ring *r = gh_ring_get();
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    struct gh_comm entry = {.id = id, .parent = parent, .size = size, .comm_rank = comm_rank,
                            .made_ns = t.tv_sec * 1000000000ll + t.tv_nsec, .backend = backend};
    entry_name(&entry, name);
    pthread_mutex_lock(&changing);
    struct handle *h = place(key);
    if (h && !(h->key == key && h->id == id)) {
        /* The address of a destroyed communicator comes back: hide it while it changes its meaning. */
        __atomic_store_n(&h->key, GONE, __ATOMIC_RELEASE);
        h->id = id;
        h->size = size;
        h->comm_rank = comm_rank;
        h->children = 0;
        h->asked = 0;
        h->entry = entry_add(r, &entry);
        __atomic_store_n(&h->key, key, __ATOMIC_RELEASE);
    } else if (!h) {
        __atomic_fetch_add(&r->live->comm_lost, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&changing);
}

bool gh_comm_find(const void *key, struct gh_comm_info *out)
{
    const struct handle *h = find(key);
    if (GH_UNLIKELY(!h)) {
        *out = (struct gh_comm_info){0, 0, -1};
        return false;
    }
    *out = (struct gh_comm_info){h->id, h->size, h->comm_rank};
    return true;
}

bool gh_comm_handle(uint64_t id, const void **handle, struct gh_comm_info *out)
{
    int found = 0;
    pthread_mutex_lock(&changing);
    for (unsigned i = 0; i < CAP; i++) {
        const struct handle *h = &handles[i];
        if (h->key && h->key != GONE && h->id == id && id) {
            *handle = h->key;
            *out = (struct gh_comm_info){h->id, h->size, h->comm_rank};
            found++;
        }
    }
    pthread_mutex_unlock(&changing);
    return found == 1;
}

void gh_comm_name(const void *key, const char *name)
{
    struct gh_ring *r = gh_ring_get();
    pthread_mutex_lock(&changing);
    struct handle *h = r ? find(key) : NULL;
    if (h && h->entry != NO_ENTRY) {
        entry_begin(&r->comms[h->entry]);
        entry_name(&r->comms[h->entry], name);
        entry_end(&r->comms[h->entry]);
    }
    pthread_mutex_unlock(&changing);
}

void gh_comm_drop(const void *key)
{
    struct gh_ring *r = gh_ring_get();
    if (!r)
        return;
    pthread_mutex_lock(&changing);
    struct handle *h = find(key);
    if (h) {
        if (h->entry != NO_ENTRY) {
            entry_begin(&r->comms[h->entry]);
            r->comms[h->entry].dead = 1;
            entry_end(&r->comms[h->entry]);
        }
        __atomic_store_n(&h->key, GONE, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&changing);
}

uint32_t gh_comm_next_child(const void *key)
{
    pthread_mutex_lock(&changing);
    struct handle *h = find(key);
    uint32_t n = h ? h->children++ : 0;
    pthread_mutex_unlock(&changing);
    return n;
}

uint64_t gh_comm_nth(const void *key)
{
    struct handle *h = find(key);
    return h ? __atomic_fetch_add(&h->asked, 1, __ATOMIC_RELAXED) : 0;
}

bool gh_comm_known(uint64_t id)
{
    struct gh_ring *r = gh_ring_get();
    uint32_t count = r ? __atomic_load_n(&r->live->comm_count, __ATOMIC_ACQUIRE) : 0;
    for (uint32_t i = 0; i < count; i++)
        if (r->comms[i].id == id)
            return true;
    return false;
}

void gh_comm_unmatched(void)
{
    struct gh_ring *r = gh_ring_get();
    if (r)
        __atomic_fetch_add(&r->live->unmatched, 1, __ATOMIC_RELAXED);
}

void gh_comm_forget(void)
{
    pthread_mutex_init(&changing, NULL);
    memset(handles, 0, sizeof handles);
    used = 0;
}
