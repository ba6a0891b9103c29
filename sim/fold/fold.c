/* fold.c: colour refinement, and the classes that it ends with. Colours are 64-bit hashes; what a
 * hash claims is checked by counting afterwards (fold_check.c). */
#include "sim/fold/fold.h"

#include <stdlib.h>
#include <string.h>

static tsr_status no_memory(void)
{
    return tsr_no_memory("folding");
}

/* What a colour contributes to a sum over a multiset, told apart by `tag`. */
static uint64_t mixed(uint64_t tag, uint64_t colour)
{
    return tsr_hash_u64(tsr_hash_u64(TSR_HASH_INIT, tag), colour);
}

static uint64_t mixed_double(uint64_t tag, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return mixed(tag, bits);
}

struct colours {
    const struct tsr__net *net;
    uint64_t *rank, *link, *group, *flow, *key;
    uint64_t *link_sum, *group_sum;
    uint64_t *set; /* scratch of count_distinct() */
    size_t set_size;
    uint32_t n_ranks, n_links, n_groups;
    /* [Note: the twin of a slow GPU]; slow TSR_NO_ID: literal refinement. */
    uint32_t slow, strict, own;
    uint64_t plain; /* colour that the slow rank would have if it were not slow */
};

static void colours_fini(struct colours *c)
{
    free(c->rank);
    free(c->link);
    free(c->group);
    free(c->flow);
    free(c->key);
    free(c->link_sum);
    free(c->group_sum);
    free(c->set);
}

static tsr_status colours_init(struct colours *c, const struct tsr__net *net)
{
    size_t n = 64, all;
    *c = (struct colours){.net = net,
                          .n_ranks = net->job->world,
                          .n_links = tsr__fabric_links(net->fabric),
                          .n_groups = tsr__net_groups(net),
                          .slow = TSR_NO_ID,
                          .own = TSR_NO_ID,
                          .strict = TSR_NO_ID};
    all = (size_t)c->n_ranks + c->n_links + c->n_groups + net->n_flows;
    while (n < 2 * all)
        n *= 2;
    c->set_size = n;
    c->rank = calloc(c->n_ranks + 1u, sizeof *c->rank);
    c->link = calloc(c->n_links + 1u, sizeof *c->link);
    c->group = calloc(c->n_groups + 1u, sizeof *c->group);
    c->flow = calloc(net->n_flows + 1u, sizeof *c->flow);
    c->key = calloc(net->n_flows + 1u, sizeof *c->key);
    c->link_sum = calloc(c->n_links + 1u, sizeof *c->link_sum);
    c->group_sum = calloc(c->n_groups + 1u, sizeof *c->group_sum);
    c->set = malloc(n * sizeof *c->set);
    bool ok = c->rank && c->link && c->group && c->flow && c->key && c->link_sum && c->group_sum &&
              c->set;
    return ok ? TSR_OK : no_memory(); /* colours_fini() either way */
}

static bool is_own(const struct tsr__net *net, const struct tsr__net_flow *flow)
{
    return net->host_geometry != TSR_NO_ID &&
           tsr__net_group(net, net->host_geometry, flow->src) == flow->group;
}

/* True if no other flow shares the links of copies to the host. */
static bool copies_are_apart(struct colours *c)
{
    const struct tsr__net *net = c->net;
    uint64_t *owner = c->link_sum; /* 0: nobody yet; else 1 + group of the flows */
    bool apart = true;
    memset(owner, 0, c->n_links * sizeof *owner);
    for (size_t i = 0; i < net->n_flows && net->host_geometry != TSR_NO_ID; i++) {
        const struct tsr__net_flow *f = &net->flows[i];
        uint64_t mine = is_own(net, f) ? f->group + UINT64_C(2) : 1;
        for (uint8_t k = 0; k < f->n_links; k++) {
            uint64_t *at = &owner[f->links[k]];
            apart = apart && (*at == 0 || *at == mine);
            *at = mine;
        }
    }
    return apart;
}

/* The strict geometry is the one of the nearest neighbours. */
static void choose_strict(struct colours *c)
{
    const struct tsr__net *net = c->net;
    uint32_t slow = tsr__net_only_slow(net);
    uint32_t n = 0;
    if (slow == TSR_NO_ID || net->traffic_geometry != TSR_NO_ID || !copies_are_apart(c))
        return;
    for (uint32_t g = 0; g < net->n_geometries; g++) {
        if (g == net->host_geometry)
            continue;
        n++;
        if (c->strict == TSR_NO_ID ||
            tsr__net_geometry(net, g).stride < tsr__net_geometry(net, c->strict).stride)
            c->strict = g;
    }
    if (n > 1) {
        c->slow = slow;
        c->own = net->host_geometry;
    }
}

/* What is known before looking at neighbours. Ranks also differ by what they send, so that the
 * bytes reported for a representative are right for all that it stands for. */
