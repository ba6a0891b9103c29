/* validated.c: reads validation/errors.json, finds the classes of a study in it, and says how
 * good the figures of a comparison are. */
#include "experiments/study/report/validated.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "experiments/study/base/paths.h"
#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"

/* The keys of a class in the file, in the order of the checks. */
static const char *const class_keys[] = {"class",  "api", "gpu", "nodes",  "rows",
                                         "median", "p90", "max", "source", NULL};
static const char *const node_words[] = {"one", "many", NULL};

void tsr_validated_class(const struct tsr_job *job, struct tsr_validated *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->api, sizeof out->api, "%s", tsr_words_api[job->settings->api]);
    snprintf(out->gpu, sizeof out->gpu, "%s", job->cluster.gpu.name);
    out->many_nodes = job->world > job->cluster.gpus_per_node;
}

/* ---- sources ----------------------------------------------------------------------------- */

/* "tables sm90 of h100-sxm5-80g, h200 of h200-sxm" */
static void put_tables(const struct tsr_gpu *gpu, char *out, size_t size)
{
    size_t used = 0;
    snprintf(out, size, "no table");
    for (uint32_t i = 0; i < gpu->kernels.n_files && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s of %s", i ? ", " : "tables ",
                                 gpu->kernels.files[i].name, gpu->kernels.files[i].card.name);
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

static tsr_status read_class(const struct tsr_yaml_node *item, struct tsr_validated *out)
{
    const struct tsr_yaml_node *rows;
    uint64_t n = 0;
    if (item->kind != TSR_NODE_MAP)
        return tsr_node_error(item, "classes: found %s; allowed: a mapping", tsr_node_show(item));
    for (size_t i = 0; i < item->n; i++) {
        size_t k = 0;
        while (class_keys[k] && strcmp(class_keys[k], item->items[i]->key))
            k++;
        if (!class_keys[k])
            return tsr_unknown_key(item->items[i], "classes", class_keys);
    }
    memset(out, 0, sizeof *out);
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

static bool same_class(const struct tsr_validated *a, const struct tsr_validated *b)
{
    return !strcmp(a->api, b->api) && !strcmp(a->gpu, b->gpu) && a->many_nodes == b->many_nodes;
}

/* Every class of the file is read, so that a mistake is found whatever is compared. */
static tsr_status fill_in(const struct tsr_yaml_node *root, struct tsr_validated *classes, size_t n)
{
    const struct tsr_yaml_node *list = tsr_node_get(root, "classes");
    if (!list || list->kind != TSR_NODE_SEQ)
        return tsr_node_error(list ? list : root, "classes: found %s; allowed: a list",
                              list ? tsr_node_show(list) : "nothing");
    for (size_t i = 0; i < list->n; i++) {
        struct tsr_validated one;
        TSR_TRY(read_class(list->items[i], &one));
        for (size_t k = 0; k < n; k++)
            if (same_class(&classes[k], &one))
                classes[k] = one;
    }
    return TSR_OK;
}

/* ---- a study ----------------------------------------------------------------------------- */

static size_t list_classes(const struct tsr_job *jobs, size_t n_jobs, struct tsr_validated *out)
{
    size_t n = 0;
    for (size_t i = 0; i < n_jobs; i++) {
        size_t k = 0;
        tsr_validated_class(&jobs[i], &out[n]);
        while (k < n && !same_class(&out[k], &out[n]))
            k++;
        n += k == n;
    }
    return n;
}

tsr_status tsr_validated_of(const struct tsr_job *jobs, size_t n, struct tsr_arena *arena,
                            const struct tsr_validated **out, size_t *n_out)
{
    char path[TSR_FILE_BYTES];
    struct tsr_doc doc;
    struct tsr_validated *classes = tsr_arena_alloc(arena, (n + 1) * sizeof *classes);
    if (!classes)
        return tsr_no_memory(NULL);
    *n_out = list_classes(jobs, n, classes);
    *out = classes;
    if (n == 0 || !tsr_find_validation("errors.json", jobs[0].experiment->path, path))
        return TSR_OK;
    TSR_TRY(tsr_doc_load(path, &doc));
    tsr_status status = fill_in(doc.root, classes, *n_out);
    tsr_doc_fini(&doc);
    return status;
}

/* ---- beside a comparison --------------------------------------------------------------------- */

/* "fully_shard on h100-sxm5-80g, one node" */
static void put_class(FILE *out, const struct tsr_validated *v)
{
    fprintf(out, "%s on %s, %s", v->api, v->gpu, v->many_nodes ? "more than one node" : "one node");
}

static void put_error(FILE *out, const struct tsr_validated *v)
{
    fputs("Validated error of time, ", out);
    put_class(out, v);
    if (v->rows == 0) {
        fputs(": this class of configuration was not validated.\n", out);
        return;
    }
    fprintf(out, ": median %.1f %%, 90 %% within %.1f %%, largest %.1f %% (", 100 * v->median,
            100 * v->p90, 100 * v->max);
    if (v->rows < TSR_VALIDATED_CLAIM)
        fprintf(out, "%u row%s of %s: too few to claim an error).\n", (unsigned)v->rows,
                v->rows == 1 ? "" : "s", v->source);
    else
        fprintf(out, "%u rows of %s).\n", (unsigned)v->rows, v->source);
}

void tsr__put_validated(FILE *out, const struct tsr_study_info *info)
{
    if (info->time_sources)
        fprintf(out, "Times come from %s.\n", info->time_sources);
    for (size_t i = 0; i < info->n_validated; i++)
        put_error(out, &info->validated[i]);
}

static json_t *class_json(const struct tsr_validated *v)
{
    json_t *class = json_pack("{s:s, s:s, s:s}", "api", v->api, "gpu", v->gpu, "nodes",
                              v->many_nodes ? "many" : "one");
    json_t *error = v->rows == 0
                        ? json_null()
                        : json_pack("{s:i, s:f, s:f, s:f, s:s, s:b}", "rows", (int)v->rows,
                                    "median", v->median, "p90", v->p90, "max", v->max, "source",
                                    v->source, "claimed", v->rows >= TSR_VALIDATED_CLAIM);
    if (class && json_object_set_new(class, "error", error) == 0)
        return class;
    json_decref(class);
    return NULL;
}

json_t *tsr__validated_json(const struct tsr_study_info *info)
{
    json_t *out = json_array();
    bool ok = out != NULL;
    for (size_t i = 0; ok && i < info->n_validated; i++)
        ok = json_array_append_new(out, class_json(&info->validated[i])) == 0;
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}
