/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_OPS_H
#define GH_OPS_H

/* Wire codes of operations and element types. They equal OPS and DTYPES of ghtools/stream/records.py,
 * in that order; tests/csrc/test_layout.py compares the two.
 *
 * What `bytes` means for each operation, so that NCCL and Gloo say the same for the same call:
 *   all_reduce, broadcast, reduce  the buffer
 *   all_gather                     this rank's part (what it sends)
 *   reduce_scatter                 this rank's part (what it receives)
 *   all_to_all                     everything this rank sends, its own part included
 *   gather, scatter                one rank's part
 *   send, recv, put_signal         the message
 *   barrier, wait_signal           0
 */
#define GH_OPS(X)                                                                                           \
    X(UNKNOWN, unknown)                                                                                     \
    X(ALL_REDUCE, all_reduce)                                                                               \
    X(ALL_GATHER, all_gather)                                                                               \
    X(REDUCE_SCATTER, reduce_scatter)                                                                       \
    X(BROADCAST, broadcast)                                                                                 \
    X(REDUCE, reduce)                                                                                       \
    X(ALL_TO_ALL, all_to_all)                                                                               \
    X(GATHER, gather)                                                                                       \
    X(SCATTER, scatter)                                                                                     \
    X(SEND, send)                                                                                           \
    X(RECV, recv)                                                                                           \
    X(BARRIER, barrier)                                                                                     \
    X(PUT_SIGNAL, put_signal)                                                                               \
    X(WAIT_SIGNAL, wait_signal)

/* name, bytes an element */
#define GH_DTYPES(X)                                                                                        \
    X(UNKNOWN, unknown, 0)                                                                                  \
    X(INT8, int8, 1)                                                                                        \
    X(UINT8, uint8, 1)                                                                                      \
    X(INT32, int32, 4)                                                                                      \
    X(UINT32, uint32, 4)                                                                                    \
    X(INT64, int64, 8)                                                                                      \
    X(UINT64, uint64, 8)                                                                                    \
    X(FLOAT16, float16, 2)                                                                                  \
    X(BFLOAT16, bfloat16, 2)                                                                                \
    X(FLOAT32, float32, 4)                                                                                  \
    X(FLOAT64, float64, 8)                                                                                  \
    X(FLOAT8_E4M3, float8_e4m3, 1)                                                                          \
    X(FLOAT8_E5M2, float8_e5m2, 1)                                                                          \
    X(BOOL, bool, 1)                                                                                        \
    X(COMPLEX64, complex64, 8)                                                                              \
    X(COMPLEX128, complex128, 16)                                                                           \
    X(INT16, int16, 2)

enum gh_op {
#define X(upper, lower) GH_OP_##upper,
    GH_OPS(X)
#undef X
        GH_OP_COUNT
};

enum gh_dtype {
#define X(upper, lower, size) GH_DT_##upper,
    GH_DTYPES(X)
#undef X
        GH_DT_COUNT
};

/* Bits of a record's flags, equal to FLAG_* of records.py. */
#define GH_FLAGS(X)                                                                                         \
    X(DUR_INVALID, 1)                                                                                       \
    X(CAPTURE, 2)                                                                                           \
    X(GROUPED, 4)                                                                                           \
    X(ASYNC, 8)                                                                                             \
    X(BYTES_UNKNOWN, 16)                                                                                    \
    X(EXEC, 32)                                                                                             \
    X(PAUSED, 64)

enum gh_flag {
#define X(upper, value) GH_FLAG_##upper = value,
    GH_FLAGS(X)
#undef X
};

#endif
