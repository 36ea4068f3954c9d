/* SPDX-License-Identifier: Apache-2.0 */
/* Making a rank's ring file, and recording a call in it. */

#define _GNU_SOURCE
#include "ring.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "control_shim.h"
#include "pause.h"
#include "ring_put.h"
#include "ring_shim.h"
#include "shim.h"

#ifndef GH_VERSION
#define GH_VERSION "" /* csrc/build.py says it */
#endif

struct gh_ring *gh_ring_now;

static struct gh_ring ring;
static enum { UNTRIED, OPEN, FAILED } state;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* ---- where ---- */

/* Open directory `name` in `parent` (AT_FDCWD for a path), making it if need be. -1 if it is a link. */
static int open_dir(int parent, const char *name, bool follow)
{
    if (mkdirat(parent, name, 0700) && errno != EEXIST)
        return -1;
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));
}

static bool is_own(int fd)
{
    struct stat st;
    return !fstat(fd, &st) && st.st_uid == geteuid();
}

/* The job's directory; only ever one that is this user's own, so that nobody else can put a file there. */
static int open_job_dir(const char *job)
{
    char name[64];
    const char *given = getenv("GHT_DIR");
    bool mine = !given || !*given;
    snprintf(name, sizeof name, "/dev/shm/ghtools-%u", (unsigned)geteuid());
    int root = open_dir(AT_FDCWD, mine ? name : given, !mine), dir = -1;
    if (root < 0)
        return -1;
    if (!mine || is_own(root))
        dir = open_dir(root, job, false);
    if (dir >= 0 && !is_own(dir)) {
        close(dir);
        dir = -1;
    }
    close(root);
    return dir;
}

/* ---- how large ---- */

static uint64_t file_bytes(uint64_t slots)
{
    return GH_HEAD_PAGES * GH_PAGE + GH_COMM_CAP * sizeof(struct gh_comm) + slots * sizeof(struct gh_slot);
}

/* The default, or what GHT_RING_SLOTS says, halved until the file takes at most a sixteenth of what is free:
 * every rank of a 64 MB container must find room, and so must the job's own segments. 0 = no room. */
static uint64_t choose_slots(int dir)
{
    uint64_t slots = GH_SLOT_CAP_DEFAULT;
    const char *given = getenv("GHT_RING_SLOTS");
    if (given && *given) {
        uint64_t want = strtoull(given, NULL, 10);
        for (slots = GH_SLOT_CAP_MIN; slots < want && slots < GH_SLOT_CAP_MAX;)
            slots *= 2;
    }
    struct statvfs fs;
    if (fstatvfs(dir, &fs))
        return 0;
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize / 16;
    while (slots >= GH_SLOT_CAP_MIN && file_bytes(slots) > room)
        slots /= 2;
    return slots >= GH_SLOT_CAP_MIN ? slots : 0;
}

/* ---- what ---- */

static void read_command(char *out, unsigned long cap)
{
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    long n = fd < 0 ? 0 : read(fd, out, cap - 1);
    if (fd >= 0)
        close(fd);
    n = n < 0 ? 0 : n;
    for (long i = 0; i < n; i++)
        if (!out[i])
            out[i] = i == n - 1 ? 0 : ' ';
    out[n] = 0;
}

