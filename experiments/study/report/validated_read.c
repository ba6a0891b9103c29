/* validated_read.c: reads validation/errors.json, and finds in it the class that is nearest to a
 * job (validated.h). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/paths.h"
#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/config/stack.h"
#include "experiments/study/report/validated.h"
#include "experiments/study/report/validated_class.h"

/* The keys of a class in the file, in the order of the checks. */
static const char *const class_keys[] = {"class",  "api",   "gpu",  "stack",      "models",
                                         "varied", "nodes", "gpus", "parameters", "rows",
                                         "median", "p90",   "max",  "source",     NULL};

/* The classes, each with the settings of its stack: `stacks` is [n], of which those without a name
 * are the defaults of the table of keys. */
struct tsr_measured_classes {
    size_t n;
    struct tsr_measured_class *classes;
    struct tsr_stack *stacks;
    struct tsr_settings defaults;
};

/* ---- the file ---------------------------------------------------------------------------- */

static tsr_status need(const struct tsr_yaml_node *item, const char *key,
                       const struct tsr_yaml_node **out)
{
    *out = tsr_node_get(item, key);
    if (*out && ((*out)->kind == TSR_NODE_SCALAR))
        return TSR_OK;
    return tsr_node_error(*out ? *out : item, "%s: found %s; allowed: a text or a number", key,
                          *out ? tsr_node_show(*out) : "nothing");
}

static tsr_status read_text(const struct tsr_yaml_node *item, const char *key, char *out,
                            size_t size)
{
    const struct tsr_yaml_node *node;
    TSR_TRY(need(item, key, &node));
    if (node->kind != TSR_NODE_SCALAR || strlen(node->text) >= size)
        return tsr_node_error(node, "%s: found %s; allowed: a text of at most %zu letters", key,
                              tsr_node_show(node), size - 1);
    snprintf(out, size, "%s", node->text);
    return TSR_OK;
}

static tsr_status read_share(const struct tsr_yaml_node *item, const char *key, double *out)
{
    const struct tsr_yaml_node *node;
    TSR_TRY(need(item, key, &node));
    if (!tsr_node_double(node, out) || !(*out >= 0) || !isfinite(*out))
        return tsr_node_error(node, "%s: found %s; allowed: a number from 0", key,
                              tsr_node_show(node));
    return TSR_OK;
}

static tsr_status read_nodes(const struct tsr_yaml_node *item, bool *many)
{
    const struct tsr_yaml_node *node;
    TSR_TRY(need(item, "nodes", &node));
    *many = !strcmp(node->text, "many");
    if (!*many && strcmp(node->text, "one"))
        return tsr_node_error(node, "nodes: found %s; allowed: one or many", tsr_node_show(node));
    return TSR_OK;
}

/* ["a", "b"] as "a, b". */
static tsr_status read_words(const struct tsr_yaml_node *item, const char *key, char *out,
                             size_t size)
{
    const struct tsr_yaml_node *list = tsr_node_get(item, key);
    size_t used = 0;
    out[0] = 0;
    if (!list || list->kind != TSR_NODE_SEQ)
        return tsr_node_error(list ? list : item, "%s: found %s; allowed: a list of texts", key,
                              list ? tsr_node_show(list) : "nothing");
    for (size_t i = 0; i < list->n && used < size; i++)
        used +=
            (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", list->items[i]->text);
    if (used >= size)
        return tsr_node_error(list, "%s: found a list of more than %zu letters", key, size - 1);
    return TSR_OK;
}

/* [LEAST, MOST], both from 1. */
static tsr_status read_range(const struct tsr_yaml_node *item, const char *key, uint64_t out[2])
{
    const struct tsr_yaml_node *list = tsr_node_get(item, key);
    if (!list || list->kind != TSR_NODE_SEQ || list->n != 2 ||
        !tsr_node_u64(list->items[0], &out[0]) || !tsr_node_u64(list->items[1], &out[1]) ||
        !out[0] || out[0] > out[1])
        return tsr_node_error(list ? list : item, "%s: found %s; allowed: [LEAST, MOST]", key,
                              list ? tsr_node_show(list) : "nothing");
    return TSR_OK;
}

static tsr_status read_sizes(const struct tsr_yaml_node *item, struct tsr_measured_class *out)
{
    uint64_t gpus[2] = {0}, params[2] = {0};
    TSR_TRY(read_range(item, "gpus", gpus));
    if (gpus[1] > UINT32_MAX)
        return tsr_node_error(tsr_node_get(item, "gpus"),
                              "gpus: found %" PRIu64 "; allowed: up to %" PRIu32, gpus[1],
                              UINT32_MAX);
    TSR_TRY(read_range(item, "parameters", params));
    out->min_gpus = (uint32_t)gpus[0];
    out->max_gpus = (uint32_t)gpus[1];
    out->min_params = params[0];
    out->max_params = params[1];
    return TSR_OK;
}

static tsr_status check_class(const struct tsr_yaml_node *item)
{
    if (item->kind != TSR_NODE_MAP)
        return tsr_node_error(item, "classes: found %s; allowed: a mapping", tsr_node_show(item));
    for (size_t i = 0; i < item->n; i++) {
        size_t k = 0;
        while (class_keys[k] && strcmp(class_keys[k], item->items[i]->key))
            k++;
        if (!class_keys[k])
            return tsr_unknown_key(item->items[i], "classes", class_keys);
    }
    return TSR_OK;
}

static tsr_status read_class(const struct tsr_yaml_node *item, struct tsr_measured_class *out)
{
    const struct tsr_yaml_node *rows, *stack = tsr_node_get(item, "stack");
    uint64_t n = 0;
    TSR_TRY(check_class(item));
    memset(out, 0, sizeof *out);
    if (!tsr_node_is_null(stack))
        TSR_TRY(read_text(item, "stack", out->stack, sizeof out->stack));
    TSR_TRY(read_words(item, "models", out->models, sizeof out->models));
    TSR_TRY(read_words(item, "varied", out->varied, sizeof out->varied));
    TSR_TRY(read_sizes(item, out));
    TSR_TRY(read_text(item, "api", out->api, sizeof out->api));
    TSR_TRY(read_text(item, "gpu", out->gpu, sizeof out->gpu));
    TSR_TRY(read_text(item, "source", out->source, sizeof out->source));
    TSR_TRY(read_nodes(item, &out->many_nodes));
    TSR_TRY(need(item, "rows", &rows));
    if (!tsr_node_u64(rows, &n) || n < 1 || n > UINT32_MAX)
        return tsr_node_error(rows, "rows: found %s; allowed: an integer from 1",
                              tsr_node_show(rows));
    out->rows = (uint32_t)n;
    TSR_TRY(read_share(item, "median", &out->median));
    TSR_TRY(read_share(item, "p90", &out->p90));
    return read_share(item, "max", &out->max);
}

static tsr_status take_class(const struct tsr_yaml_node *item, const char *experiment,
                             struct tsr_measured_classes *out)
{
    struct tsr_measured_class *class = &out->classes[out->n];
    TSR_TRY(read_class(item, class));
    if (*class->stack)
        TSR_TRY(tsr_stack_open(class->stack, tsr_node_get(item, "stack"), experiment,
                               &out->stacks[out->n]));
    out->n++;
    return TSR_OK;
}

/* Every class of the file is read, so that a mistake is found whatever is compared. */
static tsr_status take_classes(const struct tsr_yaml_node *root, const char *experiment,
                               struct tsr_measured_classes *out)
{
    const struct tsr_yaml_node *list = tsr_node_get(root, "classes");
    if (!list || list->kind != TSR_NODE_SEQ)
        return tsr_node_error(list ? list : root, "classes: found %s; allowed: a list",
                              list ? tsr_node_show(list) : "nothing");
    out->classes = calloc(list->n + 1, sizeof *out->classes);
    out->stacks = calloc(list->n + 1, sizeof *out->stacks);
    if (!out->classes || !out->stacks)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < list->n; i++)
        TSR_TRY(take_class(list->items[i], experiment, out));
    return TSR_OK;
}

