/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_CONTROL_H
#define GH_CONTROL_H

/* The control page: one file `control` in a job's directory, one page, mapped by every rank of the job on
 * this host. A page of zeros is a valid page that asks for nothing, so whoever comes first makes it.
 *
 * A request is one word that is its own lease: the CLOCK_MONOTONIC time until which it holds, 0 = none. A
 * tool that dies while tracking is off therefore cannot leave it off. The shim reads the hot line once a
 * call and nothing else of this page.
 */

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define GH_CONTROL_MAGIC 0x314c525443544847ull /* "GHTCTRL1" */
#define GH_CONTROL_ABI 2u
#define GH_CONTROL_BYTES 4096u

#define GH_CONTROL_FIELDS(S, L)                                                                             \
    S(uint64_t, magic, "<u8")                                                                               \
    S(uint32_t, abi, "<u4")                                                                                 \
    S(uint32_t, page_bytes, "<u4")                                                                          \
    L(hot_line)                                                                                             \
    S(int64_t, off_until_ns, "<i8")     /* tracking is off until then (CLOCK_MONOTONIC) */                  \
    S(int64_t, profile_until_ns, "<i8") /* executions are timed until then */                               \
    S(int64_t, pause_until_ns, "<i8")   /* ranks look into their mailboxes (mail.h) until then */           \
    S(uint64_t, epoch, "<u8")           /* grows with each request */

#define GH_CTL_S_(type, name, code) type name;
#define GH_CTL_L_(name) _Alignas(64) char name[0];

struct gh_control {
    GH_CONTROL_FIELDS(GH_CTL_S_, GH_CTL_L_)
};

static_assert(offsetof(struct gh_control, off_until_ns) == 64, "the hot line is the second one");
static_assert(sizeof(struct gh_control) == 128, "the hot line is one cache line");

#endif
