/* SPDX-License-Identifier: Apache-2.0 */
/* Finding cuBLASLt. */

#define _GNU_SOURCE
#include "cublaslt_api.h"

#include <dlfcn.h>

#define CONTEXTS 8

static bool fill(struct gh_cublaslt *table, void *library)
{
#define F(member, symbol, type, PARAMS)                                                                     \
    *(void **)&table->member = dlsym(library, symbol);                                                      \
    if (!table->member)                                                                                     \
        return false;
    GH_CUBLASLT_FUNCTIONS(F)
#undef F
    return true;
}

const struct gh_cublaslt *gh_cublaslt_loaded(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"};
    static struct gh_cublaslt table;
    static bool found;
    for (unsigned i = 0; !found && i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD); /* kept: the functions stay where they are */
        found = library && fill(&table, library);
        if (library && !found)
            dlclose(library);
        dlerror();
    }
    return found ? &table : NULL;
}

int gh_cublaslt_handle(const struct gh_cublaslt *lt, const struct gh_cuda *cu, gh_cu_context context,
                       gh_lt_handle *out)
{
    static struct {
        gh_lt_handle handle;
        gh_cu_context context;
        unsigned long long id; /* tells it from a later one at the same address */
    } kept[CONTEXTS];
    static unsigned n;
    unsigned long long id = 0;
    if (cu->context_id && cu->context_id(context, &id) != GH_CU_SUCCESS)
        return -1;
    for (unsigned i = 0; i < n; i++)
        if (kept[i].context == context && kept[i].id == id) {
            *out = kept[i].handle;
            return GH_LT_SUCCESS;
        }
    if (n == CONTEXTS)
        return GH_LT_NO_MEMORY;
    int result = lt->create(out);
    if (result != GH_LT_SUCCESS)
        return result;
    kept[n].handle = *out;
    kept[n].context = context;
    kept[n++].id = id;
    return GH_LT_SUCCESS;
}
