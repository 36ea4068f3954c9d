/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the driver's functions. */

#define _GNU_SOURCE
#include "cuda_api.h"

#include <dlfcn.h>
#include <pthread.h>

static struct gh_cuda table;
static const struct gh_cuda *loaded;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static bool fill(void *driver)
{
#define F(member, symbol, older, needed, PARAMS)                                                            \
    *(void **)&table.member = dlsym(driver, symbol);                                                        \
    if (!table.member && older[0])                                                                          \
        *(void **)&table.member = dlsym(driver, older);                                                     \
    if (!table.member && needed)                                                                            \
        return false;
    GH_CUDA_FUNCTIONS(F)
#undef F
    return true;
}

const struct gh_cuda *gh_cuda_load(void)
{
    pthread_mutex_lock(&loading);
    if (!loaded) {
        void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD); /* kept: the functions stay where they are */
        if (driver && fill(driver))
            __atomic_store_n(&loaded, &table, __ATOMIC_RELEASE);
        else if (driver)
            dlclose(driver);
        dlerror();
    }
    pthread_mutex_unlock(&loading);
    return loaded;
}

const struct gh_cuda *gh_cuda_loaded(void)
{
    return __atomic_load_n(&loaded, __ATOMIC_ACQUIRE);
}

void gh_cuda_api_forget(void)
{
    pthread_mutex_init(&loading, NULL);
}

gh_cu_context gh_cuda_context(const struct gh_cuda *cu, gh_cu_stream stream)
{
    gh_cu_context context = NULL;
    int result = (uintptr_t)stream > (uintptr_t)GH_CU_PER_THREAD ? cu->context_of(stream, &context)
                                                                 : cu->context(&context);
    return result == GH_CU_SUCCESS ? context : NULL;
}
