/* tenants.c: reads the key `jobs` (tenants.h). */
#include "experiments/study/goodput/tenants.h"

#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/simulate/open.h"

static const char allowed_entry[] = "{strategy: NAME, nodes: [N, ...]}";

void tsr_tenants_fini(struct tsr_tenants *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->items[i].nodes);
    *t = (struct tsr_tenants){0};
}

/* ---- nodes ------------------------------------------------------------------------------- */

static bool is_taken(const struct tsr_tenants *t, uint32_t node)
{
    for (size_t i = 0; i < t->n; i++)
        for (uint32_t k = 0; k < t->items[i].n_nodes; k++)
            if (t->items[i].nodes[k] == node)
                return true;
    return false;
}

/* How many nodes a strategy fills; its ranks must fill them. */
static tsr_status count_nodes(const struct tsr_tenant *tenant, uint32_t *n)
{
    const struct tsr_job *job = tenant->job;
    uint32_t per_node = job->cluster.gpus_per_node;
    *n = job->world / per_node;
    if (job->world % per_node == 0)
        return TSR_OK;
    return tsr_node_error(tsr_job_at(job, "world"),
                          "world: found %u GPUs of a job; allowed: whole nodes of %u", job->world,
                          per_node);
}

static tsr_status give_free_nodes(const struct tsr_tenants *t, struct tsr_tenant *tenant,
                                  uint32_t n)
{
    const struct tsr_cluster *c = &tenant->job->cluster;
    for (uint32_t node = 0; node < c->nodes && tenant->n_nodes < n; node++)
        if (!is_taken(t, node))
            tenant->nodes[tenant->n_nodes++] = node;
    if (tenant->n_nodes == n)
        return TSR_OK;
    return tsr_node_error(tenant->at,
                          "jobs: %s needs %u nodes, %u of the %u of cluster %s are free; allowed: "
                          "jobs that fit beside each other",
                          tenant->job->strategy->name, n, tenant->n_nodes, c->nodes, c->name);
}

static tsr_status read_nodes(const struct tsr_tenants *t, const struct tsr_yaml_node *list,
                             struct tsr_tenant *tenant, uint32_t n)
{
    if (list->kind != TSR_NODE_SEQ || list->n != n)
        return tsr_node_error(list,
                              "jobs: nodes: found %s of %zu; allowed: a list of %u, for the "
                              "%u GPUs of %s",
                              tsr_node_show(list), list->n, n, tenant->job->world,
                              tenant->job->strategy->name);
    for (size_t i = 0; i < list->n; i++) {
        uint64_t node;
        if (!tsr_node_u64(list->items[i], &node) || node >= tenant->job->cluster.nodes)
            return tsr_node_error(
                list->items[i], "jobs: nodes: found %s; allowed: 0 to %u, the nodes of cluster %s",
                tsr_node_show(list->items[i]), tenant->job->cluster.nodes - 1,
                tenant->job->cluster.name);
        bool twice = is_taken(t, (uint32_t)node);
        for (uint32_t k = 0; k < tenant->n_nodes; k++)
            twice = twice || tenant->nodes[k] == node;
        if (twice)
            return tsr_node_error(list->items[i],
                                  "jobs: nodes: found %u twice; allowed: each node for one job",
                                  (unsigned)node);
        tenant->nodes[tenant->n_nodes++] = (uint32_t)node;
    }
    return TSR_OK;
}

/* ---- entries ----------------------------------------------------------------------------- */

static tsr_status find_strategy(const struct tsr_study *study, const struct tsr_yaml_node *entry,
                                struct tsr_tenant *tenant)
{
    const struct tsr_yaml_node *name = tsr_node_get(entry, "strategy");
    if (!name || name->kind != TSR_NODE_SCALAR)
        return tsr_node_error(entry, "jobs: found %s without a strategy; allowed: %s",
                              tsr_node_show(entry), allowed_entry);
    for (size_t i = 0; i < study->n && !tenant->job; i++)
        if (!strcmp(study->jobs[i].strategy->name, name->text))
            tenant->job = &study->jobs[i];
    if (!tenant->job)
        return tsr_node_error(name, "jobs: strategy: found %s; allowed: a strategy of this file",
                              name->text);
    if (!strcmp(tenant->job->cluster.path, study->jobs[0].cluster.path) &&
        tenant->job->cluster.nodes == study->jobs[0].cluster.nodes)
        return TSR_OK;
    return tsr_node_error(name, "jobs: strategy: found %s on cluster %s; allowed: all on one, %s",
                          name->text, tenant->job->cluster.name, study->jobs[0].cluster.name);
}

static tsr_status read_entry(const struct tsr_study *study, struct tsr_tenants *t,
                             const struct tsr_yaml_node *entry)
{
    static const char *const keys[] = {"strategy", "nodes", NULL};
    struct tsr_tenant *tenant = &t->items[t->n];
    uint32_t n;
    tenant->at = entry;
    if (entry->kind != TSR_NODE_MAP)
        return tsr_node_error(entry, "jobs: found %s; allowed: %s", tsr_node_show(entry),
                              allowed_entry);
    for (size_t i = 0; i < entry->n; i++)
        if (strcmp(entry->items[i]->key, keys[0]) != 0 &&
            strcmp(entry->items[i]->key, keys[1]) != 0)
            return tsr_unknown_key(entry->items[i], "jobs", keys);
    TSR_TRY(find_strategy(study, entry, tenant));
    tenant->name = tenant->job->strategy->name;
    tenant->world = tenant->job->world;
    TSR_TRY(count_nodes(tenant, &n));
    const struct tsr_yaml_node *list = tsr_node_get(entry, "nodes");
    tenant->nodes = calloc(n + 1u, sizeof *tenant->nodes);
    if (!tenant->nodes)
        return tsr_no_memory(NULL);
    tsr_status status = list ? read_nodes(t, list, tenant, n) : give_free_nodes(t, tenant, n);
    t->n++;
    return status;
}

tsr_status tsr_tenants_read(const struct tsr_study *study, struct tsr_tenants *out)
{
    const struct tsr_yaml_node *root = study->experiment.doc.root;
    const struct tsr_yaml_node *list = tsr_node_get(root, "jobs");
    *out = (struct tsr_tenants){0};
    if (!list)
        return tsr_fail(TSR_ECONFIG, "%s: has no key \"jobs\"; allowed: a list of %s",
                        study->experiment.path, allowed_entry);
    if (list->kind != TSR_NODE_SEQ || list->n == 0 || list->n > TSR_MAX_TENANTS)
        return tsr_node_error(list, "jobs: found %s; allowed: a list of 1 to %d %s",
                              tsr_node_show(list), TSR_MAX_TENANTS, allowed_entry);
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < list->n && status == TSR_OK; i++)
        status = read_entry(study, out, list->items[i]);
    if (status != TSR_OK)
        tsr_tenants_fini(out);
    return status;
}
