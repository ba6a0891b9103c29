/* fabric.c: which links a job has, their ids and capacities (the ways over them: fabric_path.c).
 *
 * Modelled: one port per GPU into the NVSwitch (non-blocking, no link of its own) or the PCIe
 * switch, PCIe switches and sockets where the node file has them, adapters (several GPUs may share
 * one, several adapters of one GPU add up to one port), and the uplinks of up to three tiers. Not
 * modelled: the GPU's PCIe port under its adapter on NVSwitch nodes, which is wider than the
 * adapter in every node file; collisions of flows on equal paths (ECMP). Or, in place of the tiers,
 * the links of a user's SimGrid platform.
 */
#include "sim/network/fabric.h"

#include <string.h>

/* ---- conditions ------------------------------------------------------------------------------ */

static double fault_share(const struct tsr__fabric *f, enum tsr_link_class class, uint32_t index)
{
    const struct tsr_conditions *c = f->conditions;
    double share = 1.0;
    for (size_t i = 0; i < c->faults.n_links; i++)
        if (c->faults.links[i].link == class && c->faults.links[i].index == index)
            share *= c->faults.links[i].share;
    return share;
}

double tsr__link_capacity(const struct tsr__fabric *f, uint32_t link)
{
    enum tsr__role role = tsr__link_role(f, link);
    uint32_t index = link - f->first[role];
    if (role == TSR__PLATFORM)
        return f->routes.links[index].bandwidth * f->capacity[role];
    double capacity = f->capacity[role];
    if (!f->conditions->faults.n_links)
        return capacity;
    if (role == TSR__PORT_OUT || role == TSR__PORT_IN)
        return capacity * fault_share(f, TSR_LINK_PORT, index);
    if (role == TSR__NIC_OUT || role == TSR__NIC_IN)
        return capacity * fault_share(f, TSR_LINK_NIC, index);
    if (role == TSR__TIER_OUT || role == TSR__TIER_IN)
        return capacity * fault_share(f, TSR_LINK_UPLINK, index);
    return capacity;
}

bool tsr__link_is_shared(const struct tsr__fabric *f, uint32_t link)
{
    return tsr__link_role(f, link) != TSR__PLATFORM ||
           !f->routes.links[link - f->first[TSR__PLATFORM]].fatpipe;
}

static bool uplinks_disturbed(const struct tsr_conditions *c)
{
    bool disturbed = c->background[TSR_LINK_UPLINK] > 0.0;
    for (size_t i = 0; i < c->faults.n_links; i++)
        disturbed = disturbed || c->faults.links[i].link == TSR_LINK_UPLINK;
    return disturbed;
}

static tsr_status check_links(const struct tsr__fabric *f)
{
    static const enum tsr__role roles[TSR_N_LINK_CLASSES] = {
        [TSR_LINK_PORT] = TSR__PORT_OUT,
        [TSR_LINK_NIC] = TSR__NIC_OUT,
        [TSR_LINK_UPLINK] = TSR__TIER_OUT,
    };
    const struct tsr_conditions *c = f->conditions;
    for (size_t i = 0; i < c->faults.n_links; i++) {
        enum tsr__role role = roles[c->faults.links[i].link];
        uint32_t n = f->first[role + 1] - f->first[role];
        const char *name = tsr_link_class_name(c->faults.links[i].link);
        if (!n)
            return tsr_fail(TSR_ECONFIG, "faults: found %s %u, allowed none: this job uses no %s",
                            name, c->faults.links[i].index, name);
        if (c->faults.links[i].index >= n)
            return tsr_fail(TSR_ECONFIG, "faults: found %s %u, allowed 0 to %u", name,
                            c->faults.links[i].index, n - 1);
    }
    return TSR_OK;
}

/* ---- capacities ------------------------------------------------------------------------------ */

