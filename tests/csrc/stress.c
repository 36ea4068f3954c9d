/* SPDX-License-Identifier: Apache-2.0 */
/* FOR TESTS ONLY: many threads write a small ring at full speed while several readers read it, some of them
 * slowly. Every record carries the same number in different dress, so a torn one shows. Each reader must end
 * with got + lost = written. Built plain, with ThreadSanitizer and with AddressSanitizer.
 *
 *   stress WRITERS READERS RECORDS SLOTS [dead]     `dead`: a writer dies with a slot half written
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring.h"
#include "shim/ring_put.h"
#include "tally.h"

struct gh_cursor {
    uint64_t next, stuck;
    int64_t since;
};
extern int64_t gh_ring_drain(const void *, const void *, uint64_t, struct gh_cursor *, void *, uint64_t,
                             uint64_t *, int64_t);

static struct gh_live *live;
static struct gh_slot *slots;
static uint64_t slot_cap;
static long records, torn;
static struct gh_tally tallies[GH_TALLY_CAP];
static uint64_t uncounted;
static int writing;

static struct gh_record make(uint64_t x)
{
    return (struct gh_record){.t_ns = (int64_t)x, .dur_ns = (int64_t)~x, .bytes = (int64_t)(x * 3),
                              .comm = x * 0x9e3779b97f4a7c15ull, .seq = (int64_t)(x ^ 0x5555), .lane = x + 7,
                              .peer = (int32_t)x, .flags = (uint16_t)x, .op = (uint8_t)x,
                              .dtype = (uint8_t)(x >> 8)};
}

static void *writer(void *arg)
{
    uint64_t own = (uint64_t)(uintptr_t)arg << 40;
    for (long i = 0; i < records; i++) {
        struct gh_record r = make(own | (uint64_t)i);
        gh_tally_count(tallies, &uncounted, gh_tally_key(i % 300, GH_OP_SEND, (int32_t)(i % 2)));
        gh_ring_put(live, slots, slot_cap - 1, &r);
    }
    __atomic_fetch_sub(&writing, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void *reader(void *arg)
{
    uintptr_t me = (uintptr_t)arg;
    struct gh_cursor cursor = {0, 0, 0};
    struct gh_record out[100];
    uint64_t got = 0, lost = 0;
    for (;;) {
        int last = !__atomic_load_n(&writing, __ATOMIC_ACQUIRE);
        int64_t n = gh_ring_drain(live, slots, slot_cap, &cursor, out, 100, &lost, last ? 0 : 1000000);
        for (int64_t i = 0; i < n; i++) {
            struct gh_record want = make((uint64_t)out[i].t_ns);
            if (memcmp(&want, &out[i], sizeof want))
                __atomic_fetch_add(&torn, 1, __ATOMIC_RELAXED);
        }
        got += (uint64_t)n;
        if (last && cursor.next == __atomic_load_n(&live->written, __ATOMIC_ACQUIRE))
            break;
        if (me % 2)
            usleep(200);
    }
    uint64_t written = live->written;
    printf("reader got %llu lost %llu written %llu\n", (unsigned long long)got, (unsigned long long)lost,
           (unsigned long long)written);
    return (void *)(uintptr_t)(got + lost != written);
}

int main(int argc, char **argv)
{
    int writers = atoi(argv[1]), readers = atoi(argv[2]);
    records = atol(argv[3]);
    slot_cap = strtoull(argv[4], NULL, 10);
    live = aligned_alloc(64, sizeof *live);
    slots = aligned_alloc(64, slot_cap * sizeof *slots);
    memset(live, 0, sizeof *live);
    memset(slots, 0, slot_cap * sizeof *slots);
    if (argc > 5) { /* what a writer leaves that is killed between its two stores */
        live->written = 1;
        slots[0].publish = 1;
    }
    writing = writers;
    pthread_t thread[64];
    long bad = 0;
    for (int i = 0; i < writers; i++)
        pthread_create(&thread[i], NULL, writer, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < readers; i++)
        pthread_create(&thread[writers + i], NULL, reader, (void *)(uintptr_t)i);
    for (int i = 0; i < writers + readers; i++) {
        void *result = NULL;
        pthread_join(thread[i], &result);
        bad += result != NULL;
    }
    uint64_t counted = uncounted;
    unsigned kinds = 0;
    for (unsigned i = 0; i < GH_TALLY_CAP; i++) {
        counted += tallies[i].count;
        kinds += tallies[i].key != 0;
    }
    /* 300 kinds: 300 is even, so each communicator has one peer. */
    bad += counted != (uint64_t)writers * (uint64_t)records || kinds != (records < 300 ? (unsigned)records : 300);
    printf("written %llu dropped %llu torn %ld bad %ld\n", (unsigned long long)live->written,
           (unsigned long long)live->dropped, torn, bad);
    free(live);
    free(slots);
    return torn || bad;
}
