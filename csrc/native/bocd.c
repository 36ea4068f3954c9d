/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors are only passed between functions that are inlined. */
#pragma GCC diagnostic ignored "-Wpsabi"
#include "bocd.h"

#include <math.h>
#include <string.h>

#include "export.h"

/* The kernel works on 16 floats at a time whatever the CPU has: GCC and Clang split these vectors as needed. */
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef float vf_mem __attribute__((vector_size(64), aligned(4), may_alias));

#define WIDE 16
#define BLOCKS (GH_LANES / WIDE)
#define YOUNG_BLOCKS (GH_YOUNG / WIDE)
_Static_assert(GH_YOUNG % WIDE == 0 && GH_OLD % WIDE == 0 && GH_OLD == WIDE, "lanes must fill whole blocks");

#define NOTHING (-1e6f)      /* log weight of an empty lane */
#define DROP_BELOW (-18.0f)  /* a hypothesis that grows old with less log weight than this is let go (1.5e-8) */
#define ALWAYS static inline __attribute__((always_inline))

ALWAYS vf load(const float *from) { return (vf) * (const vf_mem *)from; }
ALWAYS void store(float *to, vf v) { *(vf_mem *)to = (vf_mem)v; }
ALWAYS vf splat(float x) { return x - (vf){0}; }
#define PICK(mask, yes, no) ((vf)(((vi)(yes) & (mask)) | ((vi)(no) & ~(mask))))

/* Natural logarithm of positive normal floats, to 2 ulp or so: m in [sqrt(1/2), sqrt(2)), log m by the
 * series of atanh in s = (m - 1) / (m + 1), |s| < 0.172. */
ALWAYS vf log_of(vf x) {
    vi bits = (vi)x;
    vi e = (bits - 0x3f3504f3) >> 23;
    vf m = (vf)(bits - (e << 23));
    vf s = (m - 1.0f) / (m + 1.0f);
    vf z = s * s;
    vf p = 0.22222222f + z * 0.18181818f;
    p = 0.28571429f + z * p;
    p = 0.4f + z * p;
    p = 0.66666667f + z * p;
    p = s * (2.0f + z * p);
    vf ef = __builtin_convertvector(e, vf);
    return ef * 0.693359375f + (p + ef * -2.12194440e-4f);
}

/* e to the x for x <= 0; zero below -87. */
ALWAYS vf exp_of(vf x) {
    vi tiny = x < -87.0f;
    x = PICK(tiny, splat(-87.0f), x);
    vf n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    vf f = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vf p = 1.3888889e-3f + f * 1.9841270e-4f;
    p = 8.3333333e-3f + f * p;
    p = 4.1666667e-2f + f * p;
    p = 0.16666667f + f * p;
    p = 0.5f + f * p;
    p = 1.0f + f * (1.0f + f * p);
    vi scale = (__builtin_convertvector(n, vi) + 127) << 23;
    return PICK(tiny, (vf){0}, p * (vf)scale);
}

ALWAYS float sum_of(const vf *v) {
    float a[WIDE];
    memcpy(a, v, sizeof a);
    for (int half = WIDE / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] += a[i + half];
    return a[0];
}

ALWAYS float max_of(const vf *v) {
    float a[WIDE];
    memcpy(a, v, sizeof a);
    for (int half = WIDE / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] = a[i] > a[i + half] ? a[i] : a[i + half];
    return a[0];
}

/* Give the lane `head` to a new hypothesis; the one that leaves the ring is kept if it outweighs the
 * lightest old one. */
ALWAYS void birth(const struct gh_bocd_model *model, struct gh_bocd *state) {
    int head = state->head;
    if (state->log_w[head] > DROP_BELOW) {
        int least = GH_YOUNG;
        for (int lane = GH_YOUNG + 1; lane < GH_LANES; lane++)
            if (state->log_w[lane] < state->log_w[least])
                least = lane;
        if (state->log_w[head] > state->log_w[least]) {
            state->log_w[least] = state->log_w[head];
            state->mu[least] = state->mu[head];
            state->beta[least] = state->beta[head];
            state->log_beta[least] = state->log_beta[head];
            state->old_n[least - GH_YOUNG] = GH_YOUNG;
        }
    }
    state->log_w[head] = model->log_hazard - model->log_stay; /* log_stay is added to every lane below */
    state->mu[head] = (float)model->mu0;
    state->beta[head] = (float)model->beta0;
    state->log_beta[head] = logf((float)model->beta0);
}

/*
 * One value. Every hypothesis scores x by its predictive density, a Student t; with
 * beta' = beta + kappa (x - mu)^2 / (2 (kappa + 1)) its logarithm is
 * norm(n) - log(beta') / 2 - alpha (log beta' - log beta): one logarithm and one exponential a lane.
 */
