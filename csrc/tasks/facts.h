/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_FACTS_H
#define GH_FACTS_H

/* What /proc and the cgroups say of the calling thread, read inside the process that is tested: so it is true of a
 * rank on another host, in a container, or with threads in cgroups of their own. What cannot be read is -1. */

#include <stdint.h>

#define GH_LEVELS 8 /* a cgroup and its parents: a quota may stand at any of them */

struct gh_level {
    int64_t throttled_ns, periods, periods_throttled;
};

struct gh_cpu_facts {
    struct gh_level level[GH_LEVELS];
    int64_t quota_us, period_us; /* the tightest; quota -1 = none */
    int64_t busy_ns, steal_ns;   /* of all CPUs of the host since it was started */
    int64_t khz;                 /* of the CPU this runs on */
};

void gh_facts_read(struct gh_cpu_facts *facts);

/* Of the cgroup or parent that was throttled longest between two readings. */
struct gh_level gh_facts_throttled(const struct gh_cpu_facts *before, const struct gh_cpu_facts *after);

int64_t gh_facts_waited_ns(void); /* this thread, on a run queue, ever; throttled time is in it */
int64_t gh_facts_cpus(void);      /* it may run on */
int64_t gh_facts_memory(void);    /* bytes that may still be taken without harm */

#endif
