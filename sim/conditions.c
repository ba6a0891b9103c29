/* conditions.c: checks of conditions.h that need nothing but the job's size. */
#include "conditions.h"

const char *tsr_link_class_name(enum tsr_link_class link)
{
    static const char *const names[TSR_N_LINK_CLASSES] = {"port", "nic", "uplink"};
    return names[link];
}

double tsr_slowness(const struct tsr_conditions *c, uint32_t rank)
{
    double factor = 1.0;
    for (size_t i = 0; i < c->n_slow; i++)
        if (c->slow[i].rank == rank)
            factor *= c->slow[i].factor;
    return factor;
}

static tsr_status check_faults(const struct tsr_conditions *c, uint32_t world)
{
    for (size_t i = 0; i < c->n_slow; i++) {
        if (c->slow[i].rank >= world)
            return tsr_fail(TSR_ECONFIG, "faults: found gpu %u, allowed 0 to %u", c->slow[i].rank,
                            world - 1);
        if (!(c->slow[i].factor > 0.0 && c->slow[i].factor < 1e12))
            return tsr_fail(TSR_ECONFIG, "faults: found slow %g of gpu %u, allowed above 0",
                            c->slow[i].factor, c->slow[i].rank);
    }
    for (size_t i = 0; i < c->n_links; i++)
        if (!(c->links[i].share >= 0.0 && c->links[i].share <= 1.0))
            return tsr_fail(TSR_ECONFIG, "faults: found share %g of %s %u, allowed 0 to 1",
                            c->links[i].share, tsr_link_class_name(c->links[i].link),
                            c->links[i].index);
    return TSR_OK;
}

static tsr_status check_traffic(const struct tsr_conditions *c, uint32_t world)
{
    for (size_t i = 0; i < c->n_traffic; i++) {
        const struct tsr_traffic *t = &c->traffic[i];
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