tsr_status tsr_measured_open(const char *experiment, struct tsr_measured_classes **out)
{
    char path[TSR_FILE_BYTES];
    struct tsr_doc doc;
    struct tsr_measured_classes *all = calloc(1, sizeof *all);
    *out = NULL;
    if (!all)
        return tsr_no_memory(NULL);
    tsr_settings_default(&all->defaults);
    tsr_status status = TSR_OK;
    if (tsr_find_validation("errors.json", experiment, path)) {
        status = tsr_doc_load(path, &doc);
        if (status == TSR_OK) {
            status = take_classes(doc.root, experiment, all);
            tsr_doc_fini(&doc);
        }
    }
    if (status == TSR_OK)
        *out = all;
    else
        tsr_measured_close(all);
    return status;
}

void tsr_measured_close(struct tsr_measured_classes *all)
{
    if (!all)
        return;
    for (size_t i = 0; i < all->n; i++)
        if (*all->classes[i].stack)
            tsr_stack_close(&all->stacks[i]);
    free(all->classes);
    free(all->stacks);
    free(all);
}

/* ---- the class of a job ---------------------------------------------------------------------- */

/* Fills *out with the class that costs least; of equal ones that with the most rows. */
static void find_nearest(const struct tsr_measured_classes *all, const struct tsr_job *job,
                         struct tsr_time_error *out)
{
    unsigned least = 0;
    for (size_t i = 0; i < all->n; i++) {
        const struct tsr_measured_class *class = &all->classes[i];
        const struct tsr_settings *settings =
            *class->stack ? &all->stacks[i].settings : &all->defaults;
        uint64_t differs = tsr_differences(job, class, settings);
        unsigned cost = tsr_difference_cost(differs);
        if (out->nearest && (cost > least || (cost == least && class->rows <= out->rows)))
            continue;
        least = cost;
        out->nearest = (uint32_t)i + 1;
        out->differs = differs;
        out->rows = class->rows;
        out->median = class->median;
        out->p90 = class->p90;
    }
}

void tsr_time_error_of(const struct tsr_job *job, struct tsr_time_error *out)
{
    const struct tsr_measured_classes *all = job->experiment->measured;
    const struct tsr_cluster *cluster = &job->cluster;
    memset(out, 0, sizeof *out);
    if (!all || !cluster->name[0])
        return;
    out->is_predicted = true;
    snprintf(out->api, sizeof out->api, "%s", tsr_words_api[job->settings->api]);
    snprintf(out->gpu, sizeof out->gpu, "%s", cluster->gpu.name);
    out->many_nodes = job->world > cluster->gpus_per_node;
    out->nodes = tsr_cluster_nodes(cluster, job->world);
    out->straggler_share = cluster->gpu.calibration.value[TSR_CAL_STRAGGLER_SHARE];
    out->slowest = tsr_cluster_straggling(cluster, job->world);
    find_nearest(all, job, out);
    out->extrapolated = !out->nearest || tsr_decisive_differences(out->differs);
}

const struct tsr_measured_class *tsr_measured_class(const struct tsr_measured_classes *all,
                                                    const struct tsr_time_error *error)
{
    static const struct tsr_measured_class none;
    return all && error->nearest && error->nearest <= all->n ? &all->classes[error->nearest - 1]
                                                             : &none;
}
