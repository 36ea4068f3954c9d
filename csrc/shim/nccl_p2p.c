/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's and the driver's side of an exchange between two ranks.
 *
 * The library's real functions are called, not our hooks: nothing of it is recorded, and nothing can stop in it. Never
 * run on a GPU; the signatures and numbers are those of nccl.h 2.32 and cuda.h 12.9.
 */

#define _GNU_SOURCE
#include "nccl_p2p.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_events.h"
#include "cuda_spans.h"

#define UINT8 1              /* ncclUint8 */
#define STEP_NS 50000l       /* between looks at the stream */
#define ERROR_NS 10000000ll  /* between looks at the communicator's error */
#define LATE_NS 1500000000ll /* what has begun is waited for so long after the leave has ended */
#define PATTERN ((1 << 20) - 24) /* bytes of the pattern's period: no power of two, so that a shift is seen */
#define LEAST_FREE (1ull << 30)  /* the library itself takes memory when it connects two ranks */
#define SHARE 16                 /* each of two buffers takes that part of the free memory, at most */

static struct {
    int (*group_start)(void), (*group_end)(void);
    int (*send)(const void *, size_t, int, int, const void *, gh_stream);
    int (*recv)(void *, size_t, int, int, const void *, gh_stream);
    int (*error)(const void *, int *), (*device)(const void *, int *);
    int (*count)(const void *, int *), (*rank)(const void *, int *);
} nccl;

static void nap(void)
{
    nanosleep(&(struct timespec){0, STEP_NS}, NULL);
}

static int say(struct gh_p2p *p, int status, const char *what)
{
    return gh_meeting_say(p->meeting, status, what);
}

int gh_p2p_prepare(void)
{
    const struct gh_cuda *cu = gh_cuda_load();
    if (!cu || gh_cuda_over() || !cu->mem_info || !cu->alloc || !cu->free || !cu->put_on || !cu->get_on ||
        !cu->set_on || !cu->stream_create || !cu->stream_destroy)
        return ENOSYS;
#define FIND(member, suffix) (*(void **)&nccl.member = gh_nccl_find(suffix))
    return FIND(group_start, "GroupStart") && FIND(group_end, "GroupEnd") && FIND(send, "Send") &&
                   FIND(recv, "Recv") && FIND(error, "CommGetAsyncError") && FIND(device, "CommCuDevice") &&
                   FIND(count, "CommCount") && FIND(rank, "CommUserRank")
               ? 0
               : ENOSYS;
}

/* ---- the communicator ---- */

int gh_p2p_find(struct gh_p2p *p)
{
    const void *comm = NULL;
    struct gh_comm_info info;
    int device = -1, current = -1, count = -1, rank = -1;
    gh_cu_stream now = (gh_cu_stream)(uintptr_t)gh_cuda_at;
    p->cu = gh_cuda_load();
    if (!gh_comm_handle(p->id, &comm, &info))
        return say(p, ENODEV, "looking for the communicator");
    p->comm = comm;
    int status = gh_p2p_sound(p);
    if (status)
        return status;
    if (nccl.count(comm, &count) || nccl.rank(comm, &rank) || nccl.device(comm, &device) || count != info.size ||
        rank != info.comm_rank)
        return say(p, ENODEV, "asking the communicator who it is");
    if (p->peer < 0 || p->peer >= count || p->peer == rank)
        return say(p, EINVAL, "reading the other end's rank");
    if (p->cu->context(&p->context) != GH_CU_SUCCESS || !p->context || p->cu->device(&current) != GH_CU_SUCCESS ||
        current != device)
        return say(p, ENODEV, "looking whether the thread is on the communicator's device");
    if (gh_cuda_captured(p->cu, GH_CU_LEGACY) || (now > GH_CU_PER_THREAD && gh_cuda_captured(p->cu, now)))
        return say(p, EBUSY, "looking whether a stream is captured");
    return 0;
}

/* Is it still known; the program may have ended it meanwhile. */
static bool known(const struct gh_p2p *p)
{
    struct gh_comm_info info;
    return gh_comm_find(p->comm, &info) && info.id == p->id;
}

