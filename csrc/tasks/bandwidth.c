/* SPDX-License-Identifier: Apache-2.0 */
/* Memory bandwidth of a CPU: the triad of STREAM (McCalpin 1995), a = b + s c, over arrays that no cache holds. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#if defined __SSE2__
#include <emmintrin.h>
#endif

#include "team.h"

#define CHUNK 16384 /* floats of each array in a step: some tens of microseconds, far over the cost of the clock */
#define MOST_BYTES (4ll << 30)
#define SCALE 3.0f

struct triad {
    float *a, *b, *c;
    int64_t chunks; /* of each array, for each thread */
    int64_t *at;    /* the next chunk of each thread, 16 numbers apart */
    double checksum;
};

static void step(void *self, unsigned thread)
{
    struct triad *t = self;
    int64_t *at = &t->at[16 * thread];
    int64_t from = (thread * t->chunks + *at % t->chunks) * CHUNK;
    float *restrict a = t->a + from;
    const float *restrict b = t->b + from, *restrict c = t->c + from;
#if defined __SSE2__
    /* Past the caches: a plain store would first read what it is about to overwrite, and that is not counted. */
    for (int64_t i = 0; i < CHUNK; i += 4)
        _mm_stream_ps(a + i, _mm_add_ps(_mm_load_ps(b + i), _mm_mul_ps(_mm_set1_ps(SCALE), _mm_load_ps(c + i))));
    _mm_sfence();
#else
    for (int64_t i = 0; i < CHUNK; i++)
        a[i] = b[i] + SCALE * c[i];
#endif
    ++*at;
}

/* What b and c hold; all sums are exact. */
static float value_b(int64_t i)
{
    return (float)(i % 1021);
}

static float value_c(int64_t i)
{
    return (float)(i % 509);
}

static bool sound(void *self, unsigned thread)
{
    struct triad *t = self;
    int64_t done = t->at[16 * thread] < t->chunks ? t->at[16 * thread] : t->chunks;
    int64_t from = thread * t->chunks * CHUNK;
    double checksum = 0;
    bool right = true;
    /* Not all of them, since that would take as long as a window: a stride that is prime visits every part. */
    for (int64_t i = from; i < from + done * CHUNK; i += 127) {
        right = right && t->a[i] == value_b(i) + SCALE * value_c(i);
        checksum += t->a[i];
    }
    if (thread == 0)
        t->checksum = checksum;
    return right;
}

void gh_task_bandwidth(const struct gh_task *task, const struct gh_leave *leave, struct gh_result *out)
{
    int64_t bytes = task->arg[GH_TEST_SIZE], threads = task->arg[GH_TEST_THREADS];
    struct triad t = {.chunks = 0};
    if (!gh_team_asked(task, out))
        return;
    t.chunks = bytes / ((int64_t)sizeof(float) * 3 * CHUNK * threads);
    if (bytes < 0 || bytes > MOST_BYTES || t.chunks < 1) {
        out->status = EINVAL;
        snprintf(out->said, sizeof out->said, "size out of range");
        return;
    }
    int64_t count = t.chunks * CHUNK * threads;
    size_t array = sizeof(float) * (size_t)count, all = 3 * array + 16 * sizeof(int64_t) * (size_t)threads;
    char *memory = gh_team_memory(task, all, out);
    if (!memory)
        return;
    t.a = (float *)memory;
    t.b = (float *)(memory + array);
    t.c = (float *)(memory + 2 * array);
    t.at = (int64_t *)(memory + 3 * array);
    memset(t.a, 0, array); /* pages are there before anything is timed */
    for (int64_t i = 0; i < count; i += CHUNK) {
        if (!leave->stands(leave->self)) {
            out->status = ECANCELED;
            snprintf(out->said, sizeof out->said, "the time given was over");
            goto out;
        }
        for (int64_t k = i; k < i + CHUNK; k++) {
            t.b[k] = value_b(k);
            t.c[k] = value_c(k);
        }
    }
    struct gh_work work = {step, sound, 3 * (int64_t)sizeof(float) * CHUNK, &t};
    gh_team_run(task, leave, &work, out);
    out->value[GH_HEAD_CHECKSUM] = (int64_t)t.checksum;
out:
    munmap(memory, all);
}
