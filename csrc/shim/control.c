/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's side of the control page. */

#include "control.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "control_shim.h"

static struct gh_control none; /* asks for nothing: what a rank reads that could not map the page */
struct gh_control *gh_control_page = &none;

void gh_control_open(int dir)
{
    int fd = openat(dir, "control", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    struct stat st;
    void *map = MAP_FAILED;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        (st.st_size >= GH_CONTROL_BYTES || !posix_fallocate(fd, 0, GH_CONTROL_BYTES)))
        map = mmap(NULL, GH_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return;
    struct gh_control *page = map;
    uint64_t empty = 0;
    if (__atomic_load_n(&page->magic, __ATOMIC_ACQUIRE) == 0) {
        __atomic_store_n(&page->abi, GH_CONTROL_ABI, __ATOMIC_RELAXED);
        __atomic_store_n(&page->page_bytes, GH_CONTROL_BYTES, __ATOMIC_RELAXED);
        __atomic_compare_exchange_n(&page->magic, &empty, GH_CONTROL_MAGIC, 0, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED);
    }
    if (__atomic_load_n(&page->magic, __ATOMIC_ACQUIRE) != GH_CONTROL_MAGIC ||
        __atomic_load_n(&page->abi, __ATOMIC_RELAXED) != GH_CONTROL_ABI) {
        munmap(map, GH_CONTROL_BYTES);
        return;
    }
    gh_control_page = page;
}

void gh_control_release(void)
{
    gh_control_page = &none;
}

static bool stands(int64_t *until)
{
    int64_t deadline = __atomic_load_n(until, __ATOMIC_RELAXED);
    if (!deadline)
        return false;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now); /* a few ns, good to a few ms */
    if (now.tv_sec * 1000000000ll + now.tv_nsec < deadline)
        return true;
    /* Run out. Clear it, unless it has just been renewed. */
    __atomic_compare_exchange_n(until, &deadline, 0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return false;
}

bool gh_control_look(struct gh_live *live)
{
    struct gh_control *page = gh_control_page;
    uint32_t tracking = !stands(&page->off_until_ns), profiling = stands(&page->profile_until_ns);
    stands(&page->pause_until_ns); /* clears it when it has run out */
    uint64_t epoch = __atomic_load_n(&page->epoch, __ATOMIC_RELAXED);
    if (__atomic_load_n(&live->tracking, __ATOMIC_RELAXED) != tracking)
        __atomic_store_n(&live->tracking, tracking, __ATOMIC_RELAXED);
    if (__atomic_load_n(&live->profiling, __ATOMIC_RELAXED) != profiling)
        __atomic_store_n(&live->profiling, profiling, __ATOMIC_RELAXED);
    if (__atomic_load_n(&live->control_epoch, __ATOMIC_RELAXED) != epoch)
        __atomic_store_n(&live->control_epoch, epoch, __ATOMIC_RELAXED);
    return tracking;
}
