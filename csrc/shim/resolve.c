/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the real function behind a hooked one (DESIGN section 5): the next in the global scope, then the
 * library by its name if it is loaded, then any loaded object that has it. Never a function of a shim. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "ring.h"
#include "shim.h"

/* Every copy of the shim exports this, which is how a copy is known; gh-doctor compares it with the reader. */
GH_EXPORT const uint32_t gh_shim_abi = GH_RING_ABI;

void gh_object_path(const void *address, char *out, unsigned long cap)
{
    Dl_info info;
    bool known = dladdr(address, &info) && info.dli_fname;
    snprintf(out, cap, "%s", known ? info.dli_fname : "");
}

static void *lookup(void *object, const char *name)
{
    if (!object || dlsym(object, "gh_shim_abi"))
        return NULL;
    return dlsym(object, name);
}

/* Names are collected first and looked up later: dl_iterate_phdr holds the loader's lock while it calls. */
struct names {
    char *text;
    unsigned long n, cap;
};

static int collect(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct names *names = data;
    unsigned long len = info->dlpi_name ? strlen(info->dlpi_name) + 1 : 1;
    if (len == 1)
        return 0; /* the program itself; RTLD_NEXT has been there */
    if (names->n + len > names->cap) {
        unsigned long cap = (names->cap + len) * 2;
        char *text = realloc(names->text, cap);
        if (!text)
            return 1;
        names->text = text;
        names->cap = cap;
    }
    memcpy(names->text + names->n, info->dlpi_name, len);
    names->n += len;
    return 0;
}

static void *scan(const char *name)
{
    struct names names = {NULL, 0, 0};
    void *found = NULL;
    dl_iterate_phdr(collect, &names);
    for (unsigned long at = 0; at < names.n && !found; at += strlen(names.text + at) + 1) {
        void *object = dlopen(names.text + at, RTLD_LAZY | RTLD_NOLOAD);
        found = lookup(object, name);
        if (object && !found)
            dlclose(object); /* otherwise kept, so that the function stays where it is */
    }
    free(names.text);
    return found;
}

void *gh_resolve(const char *name, const char *const *sonames)
{
    void *found = dlsym(RTLD_NEXT, name);
    for (; !found && *sonames; sonames++)
        found = lookup(dlopen(*sonames, RTLD_LAZY | RTLD_NOLOAD), name);
    if (!found)
        found = scan(name);
    dlerror(); /* leave no error behind for the program to find */
    return found;
}
