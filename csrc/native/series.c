/* SPDX-License-Identifier: Apache-2.0 */
#include "series.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "export.h"

enum { PHASE_STEADY = 0, PHASE_RESTART = 3, PHASE_REARM = 4, BACK_MEANS_RESTART = 3, Z_LIMIT = 2000 };

GH_EXPORT int64_t gh_series_feed(const struct gh_bocd_model *model, struct gh_series *s, int64_t n, const int64_t *index,
                                 const int64_t *t_ns, const int64_t *dur_ns, const uint8_t *phase, struct gh_news *news);
GH_EXPORT int64_t gh_series_size(void);
GH_EXPORT int64_t gh_news_size(void);
GH_EXPORT int64_t gh_model_size(void);
GH_EXPORT void gh_series_begin(const struct gh_bocd_model *model, struct gh_series *s);
GH_EXPORT void gh_series_arm(const struct gh_bocd_model *model, struct gh_series *s, float centre, float scale);
GH_EXPORT void gh_series_replay(const struct gh_bocd_model *model, struct gh_series *s, int64_t from);
GH_EXPORT int gh_series_sound(const struct gh_series *s);
GH_EXPORT void gh_model_make(struct gh_bocd_model *model, double hazard, double kappa0, double alpha0, double beta0);
GH_EXPORT void gh_bocd_posterior(const struct gh_series *s, float *out);
GH_EXPORT int64_t gh_series_layout(int64_t *out, int64_t room);

