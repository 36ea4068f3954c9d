/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_RING_H
#define GH_RING_H

/* Layout of a ring file. This header alone defines it: the field lists below make the C structs, the
 * layout text that the native library exports, and the asserts; the numpy dtypes of ghtools/job/layout.py
 * are compared with them by a test. All numbers are little endian and naturally aligned.
 *
 *   header      one page: what the process is (fixed once the file has its name)
 *   live        one page: counters and state that change while the job runs, each on its own cache line
 *   mail        one page: struct gh_mail (mail.h), what a tool asks of this rank and what it answers
 *   tallies     four pages: how many calls of each kind were ever made (tally.h)
 *   comms       comm_cap entries of struct gh_comm
 *   slots       slot_cap (a power of two) slots of one cache line
 *
 * A file gets its final name (rank-R.PID.MADE.ring) by rename when header and live are complete, so a
 * reader never meets a half-made one.
 */

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define GH_RING_MAGIC 0x31474e4952544847ull /* "GHTRING1" */
#define GH_RING_ABI 3u                      /* changes with any change of what follows */
#define GH_PAGE 4096u
#define GH_HEAD_PAGES 7u
#define GH_MAIL_AT (2 * GH_PAGE)
#define GH_TALLY_AT (3 * GH_PAGE)
#define GH_LINE 64u
#define GH_NAME_BYTES 64
#define GH_PATH_BYTES 256

#define GH_BACKEND_GLOO 1u
#define GH_BACKEND_NCCL 2u

/* One record as a reader gets it. S(C type, name, numpy code). */
#define GH_RECORD_FIELDS(S)                                                                                 \
    S(int64_t, t_ns, "<i8")   /* CLOCK_REALTIME by the ring's clock offset: never steps back */             \
    S(int64_t, dur_ns, "<i8") /* -1 = not measured */                                                       \
    S(int64_t, bytes, "<i8")                                                                                \
    S(uint64_t, comm, "<u8")                                                                                \
    S(int64_t, seq, "<i8")   /* number of the call in this process, counted even while tracking is off */   \
    S(uint64_t, lane, "<u8") /* NCCL: the stream it was enqueued on; 0 = none */                            \
    S(int32_t, peer, "<i4")  /* peer or root inside the communicator, -1 = none */                          \
    S(uint16_t, flags, "<u2")                                                                               \
    S(uint8_t, op, "u1")                                                                                    \
    S(uint8_t, dtype, "u1")

/* S: scalar, A: text of that many bytes, zero padded and zero ended. */
#define GH_HEADER_FIELDS(S, A)                                                                              \
    S(uint64_t, magic, "<u8")                                                                               \
    S(uint32_t, abi, "<u4")                                                                                 \
    S(uint32_t, header_bytes, "<u4") /* the pages before the communicators */                               \
    S(uint32_t, comm_bytes, "<u4")                                                                          \
    S(uint32_t, comm_cap, "<u4")                                                                            \
    S(uint32_t, slot_bytes, "<u4")                                                                          \
    S(uint32_t, slot_cap, "<u4")                                                                            \
    S(uint64_t, slot_off, "<u8")                                                                            \
    S(uint64_t, file_bytes, "<u8")                                                                          \
    S(int64_t, made_ns, "<i8")         /* CLOCK_REALTIME */                                                 \
    S(int64_t, clock_offset_ns, "<i8") /* CLOCK_REALTIME - CLOCK_MONOTONIC when the ring was made */        \
    S(uint64_t, start_ticks, "<u8")    /* start of the process, field 22 of /proc/PID/stat */               \
    S(uint64_t, pid_ns, "<u8")         /* inode of its PID namespace, 0 = not known */                      \
    S(int32_t, pid, "<i4")                                                                                  \
    S(int32_t, ppid, "<i4")                                                                                 \
    S(int32_t, rank, "<i4") /* -1 = not known; so the next four */                                          \
    S(int32_t, local_rank, "<i4")                                                                           \
    S(int32_t, world_size, "<i4")                                                                           \
    S(int32_t, node_rank, "<i4")                                                                            \
    S(int32_t, restart_count, "<i4")                                                                        \
    S(uint32_t, uid, "<u4")                                                                                 \
    A(host, GH_NAME_BYTES)                                                                                  \
    A(job, GH_NAME_BYTES)                                                                                   \
    A(version, 16)                                                                                          \
    A(command, GH_PATH_BYTES)   /* the command line, blanks between words, cut */                           \
    A(shim_path, GH_PATH_BYTES) /* the shim's own file */