static void fill_header(struct gh_header *h, const char *job, uint64_t slots, int comm_rank, int comm_size)
{
    struct gh_rank who;
    struct stat st;
    gh_rank_read(&who);
    h->abi = GH_RING_ABI;
    h->header_bytes = GH_HEAD_PAGES * GH_PAGE;
    h->comm_bytes = sizeof(struct gh_comm);
    h->comm_cap = GH_COMM_CAP;
    h->slot_bytes = sizeof(struct gh_slot);
    h->slot_cap = (uint32_t)slots;
    h->slot_off = file_bytes(0);
    h->file_bytes = file_bytes(slots);
    h->made_ns = clock_ns(CLOCK_REALTIME);
    h->clock_offset_ns = h->made_ns - clock_ns(CLOCK_MONOTONIC);
    h->pid = getpid();
    h->ppid = getppid();
    h->start_ticks = gh_start_ticks(h->pid);
    h->pid_ns = stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
    /* A program that numbers its ranks itself says so when it makes its first communicator, which is
     * usually the one of all ranks. */
    h->rank = who.rank >= 0 ? who.rank : comm_rank;
    h->world_size = who.world_size >= 0 ? who.world_size : who.rank >= 0 ? -1 : comm_size;
    h->local_rank = who.local_rank;
    h->node_rank = who.node_rank;
    h->restart_count = who.restart_count;
    h->uid = geteuid();
    gethostname(h->host, sizeof h->host - 1);
    snprintf(h->job, sizeof h->job, "%s", job);
    snprintf(h->version, sizeof h->version, "%s", GH_VERSION);
    read_command(h->command, sizeof h->command);
    gh_object_path((const void *)fill_header, h->shim_path, sizeof h->shim_path);
}

/* ---- opening ---- */

static void *reserve_and_map(int dir, const char *name, uint64_t size)
{
    int fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return NULL;
    void *map = MAP_FAILED;
    /* Space first: a page of a sparse file that finds no room when touched is a SIGBUS in the job. */
    if (!posix_fallocate(fd, 0, (off_t)size))
        map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    if (map != MAP_FAILED)
        return map;
    unlinkat(dir, name, 0);
    return NULL;
}

static bool open_new(int comm_rank, int comm_size)
{
    char job[GH_NAME_BYTES], temporary[64], final[96];
    bool done = false;
    gh_job_id(job, sizeof job);
    int dir = open_job_dir(job);
    if (dir < 0)
        return false;
    uint64_t slots = choose_slots(dir);
    char *map = NULL;
    snprintf(temporary, sizeof temporary, ".new-%d", getpid());
    if (!slots)
        goto out;
    unlinkat(dir, temporary, 0); /* left by a crashed process that had our number */
    map = reserve_and_map(dir, temporary, file_bytes(slots));
    if (!map)
        goto out;
    gh_control_open(dir);
    ring.header = (struct gh_header *)map;
    ring.live = (struct gh_live *)(map + GH_PAGE);
    ring.mail = (struct gh_mail *)(map + GH_MAIL_AT);
    ring.tallies = (struct gh_tally *)(map + GH_TALLY_AT);
    ring.comms = (struct gh_comm *)(map + GH_HEAD_PAGES * GH_PAGE);
    ring.slots = (struct gh_slot *)(map + file_bytes(0));
    ring.mask = slots - 1;
    fill_header(ring.header, job, slots, comm_rank, comm_size);
    ring.clock_offset_ns = ring.header->clock_offset_ns;
    ring.live->tracking = 1;
    gh_control_look(ring.live);
    __atomic_store_n(&ring.header->magic, GH_RING_MAGIC, __ATOMIC_RELEASE);
    snprintf(final, sizeof final, "rank-%d.%d.%lld.ring", ring.header->rank, ring.header->pid,
             (long long)ring.header->made_ns);
    if (renameat(dir, temporary, dir, final)) {
        unlinkat(dir, temporary, 0);
        munmap(map, file_bytes(slots));
        gh_control_release();
        goto out;
    }
    done = true;
out:
    close(dir);
    return done;
}

bool gh_ring_open(int comm_rank, int comm_size)
{
    if (gh_disabled)
        return false;
    pthread_mutex_lock(&opening);
    if (state == UNTRIED) {
        int saved = errno;
        state = open_new(comm_rank, comm_size) ? OPEN : FAILED;
        if (state == OPEN)
            __atomic_store_n(&gh_ring_now, &ring, __ATOMIC_RELEASE);
        errno = saved;
    }
    bool open = state == OPEN;
    pthread_mutex_unlock(&opening);
    return open;
}

