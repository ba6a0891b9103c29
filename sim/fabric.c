/* fabric.c: link ids, capacities and paths (fabric.h).
 *
 * Modelled: one port per GPU into the NVSwitch (non-blocking, no link of its own) or the PCIe
 * switch, NICs (several GPUs may share one, several NICs of one GPU add up to one port), and one
 * oversubscribed tier above pods. Not modelled: the GPU's PCIe port under its NIC on NVSwitch
 * nodes, which is wider than the NIC in every node file.
 */
#include "fabric.h"

#include <string.h>

static uint32_t nic_port(const struct tsr__fabric *f, uint32_t rank)
{
    uint32_t node = rank / f->gpus_per_node, local = rank % f->gpus_per_node;
    return node * f->nic_ports_per_node +
           (uint32_t)((uint64_t)local * f->nic_ports_per_node / f->gpus_per_node);
}

/* Reachable share of a link's rate. */
static double reachable(const struct tsr_cluster *c, const struct tsr_sim_options *o,
                        enum tsr_calibration_id id)
{
    return o->link_efficiency > 0.0 ? o->link_efficiency : c->gpu.calibration.value[id];
}

static void set_capacities(struct tsr__fabric *f, const struct tsr_sim_options *o)
{
    const struct tsr_cluster *c = f->cluster;
    double intra = o->intra_bw > 0.0 ? o->intra_bw : c->intra_bw;
    double nic = o->nic_bw > 0.0 ? o->nic_bw : c->nic_bw;
    double per_gpu = nic * c->nics_per_node / c->gpus_per_node;
    double port = f->nic_ports_per_node == c->gpus_per_node ? per_gpu : nic;
    double pod = f->pod_gpus ? per_gpu * f->pod_gpus / c->oversubscription : 0.0;
    double inside = reachable(c, o, TSR_CAL_INTRA_EFFICIENCY);
    double between = reachable(c, o, TSR_CAL_INTER_EFFICIENCY);
    f->capacity[TSR__PORT_OUT] = f->capacity[TSR__PORT_IN] = intra * inside;
    f->capacity[TSR__NIC_OUT] = f->capacity[TSR__NIC_IN] = port * between;
    f->capacity[TSR__POD_OUT] = f->capacity[TSR__POD_IN] = pod * between;
    f->capacity[TSR__HOST_OUT] = f->capacity[TSR__HOST_IN] = c->gpu.pcie_bw * inside;
}

tsr_status tsr__fabric_init(struct tsr__fabric *f, const struct tsr_cluster *c,
                            const struct tsr_sim_options *o, uint32_t world)
{
    uint64_t gpus = (uint64_t)c->nodes * c->gpus_per_node;
    memset(f, 0, sizeof *f);
    if (!world || world > gpus)
        return tsr_fail(TSR_ECONFIG, "%s: the job has %u ranks, the cluster %llu GPUs", c->path,
                        world, (unsigned long long)gpus);
    if (!(o->link_efficiency >= 0.0 && o->link_efficiency <= 1.0)) /* true for NaN too */
        return tsr_fail(TSR_ECONFIG, "link_efficiency: found %g, allowed 0 to 1",
                        o->link_efficiency);
    f->cluster = c;
    f->world = world;
    f->gpus_per_node = c->gpus_per_node;
    f->domain_gpus = c->nvlink_domain_gpus ? c->nvlink_domain_gpus : c->gpus_per_node;
    f->pcie = c->intra == TSR_INTRA_PCIE;
    f->ideal = o->infinite_bandwidth;
    f->nic_ports_per_node =
        c->nics_per_node < c->gpus_per_node ? c->nics_per_node : c->gpus_per_node;
    if (c->pod_gpus && c->oversubscription > 1.0 && world > c->pod_gpus)
        f->pod_gpus = c->pod_gpus;
    set_capacities(f, o);
    uint64_t nodes = tsr_ceil_div(world, f->gpus_per_node);
    uint64_t pods = f->pod_gpus ? tsr_ceil_div(world, f->pod_gpus) : 0;
    uint64_t n = 0;
    for (int role = 0; role < TSR__N_ROLES; role++) {
        f->first[role] = (uint32_t)n;
        if (role == TSR__NIC_OUT || role == TSR__NIC_IN)
            n += nodes * f->nic_ports_per_node;
        else if (role == TSR__POD_OUT || role == TSR__POD_IN)
            n += pods;
        else
            n += world;
    }
    f->first[TSR__N_ROLES] = (uint32_t)n;
    return n < UINT32_MAX / 2 ? TSR_OK
                              : tsr_fail(TSR_EUNSUPPORTED, "a job of %u ranks is too large", world);
}