/* L begins a new cache line. */
#define GH_LIVE_FIELDS(S, A, L)                                                                             \
    S(uint64_t, written, "<u8") /* records ever claimed: the next record's number */                        \
    S(uint64_t, calls, "<u8")   /* calls ever made: the next call's seq; one line, since a call needs both */ \
    L(rare_line)                                                                                            \
    S(uint64_t, dropped, "<u8")   /* records given up because their slot was still being written */         \
    S(uint64_t, unmatched, "<u8") /* calls on a communicator that the shim has not seen made */             \
    S(uint64_t, control_epoch, "<u8")                                                                       \
    S(int64_t, ended_ns, "<i8")                                                                             \
    S(uint32_t, ended, "<u4")    /* 1: the process left by its own exit, or gave the ring up */             \
    S(uint32_t, tracking, "<u4") /* what the shim last took from the control page: 1 on, 0 off */           \
    S(uint32_t, profiling, "<u4")                                                                           \
    S(uint32_t, backends, "<u4") /* GH_BACKEND_* seen; set after the path below is complete */              \
    L(comm_line)                                                                                            \
    S(uint32_t, comm_count, "<u4")                                                                          \
    S(uint32_t, comm_lost, "<u4") /* communicators that found no place in the table */                      \
    S(uint64_t, tally_lost, "<u8") /* calls that found no place among the tallies */                        \
    L(path_line)                                                                                            \
    A(gloo_path, GH_PATH_BYTES) /* the library file the calls resolved to */                                \
    A(nccl_path, GH_PATH_BYTES)

/* A communicator as one process sees it. `version` is odd while the entry changes. */
#define GH_COMM_FIELDS(S, A)                                                                                \
    S(uint64_t, id, "<u8")     /* equal on all ranks of the communicator */                                 \
    S(uint64_t, parent, "<u8") /* id of the one it was split from, 0 = none */                              \
    S(int64_t, made_ns, "<i8")                                                                              \
    S(int32_t, size, "<i4")                                                                                 \
    S(int32_t, comm_rank, "<i4")                                                                            \
    S(uint32_t, backend, "<u4")                                                                             \
    S(uint32_t, dead, "<u4") /* 1: destroyed */                                                             \
    S(uint32_t, version, "<u4")                                                                             \
    S(uint32_t, pad, "<u4")                                                                                 \
    A(name, GH_NAME_BYTES)                                                                                  \
    A(pad2, 16)

#define GH_S_(type, name, code) type name;
#define GH_A_(name, n) char name[n];
#define GH_L_(name) _Alignas(GH_LINE) char name[0];

struct gh_record {
    GH_RECORD_FIELDS(GH_S_)
};

struct gh_header {
    GH_HEADER_FIELDS(GH_S_, GH_A_)
};

struct gh_live {
    GH_LIVE_FIELDS(GH_S_, GH_A_, GH_L_)
};

struct gh_comm {
    GH_COMM_FIELDS(GH_S_, GH_A_)
};

#define GH_RECORD_WORDS (sizeof(struct gh_record) / 8)

/* A slot: the publish word, then the record as words. publish is 0 in a new slot, 2n+1 while record n is
 * being written into it, 2n+2 when record n is there. Whoever wants to write moves it by compare-and-swap,
 * so two writers that lap each other never mix their words. */
struct gh_slot {
    _Alignas(GH_LINE) uint64_t publish;
    uint64_t word[GH_RECORD_WORDS];
};

static_assert(sizeof(struct gh_record) == 56, "a record fills its cache line less the publish word");
static_assert(sizeof(struct gh_slot) == GH_LINE, "a slot is one cache line");
static_assert(sizeof(struct gh_header) <= GH_PAGE, "the header fits its page");
static_assert(sizeof(struct gh_live) <= GH_PAGE, "the live page fits its page");
static_assert(sizeof(struct gh_comm) == 128, "a communicator is two cache lines");
static_assert(offsetof(struct gh_live, dropped) == GH_LINE, "what is rarely written is on another cache line");

#define GH_SLOT_CAP_DEFAULT 65536u /* 4 MiB */
#define GH_SLOT_CAP_MIN 256u
#define GH_SLOT_CAP_MAX (1u << 24)
#define GH_COMM_CAP 512u

static inline const struct gh_live *gh_live_of(const void *map)
{
    return (const struct gh_live *)((const char *)map + GH_PAGE);
}

#endif
