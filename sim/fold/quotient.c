/* quotient.c: representatives of an equitable partition, and the capacities that make them behave
 * as the whole.
 *
 * A flow class F crosses d(L,F) times a link of class L. Its representative route gets
 * k(F) = min over L of d(L,F) equal flows. Where a link is shared wider than that (a pod's uplink
 * carries the flows of many NICs) d(L,F)/k(F) must be the same number for every F on it; the
 * representative link then has the capacity divided by it, which leaves max-min rates as they were.
 */
#include "sim/fold/fold.h"

#include <stdlib.h>
#include <string.h>

#include "sim/tape/issue.h"

static tsr_status no_memory(void)
{
    return tsr_no_memory("folding");
}

struct builder {
    const struct tsr__net *net;
    const struct tsr__partition *p;
    struct tsr__quotient *q;
    uint32_t *link_rep, *group_rep; /* first member of each class */
    size_t *flow_rep;
    uint32_t (*degree)[TSR__MAX_PATH]; /* [flow class]: d(L,F) along the route */
    size_t *group_start;               /* [group + 1]: flows of each whole group */
    double *load;                      /* scratch per link */
};

static void builder_fini(struct builder *b)
{
    free(b->link_rep);
    free(b->group_rep);
    free(b->flow_rep);
    free(b->degree);
    free(b->group_start);
    free(b->load);
}

static tsr_status reserve(struct builder *b)
{
    const struct tsr__partition *p = b->p;
    struct tsr__quotient *q = b->q;
    size_t cells = (size_t)p->n_ranks * b->net->n_geometries + 1;
    *q = (struct tsr__quotient){.n_ranks = p->n_ranks,
                                .n_links = p->n_links,
                                .n_groups = p->n_groups,
                                .n_flows = p->n_flows,
                                .n_geometries = b->net->n_geometries,
                                .host_geometry = b->net->host_geometry,
                                .world = b->net->job->world,
                                .slow = p->slow_class,
                                .twin = p->twin_class};
    b->link_rep = malloc((p->n_links + 1u) * sizeof *b->link_rep);
    b->group_rep = malloc((p->n_groups + 1u) * sizeof *b->group_rep);
    b->flow_rep = malloc((p->n_flows + 1u) * sizeof *b->flow_rep);
    b->degree = calloc(p->n_flows + 1u, sizeof *b->degree);
    b->group_start = calloc(tsr__net_groups(b->net) + 2u, sizeof *b->group_start);
    b->load = calloc(tsr__fabric_links(b->net->fabric) + 1u, sizeof *b->load);
    q->ranks = calloc(p->n_ranks + 1u, sizeof *q->ranks);
    q->capacity = calloc(p->n_links + 1u, sizeof *q->capacity);
    q->fatpipe = calloc(p->n_links + 1u, sizeof *q->fatpipe);
    q->groups = calloc(p->n_groups + 1u, sizeof *q->groups);
    q->flows = calloc(p->n_flows + 1u, sizeof *q->flows);
    q->routes = calloc(p->n_flows + 1u, sizeof *q->routes);
    q->members = calloc(cells, sizeof *q->members);
    q->class_of = calloc(q->world + 1u, sizeof *q->class_of);
    q->group_of = calloc(cells, sizeof *q->group_of);
    q->index_of = calloc(cells, sizeof *q->index_of);
    q->sent = calloc(cells * TSR__N_PATTERNS * 2, sizeof *q->sent);
    if (b->link_rep && b->group_rep && b->flow_rep && b->degree && b->group_start && b->load &&
        q->ranks && q->capacity && q->fatpipe && q->groups && q->flows && q->routes && q->members &&
        q->class_of && q->group_of && q->index_of && q->sent)
        return TSR_OK;
    return no_memory();
}

