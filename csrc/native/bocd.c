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
typedef uint32_t vu __attribute__((vector_size(64)));
typedef float vf_mem __attribute__((vector_size(64), aligned(4), may_alias));

#define WIDE 16
#define BLOCKS (GH_LANES / WIDE)
#define YOUNG_BLOCKS (GH_YOUNG / WIDE)
_Static_assert(GH_YOUNG % WIDE == 0 && GH_OLD % WIDE == 0 && GH_OLD == WIDE, "lanes must fill whole blocks");

#define FLOOR 1e-18f /* the least weight of a hypothesis: it can come back, and no product is subnormal */
#define LEAST_EXP (-43.0f)
#define WORTH 1e-4f /* a hypothesis that grows old with less weight than this is only added to another */
#define ALWAYS static inline __attribute__((always_inline))

ALWAYS vf load(const float *from) { return (vf) * (const vf_mem *)from; }
ALWAYS void store(float *to, vf v) { *(vf_mem *)to = (vf_mem)v; }
ALWAYS vf splat(float x) { return x - (vf){0}; }
#define PICK(mask, yes, no) ((vf)(((vi)(yes) & (mask)) | ((vi)(no) & ~(mask))))
#define MAX(a, b) PICK((a) > (b), a, b)

/* Natural logarithm of positive normal floats, to 3e-7 or so: m in [sqrt(1/2), sqrt(2)), and log(1 + t) / t
 * by the polynomial of degree 8 that equals it at Chebyshev's points of that interval. */
ALWAYS vf log_of(vf x) {
    vu bits = (vu)x; /* unsigned, so that a damaged state cannot overflow */
    vi e = (vi)(bits - 0x3f3504f3u) >> 23;
    vf t = (vf)(bits - ((vu)e << 23)) - 1.0f;
    vf p = splat(0.0853331309f);
    p = p * t - 0.142692582f;
    p = p * t + 0.149774013f;
    p = p * t - 0.165779929f;
    p = p * t + 0.199559334f;
    p = p * t - 0.250013522f;
    p = p * t + 0.333341933f;
    p = p * t - 0.499999964f;
    p = p * t + 0.999999974f;
    return __builtin_convertvector(e, vf) * 0.69314718f + p * t;
}

/* e to the x for x <= 0, never less than e to the LEAST_EXP. */
ALWAYS vf exp_of(vf x) {
    x = MAX(x, splat(LEAST_EXP));
    vf n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    vf f = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vf p = 1.3888889e-3f + f * 1.9841270e-4f;
    p = 8.3333333e-3f + f * p;
    p = 4.1666667e-2f + f * p;
    p = 0.16666667f + f * p;
    p = 0.5f + f * p;
    p = 1.0f + f * (1.0f + f * p);
    vu scale = ((vu)__builtin_convertvector(n, vi) + 127u) << 23;
    return p * (vf)scale;
}

/* Lanes rotated by `by`, for reductions. */
#if defined(__clang__)
#define ROTATED(v, by)                                                                                              \
    __builtin_shufflevector(v, v, (by), (by) + 1, (by) + 2, (by) + 3, (by) + 4, (by) + 5, (by) + 6, (by) + 7,       \
                            ((by) + 8) % 16, ((by) + 9) % 16, ((by) + 10) % 16, ((by) + 11) % 16, ((by) + 12) % 16, \
                            ((by) + 13) % 16, ((by) + 14) % 16, ((by) + 15) % 16)
#else
#define ROTATED(v, by) __builtin_shuffle(v, (COUNT + (by)) & (WIDE - 1))
#endif
#define COUNT ((vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})

/* Sum and maximum of the lanes, in every lane. */
ALWAYS vf sum_of(vf v) {
    v += ROTATED(v, 8);
    v += ROTATED(v, 4);
    v += ROTATED(v, 2);
    return v + ROTATED(v, 1);
}

ALWAYS vf max_of(vf v) {
    v = MAX(v, ROTATED(v, 8));
    v = MAX(v, ROTATED(v, 4));
    v = MAX(v, ROTATED(v, 2));
    return MAX(v, ROTATED(v, 1));
}

/*
 * A hypothesis that matters leaves the ring. It takes the place of the lightest old one if it is heavier;
 * whichever has to go leaves its weight to the one nearest in age, so that the mass of all old runs stays.
 */
