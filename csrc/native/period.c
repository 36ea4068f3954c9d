/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>

#include "export.h"

/* Calls as symbols for ghtools/detect/period_symbols.py, which says what they are; a test compares both.
 * One pass over the columns: the hash of (op, dtype, communicator, peer), and that of the same with the size. */

#define K1 0x9E3779B97F4A7C15ull
#define K2 0xBF58476D1CE4E5B9ull
#define K3 0x94D049BB133111EBull

static inline uint64_t mix(uint64_t x)
{
    x ^= x >> 29;
    x *= K2;
    x ^= x >> 31;
    x *= K3;
    x ^= x >> 29;
    return x;
}

GH_EXPORT void gh_period_symbols(size_t n, const uint8_t *op, const uint8_t *dtype, const int32_t *peer,
                                 const uint64_t *comm, const int64_t *bytes, uint64_t *family, uint64_t *symbol)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t small = op[i] | (uint64_t)dtype[i] << 8 | (uint64_t)(uint32_t)peer[i] << 16;
        uint64_t f = mix(small * K1 + comm[i]);
        family[i] = f;
        symbol[i] = mix((uint64_t)bytes[i] * K1 + f);
    }
}
