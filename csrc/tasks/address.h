/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_ADDRESS_H
#define GH_ADDRESS_H

/* Which of a host's addresses a link is tested over. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#define GH_ADDRESS_NAME 32

/* The address that `want` means (an address of this host, an interface, or empty: what Gloo would use), port 0, and
 * its interface. 0 or an errno. */
int gh_address_choose(const char *want, struct sockaddr_storage *at, char interface[GH_ADDRESS_NAME]);

/* Reads "ADDRESS PORT". */
bool gh_address_parse(const char *text, struct sockaddr_storage *at);

/* Writes "ADDRESS PORT INTERFACE". */
void gh_address_print(const struct sockaddr_storage *at, const char *interface, char *text, size_t room);

socklen_t gh_address_size(const struct sockaddr_storage *at);
void gh_address_set_port(struct sockaddr_storage *at, unsigned port);

#endif