static void grow_old(struct gh_bocd *state, int head) {
    float *w = state->w + GH_YOUNG, gone = state->w[head];
    int least = 0, near = 0;
    float n = GH_YOUNG, gap = 2 * GH_MEMORY;
    for (int i = 1; i < GH_OLD; i++)
        if (w[i] < w[least])
            least = i;
    if (gone > w[least]) {
        float heavier = gone;
        gone = w[least];
        n = state->old_n[least];
        w[least] = heavier;
        state->mu[GH_YOUNG + least] = state->mu[head];
        state->beta[GH_YOUNG + least] = state->beta[head];
        state->log_beta[GH_YOUNG + least] = state->log_beta[head];
        state->old_n[least] = GH_YOUNG;
    }
    for (int i = 0; i < GH_OLD; i++) {
        float off = fabsf(state->old_n[i] - n);
        if (w[i] > 0 && off < gap) {
            gap = off;
            near = i;
        }
        if (w[i] > w[state->keeper])
            state->keeper = i;
    }
    w[near] += gone;
    state->w[head] = 0;
}

/* Turn the ring: its oldest lane goes to a new hypothesis, whose weight is the hazard. */
ALWAYS void birth(const struct gh_bocd_model *model, struct gh_bocd *state) {
    int head = state->head = (state->head + 1) & (GH_YOUNG - 1);
    float leaves = state->w[head];
    if (leaves > WORTH || state->w[GH_YOUNG + state->keeper] <= 0)
        grow_old(state, head);
    else
        state->w[GH_YOUNG + state->keeper] += leaves;
    state->w[head] = (float)model->hazard;
    state->mu[head] = model->prior_mu;
    state->beta[head] = model->prior_beta;
    state->log_beta[head] = model->prior_log_beta;
}

/*
 * One value. Every hypothesis scores x by its predictive density, a Student t; with
 * beta' = beta + kappa (x - mu)^2 / (2 (kappa + 1)) its logarithm is
 * norm(n) - log(beta') / 2 - alpha (log beta' - log beta): one logarithm and one exponential a lane.
 */
ALWAYS struct gh_mass step(const struct gh_bocd_model *model, struct gh_bocd *state, float x) {
    int head = state->head, rotation = GH_YOUNG - 1 - head; /* lane `head` has n = 0, the lane before it n = 1, ... */
    vf w[BLOCKS], score[BLOCKS], top = splat(-1e30f);
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; b++) {
        int lane = b * WIDE, at = rotation + lane;
        vf norm, alpha, in_beta, in_mu;
        vf mu = load(state->mu + lane), beta = load(state->beta + lane), log_beta = load(state->log_beta + lane);
        vf off = x - mu, full;
        w[b] = load(state->w + lane);
        if (b < YOUNG_BLOCKS) {
            norm = load(model->ring_norm + at);
            alpha = load(model->ring_alpha + at);
            in_beta = load(model->ring_in_beta + at);
            in_mu = load(model->ring_in_mu + at);
        } else {
            /* n differs from lane to lane; norm is smooth enough there for a polynomial. */
            vf n = load(state->old_n);
            full = n - (float)GH_MEMORY;
            vf u = n * (2.0f / (GH_MEMORY - GH_YOUNG)) - (float)(GH_MEMORY + GH_YOUNG) / (GH_MEMORY - GH_YOUNG);
            norm = splat(model->old_norm[0]);
#pragma GCC unroll 8
            for (int i = 1; i < GH_NORM_TERMS; i++)
                norm = norm * u + model->old_norm[i];
            alpha = n * 0.5f + model->prior_alpha;
            in_mu = 1.0f / (n + (model->prior_kappa + 1.0f));
            in_beta = 0.5f - 0.5f * in_mu;
            store(state->old_n, n + PICK(full < 0, splat(1.0f), (vf){0}));
        }
        vf beta_new = beta + in_beta * (off * off);
        vf log_beta_new = log_of(beta_new);
        score[b] = norm - 0.5f * log_beta_new - alpha * (log_beta_new - log_beta);
        top = MAX(PICK(w[b] > 0, score[b], top), top);
        if (b >= YOUNG_BLOCKS) {
            /* A run of GH_MEMORY values or more stays that long: it forgets at that rate. */
            beta_new = PICK(full < 0, beta_new, beta_new * model->forget);
            log_beta_new = PICK(full < 0, log_beta_new, log_beta_new + model->log_forget);
        }
        store(state->mu + lane, mu + off * in_mu);
        store(state->beta + lane, beta_new);
        store(state->log_beta + lane, log_beta_new);
    }
    vf most = max_of(top), sum = {0};
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; b++) {
        vf now = w[b] * exp_of(score[b] - most);
        w[b] = PICK(w[b] > 0, MAX(now, splat(FLOOR)), w[b]);
        sum += w[b];
    }
    vf per_total = model->stay / sum_of(sum); /* the rest of the mass, exactly the hazard, is at r = 0 */
    float old = sum_of(w[BLOCKS - 1])[0] * per_total[0];
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; b++)
        store(state->w + b * WIDE, w[b] * per_total);
    float one = state->w[head];
    float near = state->w[(head - 1) & (GH_YOUNG - 1)] + state->w[(head - 2) & (GH_YOUNG - 1)]
                 + state->w[(head - 3) & (GH_YOUNG - 1)];
    birth(model, state);
    return (struct gh_mass){near, model->stay - old - one - near};
}