static int wait_while_in_progress(struct gh_p2p *p, int64_t until, const char *what)
{
    for (;;) {
        int error = GH_NCCL_SUCCESS;
        if (!known(p))
            return say(p, ENODEV, "the program has ended the communicator");
        if (nccl.error(p->comm, &error) != GH_NCCL_SUCCESS)
            return say(p, EIO, what);
        if (error != GH_NCCL_IN_PROGRESS)
            return error == GH_NCCL_SUCCESS ? 0 : say(p, EIO, what);
        if (gh_now_ns() > until)
            return say(p, ETIMEDOUT, what);
        nap();
    }
}

int gh_p2p_sound(struct gh_p2p *p)
{
    return wait_while_in_progress(p, gh_now_ns() + LATE_NS, "asking the communicator for errors");
}

/* ---- buffers ---- */

static int64_t fitting(const int64_t *size, int sizes, int64_t room)
{
    int64_t most = 0;
    for (int i = 0; i < sizes; i++)
        if (size[i] <= room && size[i] > most)
            most = size[i];
    return most;
}

static void fill(unsigned char *at, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word = gh_hash2(seed, i % PATTERN);
        memcpy(at + i, &word, 8);
    }
}

/* The pattern that is expected goes on for a piece behind its period. */
#define THEIRS(p) ((p)->mine + PATTERN)
#define SEEN(p) ((p)->mine + 2 * PATTERN + GH_P2P_PIECE)

int gh_p2p_take(struct gh_p2p *p, const int64_t *size, int sizes, const uint64_t *told)
{
    size_t unused = 0, total = 0;
    int status = 0;
    if (p->cu->mem_info(&unused, &total) != GH_CU_SUCCESS)
        return say(p, EIO, "asking for free device memory");
    p->room = unused < LEAST_FREE ? 0 : fitting(size, sizes, (int64_t)(unused / SHARE));
    if (!p->room)
        return say(p, ENOMEM, "looking for free device memory");
    p->room = p->room < 8 ? 8 : p->room; /* what latency is measured with */
    size_t rounded = ((size_t)p->room + 511) & ~(size_t)511;
    p->mine = malloc(2 * PATTERN + 2 * GH_P2P_PIECE);
    if (!p->mine || p->cu->alloc(&p->out, rounded) != GH_CU_SUCCESS || p->cu->alloc(&p->in, rounded) != GH_CU_SUCCESS)
        return say(p, ENOMEM, "taking buffers");
    if (p->cu->stream_create(&p->stream, GH_CU_NON_BLOCKING) != GH_CU_SUCCESS)
        return say(p, ENOMEM, "making a stream");
    if (p->cu->create(&p->begin, 0) != GH_CU_SUCCESS || p->cu->create(&p->end, 0) != GH_CU_SUCCESS)
        return say(p, ENOMEM, "making events");
    fill(p->mine, PATTERN, told[0]);
    fill(THEIRS(p), PATTERN + GH_P2P_PIECE, told[1]);
    for (int64_t at = 0; at < p->room && !status; at += PATTERN) {
        size_t bytes = (size_t)(p->room - at < PATTERN ? p->room - at : PATTERN);
        p->under_way = true;
        if (p->cu->put_on(p->out + (gh_cu_memory)at, p->mine, bytes, p->stream) != GH_CU_SUCCESS)
            status = say(p, EIO, "filling the buffer");
    }
    return status ? status : gh_p2p_wait(p);
}

void gh_p2p_give_back(struct gh_p2p *p)
{
    if (p->under_way)
        return; /* the device may still write */
    if (p->begin)
        p->cu->destroy(p->begin);
    if (p->end)
        p->cu->destroy(p->end);
    if (p->stream)
        p->cu->stream_destroy(p->stream);
    if (p->out)
        p->cu->free(p->out);
    if (p->in)
        p->cu->free(p->in);
    free(p->mine);
}

int gh_p2p_clear(struct gh_p2p *p, int64_t bytes)
{
    p->under_way = true;
    if (p->cu->set_on(p->in, 0, (size_t)(bytes + 3) / 4, p->stream) != GH_CU_SUCCESS)
        return say(p, EIO, "clearing the buffer");
    return gh_p2p_wait(p);
}

