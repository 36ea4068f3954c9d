/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a JSON text that comes in pieces into the objects of its outer arrays.
 *
 * A profiler's trace is one object with an array of a million small objects in it. This finds where each of them
 * begins and ends, keeps those that contain one of a few byte strings, and copies what is outside of them (white
 * space and the commas between them left out), so that Python parses only what it needs. It follows strings and
 * brackets and nothing else: that an object is JSON is for the parser to say.
 */

#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

#include "export.h"

enum {
    MAX_NEEDLES = 16,
    ERR_NOT_JSON = -1, /* does not begin with { or [ */
    ERR_TAIL = -2,     /* something follows the end of the text */
};

/* All of it survives between two calls; zero at first. Equal to _State in ghtools/source/json_split.py. */
struct split_state {
    int64_t base;       /* bytes of the text before this piece */
    int64_t depth;      /* open brackets */
    int64_t arrays;     /* bit d: the bracket at depth d + 1 is an array (of the first two) */
    int64_t in_string;  /* inside a string */
    int64_t escape;     /* after a backslash in a string */
    int64_t element;    /* depth of the array whose object is being read, 0 = none */
    int64_t start;      /* where that object began, in the whole text */
    int64_t drop_comma; /* an object has just ended */
    int64_t ended;      /* the text is whole */
};

static int wanted(const uint8_t *text, int64_t length, const char *const *needles, int64_t count)
{
    if (count == 0)
        return 1;
    for (int64_t i = 0; i < count; i++)
        if (memmem(text, (size_t)length, needles[i], strlen(needles[i])))
            return 1;
    return 0;
}

/* The end of the string that goes on at `at`: the index of its quote, or `length`. */
static int64_t string_end(const uint8_t *text, int64_t at, int64_t length, int64_t *escape)
{
    if (*escape) {
        *escape = 0;
        at++;
    }
    while (at < length) {
        uint8_t c = text[at];
        if (c == '"')
            return at;
        if (c == '\\') {
            if (at + 1 >= length) {
                *escape = 1;
                return length;
            }
            at++;
        }
        at++;
    }
    return length;
}

/* Read a piece. Writes pairs (start, end) of objects to `spans` (room for `max_spans` pairs), what is outside of them
 * to `rest` (room for `length` bytes), and how much of the piece was read to `used`; less than `length` where `spans`
 * is full. An object that began in an earlier piece is always kept, for the caller has its begin. Returns the number
 * of pairs, or an error.
 */
GH_EXPORT int64_t gh_json_split(struct split_state *state, const uint8_t *text, int64_t length,
                                const char *const *needles, int64_t needle_count, int64_t *spans,
                                int64_t max_spans, uint8_t *rest, int64_t *rest_length, int64_t *used)
{
    struct split_state s = *state;
    int64_t found = 0, kept = 0, at = 0;

    if (needle_count > MAX_NEEDLES)
        needle_count = MAX_NEEDLES;
    while (at < length && found < max_spans) {
        if (s.in_string) {
            int64_t end = string_end(text, at, length, &s.escape);
            int64_t upto = end < length ? end + 1 : length;
            if (!s.element) {
                memcpy(rest + kept, text + at, (size_t)(upto - at));
                kept += upto - at;
            }
            s.in_string = end == length;
            at = upto;
            continue;
        }
        uint8_t c = text[at];
        if (s.element) {
            if (c == '"') {
                s.in_string = 1;
            } else if (c == '{' || c == '[') {
                s.depth++;
            } else if ((c == '}' || c == ']') && --s.depth == s.element) {
                int64_t from = s.start - s.base;
                if (from < 0 || wanted(text + from, at + 1 - from, needles, needle_count)) {
                    spans[2 * found] = s.start;
                    spans[2 * found + 1] = s.base + at + 1;
                    found++;
                }
                s.element = 0;
                s.drop_comma = 1;
            }
            at++;
            continue;
        }
        if (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
            at++;
            continue;
        }
        if (s.ended) {
            *state = s;
            return ERR_TAIL;
        }
        if (s.depth == 0 && c != '{' && c != '[')
            return ERR_NOT_JSON;
        if (c == ',' && s.drop_comma) {
            s.drop_comma = 0;
            at++;
            continue;
        }
        s.drop_comma = 0;
        if (c == '"') {
            s.in_string = 1;
        } else if (c == '{' || c == '[') {
            int outer = s.depth == 1 || (s.depth == 2 && !(s.arrays & 1));
            if (c == '{' && outer && (s.arrays >> (s.depth - 1) & 1)) {
                s.element = s.depth;
                s.start = s.base + at;
                s.depth++;
                at++;
                continue;
            }
            if (s.depth < 2)
                s.arrays = c == '[' ? s.arrays | 1 << s.depth : s.arrays & ~(1 << s.depth);
            s.depth++;
        } else if (c == '}' || c == ']') {
            s.depth--;
            s.ended = s.depth == 0;
        }
        rest[kept++] = c;
        at++;
    }
    s.base += at;
    *state = s;
    *rest_length = kept;
    *used = at;
    return found;
}
