/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side of ring and control page, for Python: all memory ordering is here. */

#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "control.h"
#include "export.h"
#include "mail.h"
#include "ring.h"
#include "tally.h"

struct gh_cursor {
    uint64_t next;          /* the next record's number */
    uint64_t stuck;         /* number + 1 of the record being waited for, 0 = none */
    int64_t stuck_since_ns; /* CLOCK_MONOTONIC */
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

enum taken { TAKEN, GONE, UNFINISHED };

static enum taken take(const struct gh_slot *slot, uint64_t n, void *out)
{
    uint64_t word[GH_RECORD_WORDS];
    uint64_t before = __atomic_load_n(&slot->publish, __ATOMIC_ACQUIRE);
    if (before != 2 * n + 2)
        return before > 2 * n + 2 ? GONE : UNFINISHED;
    for (unsigned i = 0; i < GH_RECORD_WORDS; i++)
        word[i] = __atomic_load_n(&slot->word[i], __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(&slot->publish, __ATOMIC_RELAXED) != before)
        return GONE;
    memcpy(out, word, sizeof word);
    return TAKEN;
}

/* Read at most `cap` records into `out`; returns how many, adds to *lost how many were lost. `slot_cap` and
 * the two addresses were checked by the caller when it opened the file: nothing in the file is trusted here,
 * a wild counter costs records, not memory. */
GH_EXPORT int64_t gh_ring_drain(const void *live_page, const void *slot_base, uint64_t slot_cap,
                                struct gh_cursor *cursor, void *out, uint64_t cap, uint64_t *lost,
                                int64_t patience_ns)
{
    const struct gh_live *live = live_page;
    const struct gh_slot *slots = slot_base;
    char *to = out;
    uint64_t got = 0, n = cursor->next, missed = 0;
    while (got < cap) {
        uint64_t written = __atomic_load_n(&live->written, __ATOMIC_ACQUIRE);
        if (n >= written)
            break;
        if (written - n > slot_cap) {
            missed += written - slot_cap - n;
            n = written - slot_cap;
        }
        bool held = false;
        for (; got < cap && n < written; n++) {
            enum taken what = take(&slots[n & (slot_cap - 1)], n, to + got * sizeof(struct gh_record));
            if (what == TAKEN) {
                got++;
            } else if (what == GONE) {
                missed++;
            } else {
                if (cursor->stuck != n + 1) {
                    cursor->stuck = n + 1;
                    cursor->stuck_since_ns = now_ns();
                }
                if (now_ns() - cursor->stuck_since_ns < patience_ns) {
                    held = true;
                    break;
                }
                missed++;
            }
        }
        if (held)
            break;
    }
    cursor->next = n;
    *lost += missed;
    return (int64_t)got;
}

/* Copy at most `count` communicators; one that keeps changing under our hands is left for the next time. */
GH_EXPORT int64_t gh_ring_comms(const void *comm_base, uint64_t count, void *out)
{
    const struct gh_comm *comms = comm_base;
    struct gh_comm *to = out;
    int64_t got = 0;
    for (uint64_t i = 0; i < count; i++) {
        for (int attempt = 0; attempt < 100; attempt++) {
            uint32_t before = __atomic_load_n(&comms[i].version, __ATOMIC_ACQUIRE);
            if (before & 1)
                continue;
            uint64_t word[sizeof(struct gh_comm) / 8];
            for (unsigned w = 0; w < sizeof(struct gh_comm) / 8; w++)
                word[w] = __atomic_load_n((const uint64_t *)&comms[i] + w, __ATOMIC_RELAXED);
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            if (__atomic_load_n(&comms[i].version, __ATOMIC_RELAXED) != before)
                continue;
            memcpy(&to[got++], word, sizeof word);
            break;
        }
    }
    return got;
}

GH_EXPORT uint64_t gh_ring_tally_key(uint64_t comm, uint32_t op, int32_t peer)
{
    return gh_tally_key(comm, (uint8_t)op, peer);
}

/* The tallies (GH_TALLY_CAP pairs of numbers) as they were when `calls` calls had been made; -1 if the process makes
 * calls faster than they can be read. A thread that is between its count and its number is one call ahead. */
GH_EXPORT int64_t gh_ring_tallies(const void *live_page, const void *base, uint64_t *out)
{
    const struct gh_live *live = live_page;
    const struct gh_tally *tallies = base;
    for (int attempt = 0; attempt < 1000; attempt++) {
        uint64_t calls = __atomic_load_n(&live->calls, __ATOMIC_SEQ_CST);
        for (unsigned i = 0; i < GH_TALLY_CAP; i++) {
            out[2 * i] = __atomic_load_n(&tallies[i].key, __ATOMIC_RELAXED);
            out[2 * i + 1] = __atomic_load_n(&tallies[i].count, __ATOMIC_RELAXED);
        }
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (__atomic_load_n(&live->calls, __ATOMIC_SEQ_CST) == calls)
            return (int64_t)calls;
    }
    return -1;
}

GH_EXPORT void gh_control_init(void *map)
{
    struct gh_control *page = map;
    uint64_t empty = 0;
    if (__atomic_load_n(&page->magic, __ATOMIC_ACQUIRE))
        return;
    __atomic_store_n(&page->abi, GH_CONTROL_ABI, __ATOMIC_RELAXED);
    __atomic_store_n(&page->page_bytes, GH_CONTROL_BYTES, __ATOMIC_RELAXED);
    __atomic_compare_exchange_n(&page->magic, &empty, GH_CONTROL_MAGIC, 0, __ATOMIC_RELEASE,
                                __ATOMIC_RELAXED);
}

/* which: 0 tracking off, 1 profile, 2 pause; until: CLOCK_MONOTONIC ns, 0 = not asked. Returns the new epoch. */
GH_EXPORT uint64_t gh_control_set(void *map, int which, int64_t until_ns)
{
    struct gh_control *page = map;
    int64_t *word[] = {&page->off_until_ns, &page->profile_until_ns, &page->pause_until_ns};
    __atomic_store_n(word[which], until_ns, __ATOMIC_RELEASE);
    return __atomic_add_fetch(&page->epoch, 1, __ATOMIC_ACQ_REL);
}

/* The layout as compiled, one "struct.field code offset" a line, for the test that compares it. */
#define TEXT_(n) #n
#define TEXT(n) TEXT_(n)
#define S_RECORD(type, name, code) {"record." #name, code, offsetof(struct gh_record, name)},
#define S_HEADER(type, name, code) {"header." #name, code, offsetof(struct gh_header, name)},
#define A_HEADER(name, n) {"header." #name, "S" TEXT(n), offsetof(struct gh_header, name)},
#define S_LIVE(type, name, code) {"live." #name, code, offsetof(struct gh_live, name)},
#define A_LIVE(name, n) {"live." #name, "S" TEXT(n), offsetof(struct gh_live, name)},
#define S_COMM(type, name, code) {"comm." #name, code, offsetof(struct gh_comm, name)},
#define A_COMM(name, n) {"comm." #name, "S" TEXT(n), offsetof(struct gh_comm, name)},
#define S_MAIL(type, name, code) {"mail." #name, code, offsetof(struct gh_mail, name)},
#define V_MAIL(type, name, n, code) {"mail." #name, "(" TEXT(n) ",)" code, offsetof(struct gh_mail, name)},
#define A_MAIL(name, n) {"mail." #name, "S" TEXT(n), offsetof(struct gh_mail, name)},
#define S_CONTROL(type, name, code) {"control." #name, code, offsetof(struct gh_control, name)},
#define NOTHING(name)

struct layout_line {
    const char *name, *code;
    uint64_t offset;
};

static const struct layout_line layout[] = {
    GH_RECORD_FIELDS(S_RECORD) GH_HEADER_FIELDS(S_HEADER, A_HEADER) GH_LIVE_FIELDS(S_LIVE, A_LIVE, NOTHING)
        GH_COMM_FIELDS(S_COMM, A_COMM) GH_CONTROL_FIELDS(S_CONTROL, NOTHING)
            GH_MAIL_FIELDS(S_MAIL, V_MAIL, A_MAIL, NOTHING)};

GH_EXPORT int gh_layout(unsigned i, const char **name, const char **code, uint64_t *offset)
{
    if (i >= sizeof layout / sizeof *layout)
        return 0;
    *name = layout[i].name;
    *code = layout[i].code;
    *offset = layout[i].offset;
    return 1;
}

GH_EXPORT uint32_t gh_ring_abi(void)
{
    return GH_RING_ABI;
}
