/* nccl_topo.c: a node as NCCL saw it: makes a cluster of the XML that NCCL_TOPO_DUMP_FILE writes.
 *
 * Rates are nominal, as in our node files, so that sim.link_efficiency means the same: an NVLink
 * has 25 GB/s per direction up to compute capability 9 and 50 GB/s from 10 on (NVIDIA's data
 * sheets), a PCIe lane its transfer rate less the line code. Only the link between sockets has no
 * public figure per machine; it is NCCL's own estimate by processor (src/graph/topo.h, ..._QPI_BW).
 */
#include "sim/cluster/cluster_read.h"
#include "sim/input/xml_doc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device { /* a GPU or an adapter */
    uint32_t element;
    uint32_t top; /* index into struct topo.tops: the PCIe switch that it hangs on */
    double number, rate;
};

struct topo {
    const struct tsr__xml *xml;
    struct device gpus[TSR_MAX_LOCAL], nets[TSR_MAX_LOCAL];
    uint32_t tops[TSR_MAX_LOCAL]; /* the <pci> nearest to the <cpu>, or the <cpu> itself */
    uint32_t cpus[TSR_MAX_LOCAL];
    uint32_t n_gpus, n_nets, n_tops, n_cpus;
};

static const struct tsr__element *at(const struct topo *t, uint32_t element)
{
    return &t->xml->items[element];
}

static bool is(const struct topo *t, uint32_t element, const char *name)
{
    return element != TSR_NO_ID && !strcmp(at(t, element)->name, name);
}

/* ---- the tree ---------------------------------------------------------------------------- */

/* The nearest element of this name around `element`; TSR_NO_ID: none. */
static uint32_t around(const struct topo *t, uint32_t element, const char *name)
{
    while (element != TSR_NO_ID && !is(t, element, name))
        element = at(t, element)->parent;
    return element;
}

static uint32_t top_of(const struct topo *t, uint32_t element)
{
    uint32_t top = around(t, element, "cpu");
    for (uint32_t i = element; i != TSR_NO_ID && !is(t, i, "cpu"); i = at(t, i)->parent)
        if (is(t, i, "pci"))
            top = i;
    return top;
}

static tsr_status number_top(struct topo *t, struct device *device)
{
    uint32_t top = top_of(t, device->element);
    if (top == TSR_NO_ID)
        return tsr__xml_fail(t->xml, device->element, "found outside of a <cpu>, allowed inside");
    for (device->top = 0; device->top < t->n_tops; device->top++)
        if (t->tops[device->top] == top)
            return TSR_OK;
    if (t->n_tops == TSR_MAX_LOCAL)
        return tsr__xml_fail(t->xml, device->element, "found more than %d PCIe switches",
                             (int)TSR_MAX_LOCAL);
    t->tops[t->n_tops++] = top;
    return TSR_OK;
}

static tsr_status add_gpu(struct topo *t, uint32_t element)
{
    struct device *gpu = &t->gpus[t->n_gpus];
    if (t->n_gpus == TSR_MAX_LOCAL)
        return tsr__xml_fail(t->xml, element, "found more than %d GPUs", (int)TSR_MAX_LOCAL);
    gpu->element = element;
    TSR_TRY(tsr__xml_number(t->xml, element, "dev", 0, 1e6, &gpu->number));
    for (uint32_t i = 0; i < t->n_gpus; i++)
        if (t->gpus[i].number == gpu->number)
            return tsr__xml_fail(t->xml, element, "found dev %g twice, allowed once per node",
                                 gpu->number);
    t->n_gpus++;
    return number_top(t, gpu);
}

static tsr_status add_net(struct topo *t, uint32_t element)
{
    struct device *net = &t->nets[t->n_nets];
    if (t->n_nets == TSR_MAX_LOCAL)
        return tsr__xml_fail(t->xml, element, "found more than %d adapters", (int)TSR_MAX_LOCAL);
    net->element = element;
    TSR_TRY(tsr__xml_number(t->xml, element, "speed", 1, 1e8, &net->rate));
    net->rate *= 1e6 / 8; /* Mbit/s */
    t->n_nets++;
    return number_top(t, net);
}