static void first_colours(struct colours *c)
{
    const struct tsr__net *net = c->net;
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        c->rank[r] = mixed(net->job->class_of[r], 0);
        for (uint32_t g = 0; g < net->n_geometries; g++) {
            struct tsr__geometry geometry = tsr__net_geometry(net, g);
            if (geometry.used[TSR__P2P]) /* peers are named by index */
                c->rank[r] += mixed(100 + g, r / geometry.stride % geometry.size);
        }
    }
    for (uint32_t l = 0; l < c->n_links; l++) {
        c->link[l] = mixed_double(tsr__link_role(net->fabric, l) |
                                      (unsigned)tsr__link_is_shared(net->fabric, l) << 8,
                                  tsr__link_capacity(net->fabric, l));
    }
    for (uint32_t g = 0; g < net->n_geometries; g++)
        for (uint32_t i = net->first_group[g]; i < net->first_group[g + 1]; i++)
            c->group[i] = mixed(1, g);
    for (size_t i = 0; i < net->n_flows; i++) {
        const struct tsr__net_flow *f = &net->flows[i];
        uint64_t what = f->pattern | (uint64_t)f->medium << 8 | (uint64_t)f->to_device << 16 |
                        (uint64_t)f->from_i << 24 | (uint64_t)f->to_i << 40;
        c->key[i] = mixed_double(what, f->share);
        c->rank[f->src] += mixed(c->key[i], c->group[f->group]);
    }
    for (uint32_t r = 0; r < c->n_ranks; r++)
        if (tsr__net_is_slow(net, r)) {
            c->plain = c->rank[r];
            c->rank[r] = mixed_double(c->rank[r], tsr__net_slowness(net, r));
        }
}

static uint64_t next_rank_colour(const struct colours *c, uint32_t rank, uint64_t colour)
{
    for (uint32_t g = 0; g < c->net->n_geometries; g++)
        if (g != c->own)
            colour = tsr_hash_u64(colour, c->group[tsr__net_group(c->net, g, rank)]);
    return colour;
}

static bool is_relaxed(const struct colours *c, uint32_t rank, uint32_t geometry)
{
    return rank == c->slow && geometry != c->strict && geometry != c->own;
}

/* A link is also known by its place in a flow: a first hop is no last one, even of equal rate. */
static void one_round(struct colours *c)
{
    const struct tsr__net *net = c->net;
    memset(c->link_sum, 0, c->n_links * sizeof *c->link_sum);
    memset(c->group_sum, 0, c->n_groups * sizeof *c->group_sum);
    for (size_t i = 0; i < net->n_flows; i++) {
        const struct tsr__net_flow *f = &net->flows[i];
        uint64_t colour = mixed(c->key[i], c->group[f->group]);
        for (uint8_t k = 0; k < f->n_links; k++)
            colour = tsr_hash_u64(colour, c->link[f->links[k]]);
        c->flow[i] = colour;
        c->group_sum[f->group] += mixed(2, colour);
        for (uint8_t k = 0; k < f->n_links; k++)
            c->link_sum[f->links[k]] += mixed(3 + ((uint64_t)k << 8), colour);
    }
    for (uint32_t g = 0; g < net->n_geometries; g++)
        for (uint32_t r = 0; r < c->n_ranks; r++)
            c->group_sum[tsr__net_group(net, g, r)] +=
                mixed(4, is_relaxed(c, r, g) ? c->plain : c->rank[r]);
    for (uint32_t r = 0; r < c->n_ranks; r++)
        c->rank[r] = next_rank_colour(c, r, c->rank[r]);
    if (c->slow != TSR_NO_ID)
        c->plain = next_rank_colour(c, c->slow, c->plain);
    for (uint32_t i = 0; i < c->n_links; i++)
        c->link[i] = tsr_hash_u64(c->link[i], c->link_sum[i]);
    for (uint32_t i = 0; i < c->n_groups; i++)
        c->group[i] = tsr_hash_u64(c->group[i], c->group_sum[i]);
}

/* ---- counting and numbering -------------------------------------------------------------- */

static size_t add_distinct(struct colours *c, const uint64_t *colours, size_t n)
{
    size_t added = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t colour = colours[i] ? colours[i] : 1; /* 0 marks a free slot */
        size_t at = (size_t)(colour >> 7) & (c->set_size - 1);
        while (c->set[at] && c->set[at] != colour)
            at = (at + 1) & (c->set_size - 1);
        added += c->set[at] != colour;
        c->set[at] = colour;
    }
    return added;
}

static size_t count_classes(struct colours *c)
{
    memset(c->set, 0, c->set_size * sizeof *c->set);
    return add_distinct(c, c->rank, c->n_ranks) + add_distinct(c, &c->plain, 1) +
           add_distinct(c, c->link, c->n_links) + add_distinct(c, c->group, c->n_groups) +
           add_distinct(c, c->flow, c->net->n_flows);
}

