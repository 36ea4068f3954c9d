/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a host's addresses a link is tested over: that which Gloo would use, if nobody says otherwise. */

#include "address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

socklen_t gh_address_size(const struct sockaddr_storage *at)
{
    return at->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

void gh_address_set_port(struct sockaddr_storage *at, unsigned port)
{
    if (at->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)at)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)at)->sin_port = htons((uint16_t)port);
}

static const void *number_of(const struct sockaddr *at)
{
    return at->sa_family == AF_INET6 ? (const void *)&((const struct sockaddr_in6 *)at)->sin6_addr
                                     : (const void *)&((const struct sockaddr_in *)at)->sin_addr;
}

static bool usable(const struct sockaddr *at)
{
    if (!at || (at->sa_family != AF_INET && at->sa_family != AF_INET6))
        return false;
    /* A link-local address is only good together with an interface at the other end. */
    return at->sa_family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)at)->sin6_addr);
}

static bool parse_number(const char *text, struct sockaddr_storage *at)
{
    memset(at, 0, sizeof *at);
    if (inet_pton(AF_INET, text, &((struct sockaddr_in *)at)->sin_addr) == 1)
        at->ss_family = AF_INET;
    else if (inet_pton(AF_INET6, text, &((struct sockaddr_in6 *)at)->sin6_addr) == 1)
        at->ss_family = AF_INET6;
    return at->ss_family != 0;
}

bool gh_address_parse(const char *text, struct sockaddr_storage *at)
{
    char address[INET6_ADDRSTRLEN + 1];
    unsigned port;
    if (sscanf(text, "%46s %u", address, &port) != 2 || !port || port > 65535 || !parse_number(address, at))
        return false;
    gh_address_set_port(at, port);
    return true;
}

void gh_address_print(const struct sockaddr_storage *at, const char *interface, char *text, size_t room)
{
    char address[INET6_ADDRSTRLEN] = "?";
    unsigned port = ntohs(at->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)at)->sin6_port
                                                    : ((const struct sockaddr_in *)at)->sin_port);
    inet_ntop(at->ss_family, number_of((const struct sockaddr *)at), address, sizeof address);
    snprintf(text, room, "%s %u %s", address, port, interface);
}

static void take(const struct ifaddrs *one, struct sockaddr_storage *at, char *interface)
{
    memset(at, 0, sizeof *at);
    at->ss_family = one->ifa_addr->sa_family;
    memcpy(at, one->ifa_addr, gh_address_size(at));
    gh_address_set_port(at, 0);
    snprintf(interface, GH_ADDRESS_NAME, "%s", one->ifa_name);
}

/* The interface that has this address. */
static bool by_number(const struct ifaddrs *all, const struct sockaddr *wanted, struct sockaddr_storage *at, char *name)
{
    size_t size = wanted->sa_family == AF_INET6 ? sizeof(struct in6_addr) : sizeof(struct in_addr);
    for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
        if (!usable(one->ifa_addr) || one->ifa_addr->sa_family != wanted->sa_family)
            continue;
        if (memcmp(number_of(one->ifa_addr), number_of(wanted), size))
            continue;
        take(one, at, name);
        return true;
    }
    return false;
}

/* The first address of an interface, IPv4 before IPv6. */
static bool by_name(const struct ifaddrs *all, const char *wanted, struct sockaddr_storage *at, char *name)
{
    for (int family = AF_INET;; family = AF_INET6) {
        for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
            if (!usable(one->ifa_addr) || one->ifa_addr->sa_family != family || strcmp(one->ifa_name, wanted))
                continue;
            take(one, at, name);
            return true;
        }
        if (family == AF_INET6)
            return false;
    }
}

/* What the host's name stands for, if an interface has it. The job's own Gloo has asked the same before. */
static bool by_host(const struct ifaddrs *all, struct sockaddr_storage *at, char *name)
{
    char host[256] = "";
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    bool made = false;
    if (gethostname(host, sizeof host - 1) || getaddrinfo(host, NULL, &hints, &found))
        return false;
    for (struct addrinfo *one = found; one && !made; one = one->ai_next)
        made = usable(one->ai_addr) && by_number(all, one->ai_addr, at, name);
    freeaddrinfo(found);
    return made;
}

int gh_address_choose(const char *want, struct sockaddr_storage *at, char interface[GH_ADDRESS_NAME])
{
    struct ifaddrs *all = NULL;
    struct sockaddr_storage wanted;
    char first[GH_ADDRESS_NAME];
    bool made;
    if (getifaddrs(&all))
        return errno;
    const char *gloo = getenv("GLOO_SOCKET_IFNAME");
    if (!*want && gloo && *gloo) {
        snprintf(first, sizeof first, "%.*s", (int)strcspn(gloo, ","), gloo);
        want = first;
    }
    if (!*want) {
        made = by_host(all, at, interface);
        if (!made && parse_number("127.0.0.1", &wanted)) /* as Gloo falls back */
            made = by_number(all, (struct sockaddr *)&wanted, at, interface);
    } else if (parse_number(want, &wanted)) {
        made = by_number(all, (struct sockaddr *)&wanted, at, interface);
    } else {
        made = by_name(all, want, at, interface);
    }
    freeifaddrs(all);
    return made ? 0 : *want ? ENODEV : EADDRNOTAVAIL;
}