ALWAYS struct gh_mass step(const struct gh_bocd_model *model, struct gh_bocd *state, float x) {
    birth(model, state);
    int rotation = GH_YOUNG - 1 - state->head; /* lane `head` has n = 0 now, the lane before it n = 1, ... */
    float old_norm[GH_OLD], old_alpha[GH_OLD], old_in_beta[GH_OLD], old_in_mu[GH_OLD];
    for (int i = 0; i < GH_OLD; i++) {
        int n = state->old_n[i];
        old_norm[i] = model->norm[n];
        old_alpha[i] = model->alpha[n];
        old_in_beta[i] = model->in_beta[n];
        old_in_mu[i] = model->in_mu[n];
    }
    vf log_w[BLOCKS], top = splat(NOTHING);
    for (int b = 0; b < BLOCKS; b++) {
        int lane = b * WIDE, young = b < YOUNG_BLOCKS, at = rotation + lane;
        vf norm = load(young ? model->ring_norm + at : old_norm);
        vf alpha = load(young ? model->ring_alpha + at : old_alpha);
        vf in_beta = load(young ? model->ring_in_beta + at : old_in_beta);
        vf in_mu = load(young ? model->ring_in_mu + at : old_in_mu);
        vf mu = load(state->mu + lane), log_beta = load(state->log_beta + lane);
        vf off = x - mu;
        vf beta = load(state->beta + lane) + in_beta * (off * off);
        vf log_beta_new = log_of(beta);
        vf l = load(state->log_w + lane) + model->log_stay + norm - 0.5f * log_beta_new
               - alpha * (log_beta_new - log_beta);
        log_w[b] = PICK(l > NOTHING, l, splat(NOTHING));
        top = PICK(log_w[b] > top, log_w[b], top);
        store(state->mu + lane, mu + off * in_mu);
        store(state->beta + lane, beta);
        store(state->log_beta + lane, log_beta_new);
    }
    /* A run of GH_MEMORY values or more stays that long: it forgets at that rate. */
    for (int i = 0; i < GH_OLD; i++) {
        int full = state->old_n[i] >= GH_MEMORY;
        state->beta[GH_YOUNG + i] *= full ? model->forget : 1.0f;
        state->log_beta[GH_YOUNG + i] += full ? model->log_forget : 0.0f;
        state->old_n[i] += !full;
    }
    float most = max_of(&top);
    vf sum = {0}, near = {0}, look = {0};
    for (int b = 0; b < BLOCKS; b++) {
        vf w = exp_of(log_w[b] - most);
        sum += w;
        if (b < YOUNG_BLOCKS) {
            near += w * load(model->ring_near + rotation + b * WIDE);
            look += w * load(model->ring_look + rotation + b * WIDE);
        }
    }
    float total = sum_of(&sum);
    float norm = most + log_of(splat(total))[0];
    for (int b = 0; b < BLOCKS; b++)
        store(state->log_w + b * WIDE, log_w[b] - norm);
    state->head = (state->head + 1) % GH_YOUNG;
    float stay = (float)(1 - model->hazard) / total; /* the rest, exactly the hazard, is at r = 0 */
    return (struct gh_mass){stay * sum_of(&near), stay * sum_of(&look)};
}

static struct gh_mass step_plain(const struct gh_bocd_model *model, struct gh_bocd *state, float x) {
    return step(model, state, x);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static struct gh_mass
step_avx2(const struct gh_bocd_model *model, struct gh_bocd *state, float x) {
    return step(model, state, x);
}

__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,prefer-vector-width=512"))) static struct gh_mass
step_avx512(const struct gh_bocd_model *model, struct gh_bocd *state, float x) {
    return step(model, state, x);
}
#endif

gh_bocd_step_fn *gh_bocd_best(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512bw"))
        return step_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return step_avx2;
#endif
    return step_plain;
}

void gh_bocd_begin(struct gh_bocd *state) {
    memset(state, 0, sizeof *state);
    for (int lane = 0; lane < GH_LANES; lane++) {
        state->log_w[lane] = NOTHING;
        state->beta[lane] = 1.0f;
    }
    for (int i = 0; i < GH_OLD; i++)
        state->old_n[i] = GH_YOUNG;
}

int gh_bocd_mode(const struct gh_bocd *state) {
    int best = 5;
    float most = -INFINITY;
    for (int r = 5; r <= GH_YOUNG; r++) {
        float w = state->log_w[(state->head - r + 2 * GH_YOUNG) % GH_YOUNG];
        if (w > most) {
            most = w;
            best = r;
        }
    }
    return best;
}

void gh_bocd_prepare(struct gh_bocd_model *model) {
    model->log_hazard = (float)log(model->hazard);
    model->log_stay = (float)log1p(-model->hazard);
    for (int n = 0; n <= GH_MEMORY; n++) {
        double kappa = model->kappa0 + n, alpha = model->alpha0 + 0.5 * n;
        model->norm[n] = (float)(lgamma(alpha + 0.5) - lgamma(alpha) - 0.5 * log(2 * M_PI * (kappa + 1) / kappa));
        model->alpha[n] = (float)alpha;
        model->in_beta[n] = (float)(0.5 * kappa / (kappa + 1));
        model->in_mu[n] = (float)(1 / (kappa + 1));
    }
    double full = model->alpha0 + 0.5 * GH_MEMORY;
    model->forget = (float)(full / (full + 0.5));
    model->log_forget = (float)log(full / (full + 0.5));
    for (int j = 0; j < 2 * GH_YOUNG; j++) {
        int n = (2 * GH_YOUNG - 1 - j) % GH_YOUNG, r = n + 1;
        model->ring_norm[j] = model->norm[n];
        model->ring_alpha[j] = model->alpha[n];
        model->ring_in_beta[j] = model->in_beta[n];
        model->ring_in_mu[j] = model->in_mu[n];
        model->ring_near[j] = r >= 2 && r <= 4;
        model->ring_look[j] = r >= 5;
    }
}
