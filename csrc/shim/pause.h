/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_PAUSE_H
#define GH_PAUSE_H

#include <stdbool.h>
#include <stdint.h>

#include "mail.h"

/* Stops the thread that is about to make call `seq` if the mailbox asks for that; true if it was stopped. */
bool gh_pause(struct gh_mail *mail, int64_t seq);

#endif
