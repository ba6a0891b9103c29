/* validated.c: reads validation/errors.json, finds in it what is nearest to a study, and says how
 * good the figures of a comparison are. */
#include "experiments/study/report/validated.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/paths.h"
#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/config/stack.h"
#include "experiments/study/report/validated_class.h"

/* The keys of a class in the file, in the order of the checks. */
static const char *const class_keys[] = {"class",  "api",   "gpu",    "stack", "models",
                                         "varied", "nodes", "gpus",   "rows",  "median",
                                         "p90",    "max",   "source", NULL};
static const char *const node_words[] = {"one", "many", NULL};

/* ---- sources ----------------------------------------------------------------------------- */

/* "tables sm90 of h100-sxm5-80g, h200 of h200-sxm" */
static void put_tables(const struct tsr_gpu *gpu, char *out, size_t size)
{
    size_t used = 0;
    snprintf(out, size, "no table");
    for (uint32_t i = 0; i < tsr_gpu_kernels(gpu)->n_files && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s of %s", i ? ", " : "tables ",
                                 tsr_gpu_kernels(gpu)->files[i].name,
                                 tsr_gpu_kernels(gpu)->files[i].card.name);
}

/* "fitted by X on Y", or what stands for it. */
static void put_calibration(const struct tsr_calibration *c, enum tsr_calibration_id id, char *out,
                            size_t size)
{
    bool data = c->data[id][0] != '\0';
    snprintf(out, size, "%s%s%s%s", c->source[id], data ? " (" : "", c->data[id], data ? ")" : "");
}

tsr_status tsr_time_sources(const struct tsr_job *job, struct tsr_arena *arena, const char **out)
{
    char tables[512], kernels[600], links[600];
    const struct tsr_gpu *gpu = &job->cluster.gpu;
    bool many = job->world > job->cluster.gpus_per_node;
    put_tables(gpu, tables, sizeof tables);
    put_calibration(&gpu->calibration, TSR_CAL_MATMUL_SUSTAINED, kernels, sizeof kernels);
    put_calibration(&gpu->calibration, many ? TSR_CAL_INTER_EFFICIENCY : TSR_CAL_INTRA_EFFICIENCY,
                    links, sizeof links);
    *out = tsr_arena_printf(arena,
                            "kernels: %s, sustained rates %s; collectives: NCCL's tuner, rates %s",
                            tables, kernels, links);
    return *out ? TSR_OK : tsr_no_memory(NULL);
}

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
    if (strlen(node->text) >= size)
        return tsr_node_error(node, "%s: found %s; allowed: at most %zu letters", key, node->text,
                              size - 1);
    snprintf(out, size, "%s", node->text);
    return TSR_OK;
}

static tsr_status read_share(const struct tsr_yaml_node *item, const char *key, double *out)
{
    const struct tsr_yaml_node *node;
    TSR_TRY(need(item, key, &node));
    if (!tsr_node_double(node, out) || !(*out >= 0) || !isfinite(*out))
        return tsr_node_error(node, "%s: found %s; allowed: a number from 0", key, node->text);
    return TSR_OK;
}