/* Keeps the tiers that can hinder a flow of the job. Oversubscriptions multiply on the way up. */
static void choose_tiers(struct tsr__fabric *f, double node_rate)
{
    const struct tsr_cluster *c = f->cluster;
    bool disturbed = uplinks_disturbed(f->conditions);
    double over = 1.0;
    for (uint32_t i = 0; i < c->n_tiers; i++) {
        struct tsr_tier tier = c->tiers[i];
        uint32_t inside = tier.rails > 1 ? f->gpus_per_node : tier.below_gpus;
        over *= tier.oversubscription > 1.0 ? tier.oversubscription : 1.0;
        if (f->span <= inside || (over <= 1.0 && !disturbed))
            continue;
        double rate = node_rate * tier.below_gpus / f->gpus_per_node / over;
        uint32_t at = f->n_tiers++;
        tier.rails = tier.rails ? tier.rails : 1;
        f->tiers[at] = tier;
        f->capacity[TSR__TIER_OUT + at] = f->capacity[TSR__TIER_IN + at] = rate / tier.rails;
    }
}

/* Reachable share of a link's rate. */
static double reachable(const struct tsr_cluster *c, const struct tsr_sim_options *o,
                        enum tsr_calibration_id id)
{
    return o->link_efficiency > 0.0 ? o->link_efficiency : c->gpu.calibration.value[id];
}

/* Between nodes: the roles from the NIC out to the NIC in, and a platform. */
static bool is_of_network(int role)
{
    return (role >= TSR__NIC_OUT && role <= TSR__NIC_IN) || role == TSR__PLATFORM;
}

static void set_capacities(struct tsr__fabric *f, const struct tsr_sim_options *o)
{
    const struct tsr_cluster *c = f->cluster;
    const double *busy = o->conditions.background;
    double intra = o->intra_bw > 0.0 ? o->intra_bw : c->intra_bw;
    double nic = o->nic_bw > 0.0 ? o->nic_bw : c->nic_bw;
    double node_rate = nic * c->nics_per_node;
    double port = f->nic_ports_per_node ? node_rate / f->nic_ports_per_node : 0.0;
    double free_nic = 1.0 - busy[TSR_LINK_NIC], free_port = 1.0 - busy[TSR_LINK_PORT];
    double inside = reachable(c, o, TSR_CAL_INTRA_EFFICIENCY);
    double between = reachable(c, o, TSR_CAL_INTER_EFFICIENCY);
    double free_uplink = 1.0 - busy[TSR_LINK_UPLINK];
    f->capacity[TSR__PORT_OUT] = f->capacity[TSR__PORT_IN] = intra * free_port;
    f->capacity[TSR__NIC_OUT] = f->capacity[TSR__NIC_IN] = port * free_nic;
    f->capacity[TSR__SWITCH_OUT] = f->capacity[TSR__SWITCH_IN] = c->places.switch_bw * free_port;
    f->capacity[TSR__SOCKET_OUT] = f->capacity[TSR__SOCKET_IN] = c->places.socket_bw * free_port;
    f->capacity[TSR__HOST_OUT] = f->capacity[TSR__HOST_IN] = c->gpu.pcie_bw;
    f->capacity[TSR__PLATFORM] = 1.0; /* times the link's own */
    choose_tiers(f, node_rate * free_uplink);
    for (int role = 0; role < TSR__N_ROLES; role++)
        f->capacity[role] *= is_of_network(role) ? between : inside;
}

/* ---- numbering ------------------------------------------------------------------------------- */

static uint64_t count_links(const struct tsr__fabric *f, int role)
{
    const struct tsr_places *places = &f->cluster->places;
    uint64_t nodes = tsr_ceil_div(f->span, f->gpus_per_node);
    if (role == TSR__PLATFORM)
        return f->routes.n_links;
    if (role == TSR__NIC_OUT || role == TSR__NIC_IN)
        return nodes * f->nic_ports_per_node;
    if (role == TSR__SWITCH_OUT || role == TSR__SWITCH_IN)
        return f->pcie ? nodes * places->switches : 0;
    if (role == TSR__SOCKET_OUT || role == TSR__SOCKET_IN)
        return f->pcie ? nodes * places->sockets : 0;
    if (role >= TSR__TIER_OUT && role < TSR__NIC_IN) {
        uint32_t tier = (uint32_t)(role - TSR__TIER_OUT) % TSR_MAX_TIERS;
        return tier < f->n_tiers
                   ? tsr_ceil_div(f->span, f->tiers[tier].below_gpus) * f->tiers[tier].rails
                   : 0;
    }
    return f->span;
}

