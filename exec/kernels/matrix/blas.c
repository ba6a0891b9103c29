/* blas.c: finding OpenBLAS, once. */
#include "exec/kernels/matrix/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "exec/kernels/call/kernel.h"

/* Written once, before the first kernel runs. */
static struct tsr_host_blas found;
static bool is_found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol); /* ISO C has no cast from one to the other */
    return symbol != NULL;
}

/* The library reads the variable when it is loaded; what we start later reads what the user said.
 */
static void load(void)
{
    static const char variable[] = "OPENBLAS_NUM_THREADS";
    const char *said = getenv(variable);
    char *before = said ? strdup(said) : NULL;
    (void)setenv(variable, "1", 1);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (before)
        (void)setenv(variable, before, 1);
    else
        (void)unsetenv(variable);
    free(before);
    is_found = library && find(library, "cblas_sgemm", &found.sgemm) &&
               find(library, "cblas_dgemm", &found.dgemm);
}

void tsr_kernels_init(void)
{
    (void)pthread_once(&once, load);
}

const struct tsr_host_blas *tsr__blas(void)
{
    return is_found ? &found : NULL;
}
