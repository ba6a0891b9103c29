/* inspect_layout.c: the module tree, and what a strategy makes of it: groups and shards. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/inspect/inspect.h"
#include "experiments/study/job/build.h"

enum { MAX_DEPTH = 5 };

/* ---- the module tree ------------------------------------------------------------------------- */

static uint64_t params_below(const struct tsr_module *module)
{
    uint64_t n = 0;
    for (size_t i = 0; i < tsr_module_n_params(module); i++) {
        struct tsr_param_info info = tsr_param_info(tsr_module_param(module, i), module);
        n += info.is_alias ? 0 : info.numel;
    }
    for (size_t i = 0; i < tsr_module_n_children(module); i++)
        n += params_below(tsr_module_child(module, i));
    return n;
}

/* Elements of norms: tensor parallelism cuts every parameter but theirs. */
static uint64_t norms_below(const struct tsr_module *module)
{
    static const char norm[] = "Norm";
    const char *type = tsr_module_type_name(module);
    size_t length = strlen(type);
    uint64_t n = 0;
    if (length >= sizeof norm - 1 && !strcmp(type + length - (sizeof norm - 1), norm))
        return params_below(module);
    for (size_t i = 0; i < tsr_module_n_children(module); i++)
        n += norms_below(tsr_module_child(module, i));
    return n;
}

static bool alike(const struct tsr_module *a, const struct tsr_module *b)
{
    return !strcmp(tsr_module_type_name(a), tsr_module_type_name(b)) &&
           tsr_module_n_children(a) == tsr_module_n_children(b) && tsr_module_n_children(a) > 0 &&
           params_below(a) == params_below(b);
}

/* Repeated neighbours (the layers) are shown once. */
static void add_modules(json_t *list, const struct tsr_module *module, int depth, size_t repeat)
{
    json_array_append_new(
        list, json_pack("{s:s, s:s, s:i, s:I, s:I}", "fqn", tsr_module_fqn(module), "type",
                        tsr_module_type_name(module), "depth", depth, "repeat", (json_int_t)repeat,
                        "parameters", (json_int_t)params_below(module)));
    if (depth == MAX_DEPTH)
        return;
    size_t n = tsr_module_n_children(module);
    for (size_t i = 0; i < n;) {
        struct tsr_module *child = tsr_module_child(module, i);
        size_t same = 1;
        while (i + same < n && alike(child, tsr_module_child(module, i + same)))
            same++;
        add_modules(list, child, depth + 1, same);
        i += same;
    }
}

/* ---- groups ---------------------------------------------------------------------------------- */

static json_t *strings_of(const char *const *texts, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_string(texts[i]));
    return list;
}

static json_t *group_of(const struct tsr_group_info *info, const struct tsr_settings *s)
{
    unsigned bytes = tsr_dtype_bytes((tsr_dtype)(s->param ? s->param : s->master));
    return json_pack("{s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:I}", "name", info->name, "api",
                     info->api, "modules", strings_of(info->modules, info->n_modules),
                     "parameter_names", strings_of(info->params, info->n_params), "parameters",
                     (json_int_t)info->n_params, "shard_elements", (json_int_t)info->shard_numel,
                     "shard_bytes",
                     (json_int_t)(info->shard_numel * tsr_dtype_bytes((tsr_dtype)s->master)),
                     "all_gather_elements", (json_int_t)info->all_gather_numel, "all_gather_bytes",
                     (json_int_t)(info->all_gather_numel * bytes));
}

static tsr_status fill(const struct tsr_job *job, struct tsr_engine *engine, json_t *out)
{
    json_t *groups = json_array(), *modules = json_array(), *shape = json_array();
    uint32_t *class_of = calloc(2 * (size_t)job->world, sizeof(*class_of));
    uint32_t n_classes = 0;
    for (size_t i = 0; i < tsr_n_groups(engine); i++) {
        struct tsr_group_info info = tsr_group_info(engine, i);
        json_array_append_new(groups, group_of(&info, job->settings));
    }
    for (int i = 0; i < job->mesh.n_dims; i++)
        json_array_append_new(shape, json_integer(job->mesh.shape[i]));
    add_modules(modules, tsr_module_root(engine), 0, 1);
    tsr_status status =
        class_of ? tsr_engine_rank_classes(engine, class_of, class_of + job->world, &n_classes)
                 : tsr_no_memory(NULL);
    free(class_of);
    char words[160];
    tsr_strategy_words(job->settings, words, sizeof words);
    json_object_set_new(out, "strategy", json_string(job->strategy->name));
    json_object_set_new(out, "summary", json_string(words));
    json_object_set_new(out, "world", json_integer(job->world));
    json_object_set_new(out, "mesh", shape);
    json_object_set_new(out, "tensor_parallel", json_integer((json_int_t)job->settings->tp));
    json_object_set_new(out, "parameters", json_integer((json_int_t)tsr_model_n_params(engine)));
    json_object_set_new(out, "rank_classes", json_integer(n_classes));
    json_object_set_new(out, "groups", groups);
    json_object_set_new(out, "modules", modules);
    return status;
}

