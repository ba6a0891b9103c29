/* fold_check.c: is a partition equitable? Counts neighbours class by class; uses none of the
 * colours that made the partition. */
#include <stdlib.h>
#include <string.h>

#include "sim/fold/fold.h"
#include "sim/tape/issue.h"

static tsr_status no_memory(void)
{
    return tsr_no_memory("folding");
}

static tsr_status refuse(const char *what, uint32_t one, uint32_t other)
{
    return tsr_fail(TSR_EBACKEND, "folding: %s %u and %u are of one class and differ", what, one,
                    other);
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* Lists of classes per item: items i owns values[start[i] .. start[i+1]), sorted. */
struct lists {
    uint32_t n, *start, *values;
};

static void lists_fini(struct lists *l)
{
    free(l->start);
    free(l->values);
}

static bool lists_init(struct lists *l, uint32_t n, size_t n_values)
{
    *l = (struct lists){.n = n};
    l->start = calloc((size_t)n + 2, sizeof *l->start);
    l->values = malloc((n_values + 1) * sizeof *l->values);
    if (l->start && l->values)
        return true;
    lists_fini(l);
    return false;
}

/* After counting into start[i + 2], makes start[i + 1] the place of the next value of item i. */
static void lists_place(struct lists *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        l->start[i + 2] += l->start[i + 1];
}

static void lists_sort(struct lists *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        qsort(l->values + l->start[i], l->start[i + 1] - l->start[i], sizeof *l->values,
              compare_u32);
}

static bool lists_equal(const struct lists *l, uint32_t a, uint32_t b)
{
    uint32_t n = l->start[a + 1] - l->start[a];
    return n == l->start[b + 1] - l->start[b] &&
           !memcmp(l->values + l->start[a], l->values + l->start[b], n * sizeof *l->values);
}

/* Every item has the list of the first item of its class. */
static tsr_status check_lists(const struct lists *l, const uint32_t *classes, uint32_t n_classes,
                              const char *what)
{
    uint32_t *rep = tsr__no_ids(n_classes);
    tsr_status status = TSR_OK;
    if (!rep)
        return no_memory();
    for (uint32_t i = 0; i < l->n && status == TSR_OK; i++) {
        if (classes[i] == TSR_NO_ID)
            continue;
        if (rep[classes[i]] == TSR_NO_ID)
            rep[classes[i]] = i;
        else if (!lists_equal(l, rep[classes[i]], i))
            status = refuse(what, rep[classes[i]], i);
    }
    free(rep);
    return status;
}

/* Flows of one class: same pattern, share, class of group, classes of links. */
static tsr_status check_flows(const struct tsr__net *net, const struct tsr__partition *p)
{
    size_t *rep = calloc((size_t)p->n_flows + 1, sizeof *rep); /* 1 + index */
    tsr_status status = TSR_OK;
    if (!rep)
        return no_memory();
    for (size_t i = 0; i < net->n_flows && status == TSR_OK; i++) {
        const struct tsr__net_flow *f = &net->flows[i];
        if (!rep[p->flow[i]])
            rep[p->flow[i]] = i + 1;
        const struct tsr__net_flow *r = &net->flows[rep[p->flow[i]] - 1];
        bool same = f->pattern == r->pattern && f->medium == r->medium && f->share == r->share &&
                    f->to_device == r->to_device && f->from_i == r->from_i && f->to_i == r->to_i &&
                    f->n_links == r->n_links && p->group[f->group] == p->group[r->group];
        for (uint8_t k = 0; same && k < f->n_links; k++)
            same = p->link[f->links[k]] == p->link[r->links[k]];
        if (!same)
            status = refuse("flows", (uint32_t)rep[p->flow[i]] - 1, (uint32_t)i);
    }
    free(rep);
    return status;
}

/* Links of one class are in the same place of a path and of one capacity. */
static tsr_status check_roles(const struct tsr__net *net, const struct tsr__partition *p)
{
    uint32_t *rep = tsr__no_ids(p->n_links);
    tsr_status status = TSR_OK;
    if (!rep)
        return no_memory();
    for (uint32_t l = 0; l < tsr__fabric_links(net->fabric) && status == TSR_OK; l++) {
        if (p->link[l] == TSR_NO_ID)
            continue;
        uint32_t *first = &rep[p->link[l]];
        if (*first == TSR_NO_ID)
            *first = l;
        if (tsr__link_role(net->fabric, *first) != tsr__link_role(net->fabric, l) ||
            tsr__link_is_shared(net->fabric, *first) != tsr__link_is_shared(net->fabric, l) ||
            tsr__link_capacity(net->fabric, *first) != tsr__link_capacity(net->fabric, l))
            status = refuse("links", *first, l);
    }
    free(rep);
    return status;
}

static tsr_status check_links(const struct tsr__net *net, const struct tsr__partition *p)
{
    struct lists l;
    TSR_TRY(check_roles(net, p));
    if (!lists_init(&l, tsr__fabric_links(net->fabric), net->n_flows * TSR__MAX_PATH))
        return no_memory();
    for (size_t i = 0; i < net->n_flows; i++)
        for (uint8_t k = 0; k < net->flows[i].n_links; k++)
            l.start[net->flows[i].links[k] + 2]++;
    lists_place(&l);
    for (size_t i = 0; i < net->n_flows; i++)
        for (uint8_t k = 0; k < net->flows[i].n_links; k++)
            l.values[l.start[net->flows[i].links[k] + 1]++] = p->flow[i];
    lists_sort(&l);
    tsr_status status = check_lists(&l, p->link, p->n_links, "links");
    lists_fini(&l);
    return status;
}

/* Class of a member as its group sees it: see [Note: the twin of a slow GPU]. */
static uint32_t seen_as(const struct tsr__partition *p, uint32_t geometry, uint32_t rank)
{
    bool relaxed = tsr__partition_relaxed(p, geometry) && p->rank[rank] == p->slow_class;
    return relaxed ? p->twin_class : p->rank[rank];
}

/* Groups: the classes of their flows, and (shifted) of their members. */
static tsr_status check_groups(const struct tsr__net *net, const struct tsr__partition *p)
{
    struct lists l;
    size_t n_members = (size_t)net->n_geometries * net->job->world;
    if (!lists_init(&l, tsr__net_groups(net), net->n_flows + n_members))
        return no_memory();
    for (size_t i = 0; i < net->n_flows; i++)
        l.start[net->flows[i].group + 2]++;
    for (uint32_t g = 0; g < net->n_geometries; g++)
        for (uint32_t r = 0; r < net->job->world; r++)
            l.start[tsr__net_group(net, g, r) + 2]++;
    lists_place(&l);
    for (size_t i = 0; i < net->n_flows; i++)
        l.values[l.start[net->flows[i].group + 1]++] = p->flow[i];
    for (uint32_t g = 0; g < net->n_geometries; g++)
        for (uint32_t r = 0; r < net->job->world; r++)
            l.values[l.start[tsr__net_group(net, g, r) + 1]++] = p->n_flows + seen_as(p, g, r);
    lists_sort(&l);
    tsr_status status = check_lists(&l, p->group, p->n_groups, "groups");
    lists_fini(&l);
    return status;
}

static tsr_status check_ranks(const struct tsr__net *net, const struct tsr__partition *p)
{
    uint32_t *rep = tsr__no_ids(p->n_ranks);
    tsr_status status = TSR_OK;
    if (!rep)
        return no_memory();
    for (uint32_t r = 0; r < net->job->world && status == TSR_OK; r++) {
        uint32_t *first = &rep[p->rank[r]];
        if (*first == TSR_NO_ID)
            *first = r;
        bool same = net->job->class_of[r] == net->job->class_of[*first] &&
                    tsr__net_slowness(net, r) == tsr__net_slowness(net, *first);
        for (uint32_t g = 0; same && g < net->n_geometries; g++)
            same = p->group[tsr__net_group(net, g, r)] == p->group[tsr__net_group(net, g, *first)];
        if (!same)
            status = refuse("ranks", *first, r);
    }
    free(rep);
    return status;
}

tsr_status tsr__fold_check(const struct tsr__net *net, const struct tsr__partition *p)
{
    TSR_TRY(check_ranks(net, p));
    TSR_TRY(check_flows(net, p));
    TSR_TRY(check_links(net, p));
    return check_groups(net, p);
}
