/* SPDX-License-Identifier: Apache-2.0 */
/* Job id, start of a process, hashes. */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

/* FNV-1a, then the finaliser of splitmix64 so that short inputs differ in all bits. */
uint64_t gh_hash(const void *data, unsigned long n, uint64_t seed)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325ull ^ seed;
    for (unsigned long i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3ull;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
    h ^= h >> 31;
    return h ? h : 1; /* 0 means "none" */
}

uint64_t gh_hash2(uint64_t a, uint64_t b)
{
    uint64_t both[2] = {a, b};
    return gh_hash(both, sizeof both, 0);
}

static long read_file(const char *path, char *out, unsigned long cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    long n = 0;
    while ((unsigned long)n < cap) {
        long got = read(fd, out + n, cap - (unsigned long)n);
        if (got <= 0)
            break;
        n += got;
    }
    close(fd);
    return n;
}

/* Fields of /proc/PID/stat: ppid is the 4th, starttime the 22nd. The name (2nd) may hold anything. */
static bool stat_of(int pid, int *ppid, uint64_t *start)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    long n = read_file(path, text, sizeof text - 1);
    if (n <= 0)
        return false;
    text[n] = 0;
    char *at = strrchr(text, ')');
    if (!at)
        return false;
    long long parent = -1;
    int field = 2;
    for (at++; *at; at++) {
        if (*at != ' ')
            continue;
        field++;
        if (field == 4)
            parent = atoll(at + 1);
        if (field == 22) {
            *ppid = (int)parent;
            *start = strtoull(at + 1, NULL, 10);
            return true;
        }
    }
    return false;
}

uint64_t gh_start_ticks(int pid)
{
    int ppid;
    uint64_t start;
    return stat_of(pid, &ppid, &start) ? start : 0;
}

/* Was process `pid` started with a rank in its environment? Then it is a wrapper of one rank, no launcher. */
static bool has_rank(int pid)
{
    static const char *const names[] = {"RANK=", "SLURM_PROCID=", "OMPI_COMM_WORLD_RANK=", "PMI_RANK="};
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    unsigned long cap = 1 << 18;
    char *text = malloc(cap);
    bool found = false;
    long n = text ? read_file(path, text, cap - 1) : -1;
    if (n > 0) {
        text[n] = 0;
        for (char *at = text; at < text + n && !found; at += strlen(at) + 1)
            for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
                found |= !strncmp(at, names[i], strlen(names[i]));
    }
    free(text);
    return found;
}

void gh_job_safe(char *out, unsigned long cap, const char *in)
{
    unsigned long n = 0;
    for (; in[n] && n < cap - 1; n++) {
        char c = in[n];
        bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                    c == '_' || c == '-';
        out[n] = good ? c : '_';
    }
    out[n] = 0;
    if (!n)
        snprintf(out, cap, "job");
    if (out[0] == '.')
        out[0] = '_';
}

/* Ranks of one launch must agree without talking: they share the launcher, which is the nearest ancestor
 * that has no rank itself (a shell or a wrapper between launcher and rank has the rank's environment). */
void gh_job_id(char *out, unsigned long cap)
{
    static const char *const given[] = {"GHT_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"};
    for (unsigned i = 0; i < sizeof given / sizeof *given; i++) {
        const char *text = getenv(given[i]);
        if (text && *text && strcmp(text, "none")) { /* torchrun's default run id is "none" */
            gh_job_safe(out, cap, text);
            return;
        }
    }
    int launcher = getppid(), above;
    uint64_t start = 0;
    for (int depth = 0; depth < 8 && launcher > 1; depth++) {
        if (!stat_of(launcher, &above, &start) || !has_rank(launcher))
            break;
        launcher = above;
    }
    start = gh_start_ticks(launcher);
    const char *port = getenv("MASTER_PORT");
    uint64_t h = gh_hash2((uint64_t)launcher, start);
    if (port)
        h = gh_hash(port, strlen(port), h);
    snprintf(out, cap, "%08x", (unsigned)(h ^ (h >> 32)));
}