static int by_number(const void *a, const void *b)
{
    const struct device *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

/* Of the adapters only the fastest count: NCCL leaves the management network alone. */
static void keep_fastest(struct topo *t)
{
    double fastest = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_nets; i++)
        fastest = t->nets[i].rate > fastest ? t->nets[i].rate : fastest;
    for (uint32_t i = 0; i < t->n_nets; i++)
        if (t->nets[i].rate >= fastest)
            t->nets[n++] = t->nets[i];
    t->n_nets = n;
}

static tsr_status collect(struct topo *t)
{
    for (uint32_t i = 0; i < t->xml->n; i++) {
        if (is(t, i, "gpu"))
            TSR_TRY(add_gpu(t, i));
        else if (is(t, i, "net"))
            TSR_TRY(add_net(t, i));
        else if (is(t, i, "cpu") && t->n_cpus < TSR_MAX_LOCAL)
            t->cpus[t->n_cpus++] = i;
    }
    if (!t->n_gpus)
        return tsr__xml_fail(t->xml, 0,
                             "has no <gpu>, allowed 1 to %d: a file that NCCL_TOPO_DUMP_FILE wrote",
                             (int)TSR_MAX_LOCAL);
    qsort(t->gpus, t->n_gpus, sizeof *t->gpus, by_number);
    keep_fastest(t);
    return TSR_OK;
}

/* ---- NVLink ------------------------------------------------------------------------------ */

/* Bytes per second over all NVLinks of a GPU, and how many other GPUs they end at; *switched: at a
 * switch. */
static tsr_status count_nvlinks(const struct topo *t, const struct device *gpu, double *rate,
                                uint32_t *peers, bool *switched)
{
    double sm, count;
    *rate = 0;
    *peers = 0;
    *switched = false;
    TSR_TRY(tsr__xml_number(t->xml, gpu->element, "sm", 10, 1e4, &sm));
    for (uint32_t i = gpu->element + 1; i < t->xml->n; i++) {
        if (!is(t, i, "nvlink") || at(t, i)->parent != gpu->element)
            continue;
        const char *class = tsr__xml_attribute(at(t, i), "tclass");
        TSR_TRY(tsr__xml_number(t->xml, i, "count", 1, 1e3, &count));
        *rate += count * (sm >= 100 ? 50e9 : 25e9);
        *switched = *switched || (class && !strncmp(class, "0x0680", 6));
        *peers += !class || strncmp(class, "0x0680", 6) != 0;
    }
    return TSR_OK;
}

/* All GPUs alike: on a switch, or each linked to all others, or without NVLink. */
static tsr_status read_nvlinks(const struct topo *t, struct tsr_cluster *out)
{
    bool first_switched = false;
    for (uint32_t i = 0; i < t->n_gpus; i++) {
        double rate;
        uint32_t peers;
        bool switched;
        TSR_TRY(count_nvlinks(t, &t->gpus[i], &rate, &peers, &switched));
        if (rate > 0 && !switched && peers + 1 < t->n_gpus)
            return tsr__xml_fail(t->xml, t->gpus[i].element,
                                 "dev %g: NVLink reaches %u of %u other GPUs, allowed all of them, "
                                 "an NVSwitch, or none",
                                 t->gpus[i].number, peers, t->n_gpus - 1);
        if (i == 0) {
            first_switched = switched;
            out->intra_bw = rate;
        } else if (rate != out->intra_bw || switched != first_switched) {
            return tsr__xml_fail(t->xml, t->gpus[i].element,
                                 "dev %g: found NVLinks of %g GB/s, allowed %g GB/s as dev %g has: "
                                 "not all GPUs reach each other alike%s",
                                 t->gpus[i].number, rate / 1e9, out->intra_bw / 1e9,
                                 t->gpus[0].number,
                                 rate > 0 ? " (sim.faults describes a degraded port)" : "");
        }
    }
    out->intra = out->intra_bw <= 0 ? TSR_INTRA_PCIE
                 : first_switched   ? TSR_INTRA_NVSWITCH
                                    : TSR_INTRA_NVLINK;
    out->multicast = first_switched; /* where the GPUs have it, too (tuner.c) */
    return TSR_OK;
}

/* ---- PCIe -------------------------------------------------------------------------------- */

