/* rendezvous_pmix.c: ranks meet through the key-value service of their launcher: PMIx, which mpirun
 * of Open MPI and srun --mpi=pmix bring. It knows its processes and has its own security; nothing
 * of ours listens.
 */
#include "exec/rendezvous/rendezvous_impl.h"

#ifndef TSR_HAVE_PMIX

bool tsr_rendezvous_has_pmix(void)
{
    return false;
}

tsr_status tsr__pmix_open(const struct tsr_rendezvous_config *config, struct tsr_rendezvous **out)
{
    (void)config;
    *out = NULL;
    return tsr_fail(TSR_EUNSUPPORTED, "this build has no PMIx (package libpmix-dev)");
}

#else

#include "exec/base/word.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <pmix.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KEY = 96 };

bool tsr_rendezvous_has_pmix(void)
{
    return true;
}

/* A fence that runs; freed by whoever is the last to look at it. */
struct fence {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool has_ended, is_left;
    pmix_status_t status;
};

struct pmix {
    struct tsr_rendezvous base;
    pmix_proc_t me;
    uint64_t n_gathered;
};

static tsr_status failed(const char *did, pmix_status_t status)
{
    return tsr_fail(TSR_EBACKEND,
                    "PMIx of the launcher: %s: %s; TSR_ADDR (of rank 0) with TSR_TOKEN meets "
                    "without it",
                    did, PMIx_Error_string(status));
}

/* ---- fences ---------------------------------------------------------------------------------- */

static void fence_free(struct fence *f)
{
    (void)pthread_cond_destroy(&f->ended);
    (void)pthread_mutex_destroy(&f->lock);
    free(f);
}

static void fence_ended(pmix_status_t status, void *user)
{
    struct fence *f = user;
    (void)pthread_mutex_lock(&f->lock);
    f->status = status;
    f->has_ended = true;
    bool is_left = f->is_left;
    (void)pthread_cond_signal(&f->ended);
    (void)pthread_mutex_unlock(&f->lock);
    if (is_left)
        fence_free(f);
}

static struct fence *fence_create(void)
{
    struct fence *f = calloc(1, sizeof *f);
    pthread_condattr_t attr;
    if (!f)
        return NULL;
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&f->ended, &attr);
    (void)pthread_condattr_destroy(&attr);
    return f;
}

/* A launcher may wait without end for a rank that does not come: we do not. */
static tsr_status fence_all(struct pmix *p, const char *name)
{
    struct fence *f = fence_create();
    pmix_proc_t all;
    pmix_info_t collect;
    bool yes = true;
    double until = tsr__now() + p->base.timeout_s;
    struct timespec t = {.tv_sec = (time_t)until};
    t.tv_nsec = (long)((until - (double)t.tv_sec) * 1e9);
    if (!f)
        return tsr_no_memory(NULL);
    PMIX_LOAD_PROCID(&all, p->me.nspace, PMIX_RANK_WILDCARD);
    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    pmix_status_t status = PMIx_Fence_nb(&all, 1, &collect, 1, fence_ended, f);
    if (status != PMIX_SUCCESS) {
        fence_free(f);
        if (status != PMIX_OPERATION_SUCCEEDED)
            return failed("a fence", status);
        return TSR_OK;
    }
    (void)pthread_mutex_lock(&f->lock);
    int error = 0;
    while (!f->has_ended && error == 0)
        error = pthread_cond_timedwait(&f->ended, &f->lock, &t);
    bool has_ended = f->has_ended;
    status = f->status;
    f->is_left = true;
    (void)pthread_mutex_unlock(&f->lock);
    if (!has_ended) /* `collect` holds no memory of its own */
        return tsr_fail(TSR_EPEER, "not all ranks %s%s%s within %g s",
                        name[0] ? "came to '" : "joined", name, name[0] ? "'" : "",
                        p->base.timeout_s);
    fence_free(f);
    return status == PMIX_SUCCESS ? TSR_OK : failed("a fence", status);
}

/* ---- values ---------------------------------------------------------------------------------- */

static tsr_status get(struct pmix *p, uint32_t rank, const char *key, void *out, size_t bytes)
{
    pmix_proc_t from;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&from, p->me.nspace, rank);
    pmix_status_t status = PMIx_Get(&from, key, NULL, 0, &value);
    if (status != PMIX_SUCCESS)
        return failed("a value of another rank", status);
    bool fits = value->type == PMIX_BYTE_OBJECT && value->data.bo.size == bytes;
    if (fits)
        memcpy(out, value->data.bo.bytes, bytes);
    PMIX_VALUE_RELEASE(value);
    return fits ? TSR_OK
                : tsr_fail(TSR_EDEFECT, "'%s': rank %u gives another number of bytes than rank %u",
                           key, rank, p->base.rank);
}