static float median3(float a, float b, float c) {
    float low = a < b ? a : b, high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

/* Filter and score one value; the posterior's masses are left in the state. */
static float take(const struct gh_bocd_model *model, gh_bocd_step_fn *step, struct gh_series *s, float y) {
    float f = s->n_filter < 2 ? y : median3(y, s->raw1, s->raw2);
    float z = (f - s->centre) * s->per_scale;
    z = z > Z_LIMIT ? Z_LIMIT : z < -Z_LIMIT ? -Z_LIMIT : z;
    struct gh_mass mass = step(model, &s->bocd, z);
    s->mass_near = mass.near;
    s->mass_look = mass.look;
    return f;
}

static void remember(struct gh_series *s, float y) {
    s->raw2 = s->raw1;
    s->raw1 = y;
    s->n_filter += s->n_filter < 2;
}

static int left_level(const struct gh_series *s, float y) {
    float high = s->level + s->near_by, low = s->level - s->near_by;
    return (y > high && s->raw1 > high && s->raw2 > high) || (y < low && s->raw1 < low && s->raw2 < low);
}

/* Is the median of the last five values worth a verification? Smaller shifts are left to the guard. */
static int worth_a_look(const struct gh_series *s) {
    int over = 0, under = 0, n = s->count < 5 ? (int)s->count : 5;
    for (int i = 1; i <= n; i++) {
        float off = s->y[(s->count - i) % GH_KEPT] - s->level;
        over += off > s->look_by;
        under += off < -s->look_by;
    }
    return 2 * over > n || 2 * under > n;
}

/* Indices and times must go forward; what does not is ignored. Both behind: the same values again, as when a
 * stream is read twice. One behind, several times in a row: the job was rewound (a restart), or its clock set. */
static int went_back(struct gh_series *s, int64_t index, int64_t t_ns) {
    if (index == s->last_index) {
        s->n_repeat++;
        return 1;
    }
    if (index > s->last_index && t_ns >= s->last_t_ns) {
        s->n_gap += s->last_index != INT64_MIN && index - 1 != s->last_index; /* index is larger, so no overflow */
        s->back_run = 0;
        return 0;
    }
    s->n_back++;
    s->back_run += index > s->last_index || t_ns > s->last_t_ns;
    return 1;
}

int64_t gh_series_feed(const struct gh_bocd_model *model, struct gh_series *s, int64_t n, const int64_t *index,
                       const int64_t *t_ns, const int64_t *dur_ns, const uint8_t *phase, struct gh_news *news) {
    gh_bocd_step_fn *step = gh_bocd_best();
    news->at = -1;
    news->why = 0;
    for (int64_t i = 0; i < n; i++) {
        int why = 0;
        if (phase[i] == PHASE_RESTART || phase[i] == PHASE_REARM) {
            s->n_skipped++;
            why = phase[i] == PHASE_REARM ? GH_WHY_REARM : GH_WHY_RESTART;
        } else if (went_back(s, index[i], t_ns[i])) {
            if (s->back_run < BACK_MEANS_RESTART)
                continue;
            why = GH_WHY_RESTART;
        }
        if (why) {
            s->back_run = 0;
            s->last_index = index[i];
            s->last_t_ns = t_ns[i];
            news->why = why;
            news->index = index[i];
            news->t_ns = t_ns[i];
            news->dur_ns = dur_ns[i];
            return i + 1;
        }
        s->last_index = index[i];
        s->last_t_ns = t_ns[i];
        if (dur_ns[i] <= 0) {
            s->n_bad++;
            continue;
        }
        if (phase[i] != PHASE_STEADY) {
            s->n_skipped++;
            continue;
        }
        float y = logf((float)dur_ns[i]);
        int slot = (int)(s->count % GH_KEPT);
        s->total_ns += (double)dur_ns[i];
        s->y[slot] = y;
        s->index[slot] = index[i];
        s->t_ns[slot] = t_ns[i];
        s->total_at[slot] = s->total_ns;
        s->count++;
        if (s->armed) {
            float f = take(model, step, s, y);
            s->slow += (f - s->slow) * 0.0625f;
            float drift = s->slow - s->anchor;
            why |= s->mass_look > s->look_min && s->count >= s->look_from && worth_a_look(s) ? GH_WHY_LOOK : 0;
            why |= s->mass_near > s->near_min && s->count >= s->near_from && left_level(s, y) ? GH_WHY_NEAR : 0;
            why |= (drift > s->guard_by || drift < -s->guard_by) && s->count >= s->guard_from ? GH_WHY_GUARD : 0;
        }
        remember(s, y);
        why |= s->count == s->wake_at ? GH_WHY_WAKE : 0;
        why |= s->follow ? GH_WHY_FOLLOW : 0;
        if (why) {
            news->at = s->count - 1;
            news->why = why;
            news->index = index[i];
            news->t_ns = t_ns[i];
            news->dur_ns = dur_ns[i];
            news->near = s->mass_near;
            news->look = s->mass_look;
            news->mode = s->armed ? gh_bocd_mode(&s->bocd) : 0;
            return i + 1;
        }
    }
    return n;
}

void gh_series_begin(const struct gh_bocd_model *model, struct gh_series *s) {
    memset(s, 0, sizeof *s);
    s->last_index = s->last_t_ns = INT64_MIN;
    gh_bocd_begin(model, &s->bocd);
}

void gh_series_arm(const struct gh_bocd_model *model, struct gh_series *s, float centre, float scale) {
    gh_bocd_begin(model, &s->bocd);
    s->centre = centre;
    s->per_scale = 1.0f / scale;
    s->slow = centre;
    s->n_filter = 0;
    s->mass_near = s->mass_look = 0;
    s->armed = 1;
}

/* Feed the posterior what is kept from value `from` on, as after a new standardisation. */
void gh_series_replay(const struct gh_bocd_model *model, struct gh_series *s, int64_t from) {
    gh_bocd_step_fn *step = gh_bocd_best();
    if (from < s->count - GH_KEPT)
        from = s->count - GH_KEPT;
    s->n_filter = 0;
    for (int64_t at = from < 0 ? 0 : from; at < s->count; at++) {
        float y = s->y[at % GH_KEPT];
        s->slow += (take(model, step, s, y) - s->slow) * 0.0625f;
        remember(s, y);
    }
}

/* Can a state that was read from a file be used? Whatever its numbers are, no index may leave its array. */
int gh_series_sound(const struct gh_series *s) {
    int ok = s->count >= 0 && s->count < (int64_t)1 << 62 && s->n_filter >= 0 && s->n_filter <= 2 && s->back_run >= 0 && s->bocd.head >= 0
             && s->bocd.head < GH_YOUNG && s->bocd.keeper >= 0 && s->bocd.keeper < GH_OLD;
    for (int i = 0; i < GH_KEPT; i++)
        ok &= isfinite(s->y[i]) != 0;
    for (int i = 0; i < GH_OLD; i++)
        ok &= s->bocd.old_n[i] >= GH_YOUNG && s->bocd.old_n[i] <= GH_MEMORY;
    return ok;
}

void gh_model_make(struct gh_bocd_model *model, double hazard, double kappa0, double alpha0, double beta0) {
    *model = (struct gh_bocd_model){.hazard = hazard, .kappa0 = kappa0, .alpha0 = alpha0, .beta0 = beta0};
    gh_bocd_prepare(model);
}

/* P(r = 0), P(r = 1), ... P(r = GH_YOUNG - 1), then the sum of all older ones: GH_YOUNG + 1 floats. */
void gh_bocd_posterior(const struct gh_series *s, float *out) {
    out[GH_YOUNG] = 0;
    for (int r = 0; r < GH_YOUNG; r++)
        out[r] = s->bocd.w[(s->bocd.head - r + GH_YOUNG) % GH_YOUNG];
    for (int i = 0; i < GH_OLD; i++)
        out[GH_YOUNG] += s->bocd.w[GH_YOUNG + i];
}

int64_t gh_series_size(void) { return sizeof(struct gh_series); }
int64_t gh_news_size(void) { return sizeof(struct gh_news); }
int64_t gh_model_size(void) { return sizeof(struct gh_bocd_model); }

/* Offsets that Python's mirror must have, in the order of the fields it names. */
int64_t gh_series_layout(int64_t *out, int64_t room) {
    static const int64_t at[] = {
        offsetof(struct gh_series, count),     offsetof(struct gh_series, wake_at),  offsetof(struct gh_series, look_from),
        offsetof(struct gh_series, n_bad),     offsetof(struct gh_series, total_ns), offsetof(struct gh_series, armed),
        offsetof(struct gh_series, centre),    offsetof(struct gh_series, slow),     offsetof(struct gh_series, look_min),
        offsetof(struct gh_series, mass_near), offsetof(struct gh_series, bocd),     offsetof(struct gh_series, y),
        offsetof(struct gh_series, index),     offsetof(struct gh_series, t_ns),     offsetof(struct gh_series, total_at),
    };
    int64_t count = (int64_t)(sizeof at / sizeof *at);
    for (int64_t i = 0; i < count && i < room; i++)
        out[i] = at[i];
    return count;
}