static struct gh_mass step_plain(const struct gh_bocd_model *model, struct gh_bocd *state, float x) {
    return step(model, state, x);
}

#if defined(__x86_64__) && !defined(GH_PLAIN)
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
#if defined(__x86_64__) && !defined(GH_PLAIN)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512bw"))
        return step_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return step_avx2;
#endif
    return step_plain;
}

void gh_bocd_begin(const struct gh_bocd_model *model, struct gh_bocd *state) {
    memset(state, 0, sizeof *state);
    for (int lane = 0; lane < GH_LANES; lane++)
        state->beta[lane] = 1.0f;
    for (int i = 0; i < GH_OLD; i++)
        state->old_n[i] = GH_YOUNG;
    birth(model, state);
}

int gh_bocd_mode(const struct gh_bocd *state) {
    int best = 5;
    float most = -1;
    for (int r = 5; r < GH_YOUNG; r++) {
        float w = state->w[(state->head - r + 2 * GH_YOUNG) % GH_YOUNG];
        if (w > most) {
            most = w;
            best = r;
        }
    }
    return best;
}

/* Logarithm of the constant of the predictive density of a run with n values. */
static double norm_at(const struct gh_bocd_model *model, double n) {
    double kappa = model->kappa0 + n, alpha = model->alpha0 + 0.5 * n;
    return lgamma(alpha + 0.5) - lgamma(alpha) - 0.5 * log(2 * M_PI * (kappa + 1) / kappa);
}

void gh_bocd_prepare(struct gh_bocd_model *model) {
    model->stay = (float)(1 - model->hazard);
    model->prior_mu = (float)model->mu0;
    model->prior_kappa = (float)model->kappa0;
    model->prior_alpha = (float)model->alpha0;
    model->prior_beta = (float)model->beta0;
    model->prior_log_beta = (float)log(model->beta0);
    /* norm over n = GH_YOUNG .. GH_MEMORY in u = -1 .. 1: Newton's interpolation at Chebyshev's points, expanded. */
    double u[GH_NORM_TERMS], c[GH_NORM_TERMS], p[GH_NORM_TERMS] = {0};
    for (int i = 0; i < GH_NORM_TERMS; i++) {
        u[i] = cos(M_PI * (2 * i + 1) / (2.0 * GH_NORM_TERMS));
        c[i] = norm_at(model, 0.5 * (GH_MEMORY + GH_YOUNG) + 0.5 * (GH_MEMORY - GH_YOUNG) * u[i]);
    }
    for (int j = 1; j < GH_NORM_TERMS; j++)
        for (int i = GH_NORM_TERMS - 1; i >= j; i--)
            c[i] = (c[i] - c[i - 1]) / (u[i] - u[i - j]);
    for (int i = GH_NORM_TERMS - 1; i >= 0; i--) { /* p = p * (x - u[i]) + c[i], highest power first in old_norm */
        for (int k = GH_NORM_TERMS - 1; k > 0; k--)
            p[k] = p[k - 1] - u[i] * p[k];
        p[0] = c[i] - u[i] * p[0];
    }
    for (int i = 0; i < GH_NORM_TERMS; i++)
        model->old_norm[i] = (float)p[GH_NORM_TERMS - 1 - i];
    double full = model->alpha0 + 0.5 * GH_MEMORY;
    model->forget = (float)(full / (full + 0.5));
    model->log_forget = (float)log(full / (full + 0.5));
    for (int j = 0; j < 2 * GH_YOUNG; j++) {
        int n = (2 * GH_YOUNG - 1 - j) % GH_YOUNG;
        double kappa = model->kappa0 + n, alpha = model->alpha0 + 0.5 * n;
        model->ring_norm[j] = (float)norm_at(model, n);
        model->ring_alpha[j] = (float)alpha;
        model->ring_in_beta[j] = (float)(0.5 * kappa / (kappa + 1));
        model->ring_in_mu[j] = (float)(1 / (kappa + 1));
    }
}
