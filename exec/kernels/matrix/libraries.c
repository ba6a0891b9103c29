/* libraries.c: finding OpenBLAS and oneDNN, once. */
#include "exec/kernels/matrix/libraries.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/kernels/call/kernel.h"

/* What TESSERA_PRODUCTS allows; each allows those before it, too. */
enum choice { PLAIN, OPENBLAS, ONEDNN, N_CHOICES };
static const char *const names[N_CHOICES] = {"plain", "openblas", "onednn"};
static const char variable[] = "TESSERA_PRODUCTS";

/* Written once, before the first kernel runs. */
static struct tsr_host_blas blas;
static struct tsr_host_onednn onednn;
static bool has_blas, has_onednn;
static char refused[64]; /* a value of TESSERA_PRODUCTS that is none */
static pthread_once_t once = PTHREAD_ONCE_INIT;

#ifdef TSR_STATIC

/* A program without shared libraries can load none: those of the machine want a C library of their
 * own. */
static void load_blas(void)
{
    has_blas = false;
}

static void load_onednn(void)
{
    has_onednn = false;
}

#else

static bool find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol); /* ISO C has no cast from one to the other */
    return symbol != NULL;
}

/* OpenBLAS, which reads its environment when it is loaded: one thread, and the kernels of `core`
 * (NULL: those that it chooses itself). What is started later reads what the user said. */
static void *open_blas(const char *core)
{
    static const char *const names_of[2] = {"OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE"};
    const char *values[2] = {"1", core};
    char *before[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        const char *said = getenv(names_of[i]);
        before[i] = said ? strdup(said) : NULL;
        if (values[i])
            (void)setenv(names_of[i], values[i], 1);
    }
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < 2; i++) {
        if (before[i])
            (void)setenv(names_of[i], before[i], 1);
        else
            (void)unsetenv(names_of[i]);
        free(before[i]);
    }
    return library;
}

/* Returns the kernels that this processor can execute where OpenBLAS fell back to those of 2004,
 * because the processor is newer than the library: they take two to four times as long. NULL: its
 * own choice stands, or is the user's. */
static const char *better_core(void *library)
{
#ifdef __x86_64__
    const char *(*core)(void);
    if (getenv("OPENBLAS_CORETYPE") || !find(library, "openblas_get_corename", &core) ||
        strcmp(core(), "Prescott") != 0)
        return NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#else
    (void)library;
#endif
    return NULL;
}

static void load_blas(void)
{
    void *library = open_blas(NULL);
    const char *core = library ? better_core(library) : NULL;
    if (core) {
        (void)dlclose(library);
        library = open_blas(core);
    }
    has_blas = library && find(library, "cblas_sgemm", &blas.sgemm) &&
               find(library, "cblas_dgemm", &blas.dgemm);
}

/* A product of small whole numbers, which has no rounding: of a (2, 3) as it is and b (2, 3)
 * transposed, twice, added to what is there. */
static bool computes(const struct tsr_host_onednn *d)
{
    static const uint16_t a[8] = {0x3f80, 0x4000, 0x4040, 0, 0x4080, 0x40a0, 0x40c0, 0}; /* 1...6 */
    static const uint16_t b[6] = {0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140}; /* 7...12 */
    static const float want[6] = {101, 137, 1, 245, 335, 1};
    float c[6] = {1, 1, 1, 1, 1, 1};
    d->set_threads(1);
    if (d->gemm('N', 'T', 2, 2, 3, 2, a, 4, b, 3, 1, c, 3) != 0)
        return false;
    for (int i = 0; i < 6; i++)
        if (c[i] != want[i])
            return false;
    return true;
}

/* Bits of dnnl_get_effective_cpu_isa() on x86-64, the same in versions 2 and 3: AVX-512 with
 * products of bf16, which all later ones include. It knows processor, system and
 * ONEDNN_MAX_CPU_ISA.
 */
enum { AVX512_BF16 = 0xe7 };

static void load_onednn(void)
{
#ifdef __x86_64__
    int (*isa)(void);
    void *library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        library = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    /* without OpenMP its threads would be others', and as many as it likes */
    has_onednn = find(library, "dnnl_get_effective_cpu_isa", &isa) &&
                 (isa() & AVX512_BF16) == AVX512_BF16 &&
                 find(library, "dnnl_gemm_bf16bf16f32", &onednn.gemm) &&
                 find(library, "omp_set_num_threads", &onednn.set_threads) && computes(&onednn);
    if (!has_onednn)
        (void)dlclose(library);
#endif
}

#endif

static void load(void)
{
    const char *said = getenv(variable);
    int choice = said && *said ? 0 : ONEDNN;
    while (said && *said && choice < N_CHOICES && strcmp(said, names[choice]) != 0)
        choice++;
    if (choice == N_CHOICES) {
        (void)snprintf(refused, sizeof refused, "%s", said);
        return;
    }
    if (choice >= OPENBLAS)
        load_blas();
    if (choice >= ONEDNN)
        load_onednn();
}

tsr_status tsr_kernels_init(void)
{
    (void)pthread_once(&once, load);
    if (!refused[0])
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s: found %s; allowed: plain, openblas or onednn", variable,
                    refused);
}

const char *tsr_kernels_products(void)
{
    if (has_onednn)
        return has_blas ? "OpenBLAS, oneDNN (bf16)" : "plain loops, oneDNN (bf16)";
    return has_blas ? "OpenBLAS" : "plain loops";
}

const struct tsr_host_blas *tsr__blas(void)
{
    return has_blas ? &blas : NULL;
}

const struct tsr_host_onednn *tsr__onednn(void)
{
    return has_onednn ? &onednn : NULL;
}
