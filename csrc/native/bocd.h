/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_BOCD_H
#define GH_BOCD_H

#include <stdint.h>

/*
 * Bayesian online change points (Adams and MacKay 2007) for one series of standardised values.
 *
 * A hypothesis is "the present level began r values ago". All of r < GH_YOUNG are kept, one lane
 * each, in a ring by birth; of the older ones the GH_OLD heaviest. Memory and work a value are constant.
 */
enum { GH_YOUNG = 32, GH_OLD = 16, GH_LANES = GH_YOUNG + GH_OLD, GH_MEMORY = 96, GH_NORM_TERMS = 6 };

/* Prior and hazard, and what follows from them by run length. Read only after gh_bocd_prepare. */
struct gh_bocd_model {
    double hazard, mu0, kappa0, alpha0, beta0; /* normal-inverse-gamma prior, in standardised units */
    float stay; /* 1 - hazard */
    float prior_mu, prior_kappa, prior_alpha, prior_beta, prior_log_beta;
    float forget, log_forget; /* what keeps beta in step once a run is GH_MEMORY long */
    /* By n = values already in the run: the constant of the predictive density, alpha, and the weights of a
     * new value in beta and mu; laid out so that the lanes of any rotation of the ring are contiguous. */
    float ring_norm[2 * GH_YOUNG], ring_alpha[2 * GH_YOUNG], ring_in_beta[2 * GH_YOUNG], ring_in_mu[2 * GH_YOUNG];
    float old_norm[GH_NORM_TERMS]; /* the constant for old runs, a polynomial in n */
};

/* State of one series. Between values, lane `head` holds the hypothesis that the next value begins a new level. */
struct gh_bocd {
    float w[GH_LANES], mu[GH_LANES], beta[GH_LANES], log_beta[GH_LANES]; /* w sums to 1; 0 = no hypothesis */
    float old_n[GH_OLD];   /* values in the run of an old lane, at most GH_MEMORY */
    int32_t head;          /* lane of the youngest hypothesis */
    int32_t keeper;        /* the old lane that is given what is too light to keep */
};

/* Posterior mass after a value: near is P(2 <= r <= 4), look is P(5 <= r <= 32). P(r = 0) is the hazard, always. */
struct gh_mass {
    float near, look;
};

typedef struct gh_mass gh_bocd_step_fn(const struct gh_bocd_model *model, struct gh_bocd *state, float x);

void gh_bocd_prepare(struct gh_bocd_model *model);
void gh_bocd_begin(const struct gh_bocd_model *model, struct gh_bocd *state);
gh_bocd_step_fn *gh_bocd_best(void); /* the fastest step this CPU can run */
int gh_bocd_mode(const struct gh_bocd *state); /* heaviest r in the look window */

#endif
