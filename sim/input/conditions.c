/* conditions.c: checks of conditions.h that need nothing but the job's size. */
#include "sim/input/conditions.h"

#include <math.h>

const char *tsr_link_class_name(enum tsr_link_class link)
{
    static const char *const names[TSR_N_LINK_CLASSES] = {"port", "nic", "uplink"};
    return names[link];
}

double tsr_slowness(const struct tsr_conditions *c, uint32_t rank)
{
    double factor = 1.0;
    for (size_t i = 0; i < c->faults.n_slow; i++)
        if (c->faults.slow[i].rank == rank)
            factor *= c->faults.slow[i].factor;
    return factor;
}

/* SplitMix64 (Steele, Lea, Flood 2014): equidistributed bits from a counter. */
static uint64_t scramble(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static double uniform(uint64_t bits)
{
    return ((double)(bits >> 11) + 0.5) * 0x1p-53;
}

static uint64_t draw(uint64_t seed, uint64_t what, uint64_t index)
{
    return scramble(scramble(scramble(seed) ^ what) ^ index);
}

double tsr_uniform(uint64_t seed, uint64_t what, uint64_t index)
{
    return uniform(draw(seed, what, index));
}

double tsr_noise(uint64_t seed, uint64_t what, uint64_t index, double sigma)
{
    if (sigma <= 0.0)
        return 1.0;
    uint64_t bits = draw(seed, what, index);
    double radius = sqrt(-2.0 * log(uniform(bits)));
    double normal = radius * cos(6.283185307179586 * uniform(scramble(bits)));
    return exp(sigma * normal - 0.5 * sigma * sigma);
}

static tsr_status check_faults(const struct tsr_conditions *c, uint32_t world)
{
    for (size_t i = 0; i < c->faults.n_slow; i++) {
        if (c->faults.slow[i].rank >= world)
            return tsr_fail(TSR_ECONFIG, "faults: found gpu %u, allowed 0 to %u",
                            c->faults.slow[i].rank, world - 1);
        if (!(c->faults.slow[i].factor > 0.0 && c->faults.slow[i].factor < 1e12))
            return tsr_fail(TSR_ECONFIG, "faults: found slow %g of gpu %u, allowed above 0",
                            c->faults.slow[i].factor, c->faults.slow[i].rank);
    }
    for (size_t i = 0; i < c->faults.n_links; i++)
        if (!(c->faults.links[i].share >= 0.0 && c->faults.links[i].share <= 1.0))
            return tsr_fail(TSR_ECONFIG, "faults: found share %g of %s %u, allowed 0 to 1",
                            c->faults.links[i].share, tsr_link_class_name(c->faults.links[i].link),
                            c->faults.links[i].index);
    return TSR_OK;
}

static tsr_status check_traffic(const struct tsr_conditions *c, uint32_t world)
{
    for (size_t i = 0; i < c->traffic.n; i++) {
        const struct tsr_traffic *t = &c->traffic.items[i];
        if (t->from >= world || t->to >= world || t->from == t->to)
            return tsr_fail(TSR_ECONFIG,
                            "traffic: found from %u to %u, allowed two different ranks from 0 to "
                            "%u",
                            t->from, t->to, world - 1);
        if (!(t->bytes >= 1.0 && t->bytes <= 1e15) || !(t->period_s >= 1e-6 && t->period_s < 1e9) ||
            !(t->start_s >= 0.0 && t->start_s < 1e9))
            return tsr_fail(TSR_ECONFIG,
                            "traffic: found %g bytes every %g s, allowed 1 to 1e15 bytes, a period "
                            "of 1e-6 s and more",
                            t->bytes, t->period_s);
    }
    return TSR_OK;
}

tsr_status tsr_conditions_check(const struct tsr_conditions *c, uint32_t world)
{
    TSR_TRY(check_faults(c, world));
    TSR_TRY(check_traffic(c, world));
    for (int i = 0; i < TSR_N_LINK_CLASSES; i++)
        if (!(c->background[i] >= 0.0 && c->background[i] <= 0.99))
            return tsr_fail(TSR_ECONFIG, "background_%s: found %g, allowed 0 to 0.99",
                            tsr_link_class_name((enum tsr_link_class)i), c->background[i]);
    if (!(c->jitter_kernel >= 0.0 && c->jitter_kernel <= 1.0))
        return tsr_fail(TSR_ECONFIG, "jitter_kernel: found %g, allowed 0 to 1", c->jitter_kernel);
    if (!(c->jitter_gpu >= 0.0 && c->jitter_gpu <= 1.0))
        return tsr_fail(TSR_ECONFIG, "jitter_gpu: found %g, allowed 0 to 1", c->jitter_gpu);
    return TSR_OK;
}
