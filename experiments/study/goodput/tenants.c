/* tenants.c: jobs that share a cluster: reads the key `jobs`, and simulates them together
 * (tenants.h). */
#include "experiments/study/goodput/tenants.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/job/emit.h"
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
    return tsr_node_error(tsr_job_at(job, TSR_K_WORLD),
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
        !strcmp(tenant->job->cluster.name, study->jobs[0].cluster.name) &&
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

/* ---- the simulation -------------------------------------------------------------------------- */

/* They become one job of the simulator: its ranks are those of the first, then those of the second,
 * and so on, its classes are those of all. Communicators are counted from rank 0 in blocks of their
 * size, so a job begins at a multiple of its world, and the whole is a multiple of every world;
 * ranks between jobs have nothing to do. Which GPU a rank is, is tsr_sim_options.node_of. */

enum { MAX_TOGETHER = 65536 };
/* Steps of the slowest job; the others make as many more as they are faster, up to the limit of
 * what is emitted. The first ones are a start-up. */
enum { SLOWEST_STEPS = 6, MOST_STEPS = 60, STARTUP_STEPS = 2 };

struct emitted {
    struct tsr_settings settings;
    struct tsr_job job;
    struct tsr_emission emission;
    struct tsr_program nothing; /* fills up the iterations of a job that makes fewer */
    uint32_t first_rank, first_class;
    double alone_ends[TSR_MAX_ITERATIONS]; /* of its iterations, by itself */
    double shared_ends[TSR_MAX_ITERATIONS];
    bool there;
};

struct together {
    const struct tsr_study *study;
    struct tsr_tenants *tenants;
    struct emitted items[TSR_MAX_TENANTS];
    uint32_t world, n_classes, n_iterations;
    uint32_t *class_of, *node_of;
    const struct tsr_program ***programs; /* [class][iteration] */
    struct tsr_program idle;
};

/* ---- emission ---------------------------------------------------------------------------- */

static void forget(struct emitted *e)
{
    if (e->there) {
        tsr_emission_fini(&e->emission);
        tsr_program_fini(&e->nothing);
    }
    e->there = false;
}

static tsr_status emit(const struct tsr_tenant *tenant, struct emitted *e)
{
    forget(e);
    e->settings = *tenant->job->settings;
    e->settings.phases = 0;
    if (tenant->iterations > e->settings.iterations)
        e->settings.iterations = tenant->iterations;
    e->job = *tenant->job;
    e->job.settings = &e->settings;
    TSR_TRY(tsr_emit(&e->job, &e->emission));
    e->there = true;
    tsr_program_init(&e->nothing, e->emission.classes[0].programs[0]->tables);
    return TSR_OK;
}

/* ---- time -------------------------------------------------------------------------------- */

/* When the ranks of a job have ended iteration `i`. */
static double end_of(const struct tsr_sim_result *result, const struct emitted *e, uint32_t first,
                     uint32_t i)
{
    double end = 0;
    for (uint32_t r = 0; r < result->n_ranks; r++) {
        const struct tsr_sim_rank *rank = &result->ranks[r];
        if (rank->rank < first || rank->rank >= first + e->emission.world)
            continue;
        uint32_t class = e->emission.class_of[rank->rank - first];
        const struct tsr_program *program = e->emission.classes[class].programs[i];
        for (size_t k = 0; k < program->n_instrs; k++)
            end = rank->spans[i][k].end > end ? rank->spans[i][k].end : end;
    }
    return end;
}

/* The steps that count: after the start-up, those that end until `until`. */
static uint32_t last_counted(const struct emitted *e, const double *ends, double until)
{
    uint32_t last = e->emission.first + STARTUP_STEPS;
    while (last + 1 < e->emission.n_iterations && ends[last + 1] <= until)
        last++;
    return last;
}

/* Mean of the counted steps up to iteration `last`. */
static double mean_step(const struct emitted *e, const double *ends, uint32_t last)
{
    uint32_t from = e->emission.first + STARTUP_STEPS - 1;
    return (ends[last] - ends[from]) / (last - from);
}

static void find_ends(const struct tsr_sim_result *result, const struct emitted *e, uint32_t first,
                      double *ends)
{
    for (uint32_t i = 0; i < e->emission.n_iterations; i++)
        ends[i] = end_of(result, e, first, i);
}

static tsr_status alone(const struct together *t, struct tsr_tenant *tenant, struct emitted *e)
{
    struct tsr_sim_options options = t->study->experiment.top.sim;
    struct tsr_sim_job run;
    struct tsr_sim_result *result = NULL;
    options.node_of = tenant->nodes;
    TSR_TRY(tsr_sim_job_of(&e->emission, &run));
    tsr_status status = tsr_sim_run(&tenant->job->cluster, &run, &options, &result);
    if (status == TSR_ECONFIG)
        status = tsr_at_sim_key(tenant->job, status);
    if (status == TSR_OK) {
        find_ends(result, e, 0, e->alone_ends);
        tenant->alone_s =
            mean_step(e, e->alone_ends, last_counted(e, e->alone_ends, (double)INFINITY));
    }
    tsr_sim_result_destroy(result);
    tsr_sim_job_fini(&run);
    return status;
}

static tsr_status all_alone(struct together *t)
{
    for (size_t i = 0; i < t->tenants->n; i++) {
        TSR_TRY(emit(&t->tenants->items[i], &t->items[i]));
        TSR_TRY(alone(t, &t->tenants->items[i], &t->items[i]));
    }
    return TSR_OK;
}

/* ---- one job of all ---------------------------------------------------------------------- */

static uint64_t common_multiple(uint64_t a, uint64_t b)
{
    uint64_t x = a, y = b;
    while (y) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* The largest first: what follows then begins at a multiple of its own world more often. */
static tsr_status place_ranks(struct together *t)
{
    uint64_t at = 0, multiple = 1;
    bool placed[TSR_MAX_TENANTS] = {false};
    for (size_t k = 0; k < t->tenants->n; k++) {
        size_t next = TSR_MAX_TENANTS;
        for (size_t i = 0; i < t->tenants->n; i++)
            if (!placed[i] && (next == TSR_MAX_TENANTS ||
                               t->items[i].emission.world > t->items[next].emission.world))
                next = i;
        uint64_t world = t->items[next].emission.world;
        placed[next] = true;
        multiple = common_multiple(multiple, world);
        at = (at + world - 1) / world * world;
        t->items[next].first_rank = (uint32_t)at;
        at += world;
        if (multiple > MAX_TOGETHER || at > MAX_TOGETHER)
            return tsr_node_error(t->tenants->items[next].at,
                                  "jobs: worlds whose least common multiple is above %d; allowed: "
                                  "sizes that divide each other better",
                                  (int)MAX_TOGETHER);
    }
    t->world = (uint32_t)((at + multiple - 1) / multiple * multiple);
    return TSR_OK;
}

static void fill_ranks(struct together *t, uint32_t per_node)
{
    for (uint32_t r = 0; r < t->world; r++)
        t->class_of[r] = t->n_classes - 1; /* idle */
    for (size_t i = 0; i < t->tenants->n; i++) {
        const struct emitted *e = &t->items[i];
        const struct tsr_tenant *tenant = &t->tenants->items[i];
        for (uint32_t r = 0; r < e->emission.world; r++)
            t->class_of[e->first_rank + r] = e->first_class + e->emission.class_of[r];
        for (uint32_t n = 0; n < tenant->n_nodes; n++)
            t->node_of[e->first_rank / per_node + n] = tenant->nodes[n];
    }
}

static void fill_programs(struct together *t)
{
    for (size_t i = 0; i < t->tenants->n; i++) {
        const struct emitted *e = &t->items[i];
        for (uint32_t c = 0; c < e->emission.n_classes; c++)
            for (uint32_t k = 0; k < t->n_iterations; k++)
                t->programs[e->first_class + c][k] =
                    k < e->emission.n_iterations ? e->emission.classes[c].programs[k] : &e->nothing;
    }
    for (uint32_t k = 0; k < t->n_iterations; k++)
        t->programs[t->n_classes - 1][k] = &t->idle;
}

static tsr_status assemble(struct together *t)
{
    uint32_t per_node = t->tenants->items[0].job->cluster.gpus_per_node;
    TSR_TRY(place_ranks(t));
    t->n_classes = 0;
    t->n_iterations = 0;
    for (size_t i = 0; i < t->tenants->n; i++) {
        t->items[i].first_class = t->n_classes;
        t->n_classes += t->items[i].emission.n_classes;
        if (t->items[i].emission.n_iterations > t->n_iterations)
            t->n_iterations = t->items[i].emission.n_iterations;
    }
    t->n_classes++;
    t->class_of = calloc(t->world + 1u, sizeof *t->class_of);
    t->node_of = calloc(t->world / per_node + 2u, sizeof *t->node_of);
    t->programs = calloc(t->n_classes, sizeof *t->programs);
    for (uint32_t c = 0; t->programs && c < t->n_classes; c++) {
        t->programs[c] = calloc(t->n_iterations + 1u, sizeof **t->programs);
        if (!t->programs[c])
            return tsr_no_memory("jobs");
    }
    if (!t->class_of || !t->node_of || !t->programs)
        return tsr_no_memory("jobs");
    tsr_program_init(&t->idle, t->items[0].emission.classes[0].programs[0]->tables);
    fill_ranks(t, per_node);
    fill_programs(t);
    return TSR_OK;
}

static tsr_status run_together(struct together *t)
{
    struct tsr_sim_options options = t->study->experiment.top.sim;
    struct tsr_sim_result *result = NULL;
    const struct tsr_sim_job run = {.world = t->world,
                                    .n_classes = t->n_classes,
                                    .n_iterations = t->n_iterations,
                                    .class_of = t->class_of,
                                    .programs =
                                        (const struct tsr_program *const *const *)t->programs};
    double until = (double)INFINITY;
    options.node_of = t->node_of;
    TSR_TRY(tsr_sim_run(&t->study->jobs[0].cluster, &run, &options, &result));
    for (size_t i = 0; i < t->tenants->n; i++) {
        struct emitted *e = &t->items[i];
        find_ends(result, e, e->first_rank, e->shared_ends);
        until = fmin(until, e->shared_ends[e->emission.n_iterations - 1]);
    }
    for (size_t i = 0; i < t->tenants->n; i++) { /* the same steps, alone and shared */
        const struct emitted *e = &t->items[i];
        uint32_t last = last_counted(e, e->shared_ends, until);
        struct tsr_tenant *tenant = &t->tenants->items[i];
        tenant->alone_s = mean_step(e, e->alone_ends, last);
        tenant->shared_s = mean_step(e, e->shared_ends, last);
        tenant->slowdown = tenant->alone_s > 0 ? tenant->shared_s / tenant->alone_s : 0;
    }
    tsr_sim_result_destroy(result);
    return TSR_OK;
}

/* ---- all --------------------------------------------------------------------------------- */

static void choose_iterations(struct tsr_tenants *tenants)
{
    double slowest = 0;
    for (size_t i = 0; i < tenants->n; i++)
        slowest = fmax(slowest, tenants->items[i].alone_s);
    for (size_t i = 0; i < tenants->n; i++) {
        double steps = ceil((SLOWEST_STEPS + STARTUP_STEPS) * slowest / tenants->items[i].alone_s);
        tenants->items[i].iterations = steps < MOST_STEPS ? (uint64_t)steps : MOST_STEPS;
    }
}

tsr_status tsr_tenants_simulate(const struct tsr_study *study, struct tsr_tenants *tenants)
{
    struct together *t = calloc(1, sizeof *t);
    if (!t)
        return tsr_no_memory("jobs");
    t->study = study;
    t->tenants = tenants;
    tsr_status status = TSR_OK;
    TSR_GOTO(done, all_alone(t)); /* how long their steps are */
    choose_iterations(tenants);
    TSR_GOTO(done, all_alone(t));
    TSR_GOTO(done, assemble(t));
    TSR_GOTO(done, run_together(t));
done:
    for (size_t i = 0; i < tenants->n; i++)
        forget(&t->items[i]);
    for (uint32_t c = 0; t->programs && c < t->n_classes; c++)
        free(t->programs[c]);
    tsr_program_fini(&t->idle);
    free(t->programs);
    free(t->class_of);
    free(t->node_of);
    free(t);
    return status;
}