/* Numbers colours by first appearance: the representative of a class is its first member. */
static tsr_status number_classes(struct colours *c, const uint64_t *colours, size_t n,
                                 const bool *skip, uint32_t *classes, uint32_t *n_classes)
{
    uint32_t *ids = malloc(c->set_size * sizeof *ids);
    if (!ids)
        return no_memory();
    memset(c->set, 0, c->set_size * sizeof *c->set);
    *n_classes = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t colour = colours[i] ? colours[i] : 1;
        size_t at = (size_t)(colour >> 7) & (c->set_size - 1);
        classes[i] = TSR_NO_ID;
        if (skip && skip[i])
            continue;
        while (c->set[at] && c->set[at] != colour)
            at = (at + 1) & (c->set_size - 1);
        if (!c->set[at])
            ids[at] = (*n_classes)++;
        c->set[at] = colour;
        classes[i] = ids[at];
    }
    free(ids);
    return TSR_OK;
}

/* ---- partitions -------------------------------------------------------------------------- */

void tsr__partition_fini(struct tsr__partition *p)
{
    free(p->rank);
    free(p->link);
    free(p->group);
    free(p->flow);
    *p = (struct tsr__partition){0};
}

static tsr_status partition_init(const struct tsr__net *net, struct tsr__partition *p, bool **idle)
{
    uint32_t n_links = tsr__fabric_links(net->fabric);
    *p = (struct tsr__partition){
        .slow_class = TSR_NO_ID, .twin_class = TSR_NO_ID, .strict = TSR_NO_ID, .own = TSR_NO_ID};
    p->rank = calloc(net->job->world + 1u, sizeof *p->rank);
    p->link = calloc(n_links + 1u, sizeof *p->link);
    p->group = calloc(tsr__net_groups(net) + 1u, sizeof *p->group);
    p->flow = calloc(net->n_flows + 1u, sizeof *p->flow);
    *idle = malloc(n_links + 1u);
    if (!p->rank || !p->link || !p->group || !p->flow || !*idle) {
        free(*idle);
        tsr__partition_fini(p);
        return no_memory();
    }
    memset(*idle, 1, n_links + 1u);
    for (size_t i = 0; i < net->n_flows; i++)
        for (uint8_t k = 0; k < net->flows[i].n_links; k++)
            (*idle)[net->flows[i].links[k]] = false;
    return TSR_OK;
}

static void refine(struct colours *c)
{
    size_t before, now = 0;
    first_colours(c);
    do {
        before = now;
        one_round(c);
        now = count_classes(c);
    } while (now > before);
}

/* A rank that looks like the slow one but for its speed, or TSR_NO_ID. */
static uint32_t find_twin(const struct colours *c)
{
    for (uint32_t r = 0; r < c->n_ranks && c->slow != TSR_NO_ID; r++)
        if (c->rank[r] == c->plain)
            return r;
    return TSR_NO_ID;
}

/* Colours become classes; idle links get none. */
static tsr_status number_all(struct colours *c, const bool *idle, struct tsr__partition *p)
{
    TSR_TRY(number_classes(c, c->rank, c->n_ranks, NULL, p->rank, &p->n_ranks));
    TSR_TRY(number_classes(c, c->link, c->n_links, idle, p->link, &p->n_links));
    TSR_TRY(number_classes(c, c->group, c->n_groups, NULL, p->group, &p->n_groups));
    return number_classes(c, c->flow, c->net->n_flows, NULL, p->flow, &p->n_flows);
}

tsr_status tsr__fold_refine(const struct tsr__net *net, bool twin, struct tsr__partition *p)
{
    struct colours c = {0};
    bool *idle;
    tsr_status status;
    TSR_TRY(partition_init(net, p, &idle));
    TSR_GOTO(done, colours_init(&c, net));
    if (twin)
        choose_strict(&c);
    refine(&c);
    uint32_t twin_rank = find_twin(&c);
    if (c.slow != TSR_NO_ID && twin_rank == TSR_NO_ID) { /* nobody is like it */
        c.slow = c.own = TSR_NO_ID;
        refine(&c);
    }
    TSR_GOTO(done, number_all(&c, idle, p));
    if (twin_rank != TSR_NO_ID) {
        p->twin_class = p->rank[twin_rank];
        p->slow_class = p->rank[c.slow];
        p->strict = c.strict;
        p->own = c.own;
    }
done:
    colours_fini(&c);
    free(idle);
    if (status != TSR_OK)
        tsr__partition_fini(p);
    return status;
}

tsr_status tsr__fold_none(const struct tsr__net *net, struct tsr__partition *p)
{
    bool *idle;
    TSR_TRY(partition_init(net, p, &idle));
    for (uint32_t i = 0; i < net->job->world; i++)
        p->rank[i] = i;
    for (uint32_t i = 0; i < tsr__fabric_links(net->fabric); i++)
        p->link[i] = idle[i] ? TSR_NO_ID : p->n_links++;
    for (uint32_t i = 0; i < tsr__net_groups(net); i++)
        p->group[i] = i;
    for (size_t i = 0; i < net->n_flows; i++)
        p->flow[i] = (uint32_t)i;
    p->n_ranks = net->job->world;
    p->n_groups = tsr__net_groups(net);
    p->n_flows = (uint32_t)net->n_flows;
    free(idle);
    return TSR_OK;
}