int gh_p2p_check(struct gh_p2p *p, int64_t bytes)
{
    int64_t piece = bytes < GH_P2P_PIECE ? bytes : GH_P2P_PIECE, spread = bytes - piece;
    for (int i = 0; i < GH_P2P_PIECES; i++) {
        int64_t at = spread * i / (GH_P2P_PIECES - 1);
        p->under_way = true;
        if (p->cu->get_on(SEEN(p), p->in + (gh_cu_memory)at, (size_t)piece, p->stream) != GH_CU_SUCCESS)
            return say(p, EIO, "reading what has come");
        int status = gh_p2p_wait(p);
        if (status)
            return status;
        if (memcmp(SEEN(p), THEIRS(p) + at % PATTERN, (size_t)piece))
            return say(p, EBADMSG, "comparing what has come with what was sent");
        if (!spread)
            break;
    }
    return 0;
}

/* ---- the stream ---- */

static bool good(int result)
{
    return result == GH_NCCL_SUCCESS || result == GH_NCCL_IN_PROGRESS;
}

int gh_p2p_group(struct gh_p2p *p, bool sends, bool receives, int64_t bytes)
{
    const char *what = "putting an exchange on the stream";
    int sent = GH_NCCL_SUCCESS, received = GH_NCCL_SUCCESS, ended;
    gh_nccl_depth++; /* the library may use its own public functions */
    p->under_way = true;
    bool begun = nccl.group_start() == GH_NCCL_SUCCESS;
    if (begun && receives)
        received = nccl.recv((void *)(uintptr_t)p->in, (size_t)bytes, UINT8, p->peer, p->comm, p->stream);
    if (begun && sends)
        sent = nccl.send((const void *)(uintptr_t)p->out, (size_t)bytes, UINT8, p->peer, p->comm, p->stream);
    ended = begun ? nccl.group_end() : GH_NCCL_SUCCESS; /* a group that was begun is ended, whatever was in it */
    gh_nccl_depth--;
    if (!begun || !good(sent) || !good(received) || !good(ended))
        return say(p, EIO, what);
    return ended == GH_NCCL_IN_PROGRESS ? wait_while_in_progress(p, p->meeting->until_ns + LATE_NS, what) : 0;
}

int gh_p2p_mark(struct gh_p2p *p, gh_cu_event event)
{
    return p->cu->record(event, p->stream) == GH_CU_SUCCESS ? 0 : say(p, EIO, "recording an event");
}

/* What has begun is waited for even when the leave ends or the program ends the communicator, which waits for us longer
 * than that: it is a matter of milliseconds, unless the other end died. */
int gh_p2p_wait(struct gh_p2p *p)
{
    const char *what = "waiting for the device";
    int64_t late = 0, looked = gh_now_ns();
    for (;;) {
        int result = p->cu->stream_query(p->stream), error = GH_NCCL_SUCCESS;
        int64_t now = gh_now_ns();
        if (result == GH_CU_SUCCESS) {
            p->under_way = false;
            return 0;
        }
        if (result != GH_CU_NOT_READY)
            return say(p, EIO, what);
        if (now > p->meeting->until_ns + LATE_NS)
            return say(p, ETIMEDOUT, what);
        bool there = known(p);
        if (!late && (!there || !p->meeting->leave->stands(p->meeting->leave->self)))
            late = now + LATE_NS;
        if (late && now > late)
            return say(p, ECANCELED, what);
        if (there && now - looked > ERROR_NS) {
            looked = now;
            if (nccl.error(p->comm, &error) != GH_NCCL_SUCCESS || !good(error))
                return say(p, EIO, "asking the communicator for errors");
        }
        nap();
    }
}

bool gh_p2p_reap(struct gh_p2p *p)
{
    int mode = GH_CU_MODE_RELAXED;
    bool pushed, done = false;
    if (p->under_way && gh_cuda_enter(p->cu, p->context, &pushed)) {
        if (p->cu->exchange_mode(&mode) == GH_CU_SUCCESS) {
            done = p->cu->stream_query(p->stream) == GH_CU_SUCCESS;
            if (done) {
                p->under_way = false;
                gh_p2p_give_back(p);
            }
            p->cu->exchange_mode(&mode);
        }
        gh_cuda_leave(p->cu, pushed);
    }
    return done;
}

int gh_p2p_took(struct gh_p2p *p, int64_t *took_ns)
{
    float ms = -1;
    if (p->cu->elapsed(&ms, p->begin, p->end) != GH_CU_SUCCESS || !(ms >= 0))
        return say(p, EIO, "asking how long it took");
    *took_ns = (int64_t)((double)ms * 1e6);
    return 0;
}
