/* platform.c: numbers the endpoints of routes and writes the XML text.
 *
 * Links have latency 0: latencies are delays of the replay, because SimGrid weighs flows by the
 * latency of their routes. Every link is SHARED and carries one direction.
 */
#include "sim/replay/platform.h"

#include <stdlib.h>
#include <string.h>

#include "sim/replay/backend.h"
#include "sim/tape/issue.h"

/* Open-addressing set of the endpoint pairs that have a route. */
struct pairs {
    uint64_t *slots; /* 1 + (out << 32 | in); 0: free */
    size_t n_slots;
};

static bool pairs_add(struct pairs *pairs, uint32_t out, uint32_t in)
{
    uint64_t key = ((uint64_t)out << 32 | in) + 1;
    size_t at = (size_t)tsr_hash_u64(TSR_HASH_INIT, key) & (pairs->n_slots - 1);
    while (pairs->slots[at] && pairs->slots[at] != key)
        at = (at + 1) & (pairs->n_slots - 1);
    if (pairs->slots[at] == key)
        return false;
    pairs->slots[at] = key;
    return true;
}

/* Routes that begin with the same link leave from one endpoint, so do those that end with the same
 * one, unless two routes would then join the same pair. */
static void number_endpoints(const struct tsr__quotient *q, struct tsr__platform *p,
                             struct pairs *pairs, uint32_t *out_of, uint32_t *in_of)
{
    for (uint32_t r = 0; r < q->n_routes; r++) {
        const struct tsr__qroute *route = &q->routes[r];
        uint32_t *out = &out_of[route->links[0]], *in = &in_of[route->links[route->n_links - 1]];
        if (*out == TSR_NO_ID)
            *out = p->n_out++;
        if (*in == TSR_NO_ID)
            *in = p->n_in++;
        p->out[r] = *out;
        p->in[r] = *in;
        if (!pairs_add(pairs, p->out[r], p->in[r]))
            p->out[r] = p->n_out++;
    }
}

tsr_status tsr__platform_build(const struct tsr__quotient *q, struct tsr__platform *p)
{
    struct pairs pairs = {.n_slots = 64};
    while (pairs.n_slots < 2 * (size_t)q->n_routes)
        pairs.n_slots *= 2;
    *p = (struct tsr__platform){0};
    p->out = calloc(q->n_routes + 1u, sizeof *p->out);
    p->in = calloc(q->n_routes + 1u, sizeof *p->in);
    pairs.slots = calloc(pairs.n_slots, sizeof *pairs.slots);
    uint32_t *out_of = tsr__no_ids(q->n_links), *in_of = tsr__no_ids(q->n_links);
    bool ok = p->out && p->in && pairs.slots && out_of && in_of;
    if (ok)
        number_endpoints(q, p, &pairs, out_of, in_of);
    free(pairs.slots);
    free(out_of);
    free(in_of);
    if (ok)
        return TSR_OK;
    free(p->out);
    free(p->in);
    return tsr_no_memory("platform of a simulation");
}

/* Speeds by the number of collectives beside: each takes the same share, a tenth stays. */
static void write_gpu(const struct tsr__quotient *q, uint32_t gpu, FILE *file)
{
    fprintf(file, "<host id='g%u' speed='%.17gf", gpu, TSR__GPU_SPEED);
    for (int k = 1; k <= TSR__MAX_BESIDE && q->slowdown > 0.0; k++) {
        double share = 1.0 - k * q->slowdown;
        fprintf(file, ",%.17gf", TSR__GPU_SPEED * (share > 0.1 ? share : 0.1));
    }
    fprintf(file, "'/>\n");
}

void tsr__platform_write(const struct tsr__quotient *q, const struct tsr__platform *p, bool links,
                         FILE *file)
{
    fprintf(file, "<?xml version='1.0'?>\n"
                  "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
                  "<platform version=\"4.1\">\n<zone id='job' routing='Full'>\n"
                  "<zone id='gpus' routing='None'>\n");
    for (uint32_t i = 0; i < q->n_ranks; i++)
        write_gpu(q, i, file);
    fprintf(file, "</zone>\n<zone id='fabric' routing='Full'>\n");
    for (uint32_t i = 0; links && i < p->n_out; i++)
        fprintf(file, "<host id='o%u' speed='1f'/>\n", i);
    for (uint32_t i = 0; links && i < p->n_in; i++)
        fprintf(file, "<host id='i%u' speed='1f'/>\n", i);
    for (uint32_t i = 0; links && i < q->n_links; i++)
        fprintf(file, "<link id='l%u' bandwidth='%.17gBps' latency='0s'%s/>\n", i,
                q->capacity[i] * TSR__BYTE_SCALE,
                q->fatpipe && q->fatpipe[i] ? " sharing_policy='FATPIPE'" : "");
    for (uint32_t r = 0; links && r < q->n_routes; r++) {
        fprintf(file, "<route src='o%u' dst='i%u' symmetrical='NO'>", p->out[r], p->in[r]);
        for (uint32_t k = 0; k < q->routes[r].n_links; k++)
            fprintf(file, "<link_ctn id='l%u'/>", q->routes[r].links[k]);
        fprintf(file, "</route>\n");
    }
    fprintf(file, "</zone>\n</zone>\n</platform>\n");
}

/* ---- gpu clock ------------------------------------------------------------------------------- */

/* The rates of a GPU over time, and work done between them. */

double tsr__gpu_clock_work(const struct tsr__gpu_clock *clock, double time)
{
    size_t i = clock->n;
    while (i > 1 && clock->rates[i - 1].since > time)
        i--;
    if (i == 0)
        return 0.0;
    const struct tsr__rate *r = &clock->rates[i - 1];
    return r->work + (time - r->since) * r->rate;
}

double tsr__gpu_clock_time(const struct tsr__gpu_clock *clock, double work)
{
    size_t i = clock->n;
    while (i > 1 && clock->rates[i - 1].work > work)
        i--;
    if (i == 0 || clock->rates[i - 1].rate <= 0.0)
        return 0.0;
    const struct tsr__rate *r = &clock->rates[i - 1];
    return r->since + (work - r->work) / r->rate;
}

bool tsr__gpu_clock_set(struct tsr__gpu_clock *clock, double now, double rate)
{
    struct tsr__rate next = {now, tsr__gpu_clock_work(clock, now), rate};
    if (clock->n && clock->rates[clock->n - 1].since >= now) {
        clock->rates[clock->n - 1].rate = rate;
        return true;
    }
    if (clock->n == clock->cap) {
        size_t cap = clock->cap ? 2 * clock->cap : 16;
        struct tsr__rate *more = realloc(clock->rates, cap * sizeof *more);
        if (!more)
            return false;
        clock->rates = more;
        clock->cap = cap;
    }
    clock->rates[clock->n++] = next;
    return true;
}

void tsr__gpu_clock_forget(struct tsr__gpu_clock *clock, double time)
{
    size_t i = 0;
    while (i + 1 < clock->n && clock->rates[i + 1].since <= time)
        i++;
    if (i)
        memmove(clock->rates, clock->rates + i, (clock->n - i) * sizeof *clock->rates);
    clock->n -= i;
}
