/* SPDX-License-Identifier: Apache-2.0 */
/* Random and damaged states, values and samples through csrc/native/{series,compare}.c, for the sanitizers; with no
 * argument instead: the posterior of a fixed series, for comparing builds. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native/series.h"

struct gh_compared {
    double values[10];
};

int64_t gh_series_feed(const struct gh_bocd_model *model, struct gh_series *s, int64_t n, const int64_t *index,
                       const int64_t *t_ns, const int64_t *dur_ns, const uint8_t *phase, struct gh_news *news);
void gh_model_make(struct gh_bocd_model *model, double hazard, double kappa0, double alpha0, double beta0);
void gh_series_begin(const struct gh_bocd_model *model, struct gh_series *s);
void gh_series_arm(const struct gh_bocd_model *model, struct gh_series *s, float centre, float scale);
void gh_series_replay(const struct gh_bocd_model *model, struct gh_series *s, int64_t from);
int gh_series_sound(const struct gh_series *s);
void gh_bocd_posterior(const struct gh_series *s, float *out);
int gh_compare(const float *before, int64_t nb, const float *after, int64_t na, struct gh_compared *out);

static uint64_t seed;

static uint64_t next(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static int below(int n) { return (int)(next() % (uint64_t)n); }

static void damage(struct gh_series *s) {
    unsigned char *bytes = (unsigned char *)s;
    for (int i = below(3) ? 200 : (int)sizeof *s; i > 0; i--)
        bytes[next() % sizeof *s] = (unsigned char)next();
    for (int i = 0; i < GH_KEPT; i++) /* what gh_series_sound asks for, so that many pass it */
        s->y[i] = (float)below(50);
    for (int i = 0; i < GH_OLD; i++)
        s->bocd.old_n[i] = (float)(GH_YOUNG + below(GH_MEMORY - GH_YOUNG + 1));
    s->bocd.head = below(GH_YOUNG);
    s->bocd.keeper = below(GH_OLD);
    s->n_filter = below(3);
    s->back_run = 0;
    s->count = (int64_t)(next() >> (2 + below(60)));
}

static void feed(const struct gh_bocd_model *model, struct gh_series *s) {
    int n = below(200);
    int64_t *index = malloc(8 * (size_t)n + 8), *t = malloc(8 * (size_t)n + 8), *dur = malloc(8 * (size_t)n + 8);
    uint8_t *phase = malloc((size_t)n + 1);
    for (int i = 0; i < n; i++) {
        index[i] = below(9) ? i : below(2) ? (int64_t)next() : below(2) ? INT64_MAX : INT64_MIN;
        t[i] = below(9) ? i * 1000 : (int64_t)next();
        dur[i] = below(5) ? 1000000000 + below(100000000) : (int64_t)next();
        phase[i] = below(6) ? 0 : (uint8_t)below(256);
    }
    struct gh_news news;
    for (int64_t at = 0; at < n;)
        at += gh_series_feed(model, s, n - at, index + at, t + at, dur + at, phase + at, &news);
    float out[GH_YOUNG + 1];
    gh_bocd_posterior(s, out);
    gh_series_replay(model, s, s->count - below(400));
    free(index);
    free(t);
    free(dur);
    free(phase);
}

static void compare(void) {
    int nb = below(259), na = below(259);
    float *before = malloc(4 * (size_t)nb + 4), *after = malloc(4 * (size_t)na + 4);
    for (int i = 0; i < nb; i++)
        before[i] = below(200) ? (float)below(10) : below(2) ? NAN : 1e30f;
    for (int i = 0; i < na; i++)
        after[i] = below(200) ? (float)below(12) : -INFINITY;
    struct gh_compared out;
    gh_compare(before, nb, after, na, &out);
    free(before);
    free(after);
}

static void print_posterior(const struct gh_bocd_model *model, struct gh_series *s) {
    gh_series_begin(model, s);
    gh_series_arm(model, s, 20.723266f, 0.02f);
    for (int64_t i = 0; i < 300; i++) {
        int64_t dur = (int64_t)((i < 150 ? 1e9 : 1.1e9) * (1 + 0.0001 * (below(401) - 200)));
        uint8_t phase = 0;
        struct gh_news news;
        float out[GH_YOUNG + 1];
        gh_series_feed(model, s, 1, &i, &i, &dur, &phase, &news);
        gh_bocd_posterior(s, out);
        for (int r = 0; r <= GH_YOUNG; r++)
            printf("%.6f ", (double)out[r]);
    }
}

int main(int count, char **words) {
    struct gh_bocd_model *model = malloc(sizeof *model);
    struct gh_series *s = malloc(sizeof *s);
    gh_model_make(model, 1e-3, 0.01, 10, 10);
    seed = count > 1 ? strtoull(words[1], NULL, 10) * 0x9e3779b97f4a7c15u + 1 : 1;
    if (count < 2)
        print_posterior(model, s);
    int sound = 0;
    for (int i = 0; count > 1 && i < 150; i++) {
        gh_series_begin(model, s);
        if (i % 2)
            gh_series_arm(model, s, 20.7f, 0.02f);
        if (i % 3 == 0)
            damage(s);
        if (gh_series_sound(s)) {
            sound++;
            feed(model, s);
        }
        compare();
    }
    if (count > 1)
        printf("%d\n", sound);
    free(model);
    free(s);
    return 0;
}