static tsr_status fill_and_check(const struct tsr_job *job, struct tsr_engine *engine, void *user)
{
    uint64_t tp = job->settings->tp, counted = job->model.counts.total;
    uint64_t built = tsr_model_n_params(engine) * tp;
    TSR_TRY(fill(job, engine, user));
    if (tp > 1)
        built -= (tp - 1) * norms_below(tsr_module_root(engine));
    if (!counted || counted == built)
        return TSR_OK;
    return tsr_fail(TSR_EDEFECT,
                    "defect: model %s: the engine built %" PRIu64
                    " parameters, the configuration says %" PRIu64,
                    job->model.name, built, counted);
}

tsr_status tsr_inspect_layout(const struct tsr_job *job, json_t **out)
{
    *out = json_object();
    tsr_status status = *out ? tsr_build_aside(job, fill_and_check, *out) : tsr_no_memory(NULL);
    if (status != TSR_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

/* ---- as text --------------------------------------------------------------------------------- */

void tsr_print_modules(FILE *out, const json_t *modules, uint64_t tp)
{
    size_t i;
    json_t *m;
    if (tp > 1)
        fprintf(out, "Modules (parameters of one of %" PRIu64 " tensor-parallel ranks)\n", tp);
    else
        fprintf(out, "Modules (parameters)\n");
    json_array_foreach(modules, i, m)
    {
        const char *fqn = json_string_value(json_object_get(m, "fqn"));
        const char *dot = strrchr(fqn, '.');
        int depth = (int)json_integer_value(json_object_get(m, "depth"));
        json_int_t repeat = json_integer_value(json_object_get(m, "repeat"));
        char name[160], digits[32];
        snprintf(name, sizeof name, "%*s%s%s%s", 2 * depth, "", dot ? dot + 1 : fqn,
                 *fqn ? "  " : "", json_string_value(json_object_get(m, "type")));
        fprintf(out, "  %-48s %18s", name,
                tsr_group_digits((uint64_t)json_integer_value(json_object_get(m, "parameters")),
                                 digits));
        if (repeat > 1)
            fprintf(out, "  each, x %" JSON_INTEGER_FORMAT, repeat);
        fprintf(out, "\n");
    }
}

static bool same_group(const json_t *a, const json_t *b)
{
    return json_equal(json_object_get(a, "parameters"), json_object_get(b, "parameters")) &&
           json_equal(json_object_get(a, "shard_elements"), json_object_get(b, "shard_elements"));
}

static void print_group(FILE *out, const json_t *first, const json_t *last, size_t n)
{
    const char *name = json_string_value(json_object_get(first, "name"));
    char label[512], shard[32], gather[32];
    snprintf(label, sizeof label, "%s", *name ? name : "(root)");
    if (n > 1)
        snprintf(label, sizeof label, "%s ... %s (%zu)", name,
                 json_string_value(json_object_get(last, "name")), n);
    tsr_bytes_text((double)json_integer_value(json_object_get(first, "shard_bytes")), shard);
    tsr_bytes_text((double)json_integer_value(json_object_get(first, "all_gather_bytes")), gather);
    fprintf(out, "    %-52s %4" JSON_INTEGER_FORMAT " parameters, shard %s, gathered %s\n", label,
            json_integer_value(json_object_get(first, "parameters")), shard, gather);
}

void tsr_print_layout(FILE *out, const json_t *layout)
{
    const json_t *groups = json_object_get(layout, "groups"),
                 *shape = json_object_get(layout, "mesh");
    size_t n = json_array_size(groups);
    fprintf(out, "Strategy %s: %s\n", json_string_value(json_object_get(layout, "strategy")),
            json_string_value(json_object_get(layout, "summary")));
    fprintf(out, "  %" JSON_INTEGER_FORMAT " ranks, mesh ",
            json_integer_value(json_object_get(layout, "world")));
    for (size_t i = 0; i < json_array_size(shape); i++)
        fprintf(out, "%s%" JSON_INTEGER_FORMAT, i ? " x " : "",
                json_integer_value(json_array_get(shape, i)));
    if (json_integer_value(json_object_get(layout, "tensor_parallel")) > 1)
        fprintf(out, " (the last %" JSON_INTEGER_FORMAT ": tensor-parallel)",
                json_integer_value(json_object_get(layout, "tensor_parallel")));
    fprintf(out, ", %" JSON_INTEGER_FORMAT " rank class(es), %zu groups\n",
            json_integer_value(json_object_get(layout, "rank_classes")), n);
    for (size_t i = 0; i < n; i++) { /* groups of one size are shown where the first one is */
        size_t same = 0, last = i;
        bool shown = false;
        for (size_t k = 0; k < n; k++) {
            if (!same_group(json_array_get(groups, i), json_array_get(groups, k)))
                continue;
            shown = shown || k < i;
            last = k;
            same++;
        }
        if (!shown)
            print_group(out, json_array_get(groups, i), json_array_get(groups, last), same);
    }
}
