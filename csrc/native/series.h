/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_SERIES_H
#define GH_SERIES_H

#include "bocd.h"

/*
 * What gh-bocd knows of one rank on the hot path: the last values, the posterior, and when to call Python.
 * Mirrored by ghtools/detect/series.py; a test compares the offsets that gh_series_layout reports.
 * Values are counted from 0 over the whole life of the series ("at"); value `at` lies in slot at % GH_KEPT.
 */
enum { GH_KEPT = 256 };

/* Reasons to stop and look (bits of gh_news.why). */
enum {
    GH_WHY_WAKE = 1,    /* count reached wake_at */
    GH_WHY_NEAR = 2,    /* the last three values left the level and the posterior agrees */
    GH_WHY_LOOK = 4,    /* P(5 <= r <= 32) is over the threshold */
    GH_WHY_GUARD = 8,   /* the slow average left the anchor */
    GH_WHY_FOLLOW = 16, /* a decision is pending: every value counts */
    GH_WHY_RESTART = 32, /* a restart mark, or indices or times that went back and stayed there */
    GH_WHY_REARM = 64    /* a re-arm mark: an iteration is something else from here on */
};

struct gh_series {
    int64_t count;       /* values accepted so far */
    int64_t wake_at;     /* stop when count is this */
    int64_t look_from, near_from, guard_from; /* do not stop for that reason before count is this */
    int64_t last_index, last_t_ns;
    int64_t n_bad, n_back, n_repeat, n_gap, n_skipped; /* what was ignored, and why */
    double total_ns;     /* sum of accepted durations */
    int32_t armed;       /* the posterior runs */
    int32_t follow;      /* stop after every value */
    int32_t back_run;    /* values in a row that went back */
    int32_t n_filter;    /* values since the filter began, at most 2 */
    float raw1, raw2;    /* the last two values */
    float centre, per_scale; /* z = (y - centre) * per_scale */
    float level, near_by;    /* suspect when three values are over level + near_by, or under level - near_by */
    float slow, anchor, guard_by; /* slow average of filtered values; stop when it is guard_by away from anchor */
    float look_min, near_min;     /* thresholds of the two posterior masses */
    float mass_near, mass_look;   /* the masses after the last value */
    float look_by;       /* a look counts only if the median of the last five values is this far from level */
    struct gh_bocd bocd;
    float y[GH_KEPT];        /* natural log of the duration in ns */
    int64_t index[GH_KEPT], t_ns[GH_KEPT];
    double total_at[GH_KEPT]; /* total_ns up to and including that value */
};

struct gh_news {
    int64_t at, index, t_ns, dur_ns; /* the value after which this was said; at is -1 if none was accepted */
    int32_t why, mode;               /* reasons; heaviest run length in 5..32 */
    float near, look;
};

#endif