/* First member of each class, whole-job flows by group. */
static void find_representatives(struct builder *b)
{
    const struct tsr__net *net = b->net;
    for (uint32_t i = tsr__fabric_links(net->fabric); i-- > 0;)
        if (b->p->link[i] != TSR_NO_ID)
            b->link_rep[b->p->link[i]] = i;
    for (uint32_t i = tsr__net_groups(net); i-- > 0;)
        b->group_rep[b->p->group[i]] = i;
    for (size_t i = net->n_flows; i-- > 0;)
        b->flow_rep[b->p->flow[i]] = i;
    for (size_t i = 0; i < net->n_flows; i++)
        b->group_start[net->flows[i].group + 1]++;
    for (uint32_t i = 0; i < tsr__net_groups(net); i++)
        b->group_start[i + 1] += b->group_start[i];
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static void fill_ranks(struct builder *b)
{
    const struct tsr__net *net = b->net;
    struct tsr__quotient *q = b->q;
    for (uint32_t r = 0; r < net->job->world; r++) {
        uint32_t class = b->p->rank[r];
        struct tsr__qrank *rank = &q->ranks[class];
        q->class_of[r] = class;
        if (rank->weight++)
            continue;
        rank->rank = r;
        rank->layout = net->job->class_of[r];
        rank->slow = tsr__net_slowness(net, r);
        for (uint32_t g = 0; g < net->n_geometries; g++) {
            struct tsr__geometry geometry = tsr__net_geometry(net, g);
            size_t at = (size_t) class * net->n_geometries + g;
            q->group_of[at] = b->p->group[tsr__net_group(net, g, r)];
            q->index_of[at] = r / geometry.stride % geometry.size;
        }
    }
}

static void fill_sent(struct builder *b)
{
    const struct tsr__net *net = b->net;
    for (uint32_t g = 0; g < net->n_geometries; g++) {
        if (g == net->host_geometry || g == net->traffic_geometry)
            continue;
        for (uint32_t class = 0; class < b->q->n_ranks; class ++) {
            uint32_t rank = b->q->ranks[class].rank;
            uint32_t group = tsr__net_group(net, g, rank);
            size_t at = ((size_t) class * net->n_geometries + g) * TSR__N_PATTERNS;
            for (size_t i = b->group_start[group]; i < b->group_start[group + 1]; i++) {
                const struct tsr__net_flow *f = &net->flows[i];
                if (f->src == rank)
                    b->q->sent[(at + f->pattern) * 2 + f->medium] += f->share;
            }
        }
    }
}

/* ---- flows and links ------------------------------------------------------------------------- */

static tsr_status cannot_fold(void)
{
    return tsr_fail(TSR_EUNSUPPORTED,
                    "this job cannot be folded: a shared link carries its classes of flows in "
                    "different proportions");
}

static void count_degrees(struct builder *b)
{
    const struct tsr__net *net = b->net;
    for (size_t i = 0; i < net->n_flows; i++) {
        uint32_t class = b->p->flow[i];
        const struct tsr__net_flow *f = &net->flows[i];
        const struct tsr__net_flow *r = &net->flows[b->flow_rep[class]];
        for (uint8_t k = 0; k < f->n_links; k++)
            b->degree[class][k] += f->links[k] == r->links[k];
    }
}

/* Copies of each flow class, and how much wider than they each link is shared: d(L,F)/k(F). */
static tsr_status fill_copies(struct builder *b, double *wider)
{
    const struct tsr__net *net = b->net;
    for (uint32_t class = 0; class < b->q->n_flows; class ++) {
        const struct tsr__net_flow *r = &net->flows[b->flow_rep[class]];
        uint32_t copies = b->degree[class][0];
        for (uint8_t k = 1; k < r->n_links; k++)
            copies = b->degree[class][k] < copies ? b->degree[class][k] : copies;
        b->q->flows[class].copies = copies;
        for (uint8_t k = 0; k < r->n_links; k++) {
            double *ratio = &wider[b->p->link[r->links[k]]];
            bool shared = tsr__link_is_shared(net->fabric, r->links[k]);
            double mine = shared ? (double)b->degree[class][k] / copies : 1.0;
            if (*ratio > 0.0 && *ratio != mine)
                return cannot_fold();
            *ratio = mine;
        }
    }
    return TSR_OK;
}

static tsr_status fill_links(struct builder *b)
{
    const struct tsr__fabric *fabric = b->net->fabric;
    double *wider = calloc(b->q->n_links + 1u, sizeof *wider);
    tsr_status status;
    TSR_GOTO(done, wider ? TSR_OK : no_memory());
    TSR_GOTO(done, fill_copies(b, wider));
    for (uint32_t class = 0; class < b->q->n_links; class ++) {
        b->q->capacity[class] = tsr__link_capacity(fabric, b->link_rep[class]) / wider[class];
        b->q->fatpipe[class] = !tsr__link_is_shared(fabric, b->link_rep[class]);
    }
done:
    free(wider);
    return status;
}

static uint64_t route_hash(const struct tsr__qroute *route)
{
    uint64_t hash = tsr_hash_u64(TSR_HASH_INIT, route->n_links);
    for (uint32_t k = 0; k < route->n_links; k++)
        hash = tsr_hash_u64(hash, route->links[k]);
    return hash;
}

/* Flows over the same links share a route. */
static tsr_status fill_routes(struct builder *b, const uint32_t *place)
{
    struct tsr__quotient *q = b->q;
    size_t n_slots = 64;
    while (n_slots < 2 * (size_t)q->n_flows)
        n_slots *= 2;
    uint32_t *slots = tsr__no_ids(n_slots);
    if (!slots)
        return no_memory();
    for (uint32_t class = 0; class < q->n_flows; class ++) {
        const struct tsr__net_flow *r = &b->net->flows[b->flow_rep[class]];
        struct tsr__qroute route = {.n_links = r->n_links};
        for (uint8_t k = 0; k < r->n_links; k++)
            route.links[k] = b->p->link[r->links[k]];
        size_t at = (size_t)(route_hash(&route) >> 7) & (n_slots - 1);
        while (slots[at] != TSR_NO_ID && memcmp(&q->routes[slots[at]], &route, sizeof route) != 0)
            at = (at + 1) & (n_slots - 1);
        if (slots[at] == TSR_NO_ID) {
            q->routes[q->n_routes] = route;
            slots[at] = q->n_routes++;
        }
        q->flows[place[class]].route = slots[at];
    }
    free(slots);
    return TSR_OK;
}

/* Seconds per byte of one flow alone. */
static double flow_s_per_byte(const struct builder *b, const struct tsr__net_flow *f)
{
    double worst = 0.0;
    for (uint8_t k = 0; k < f->n_links && !b->net->fabric->ideal; k++) {
        double s = f->share / tsr__link_capacity(b->net->fabric, f->links[k]);
        worst = s > worst ? s : worst;
    }
    return worst;
}

/* Flow classes in the order of their groups; place[class]: where one has come to. */
static void order_flows(struct builder *b, struct tsr__qflow *ordered, uint32_t *place)
{
    struct tsr__quotient *q = b->q;
    uint32_t at = 0;
    for (uint32_t class = 0; class < q->n_flows; class ++)
        q->groups[b->p->group[b->net->flows[b->flow_rep[class]].group]].n_flows++;
    for (uint32_t g = 0; g < q->n_groups; g++) {
        q->groups[g].first_flow = at;
        at += q->groups[g].n_flows;
        q->groups[g].n_flows = 0;
    }
    for (uint32_t class = 0; class < q->n_flows; class ++) {
        const struct tsr__net_flow *r = &b->net->flows[b->flow_rep[class]];
        struct tsr__qgroup *group = &q->groups[b->p->group[r->group]];
        place[class] = group->first_flow + group->n_flows++;
        ordered[place[class]] = (struct tsr__qflow){.copies = q->flows[class].copies,
                                                    .share = r->share,
                                                    .s_per_byte = flow_s_per_byte(b, r),
                                                    .pattern = r->pattern,
                                                    .medium = r->medium,
                                                    .to_device = r->to_device,
                                                    .from_i = r->from_i,
                                                    .to_i = r->to_i};
    }
}

static tsr_status fill_flows(struct builder *b)
{
    struct tsr__quotient *q = b->q;
    uint32_t *place = malloc((q->n_flows + 1u) * sizeof *place);
    struct tsr__qflow *ordered = calloc(q->n_flows + 1u, sizeof *ordered);
    tsr_status status;
    TSR_GOTO(done, place && ordered ? TSR_OK : no_memory());
    order_flows(b, ordered, place);
    memcpy(q->flows, ordered, q->n_flows * sizeof *ordered);
    TSR_GOTO(done, fill_routes(b, place));
done:
    free(place);
    free(ordered);
    return status;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void clear_load(struct builder *b, uint32_t group)
{
    for (size_t i = b->group_start[group]; i < b->group_start[group + 1]; i++)
        for (uint8_t k = 0; k < b->net->flows[i].n_links; k++)
            b->load[b->net->flows[i].links[k]] = 0.0;
}

/* Largest share over capacity of a link, of one whole group alone: folded or not, the choice of
 * algorithm and protocol sees the same number. */
static void group_rates(struct builder *b, uint32_t group, struct tsr__coll_group *coll)
{
    const struct tsr__net *net = b->net;
    if (net->fabric->ideal)
        return;
    clear_load(b, group);
    for (int one = 0; one < 4; one++) {
        int pattern = one / 2, medium = one % 2;
        double *worst = &coll->s_per_byte[pattern][medium];
        for (size_t i = b->group_start[group]; i < b->group_start[group + 1]; i++) {
            const struct tsr__net_flow *f = &net->flows[i];
            if (f->pattern != pattern || f->medium != medium)
                continue;
            for (uint8_t k = 0; k < f->n_links; k++) {
                double *load = &b->load[f->links[k]];
                *load = tsr__link_is_shared(net->fabric, f->links[k]) ? *load : 0.0;
                *load += f->share / tsr__link_capacity(net->fabric, f->links[k]);
                if (*load > *worst)
                    *worst = *load;
            }
        }
        clear_load(b, group);
    }
}

static tsr_status fill_groups(struct builder *b)
{
    const struct tsr__net *net = b->net;
    struct tsr__quotient *q = b->q;
    uint32_t n_members = 0, domain_gpus = net->fabric->domain_gpus;
    uint32_t *seen = calloc(q->n_ranks + 1u, sizeof *seen); /* 1 + last group that listed it */
    if (!seen)
        return no_memory();
    for (uint32_t class = 0; class < q->n_groups; class ++) {
        uint32_t group = b->group_rep[class], g = 0;
        while (group >= net->first_group[g + 1])
            g++;
        struct tsr__geometry geometry = tsr__net_geometry(net, g);
        uint32_t base = tsr__net_base(net, g, group - net->first_group[g]);
        struct tsr__qgroup *out = &q->groups[class];
        out->coll = (struct tsr__coll_group){.size = geometry.size};
        out->first_member = n_members;
        for (uint32_t k = 0; k < geometry.size; k++) {
            uint32_t rank = base + k * geometry.stride, member = b->p->rank[rank];
            out->coll.domains +=
                k == 0 || rank / domain_gpus != (rank - geometry.stride) / domain_gpus;
            if (seen[member] != class + 1)
                q->members[n_members++] = member;
            seen[member] = class + 1;
        }
        /* Either of the pair in this group stands for the other in its own. */
        uint32_t slow = b->p->slow_class, twin = b->p->twin_class;
        if (tsr__partition_relaxed(b->p, g) &&
            (seen[slow] == class + 1 || seen[twin] == class + 1)) {
            out->relaxed = true;
            if (seen[slow] != class + 1)
                q->members[n_members++] = slow;
            if (seen[twin] != class + 1)
                q->members[n_members++] = twin;
        }
        out->n_members = n_members - out->first_member;
        group_rates(b, group, &out->coll);
    }
    free(seen);
    return TSR_OK;
}

static tsr_status fill_all(struct builder *b)
{
    const struct tsr_cluster *cluster = b->net->fabric->cluster;
    tsr__coll_model_init(&b->q->model, cluster, b->net->options);
    b->q->slowdown = cluster->gpu.calibration.value[TSR_CAL_COMM_COMPUTE_SLOWDOWN];
    find_representatives(b);
    fill_ranks(b);
    fill_sent(b);
    count_degrees(b);
    TSR_TRY(fill_links(b));
    TSR_TRY(fill_flows(b));
    return fill_groups(b);
}

tsr_status tsr__quotient_build(const struct tsr__net *net, const struct tsr__partition *p,
                               struct tsr__quotient *q)
{
    struct builder b = {.net = net, .p = p, .q = q};
    tsr_status status;
    TSR_GOTO(done, reserve(&b));
    TSR_GOTO(done, fill_all(&b));
done:
    builder_fini(&b);
    if (status != TSR_OK)
        tsr__quotient_fini(q);
    return status;
}

void tsr__quotient_fini(struct tsr__quotient *q)
{
    free(q->ranks);
    free(q->capacity);
    free(q->fatpipe);
    free(q->groups);
    free(q->members);
    free(q->flows);
    free(q->routes);
    free(q->class_of);
    free(q->group_of);
    free(q->index_of);
    free(q->sent);
    *q = (struct tsr__quotient){0};
}