static tsr_status pmix_gather(struct tsr_rendezvous *r, const char *name, const void *in,
                              size_t bytes, void *out)
{
    struct pmix *p = (struct pmix *)r;
    char key[KEY], copy[TSR_RENDEZVOUS_VALUE];
    (void)snprintf(key, sizeof key, "tessera.%llu.%s", (unsigned long long)p->n_gathered++, name);
    if (bytes) {
        memcpy(copy, in, bytes);
        pmix_value_t value = {.type = PMIX_BYTE_OBJECT};
        value.data.bo.bytes = copy;
        value.data.bo.size = bytes;
        pmix_status_t status = PMIx_Put(PMIX_GLOBAL, key, &value);
        if (status == PMIX_SUCCESS)
            status = PMIx_Commit();
        if (status != PMIX_SUCCESS)
            return failed("a value of this rank", status);
    }
    TSR_TRY(fence_all(p, name));
    for (uint32_t i = 0; bytes && i < r->size; i++)
        TSR_TRY(get(p, i, key, (char *)out + i * bytes, bytes));
    return TSR_OK;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void pmix_close(struct tsr_rendezvous *r)
{
    (void)PMIx_Finalize(NULL, 0);
    free(r);
}

static const struct tsr_rendezvous_ops pmix_ops = {.gather = pmix_gather, .close = pmix_close};

/* A number of the launcher's about the job; false: it does not say. */
static bool job_number(const struct pmix *p, const char *key, uint32_t *out)
{
    pmix_proc_t all;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&all, p->me.nspace, PMIX_RANK_WILDCARD);
    if (PMIx_Get(&all, key, NULL, 0, &value) != PMIX_SUCCESS)
        return false;
    bool is_number = value->type == PMIX_UINT32;
    if (is_number)
        *out = value->data.uint32;
    PMIX_VALUE_RELEASE(value);
    return is_number;
}

static bool is_for_others(const struct ifaddrs *at)
{
    int family = at->ifa_addr ? at->ifa_addr->sa_family : AF_UNSPEC;
    return (family == AF_INET || family == AF_INET6) && (at->ifa_flags & IFF_UP) &&
           !(at->ifa_flags & IFF_LOOPBACK);
}

/* Where other hosts reach this one: what was told, the address of its name, or its first one. */
static void find_address(struct pmix *p, const struct tsr_rendezvous_config *config)
{
    char name[256] = "", *local = p->base.local;
    uint32_t here = 0;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    struct ifaddrs *all = NULL;
    (void)snprintf(local, sizeof p->base.local, "127.0.0.1");
    if (job_number(p, PMIX_LOCAL_SIZE, &here) && here == config->size)
        return;
    (void)gethostname(name, sizeof name - 1);
    if (getaddrinfo(config->bind[0] ? config->bind : name, NULL, &hints, &list) == 0) {
        (void)getnameinfo(list->ai_addr, list->ai_addrlen, local, sizeof p->base.local, NULL, 0,
                          NI_NUMERICHOST);
        freeaddrinfo(list);
    }
    if (!tsr__socket_is_loopback(local) || config->bind[0] || getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *at = all; at; at = at->ifa_next)
        if (is_for_others(at)) {
            socklen_t bytes = at->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                                 : sizeof(struct sockaddr_in6);
            (void)getnameinfo(at->ifa_addr, bytes, local, sizeof p->base.local, NULL, 0,
                              NI_NUMERICHOST);
            break;
        }
    freeifaddrs(all);
}

tsr_status tsr__pmix_open(const struct tsr_rendezvous_config *config, struct tsr_rendezvous **out)
{
    struct pmix *p = calloc(1, sizeof *p);
    uint32_t size = config->size;
    *out = NULL;
    if (!p)
        return tsr_no_memory("the rendezvous");
    p->base = (struct tsr_rendezvous){.ops = &pmix_ops,
                                      .rank = config->rank,
                                      .size = config->size,
                                      .timeout_s = config->timeout_s,
                                      .secret = tsr__secret_of(config->token)};
    pmix_status_t status = PMIx_Init(&p->me, NULL, 0);
    if (status != PMIX_SUCCESS) {
        free(p);
        return failed("no connection", status);
    }
    (void)job_number(p, PMIX_JOB_SIZE, &size);
    if (p->me.rank != config->rank || size != config->size) {
        tsr_status wrong = tsr_fail(TSR_ECONFIG,
                                    "rank %u of %u is rank %u of %u for PMIx of the launcher; "
                                    "TSR_ADDR (of rank 0) with TSR_TOKEN meets without it",
                                    config->rank, config->size, p->me.rank, size);
        pmix_close(&p->base);
        return wrong;
    }
    find_address(p, config);
    *out = &p->base;
    return TSR_OK;
}

#endif
