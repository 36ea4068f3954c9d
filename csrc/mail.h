/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_MAIL_H
#define GH_MAIL_H

/* The mailbox of a rank: the third page of its ring file. A tool asks the rank to stop before one of its calls,
 * hands tasks to the thread that is stopped there, and reads what came of them. A page of zeros asks for nothing.
 *
 * Each part has one writer. Its number is written last, with release order, so a part whose number is new is whole:
 * `pause` by the tool, `answered` by the rank, `task` by the tool, `done` by the rank. The shim looks here only
 * while the control page's pause_until_ns stands.
 */

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define GH_TASK_ARGS 24
#define GH_TASK_VALUES 256
#define GH_TASK_TEXT 256

/* What a rank answers to a pause. */
#define GH_PAUSE_NONE 0u
#define GH_PAUSE_ARRIVED 1u   /* stopped, waiting for work under way */
#define GH_PAUSE_DRAINED 2u   /* nothing of its work is under way: tasks are taken */
#define GH_PAUSE_UNDRAINED 3u /* the work did not end in time; it stays stopped until it is released */
#define GH_PAUSE_REFUSED 4u   /* it had already made the call; it did not stop */
#define GH_PAUSE_LEFT 5u      /* released, or the lease ran out: it goes on */

/* S: scalar, V: that many of them, A: zero-ended text of that many bytes, L: a new cache line. */
#define GH_MAIL_FIELDS(S, V, A, L)                                                                          \
    S(uint64_t, pause, "<u8")     /* number of the pause asked for, 0 = none ever */                        \
    S(int64_t, until_ns, "<i8")   /* its lease (CLOCK_MONOTONIC); the tool renews it while it works */      \
    S(int64_t, stop_seq, "<i8")   /* the rank stops before the call with this number */                     \
    S(int64_t, drain_ns, "<i8")   /* how long it may wait for its work under way */                         \
    S(uint64_t, released, "<u8")  /* pauses up to this number are over */                                   \
    L(answer_line)                                                                                          \
    S(uint64_t, answered, "<u8")  /* the pause that the rest of this line is about */                       \
    S(uint32_t, state, "<u4")     /* GH_PAUSE_* */                                                          \
    S(uint32_t, tid, "<u4")       /* the thread that is stopped */                                          \
    S(int64_t, at_seq, "<i8")     /* the call before which it stands, or with which it refused */           \
    S(int64_t, arrived_ns, "<i8") /* CLOCK_MONOTONIC; so the next two */                                    \
    S(int64_t, drained_ns, "<i8")                                                                           \
    S(int64_t, left_ns, "<i8")                                                                              \
    L(task_line)                                                                                            \
    S(uint64_t, task, "<u8")      /* number of the task, growing */                                         \
    S(uint32_t, kind, "<u4")      /* GH_TASK_* */                                                           \
    S(uint32_t, pad, "<u4")                                                                                 \
    V(int64_t, arg, GH_TASK_ARGS, "<i8")                                                                    \
    A(text, GH_TASK_TEXT)                                                                                   \
    L(result_line)                                                                                          \
    S(uint64_t, done, "<u8")      /* the task that the rest is the result of */                             \
    S(int32_t, status, "<i4")     /* 0, or an errno */                                                      \
    S(uint32_t, count, "<u4")     /* values that are set */                                                 \
    V(int64_t, value, GH_TASK_VALUES, "<i8")                                                                \
    A(said, GH_TASK_TEXT)         /* what went wrong, or where a listener listens */

#define GH_MAIL_S_(type, name, code) type name;
#define GH_MAIL_V_(type, name, n, code) type name[n];
#define GH_MAIL_A_(name, n) char name[n];
#define GH_MAIL_L_(name) _Alignas(64) char name[0];

struct gh_mail {
    _Alignas(64) char request_line[0];
    GH_MAIL_FIELDS(GH_MAIL_S_, GH_MAIL_V_, GH_MAIL_A_, GH_MAIL_L_)
};

static_assert(sizeof(struct gh_mail) <= 4096, "the mailbox fits its page");

#endif
