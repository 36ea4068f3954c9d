/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_NCCL_CALLS_H
#define GH_NCCL_CALLS_H

/* The functions of NCCL's ABI (nccl.h of 2.32) that the shim takes, without NCCL's or CUDA's headers:
 * communicators and streams are opaque pointers, enums are ints. tests/csrc/test_nccl_exports.py compares the
 * lists with csrc/nccl_exports.txt, the exported names of the real library: each is either taken here or in
 * the list of those that are left alone, with the reason.
 */

#include <stddef.h>
#include <stdint.h>

typedef void *gh_nccl_comm;
typedef void *gh_stream;
typedef struct {
    char internal[128];
} gh_nccl_id;

#define GH_NCCL_SUCCESS 0
#define GH_NCCL_INVALID_USAGE 5
#define GH_NCCL_IN_PROGRESS 7
#define GH_NCCL_NO_COLOR (-1)

/* Data calls: C(name, operation, parameters, arguments, count, peer).
 * All have `datatype`, `comm` and `stream` among their parameters unless they stand in GH_NCCL_SIGNALS. */
#define GH_NCCL_DATA_CALLS(C)                                                                               \
    C(AllReduce, ALL_REDUCE,                                                                                \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, int op, gh_nccl_comm comm,         \
       gh_stream stream),                                                                                   \
      (sendbuff, recvbuff, count, datatype, op, comm, stream), count, -1)                                   \
    C(AllReduceConfig, ALL_REDUCE,                                                                          \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, int op, gh_nccl_comm comm,         \
       gh_stream stream, const void *config),                                                               \
      (sendbuff, recvbuff, count, datatype, op, comm, stream, config), count, -1)                           \
    C(Broadcast, BROADCAST,                                                                                 \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, int root, gh_nccl_comm comm,       \
       gh_stream stream),                                                                                   \
      (sendbuff, recvbuff, count, datatype, root, comm, stream), count, root)                               \
    C(BroadcastConfig, BROADCAST,                                                                           \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, int root, gh_nccl_comm comm,       \
       gh_stream stream, const void *config),                                                               \
      (sendbuff, recvbuff, count, datatype, root, comm, stream, config), count, root)                       \
    C(Bcast, BROADCAST,                                                                                     \
      (void *buff, size_t count, int datatype, int root, gh_nccl_comm comm, gh_stream stream),              \
      (buff, count, datatype, root, comm, stream), count, root)                                             \
    C(Reduce, REDUCE,                                                                                       \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, int op, int root,                  \
       gh_nccl_comm comm, gh_stream stream),                                                                \
      (sendbuff, recvbuff, count, datatype, op, root, comm, stream), count, root)                           \
    C(ReduceConfig, REDUCE,                                                                                 \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, int op, int root,                  \
       gh_nccl_comm comm, gh_stream stream, const void *config),                                            \
      (sendbuff, recvbuff, count, datatype, op, root, comm, stream, config), count, root)                   \
    C(AllGather, ALL_GATHER,                                                                                \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, gh_nccl_comm comm,                 \
       gh_stream stream),                                                                                   \
      (sendbuff, recvbuff, count, datatype, comm, stream), count, -1)                                       \
    C(AllGatherConfig, ALL_GATHER,                                                                          \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, gh_nccl_comm comm,                 \
       gh_stream stream, const void *config),                                                               \
      (sendbuff, recvbuff, count, datatype, comm, stream, config), count, -1)                               \
    C(ReduceScatter, REDUCE_SCATTER,                                                                        \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, int op, gh_nccl_comm comm,         \
       gh_stream stream),                                                                                   \
      (sendbuff, recvbuff, count, datatype, op, comm, stream), count, -1)                                   \
    C(ReduceScatterConfig, REDUCE_SCATTER,                                                                  \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, int op, gh_nccl_comm comm,         \
       gh_stream stream, const void *config),                                                               \
      (sendbuff, recvbuff, count, datatype, op, comm, stream, config), count, -1)                           \
    C(AlltoAll, ALL_TO_ALL,                                                                                 \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, gh_nccl_comm comm,                 \
       gh_stream stream),                                                                                   \
      (sendbuff, recvbuff, count, datatype, comm, stream), count *(size_t)info.size, -1)                    \
    C(AlltoAllConfig, ALL_TO_ALL,                                                                           \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, gh_nccl_comm comm,                 \
       gh_stream stream, const void *config),                                                               \
      (sendbuff, recvbuff, count, datatype, comm, stream, config), count *(size_t)info.size, -1)            \
    C(Gather, GATHER,                                                                                       \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, int root, gh_nccl_comm comm,       \
       gh_stream stream),                                                                                   \
      (sendbuff, recvbuff, count, datatype, root, comm, stream), count, root)                               \
    C(GatherConfig, GATHER,                                                                                 \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, int root, gh_nccl_comm comm,       \
       gh_stream stream, const void *config),                                                               \
      (sendbuff, recvbuff, count, datatype, root, comm, stream, config), count, root)                       \
    C(Scatter, SCATTER,                                                                                     \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, int root, gh_nccl_comm comm,       \
       gh_stream stream),                                                                                   \
      (sendbuff, recvbuff, count, datatype, root, comm, stream), count, root)                               \
    C(ScatterConfig, SCATTER,                                                                               \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, int root, gh_nccl_comm comm,       \
       gh_stream stream, const void *config),                                                               \
      (sendbuff, recvbuff, count, datatype, root, comm, stream, config), count, root)                       \
    C(Send, SEND,                                                                                           \
      (const void *sendbuff, size_t count, int datatype, int peer, gh_nccl_comm comm, gh_stream stream),    \
      (sendbuff, count, datatype, peer, comm, stream), count, peer)                                         \
    C(Recv, RECV,                                                                                           \
      (void *recvbuff, size_t count, int datatype, int peer, gh_nccl_comm comm, gh_stream stream),          \
      (recvbuff, count, datatype, peer, comm, stream), count, peer)                                         \
    C(PutSignal, PUT_SIGNAL,                                                                                \
      (const void *localbuff, size_t count, int datatype, int peer, void *window, size_t offset,            \
       int signal, int ctx, unsigned flags, gh_nccl_comm comm, gh_stream stream),                           \
      (localbuff, count, datatype, peer, window, offset, signal, ctx, flags, comm, stream), count, peer)