/* The child has its parent's memory but is not that rank; a communicator of its own gives it a ring of its
 * own. The mapping stays: unmapping could pull it from under a handler that runs right now. */
void gh_ring_release(void)
{
    __atomic_store_n(&gh_ring_now, NULL, __ATOMIC_RELEASE);
    gh_control_release();
    pthread_mutex_init(&opening, NULL);
    state = UNTRIED;
}

void gh_ring_end(void)
{
    struct gh_ring *r = gh_ring_get();
    if (!r || r->header->pid != getpid()) /* a child that was cloned past the fork handlers */
        return;
    __atomic_store_n(&r->live->ended_ns, clock_ns(CLOCK_REALTIME), __ATOMIC_RELAXED);
    __atomic_store_n(&r->live->ended, 1, __ATOMIC_RELEASE);
}

void gh_ring_backend(uint32_t backend, const char *path)
{
    struct gh_ring *r = gh_ring_get();
    pthread_mutex_lock(&opening);
    if (r && !(r->live->backends & backend)) {
        char *to = backend == GH_BACKEND_GLOO ? r->live->gloo_path : r->live->nccl_path;
        snprintf(to, GH_PATH_BYTES, "%s", path);
        __atomic_fetch_or(&r->live->backends, backend, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&opening);
}

/* ---- the hot path ---- */

int64_t gh_call(const struct gh_call *call)
{
    struct gh_ring *r = gh_ring_get();
    if (GH_UNLIKELY(!r))
        return -1;
    gh_tally_count(r->tallies, &r->live->tally_lost, gh_tally_key(call->comm, call->op, call->peer));
    /* Counted even while tracking is off: the number of a call means the same whoever was watching. */
    uint64_t seq = __atomic_fetch_add(&r->live->calls, 1, __ATOMIC_RELAXED);
    bool tracking = gh_control_tracking(r->live);
    uint16_t flags = call->flags;
    if (GH_UNLIKELY(gh_control_pausing()) && gh_pause(r->mail, (int64_t)seq))
        flags |= GH_FLAG_PAUSED;
    if (GH_UNLIKELY(!tracking))
        return -1;
    struct gh_record record = {
        .t_ns = clock_ns(CLOCK_MONOTONIC) + r->clock_offset_ns,
        .dur_ns = -1,
        .bytes = call->bytes,
        .comm = call->comm,
        .seq = (int64_t)seq,
        .lane = call->lane,
        .peer = call->peer,
        .flags = flags,
        .op = call->op,
        .dtype = call->dtype,
    };
    gh_ring_put(r->live, r->slots, r->mask, &record);
    return (int64_t)seq;
}

bool gh_profiling(void)
{
    struct gh_ring *r = gh_ring_get();
    return r && __atomic_load_n(&r->live->profiling, __ATOMIC_RELAXED);
}

int64_t gh_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

void gh_exec(const struct gh_call *call, int64_t seq, int64_t begin_ns)
{
    gh_exec_timed(call, seq, begin_ns, clock_ns(CLOCK_MONOTONIC) - begin_ns);
}

void gh_exec_timed(const struct gh_call *call, int64_t seq, int64_t begin_ns, int64_t dur_ns)
{
    struct gh_ring *r = gh_ring_get();
    if (!r)
        return;
    struct gh_record record = {
        .t_ns = begin_ns + r->clock_offset_ns,
        .dur_ns = dur_ns,
        .bytes = call->bytes,
        .comm = call->comm,
        .seq = seq,
        .lane = call->lane,
        .peer = call->peer,
        .flags = (uint16_t)((call->flags & ~GH_FLAG_ASYNC) | GH_FLAG_EXEC |
                            (dur_ns < 0 ? GH_FLAG_DUR_INVALID : 0)),
        .op = call->op,
        .dtype = call->dtype,
    };
    gh_ring_put(r->live, r->slots, r->mask, &record);
}
