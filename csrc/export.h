/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_EXPORT_H
#define GH_EXPORT_H

/* Both libraries are built with -fvisibility=hidden; what others may call says so. */
#define GH_EXPORT __attribute__((visibility("default")))

#endif
