/* SPDX-License-Identifier: Apache-2.0 */

#define _GNU_SOURCE /* sched_getcpu */

#include "facts.h"

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES 8192

/* The begin of a small file as text; false if there is none. */
static bool read_text(const char *path, char *text)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, BYTES - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    return got > 0;
}

/* The number after `key` at the begin of a line, -1 if it is not there. */
static int64_t number_of(const char *text, const char *key)
{
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, key, n) && (line[n] == ' ' || line[n] == ':'))
            return strtoll(line + n + 1, NULL, 10);
    }
    return -1;
}

struct walk {
    char dir[512];
    size_t mount; /* length of the part that is the mount point */
    bool v2;
};

/* Where this thread's cgroup of a controller is. In a container without a cgroup namespace the path that /proc tells
 * is not below the mount: the walk to the root then finds what is. */
static bool walk_begin(struct walk *walk, const char *controller)
{
    char text[BYTES], other[64];
    const char *v2_path = NULL, *v1_path = NULL;
    if (!read_text("/proc/thread-self/cgroup", text))
        return false;
    for (char *line = text, *next; line && *line; line = next) {
        if ((next = strchr(line, '\n')))
            *next++ = 0;
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        names++;
        if (!*names)
            v2_path = path;
        for (char *name = names, *end; *name; name = end) {
            size_t n = strcspn(name, ",");
            end = name + n + (name[n] == ',');
            if (n == strlen(controller) && !strncmp(name, controller, n))
                v1_path = path;
        }
    }
    const char *path = v1_path ? v1_path : v2_path;
    if (!path)
        return false;
    walk->v2 = !v1_path;
    snprintf(other, sizeof other, "/sys/fs/cgroup%s%s", v1_path ? "/" : "", v1_path ? controller : "");
    if (v1_path && !strcmp(controller, "cpu") && access(other, F_OK))
        strcpy(other, "/sys/fs/cgroup/cpu,cpuacct");
    walk->mount = strlen(other);
    int n = snprintf(walk->dir, sizeof walk->dir, "%s%s", other, strcmp(path, "/") ? path : "");
    return n > 0 && (size_t)n < sizeof walk->dir;
}

/* To the parent; false at the mount point. */
static bool walk_up(struct walk *walk)
{
    char *slash = strrchr(walk->dir, '/');
    if (strlen(walk->dir) <= walk->mount || !slash)
        return false;
    *slash = 0;
    return true;
}

static bool walk_text(const struct walk *walk, const char *name, char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", walk->dir, name);
    return read_text(path, text);
}

static int64_t walk_number(const struct walk *walk, const char *name)
{
    char text[BYTES];
    return walk_text(walk, name, text) && text[0] >= '0' && text[0] <= '9' ? strtoll(text, NULL, 10) : -1;
}

/* Keep the tighter of two quotas: the least share of a CPU. */
static void keep_quota(struct gh_cpu_facts *facts, int64_t quota, int64_t period)
{
    if (quota <= 0 || period <= 0)
        return;
    if (facts->quota_us < 0 || (double)quota / period < (double)facts->quota_us / facts->period_us) {
        facts->quota_us = quota;
        facts->period_us = period;
    }
}

static void read_level(const struct walk *walk, struct gh_level *level, struct gh_cpu_facts *facts)
{
    char text[BYTES];
    if (walk_text(walk, "cpu.stat", text)) {
        int64_t us = number_of(text, "throttled_usec");
        level->throttled_ns = walk->v2 ? (us < 0 ? us : us * 1000) : number_of(text, "throttled_time");
        level->periods = number_of(text, "nr_periods");
        level->periods_throttled = number_of(text, "nr_throttled");
    }
    if (!walk->v2) {
        keep_quota(facts, walk_number(walk, "cpu.cfs_quota_us"), walk_number(walk, "cpu.cfs_period_us"));
    } else if (walk_text(walk, "cpu.max", text) && text[0] != 'm') {
        char *rest;
        int64_t quota = strtoll(text, &rest, 10);
        keep_quota(facts, quota, strtoll(rest, NULL, 10));
    }
}

static void read_host(struct gh_cpu_facts *facts)
{
    char text[BYTES], path[96];
    long long n[8];
    int64_t tick_ns = 1000000000ll / sysconf(_SC_CLK_TCK);
    if (read_text("/proc/stat", text) && sscanf(text, "cpu %lld %lld %lld %lld %lld %lld %lld %lld", n, n + 1, n + 2,
                                                n + 3, n + 4, n + 5, n + 6, n + 7) == 8) {
        facts->busy_ns = (n[0] + n[1] + n[2] + n[5] + n[6]) * tick_ns;
        facts->steal_ns = n[7] * tick_ns;
    }
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", sched_getcpu());
    if (read_text(path, text))
        facts->khz = strtoll(text, NULL, 10);
}

void gh_facts_read(struct gh_cpu_facts *facts)
{
    struct walk walk;
    memset(facts, 0xff, sizeof *facts); /* all -1 */
    if (walk_begin(&walk, "cpu"))
        for (int i = 0; i < GH_LEVELS; i++) {
            read_level(&walk, &facts->level[i], facts);
            if (!walk_up(&walk))
                break;
        }
    read_host(facts);
}

struct gh_level gh_facts_throttled(const struct gh_cpu_facts *before, const struct gh_cpu_facts *after)
{
    struct gh_level most = {-1, -1, -1};
    for (int i = 0; i < GH_LEVELS; i++) {
        const struct gh_level *b = &before->level[i], *a = &after->level[i];
        if (b->throttled_ns < 0 || a->throttled_ns < 0 || a->throttled_ns - b->throttled_ns <= most.throttled_ns)
            continue;
        most = (struct gh_level){a->throttled_ns - b->throttled_ns, a->periods - b->periods,
                                 a->periods_throttled - b->periods_throttled};
    }
    return most;
}

int64_t gh_facts_waited_ns(void)
{
    char text[BYTES];
    long long ran, waited;
    return read_text("/proc/thread-self/schedstat", text) && sscanf(text, "%lld %lld", &ran, &waited) == 2 ? waited : -1;
}

int64_t gh_facts_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? -1 : CPU_COUNT(&set);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t gh_facts_memory(void)
{
    char text[BYTES];
    struct walk walk;
    int64_t left = INT64_MAX;
    if (read_text("/proc/meminfo", text)) {
        int64_t kib = number_of(text, "MemAvailable");
        left = kib < 0 ? left : kib * 1024;
    }
    if (!walk_begin(&walk, "memory"))
        return left;
    for (int i = 0; i < GH_LEVELS; i++) {
        int64_t limit = walk_number(&walk, walk.v2 ? "memory.max" : "memory.limit_in_bytes");
        int64_t used = walk_number(&walk, walk.v2 ? "memory.current" : "memory.usage_in_bytes");
        if (limit >= 0 && used >= 0) {
            /* Pages of files that nobody used lately are given up first. */
            int64_t idle = walk_text(&walk, "memory.stat", text)
                               ? number_of(text, walk.v2 ? "inactive_file" : "total_inactive_file")
                               : -1;
            left = least(left, limit - used + (idle > 0 ? idle : 0));
        }
        if (!walk_up(&walk))
            break;
    }
    return left;
}
