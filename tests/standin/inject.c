/* inject.c: the stand-ins' configuration, failures and counts; see standin.h. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/standin/impl.h"

_Atomic int64_t tsr_standin_objects;
_Thread_local int tsr_standin_gpu;

static struct tsr_standin_config config;
static _Atomic bool configured;
static _Atomic int sticky;
static _Thread_local cudaError_t last_error;

/* Relaxed throughout: counting orders nothing. */
static _Atomic(struct tsr_standin_entry *) entries;
static char victim[64];
static _Atomic uint64_t victim_n;
static int victim_error;
static _Atomic bool victim_failed;

struct tsr_standin_config tsr_standin_default(void)
{
    return (struct tsr_standin_config){.gpus = 1,
                                       .memory = UINT64_C(150754820096),
                                       .driver = 13000,
                                       .major = 9,
                                       .minor = 0,
                                       .sms = 4,
                                       .granularity = UINT64_C(2) << 20,
                                       .multicast = UINT64_C(2) << 20};
}

/* As an error: the process is killed. */
enum { KILL = INT_MIN };

/* "fail=ENTRY:N:ERROR", "kill=ENTRY:N"; false: another word. */
static bool take_failure(const char *word)
{
    char entry[64];
    unsigned long long n;
    int error = KILL;
    bool fails = sscanf(word, "fail=%63[^:]:%llu:%d", entry, &n, &error) == 3;
    if (!fails && sscanf(word, "kill=%63[^:]:%llu", entry, &n) != 2)
        return false;
    tsr_standin_fail(entry, n, error);
    return true;
}

static void take_word(const char *word, struct tsr_standin_config *c)
{
    char key[32];
    unsigned long long value;
    if (take_failure(word))
        return;
    if (sscanf(word, "%31[a-z_]=%llu", key, &value) != 2) {
        fprintf(stderr, "TSR_STANDIN: %s\n", word);
        abort();
    }
    if (!strcmp(key, "gpus"))
        c->gpus = (int)value;
    else if (!strcmp(key, "memory"))
        c->memory = value;
    else if (!strcmp(key, "driver"))
        c->driver = (int)value;
    else if (!strcmp(key, "major"))
        c->major = (int)value;
    else if (!strcmp(key, "minor"))
        c->minor = (int)value;
    else if (!strcmp(key, "sms"))
        c->sms = (int)value;
    else if (!strcmp(key, "delay_us"))
        c->delay_us = (uint32_t)value;
    else if (!strcmp(key, "seed"))
        c->seed = value;
    else if (!strcmp(key, "nccl"))
        c->nccl = (int)value;
    else if (!strcmp(key, "addresses"))
        c->addresses = value;
    else if (!strcmp(key, "granularity"))
        c->granularity = value;
    else if (!strcmp(key, "multicast"))
        c->multicast = value;
    else if (!strcmp(key, "no_handles"))
        c->no_handles = value != 0;
}

static void read_environment(void)
{
    char words[256];
    const char *text = getenv("TSR_STANDIN");
    char *next = NULL;
    config = tsr_standin_default();
    snprintf(words, sizeof words, "%s", text ? text : "");
    for (char *word = strtok_r(words, ",", &next); word; word = strtok_r(NULL, ",", &next))
        take_word(word, &config);
    atomic_store(&configured, true);
}

const struct tsr_standin_config *tsr_standin(void)
{
    if (!atomic_load_explicit(&configured, memory_order_relaxed))
        read_environment(); /* the first call is of one thread */
    return &config;
}

void tsr_standin_configure(const struct tsr_standin_config *c)
{
    config = *c;
    atomic_store(&configured, true);
    tsr_standin_fail("", 0, 0);
    tsr_standin_unstick();
    for (struct tsr_standin_entry *e = atomic_load(&entries); e; e = atomic_load(&e->next))
        atomic_store(&e->calls, 0);
}

/* ---- failures ----------------------------------------------------------------------------------
 */

static void list(struct tsr_standin_entry *entry)
{
    bool expected = false;
    if (!atomic_compare_exchange_strong_explicit(&entry->listed, &expected, true,
                                                 memory_order_relaxed, memory_order_relaxed))
        return;
    struct tsr_standin_entry *first = atomic_load_explicit(&entries, memory_order_relaxed);
    do
        atomic_store_explicit(&entry->next, first, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&entries, &first, entry, memory_order_relaxed,
                                                  memory_order_relaxed));
}

int tsr_standin_enter(struct tsr_standin_entry *entry)
{
    list(entry);
    atomic_fetch_add_explicit(&entry->calls, 1, memory_order_relaxed);
    if (atomic_load_explicit(&victim_n, memory_order_relaxed) == 0 || strcmp(victim, entry->name))
        return 0;
    if (atomic_fetch_sub_explicit(&victim_n, 1, memory_order_relaxed) != 1)
        return 0;
    atomic_store_explicit(&victim_failed, true, memory_order_relaxed);
    if (victim_error == KILL)
        (void)raise(SIGKILL);
    return victim_error;
}

void tsr_standin_fail(const char *entry, uint64_t n, int error)
{
    snprintf(victim, sizeof victim, "%s", entry);
    victim_error = error;
    atomic_store(&victim_failed, false);
    atomic_store(&victim_n, n);
}

bool tsr_standin_failed(void)
{
    return atomic_load(&victim_failed);
}

bool tsr_standin_called(size_t i, const char **entry, uint64_t *calls)
{
    for (struct tsr_standin_entry *e = atomic_load(&entries); e; e = atomic_load(&e->next)) {
        if (atomic_load(&e->calls) == 0 || i-- > 0)
            continue;
        *entry = e->name;
        *calls = atomic_load(&e->calls);
        return true;
    }
    return false;
}

int64_t tsr_standin_live(void)
{
    return atomic_load(&tsr_standin_objects);
}

/* ---- errors ------------------------------------------------------------------------------------
 */

void tsr_standin_stick(int error)
{
    int none = 0;
    atomic_compare_exchange_strong_explicit(&sticky, &none, error, memory_order_relaxed,
                                            memory_order_relaxed);
}

void tsr_standin_unstick(void)
{
    atomic_store(&sticky, 0);
}

cudaError_t tsr_standin_sticky(void)
{
    return (cudaError_t)atomic_load_explicit(&sticky, memory_order_relaxed);
}

cudaError_t tsr_standin_note(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

bool tsr_standin_left_error(void)
{
    return last_error != cudaSuccess;
}

cudaError_t cudaPeekAtLastError(void)
{
    return tsr_standin_sticky() != cudaSuccess ? tsr_standin_sticky() : last_error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}