/* Bytes per second of a <pci>'s link; 0: the file does not know (virtual machines). */
static double pci_rate(const struct topo *t, uint32_t element)
{
    const char *speed = tsr__xml_attribute(at(t, element), "link_speed");
    const char *width = tsr__xml_attribute(at(t, element), "link_width");
    double rate = speed ? strtod(speed, NULL) : 0, lanes = width ? strtod(width, NULL) : 0;
    if (!(rate >= 1 && rate <= 1e3) || !(lanes >= 1 && lanes <= 64))
        return 0;
    /* 8b/10b up to 5 GT/s, 128b/130b to 32 GT/s; flits above, whose overhead is about 2 %. */
    double code = rate <= 5 ? 0.8 : rate <= 32 ? 128.0 / 130.0 : 0.98;
    return rate * 1e9 / 8 * code * lanes;
}

/* NCCL's estimate (GB/s) between two sockets. */
static double socket_rate(const struct topo *t, uint32_t cpu)
{
    const char *arch = tsr__xml_attribute(at(t, cpu), "arch");
    const char *vendor = tsr__xml_attribute(at(t, cpu), "vendor");
    const char *model = tsr__xml_attribute(at(t, cpu), "modelid");
    long id = model ? strtol(model, NULL, 0) : 0;
    if (arch && !strcmp(arch, "ppc64"))
        return 32e9;
    if (arch && !strcmp(arch, "arm64"))
        return 6e9;
    if (vendor && !strcmp(vendor, "AuthenticAMD"))
        return 16e9;
    if (vendor && !strcmp(vendor, "GenuineIntel"))
        return id >= 0xcf ? 40e9 : id >= 0x8f ? 22e9 : id >= 0x55 ? 10e9 : 6e9;
    return 6e9;
}

static uint32_t cpu_index(const struct topo *t, uint32_t element)
{
    uint32_t cpu = around(t, element, "cpu"), i = 0;
    while (i < t->n_cpus && t->cpus[i] != cpu)
        i++;
    return i;
}

static tsr_status read_pcie(const struct topo *t, struct tsr_cluster *out)
{
    struct tsr_places *p = &out->places;
    double least = 0;
    for (uint32_t i = 0; i < t->n_gpus; i++) {
        double rate = pci_rate(t, around(t, t->gpus[i].element, "pci"));
        if (rate <= 0)
            return tsr__xml_fail(t->xml, t->gpus[i].element,
                                 "dev %g: its <pci> has no link_speed and link_width above 0, and "
                                 "it has no NVLink: nothing reaches it",
                                 t->gpus[i].number);
        least = least <= 0 || rate < least ? rate : least;
    }
    out->intra_bw = p->switch_bw = least;
    for (uint32_t i = 0; i < t->n_tops; i++) {
        double rate = is(t, t->tops[i], "pci") ? pci_rate(t, t->tops[i]) : 0;
        p->switch_bw = rate > 0 && rate < p->switch_bw ? rate : p->switch_bw;
        p->socket_of_switch[i] = (uint8_t)cpu_index(t, t->tops[i]);
    }
    p->switches = t->n_tops;
    p->sockets = t->n_cpus > 1 ? t->n_cpus : 0;
    p->socket_bw = t->n_cpus ? socket_rate(t, t->cpus[0]) : 0;
    p->peer_to_peer = true;
    for (uint32_t i = 0; i < t->n_gpus; i++)
        p->switch_of_gpu[i] = (uint8_t)t->gpus[i].top;
    return TSR_OK;
}

/* ---- adapters ---------------------------------------------------------------------------- */

/* Levels that a GPU and an adapter have in common; more is nearer. */
static uint32_t closeness(const struct topo *t, uint32_t a, uint32_t b)
{
    uint32_t common = a, depth = 0;
    for (bool found = false; common != TSR_NO_ID && !found;) {
        for (uint32_t i = b; i != TSR_NO_ID && !found; i = at(t, i)->parent)
            found = i == common;
        common = found ? common : at(t, common)->parent;
    }
    for (; common != TSR_NO_ID; common = at(t, common)->parent)
        depth++;
    return depth;
}