static tsr_status read_nodes(const struct tsr_yaml_node *item, bool *many)
{
    const struct tsr_yaml_node *node;
    TSR_TRY(need(item, "nodes", &node));
    *many = !strcmp(node->text, node_words[1]);
    if (!*many && strcmp(node->text, node_words[0]))
        return tsr_node_error(node, "nodes: found %s; allowed: one or many", node->text);
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

static tsr_status read_gpus(const struct tsr_yaml_node *item, struct tsr_measured_class *out)
{
    const struct tsr_yaml_node *list = tsr_node_get(item, "gpus");
    uint64_t least = 0, most = 0;
    if (!list || list->kind != TSR_NODE_SEQ || list->n != 2 ||
        !tsr_node_u64(list->items[0], &least) || !tsr_node_u64(list->items[1], &most) || !least ||
        least > most || most > UINT32_MAX)
        return tsr_node_error(list ? list : item, "gpus: found %s; allowed: [LEAST, MOST]",
                              list ? tsr_node_show(list) : "nothing");
    out->min_gpus = (uint32_t)least;
    out->max_gpus = (uint32_t)most;
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
    TSR_TRY(read_gpus(item, out));
    TSR_TRY(read_text(item, "api", out->api, sizeof out->api));
    TSR_TRY(read_text(item, "gpu", out->gpu, sizeof out->gpu));
    TSR_TRY(read_text(item, "source", out->source, sizeof out->source));
    TSR_TRY(read_nodes(item, &out->many_nodes));
    TSR_TRY(need(item, "rows", &rows));
    if (!tsr_node_u64(rows, &n) || n < 1 || n > UINT32_MAX)
        return tsr_node_error(rows, "rows: found %s; allowed: an integer from 1", rows->text);
    out->rows = (uint32_t)n;
    TSR_TRY(read_share(item, "median", &out->median));
    TSR_TRY(read_share(item, "p90", &out->p90));
    return read_share(item, "max", &out->max);
}

/* ---- a study ----------------------------------------------------------------------------- */

static bool belongs(const struct tsr_validated *v, const struct tsr_job *job)
{
    return !strcmp(v->api, tsr_words_api[job->settings->api]) &&
           !strcmp(v->gpu, job->cluster.gpu.name) &&
           v->many_nodes == (job->world > job->cluster.gpus_per_node);
}

static size_t list_classes(const struct tsr_job *jobs, size_t n_jobs, struct tsr_validated *out)
{
    size_t n = 0;
    for (size_t i = 0; i < n_jobs; i++) {
        size_t k = 0;
        while (k < n && !belongs(&out[k], &jobs[i]))
            k++;
        if (k < n)
            continue;
        struct tsr_validated *v = &out[n++];
        memset(v, 0, sizeof *v);
        snprintf(v->api, sizeof v->api, "%s", tsr_words_api[jobs[i].settings->api]);
        snprintf(v->gpu, sizeof v->gpu, "%s", jobs[i].cluster.gpu.name);
        v->many_nodes = jobs[i].world > jobs[i].cluster.gpus_per_node;
    }
    return n;
}

struct nearest {
    const struct tsr_job *jobs;
    size_t n_jobs;
    struct tsr_validated *of; /* [n] */
    size_t n;
    unsigned *cost; /* [n] of the nearest class so far */
};

/* The class takes the place of the nearest one if its strategies differ less from it, all together.
 */
static void compare_with(struct nearest *nearest, const struct tsr_measured_class *class,
                         const struct tsr_settings *settings)
{
    for (size_t k = 0; k < nearest->n; k++) {
        struct tsr_validated *v = &nearest->of[k];
        uint64_t all = UINT64_MAX, some = 0;
        unsigned cost = 0;
        for (size_t i = 0; i < nearest->n_jobs; i++) {
            if (!belongs(v, &nearest->jobs[i]))
                continue;
            uint64_t set = tsr_differences(&nearest->jobs[i], class, settings);
            cost += tsr_difference_cost(set);
            all &= set;
            some |= set;
        }
        if (v->nearest.rows && (cost > nearest->cost[k] ||
                                (cost == nearest->cost[k] && class->rows <= v->nearest.rows)))
            continue;
        nearest->cost[k] = cost;
        v->nearest = *class;
        v->differs = all;
        v->some_differ = some & ~all;
    }
}

static tsr_status take_class(struct nearest *nearest, const struct tsr_yaml_node *item)
{
    struct tsr_measured_class class;
    struct tsr_settings defaults;
    struct tsr_stack stack;
    TSR_TRY(read_class(item, &class));
    if (!*class.stack) {
        tsr_settings_default(&defaults);
        compare_with(nearest, &class, &defaults);
        return TSR_OK;
    }
    TSR_TRY(tsr_stack_open(class.stack, tsr_node_get(item, "stack"),
                           nearest->jobs[0].experiment->path, &stack));
    compare_with(nearest, &class, &stack.settings);
    tsr_stack_close(&stack);
    return TSR_OK;
}

/* Every class of the file is read, so that a mistake is found whatever is compared. */
static tsr_status take_classes(struct nearest *nearest, const struct tsr_yaml_node *root)
{
    const struct tsr_yaml_node *list = tsr_node_get(root, "classes");
    if (!list || list->kind != TSR_NODE_SEQ)
        return tsr_node_error(list ? list : root, "classes: found %s; allowed: a list",
                              list ? tsr_node_show(list) : "nothing");
    for (size_t i = 0; i < list->n; i++)
        TSR_TRY(take_class(nearest, list->items[i]));
    return TSR_OK;
}

tsr_status tsr_validated_of(const struct tsr_job *jobs, size_t n, struct tsr_arena *arena,
                            const struct tsr_validated **out, size_t *n_out)
{
    char path[TSR_FILE_BYTES];
    struct tsr_doc doc;
    struct tsr_validated *classes = tsr_arena_alloc(arena, (n + 1) * sizeof *classes);
    unsigned *costs = tsr_arena_alloc(arena, (n + 1) * sizeof *costs);
    if (!classes || !costs)
        return tsr_no_memory(NULL);
    *n_out = list_classes(jobs, n, classes);
    *out = classes;
    if (n == 0 || !tsr_find_validation("errors.json", jobs[0].experiment->path, path))
        return TSR_OK;
    struct nearest nearest = {.jobs = jobs, .n_jobs = n, .of = classes, .n = *n_out, .cost = costs};
    TSR_TRY(tsr_doc_load(path, &doc));
    tsr_status status = take_classes(&nearest, doc.root);
    tsr_doc_fini(&doc);
    return status;
}

/* ---- beside a comparison --------------------------------------------------------------------- */

enum { SHOWN_DIFFERENCES = 8 };

/* "card, model.norm, and 3 more" */
static void put_differences(FILE *out, uint64_t set)
{
    unsigned n = 0;
    for (unsigned i = 0; tsr_difference_name(i); i++) {
        if (!(set >> i & 1))
            continue;
        if (n < SHOWN_DIFFERENCES)
            fprintf(out, "%s%s", n ? ", " : "", tsr_difference_name(i));
        n++;
    }
    if (n > SHOWN_DIFFERENCES)
        fprintf(out, " and %u more", n - SHOWN_DIFFERENCES);
}

/* "fully_shard on h100-sxm5-96g-500w, 8 GPUs, llama, torchtitan-2024-12" */
static void put_class(FILE *out, const struct tsr_measured_class *c)
{
    fprintf(out, "%s on %s, %u", c->api, c->gpu, (unsigned)c->min_gpus);
    if (c->max_gpus > c->min_gpus)
        fprintf(out, " to %u", (unsigned)c->max_gpus);
    fprintf(out, " GPU%s, %s, %s", c->max_gpus > 1 ? "s" : "", c->models,
            *c->stack ? c->stack : "no stack");
}

static bool same_class(const struct tsr_measured_class *a, const struct tsr_measured_class *b)
{
    return a->rows == b->rows && a->min_gpus == b->min_gpus && a->max_gpus == b->max_gpus &&
           !strcmp(a->api, b->api) && !strcmp(a->gpu, b->gpu) && !strcmp(a->models, b->models) &&
           !strcmp(a->stack, b->stack) && !strcmp(a->source, b->source);
}

/* `before`: of the lines above this one. */
static void put_measured(FILE *out, const struct tsr_validated *before, size_t n_before,
                         const struct tsr_measured_class *c)
{
    for (size_t i = 0; i < n_before; i++)
        if (same_class(&before[i].nearest, c)) {
            fprintf(out, "measured: as for %s", before[i].api);
            return;
        }
    fputs("measured: ", out);
    put_class(out, c);
    fprintf(out, ": median %.1f %%, 90 %% within %.1f %%, largest %.1f %% (%u row%s of %s",
            100 * c->median, 100 * c->p90, 100 * c->max, (unsigned)c->rows, c->rows == 1 ? "" : "s",
            c->source);
    fputs(c->rows < TSR_VALIDATED_CLAIM ? ": too few to claim an error)" : ")", out);
}

static void put_error(FILE *out, const struct tsr_validated *all, size_t i)
{
    const struct tsr_validated *v = &all[i];
    const struct tsr_measured_class *c = &v->nearest;
    fprintf(out, "%s of time, %s on %s, %s: ", c->rows && !v->differs ? "Validated error" : "Error",
            v->api, v->gpu, v->many_nodes ? "more than one node" : "one node");
    if (c->rows == 0) {
        fputs("nobody's measurements are known (no class in validation/errors.json).\n", out);
        return;
    }
    put_measured(out, all, i, c);
    if (v->differs)
        fputs("; yours differs in ", out);
    put_differences(out, v->differs);
    if (v->some_differ)
        fputs(v->differs ? "; some strategies also in " : "; some strategies differ in ", out);
    put_differences(out, v->some_differ);
    fputs(".\n", out);
}

void tsr_put_validated(FILE *out, const struct tsr_study_info *info)
{
    if (info->time_sources)
        fprintf(out, "Times come from %s.\n", info->time_sources);
    for (size_t i = 0; i < info->n_validated; i++)
        put_error(out, info->validated, i);
}

static json_t *error_json(const struct tsr_measured_class *c)
{
    return json_pack("{s:i, s:f, s:f, s:f, s:s, s:b}", "rows", (int)c->rows, "median", c->median,
                     "p90", c->p90, "max", c->max, "source", c->source, "claimed",
                     c->rows >= TSR_VALIDATED_CLAIM);
}

static json_t *nearest_json(const struct tsr_measured_class *c)
{
    if (!c->rows)
        return json_null();
    return json_pack("{s:s, s:s, s:s, s:s?, s:s, s:[i, i], s:o}", "api", c->api, "gpu", c->gpu,
                     "nodes", node_words[c->many_nodes], "stack", *c->stack ? c->stack : NULL,
                     "models", c->models, "gpus", (int)c->min_gpus, (int)c->max_gpus, "error",
                     error_json(c));
}

static json_t *differences_json(uint64_t set)
{
    json_t *out = json_array();
    for (unsigned i = 0; out && tsr_difference_name(i); i++)
        if (set >> i & 1)
            json_array_append_new(out, json_string(tsr_difference_name(i)));
    return out;
}

/* The sentence that tables print, for pages to show. NULL when out of memory. */
static json_t *sentence_json(const struct tsr_validated *all, size_t i)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (!out)
        return NULL;
    put_error(out, all, i);
    json_t *sentence =
        fclose(out) == 0 ? json_stringn(text, n ? n - 1 : 0) : NULL; /* no line end */
    free(text);
    return sentence;
}

static json_t *class_json(const struct tsr_validated *all, size_t i)
{
    const struct tsr_validated *v = &all[i];
    bool is_it = v->nearest.rows && !v->differs;
    return json_pack(
        "{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "api", v->api, "gpu", v->gpu, "nodes",
        node_words[v->many_nodes], "error", is_it ? error_json(&v->nearest) : json_null(),
        "nearest", nearest_json(&v->nearest), "differs", differences_json(v->differs),
        "some_differ", differences_json(v->some_differ), "text", sentence_json(all, i));
}

json_t *tsr_validated_json(const struct tsr_study_info *info)
{
    json_t *out = json_array();
    bool ok = out != NULL;
    for (size_t i = 0; ok && i < info->n_validated; i++)
        ok = json_array_append_new(out, class_json(info->validated, i)) == 0;
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}
