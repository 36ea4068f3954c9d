/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank this process is, by the environment of its launcher. */

#include <errno.h>
#include <stdlib.h>

#include "shim.h"

/* In the order of DESIGN section 4. A launcher is believed as a whole: its first variable decides. */
static const struct {
    const char *rank, *local_rank, *world_size, *node_rank;
} launchers[] = {
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK"},
    {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NODEID"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", NULL},
    {"PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", NULL},
};

static int number_of(const char *name)
{
    const char *text = name ? getenv(name) : NULL;
    if (!text || !*text)
        return -1;
    char *end;
    int saved = errno;
    long value = strtol(text, &end, 10);
    errno = saved;
    return *end || value < 0 || value > 0x7fffffff ? -1 : (int)value;
}

void gh_rank_read(struct gh_rank *out)
{
    *out = (struct gh_rank){-1, -1, -1, -1, number_of("TORCHELASTIC_RESTART_COUNT")};
    for (unsigned i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        out->rank = number_of(launchers[i].rank);
        if (out->rank < 0)
            continue;
        out->local_rank = number_of(launchers[i].local_rank);
        out->world_size = number_of(launchers[i].world_size);
        out->node_rank = number_of(launchers[i].node_rank);
        return;
    }
}