enum tsr__role tsr__link_role(const struct tsr__fabric *f, uint32_t link)
{
    int role = 0;
    while (link >= f->first[role + 1])
        role++;
    return (enum tsr__role)role;
}

static tsr_status no_rate(const struct tsr__fabric *f, const char *key, uint32_t src, uint32_t dst)
{
    return tsr_fail(TSR_ECONFIG,
                    "%s: node %s: key \"%s\": found null (unknown), allowed a number: ranks %u and "
                    "%u communicate",
                    f->cluster->path, f->cluster->node_name, key, src, dst);
}

static tsr_status inter_path(const struct tsr__fabric *f, uint32_t src, uint32_t dst,
                             uint32_t *links, uint32_t *n)
{
    if (!f->nic_ports_per_node || (!f->ideal && f->capacity[TSR__NIC_OUT] <= 0.0))
        return no_rate(f, "nics.bandwidth_bytes_per_s_per_direction", src, dst);
    if (f->pcie)
        links[(*n)++] = f->first[TSR__PORT_OUT] + src;
    links[(*n)++] = f->first[TSR__NIC_OUT] + nic_port(f, src);
    if (f->pod_gpus && src / f->pod_gpus != dst / f->pod_gpus) {
        links[(*n)++] = f->first[TSR__POD_OUT] + src / f->pod_gpus;
        links[(*n)++] = f->first[TSR__POD_IN] + dst / f->pod_gpus;
    }
    links[(*n)++] = f->first[TSR__NIC_IN] + nic_port(f, dst);
    if (f->pcie)
        links[(*n)++] = f->first[TSR__PORT_IN] + dst;
    return TSR_OK;
}

tsr_status tsr__fabric_path(const struct tsr__fabric *f, uint32_t src, uint32_t dst,
                            uint32_t links[TSR__MAX_PATH], uint32_t *n, enum tsr__medium *medium)
{
    *n = 0;
    *medium = src / f->domain_gpus == dst / f->domain_gpus ? TSR__INTRA : TSR__INTER;
    if (!f->ideal && f->capacity[TSR__PORT_OUT] <= 0.0 && (*medium == TSR__INTRA || f->pcie))
        return no_rate(f, "intra_node.bandwidth_bytes_per_s_per_gpu_per_direction", src, dst);
    if (*medium == TSR__INTER)
        return inter_path(f, src, dst, links, n);
    links[(*n)++] = f->first[TSR__PORT_OUT] + src;
    links[(*n)++] = f->first[TSR__PORT_IN] + dst;
    return TSR_OK;
}

tsr_status tsr__fabric_host_link(const struct tsr__fabric *f, uint32_t rank, bool to_device,
                                 uint32_t *link)
{
    enum tsr__role port = to_device ? TSR__PORT_IN : TSR__PORT_OUT;
    enum tsr__role host = to_device ? TSR__HOST_IN : TSR__HOST_OUT;
    *link = f->first[f->pcie ? port : host] + rank;
    if (!f->ideal && f->capacity[f->pcie ? port : host] <= 0.0)
        return tsr_fail(TSR_ECONFIG,
                        "%s: key \"pcie.bandwidth_bytes_per_s_per_direction\": found null "
                        "(unknown), allowed a number: a copy between host and device needs it",
                        f->cluster->gpu.path);
    return TSR_OK;
}
