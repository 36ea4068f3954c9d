/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "export.h"

/* Two samples of log durations, before and after: what verification rests on (ghtools/detect/verify.py). */
struct gh_compared {
    double median_before, median_after;
    double scale_before, scale_after; /* 1.4826 MAD */
    double lag1;                      /* lag-1 autocorrelation of before, winsorised at 3 scales, 0 to 0.95 */
    double rank_z;                    /* Mann-Whitney, normal approximation, corrected for ties; + = after is larger */
    double lowest_after, highest_after, lowest_before, highest_before;
};

enum { MOST = 256 };

GH_EXPORT int gh_compare(const float *before, int64_t nb, const float *after, int64_t na, struct gh_compared *out);

static void sort(float *a, int64_t n) {
    static const int64_t gaps[] = {57, 23, 10, 4, 1};
    for (int g = 0; g < 5; g++)
        for (int64_t gap = gaps[g], i = gap; i < n; i++) {
            float v = a[i];
            int64_t j = i;
            for (; j >= gap && a[j - gap] > v; j -= gap)
                a[j] = a[j - gap];
            a[j] = v;
        }
}

static double median(const float *sorted, int64_t n) {
    return 0.5 * ((double)sorted[(n - 1) / 2] + (double)sorted[n / 2]);
}

static double scale(const float *values, int64_t n, double centre) {
    float off[MOST];
    for (int64_t i = 0; i < n; i++)
        off[i] = (float)fabs((double)values[i] - centre);
    sort(off, n);
    return 1.4826 * median(off, n);
}

static double lag1(const float *v, int64_t n, double centre, double width) {
    double product = 0, square = 0, last = 0, limit = 3 * width;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)v[i] - centre;
        x = x > limit ? limit : x < -limit ? -limit : x;
        product += i ? x * last : 0;
        square += x * x;
        last = x;
    }
    double phi = square > 0 ? product / square : 0;
    return phi < 0 ? 0 : phi > 0.95 ? 0.95 : phi;
}

/* Sum over pairs of sign(after - before), and the tie correction, by merging two sorted samples. */
static double rank_z(const float *b, int64_t nb, const float *a, int64_t na) {
    double sign = 0, ties = 0;
    int64_t i = 0, j = 0;
    while (i < nb || j < na) {
        float v = j == na || (i < nb && b[i] <= a[j]) ? b[i] : a[j];
        int64_t ib = i, ja = j;
        while (i < nb && b[i] == v)
            i++;
        while (j < na && a[j] == v)
            j++;
        double here = (double)(j - ja), tied = (double)(i - ib + j - ja);
        sign += here * ((double)ib - (double)(nb - i));
        ties += tied * (tied * tied - 1);
    }
    double all = (double)(na + nb), pairs = (double)na * (double)nb;
    double variance = pairs / 12 * (all + 1 - ties / (all * (all - 1)));
    return variance > 0 ? 0.5 * sign / sqrt(variance) : 0;
}

/* 0, or -1 if a sample is empty, too long or holds what is no number. */
int gh_compare(const float *before, int64_t nb, const float *after, int64_t na, struct gh_compared *out) {
    if (nb < 1 || na < 1 || nb > MOST || na > MOST)
        return -1;
    for (int64_t i = 0; i < nb; i++)
        if (!isfinite(before[i]))
            return -1;
    for (int64_t i = 0; i < na; i++)
        if (!isfinite(after[i]))
            return -1;
    float b[MOST], a[MOST];
    memcpy(b, before, (size_t)nb * sizeof *b);
    memcpy(a, after, (size_t)na * sizeof *a);
    sort(b, nb);
    sort(a, na);
    out->median_before = median(b, nb);
    out->median_after = median(a, na);
    out->scale_before = scale(b, nb, out->median_before);
    out->scale_after = scale(a, na, out->median_after);
    out->lag1 = lag1(before, nb, out->median_before, out->scale_before);
    out->rank_z = rank_z(b, nb, a, na);
    out->lowest_after = a[0];
    out->highest_after = a[na - 1];
    out->lowest_before = b[0];
    out->highest_before = b[nb - 1];
    return 0;
}