/* The set of the nearest adapters of a GPU. */
static uint64_t nearest(const struct topo *t, uint32_t gpu)
{
    uint32_t best = 0;
    uint64_t set = 0;
    for (uint32_t i = 0; i < t->n_nets; i++) {
        uint32_t near = closeness(t, t->gpus[gpu].element, t->nets[i].element);
        if (near > best)
            set = 0;
        best = near > best ? near : best;
        if (near == best)
            set |= UINT64_C(1) << i;
    }
    return set;
}

static uint32_t nth_of_set(uint64_t set, uint32_t n)
{
    uint32_t i = 0;
    for (; !(set >> i & 1) || n > 0; i++)
        n -= (uint32_t)(set >> i & 1);
    return i;
}

/* GPUs with the same nearest adapters share them out in order. Adapters are then renumbered: those
 * that some GPU begins with are the ports. */
static void choose_nics(const struct topo *t, struct tsr_cluster *out)
{
    struct tsr_places *p = &out->places;
    uint64_t sets[TSR_MAX_LOCAL];
    uint8_t port_of[TSR_MAX_LOCAL];
    uint32_t n_ports = 0;
    memset(port_of, 0xff, sizeof port_of);
    for (uint32_t i = 0; i < t->n_gpus; i++)
        sets[i] = nearest(t, i);
    for (uint32_t i = 0; i < t->n_gpus; i++) {
        uint32_t alike = 0, before = 0, n_nets = 0;
        for (uint32_t k = 0; k < t->n_gpus; k++) {
            alike += sets[k] == sets[i];
            before += k < i && sets[k] == sets[i];
        }
        for (uint64_t set = sets[i]; set; set &= set - 1)
            n_nets++;
        uint32_t net = nth_of_set(sets[i], before * n_nets / alike);
        if (port_of[net] == 0xff) {
            p->switch_of_nic[n_ports] = (uint8_t)t->nets[net].top;
            port_of[net] = (uint8_t)n_ports++;
        }
        p->nic_of_gpu[i] = port_of[net];
    }
    p->nics_listed = true;
}

/* ---- all --------------------------------------------------------------------------------- */

/* PCI ids of NVIDIA (pci-ids.ucw.cz), and the device files that describe these cards. */
static void name_gpu(const struct topo *t, char gpu_name[64])
{
    static const struct {
        long id;
        const char *name;
    } known[] = {{0x20b0, "a100-sxm4-40g"}, {0x20b2, "a100-sxm4-80g"}, {0x2330, "h100-sxm5-80g"},
                 {0x2335, "h200-sxm"},      {0x2901, "b200-sxm"},      {0x2941, "gb200"},
                 {0x26b9, "l40s"},          {0x2684, "rtx-4090"}};
    uint32_t pci = around(t, t->gpus[0].element, "pci");
    const char *device = pci == TSR_NO_ID ? NULL : tsr__xml_attribute(at(t, pci), "device");
    gpu_name[0] = 0;
    for (size_t i = 0; device && i < sizeof known / sizeof known[0]; i++)
        if (strtol(device, NULL, 16) == known[i].id)
            snprintf(gpu_name, 64, "%s", known[i].name);
}

static tsr_status make(struct topo *t, struct tsr_cluster *out, char gpu_name[64])
{
    TSR_TRY(collect(t));
    out->gpus_per_node = out->nvlink_domain_gpus = t->n_gpus;
    TSR_TRY(read_nvlinks(t, out));
    if (t->n_gpus == 1)
        out->intra = TSR_INTRA_NONE;
    else if (out->intra == TSR_INTRA_PCIE)
        TSR_TRY(read_pcie(t, out));
    if (out->nodes > 1 && !t->n_nets)
        return tsr__xml_fail(t->xml, 0,
                             "has no <net>: GPUs of different nodes cannot reach each other, "
                             "allowed nodes: 1");
    out->nics_per_node = t->n_nets;
    if (t->n_nets) {
        out->nic_bw = t->nets[0].rate;
        choose_nics(t, out);
    }
    name_gpu(t, gpu_name);
    return TSR_OK;
}

tsr_status tsr__nccl_topo_read(const struct tsr__xml *xml, struct tsr_cluster *out,
                               char gpu_name[64])
{
    struct topo *t = calloc(1, sizeof *t);
    if (!t)
        return tsr_no_memory(xml->path);
    t->xml = xml;
    tsr_status status = make(t, out, gpu_name);
    free(t);
    return status;
}