static uint32_t count_ports(const struct tsr_cluster *c)
{
    uint32_t n = 0;
    if (!c->places.nics_listed)
        return c->nics_per_node < c->gpus_per_node ? c->nics_per_node : c->gpus_per_node;
    for (uint32_t i = 0; i < c->gpus_per_node; i++)
        n = c->places.nic_of_gpu[i] >= n ? c->places.nic_of_gpu[i] + 1u : n;
    return n;
}

static tsr_status number_links(struct tsr__fabric *f)
{
    uint64_t n = 0;
    for (int role = 0; role < TSR__N_ROLES; role++) {
        f->first[role] = (uint32_t)n;
        n += count_links(f, role);
    }
    f->first[TSR__N_ROLES] = (uint32_t)n;
    return n < UINT32_MAX / 2
               ? TSR_OK
               : tsr_fail(TSR_EUNSUPPORTED, "a job of %u ranks is too large", f->world);
}

static tsr_status place(struct tsr__fabric *f, const uint32_t *node_of)
{
    uint32_t last = 0, n = (uint32_t)tsr_ceil_div(f->world, f->gpus_per_node);
    f->node_of = node_of;
    f->span = f->world;
    for (uint32_t i = 0; i < n && node_of; i++) {
        if (node_of[i] >= f->cluster->nodes)
            return tsr_fail(TSR_ECONFIG, "%s: found node %u, allowed 0 to %u", f->cluster->path,
                            node_of[i], f->cluster->nodes - 1);
        last = node_of[i] > last ? node_of[i] : last;
    }
    if (node_of)
        f->span = (last + 1) * f->gpus_per_node;
    return TSR_OK;
}

tsr_status tsr__fabric_init(struct tsr__fabric *f, const struct tsr_cluster *c,
                            const struct tsr_sim_options *o, uint32_t world)
{
    uint64_t gpus = (uint64_t)c->nodes * c->gpus_per_node;
    memset(f, 0, sizeof *f);
    if (!world || (world > gpus && !o->node_of))
        return tsr_fail(TSR_ECONFIG, "%s: the job has %u ranks, the cluster %llu GPUs", c->path,
                        world, (unsigned long long)gpus);
    if (!(o->link_efficiency >= 0.0 && o->link_efficiency <= 1.0)) /* true for NaN too */
        return tsr_fail(TSR_ECONFIG, "link_efficiency: found %g, allowed 0 to 1",
                        o->link_efficiency);
    f->cluster = c;
    f->conditions = &o->conditions;
    f->world = world;
    f->gpus_per_node = c->gpus_per_node;
    TSR_TRY(place(f, o->node_of));
    f->domain_gpus = c->nvlink_domain_gpus ? c->nvlink_domain_gpus : c->gpus_per_node;
    f->pcie = c->intra == TSR_INTRA_PCIE;
    f->ideal = o->infinite_bandwidth;
    f->nic_ports_per_node = count_ports(c);
    set_capacities(f, o);
    if (*c->platform && !f->ideal)
        TSR_TRY(tsr__routes_load(c->platform, (uint32_t)tsr_ceil_div(f->span, f->gpus_per_node),
                                 &f->routes));
    tsr_status status;
    TSR_GOTO(failed, number_links(f));
    TSR_GOTO(failed, check_links(f));
    return TSR_OK;
failed:
    tsr__fabric_fini(f);
    return status;
}

void tsr__fabric_fini(struct tsr__fabric *f)
{
    tsr__routes_fini(&f->routes);
}

enum tsr__role tsr__link_role(const struct tsr__fabric *f, uint32_t link)
{
    int role = 0;
    while (link >= f->first[role + 1])
        role++;
    return (enum tsr__role)role;
}