/* RCCL's own spelling, with NCCL's meaning. */
#define GH_RCCL_DATA_CALLS(C)                                                                               \
    C(AllToAll, ALL_TO_ALL,                                                                                 \
      (const void *sendbuff, void *recvbuff, size_t count, int datatype, gh_nccl_comm comm,                 \
       gh_stream stream),                                                                                   \
      (sendbuff, recvbuff, count, datatype, comm, stream), count *(size_t)info.size, -1)

/* Written out by hand in hooks_nccl.c and hooks_nccl_comms.c. */
#define GH_NCCL_SIGNALS(N) N(Signal) N(WaitSignal)
#define GH_NCCL_GROUPS(N) N(GroupStart) N(GroupEnd) N(GroupSimulateEnd)
#define GH_NCCL_COMMS(N)                                                                                    \
    N(CommInitRank)                                                                                         \
    N(CommInitRankConfig)                                                                                   \
    N(CommInitRankScalable)                                                                                 \
    N(CommInitAll)                                                                                          \
    N(CommSplit)                                                                                            \
    N(CommShrink)                                                                                           \
    N(CommGrow)                                                                                             \
    N(CommFinalize)                                                                                         \
    N(CommDestroy)                                                                                          \
    N(CommAbort)

/* Communicator functions that neither make, end nor use one: nothing to record. */
#define GH_NCCL_COMMS_LEFT_ALONE(N)                                                                         \
    N(CommCount)                                                                                            \
    N(CommCuDevice)                                                                                         \
    N(CommUserRank)                                                                                         \
    N(CommGetAsyncError)                                                                                    \
    N(CommGetUniqueId)                                                                                      \
    N(CommQueryProperties)                                                                                  \
    N(CommMemStats)                                                                                         \
    N(CommRegister)                                                                                         \
    N(CommDeregister)                                                                                       \
    N(CommWindowRegister)                                                                                   \
    N(CommWindowDeregister)                                                                                 \
    N(CommSuspend)                                                                                          \
    N(CommResume)                                                                                           \
    N(CommRevoke)

#endif
