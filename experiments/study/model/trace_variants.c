/* trace_variants.c: variants of a trace: conditions, inputs, and the lists of steps. */
#include <string.h>

#include "experiments/study/model/trace_file.h"
#include "experiments/study/model/trace_json.h"

enum { MOST_VARIANTS = 1000, MOST_STEPS = 1000000 };

static const char *const mark_names[TSR_TRACED_N_MARKS] = {
    [TSR_TRACED_INPUTS] = "inputs",
    [TSR_TRACED_ZERO_GRAD] = "zero_grad",
    [TSR_TRACED_FORWARD] = "forward",
    [TSR_TRACED_LOSS] = "loss",
    [TSR_TRACED_BACKWARD] = "backward",
    [TSR_TRACED_OPTIMIZER] = "optimizer",
    [TSR_TRACED_END] = "end",
    [TSR_TRACED_PRE_FORWARD] = "pre_forward",
    [TSR_TRACED_RECOMPUTE] = "recompute",
    [TSR_TRACED_POST_FORWARD] = "post_forward",
    [TSR_TRACED_PRE_BACKWARD] = "pre_backward",
    [TSR_TRACED_POST_BACKWARD] = "post_backward",
    [TSR_TRACED_FINAL] = "final"};

/* ---- steps ----------------------------------------------------------------------------------- */

/* [kind, module or -1, extra, segment, base]; what extra counts, the hooks find out themselves. */
static tsr_status read_step(const struct tsr__trace_at *at, const json_t *v,
                            struct tsr_traced_step *out)
{
    const struct tsr_traced_model *m = &at->r->trace->model;
    const char *kind = json_string_value(json_array_get(v, 0));
    const json_t *module = json_array_get(v, 1);
    TSR_TRY(tsr__trace_list_of(at, v, 5, 5));
    while (kind && out->mark < TSR_TRACED_N_MARKS && strcmp(kind, mark_names[out->mark]) != 0)
        out->mark++;
    if (!kind || out->mark == TSR_TRACED_N_MARKS)
        return tsr__trace_wrong(at, v, "a mark of TRACE.md");
    out->module = TSR_NO_ID;
    if (!json_is_integer(module) || json_integer_value(module) != -1)
        TSR_TRY(tsr__trace_u32(at, module, m->n_modules - 1, &out->module));
    if (!json_is_integer(json_array_get(v, 2)))
        return tsr__trace_wrong(at, v, "an integer in the third place");
    TSR_TRY(tsr__trace_u32(at, json_array_get(v, 3), m->n_segments - 1, &out->segment));
    return tsr__trace_u32(at, json_array_get(v, 4), m->n_params, &out->base);
}

static tsr_status read_steps(const struct tsr__trace_at *at, const json_t *list,
                             struct tsr_traced_steps *out)
{
    TSR_TRY(tsr__trace_list_of(at, list, 1, MOST_STEPS));
    out->n = json_array_size(list);
    struct tsr_traced_step *steps = tsr__trace_memory(at->r, out->n, sizeof *steps);
    if (!steps)
        return tsr_no_memory(at->r->path);
    for (size_t i = 0; i < out->n; i++)
        TSR_TRY(read_step(at, json_array_get(list, i), &steps[i]));
    out->steps = steps;
    return TSR_OK;
}

static tsr_status read_iterations(const struct tsr__trace_at *at, const char *key,
                                  struct tsr_traced_steps out[TSR_TRACED_LISTS])
{
    const json_t *lists = json_object_get(at->value, key);
    if (!lists)
        return TSR_OK;
    TSR_TRY(tsr__trace_list_of(at, lists, 2, TSR_TRACED_LISTS));
    for (size_t i = 0; i < json_array_size(lists); i++)
        TSR_TRY(read_steps(at, json_array_get(lists, i), &out[i]));
    return TSR_OK;
}

/* ---- conditions ------------------------------------------------------------------------------ */

static tsr_status read_set(const struct tsr__trace_at *at, const json_t *list, bool **out)
{
    size_t n = at->r->trace->model.n_modules;
    *out = tsr__trace_memory(at->r, n, sizeof **out);
    if (!*out)
        return tsr_no_memory(at->r->path);
    TSR_TRY(tsr__trace_list_of(at, list, 0, n));
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint32_t module = 0;
        TSR_TRY(tsr__trace_u32(at, json_array_get(list, i), n - 1, &module));
        (*out)[module] = true;
    }
    return TSR_OK;
}

static tsr_status read_casts(const struct tsr__trace_at *at, const json_t *list,
                             struct tsr_trace_variant *out)
{
    TSR_TRY(tsr__trace_list_of(at, list, 0, MOST_STEPS));
    out->n_casts = json_array_size(list);
    struct tsr_trace_cast *casts = tsr__trace_memory(at->r, out->n_casts, sizeof *casts);
    if (!casts)
        return tsr_no_memory(at->r->path);
    for (size_t i = 0; i < out->n_casts; i++) {
        const json_t *v = json_array_get(list, i);
        TSR_TRY(tsr__trace_list_of(at, v, 3, 3));
        TSR_TRY(tsr__trace_u32(at, json_array_get(v, 0), at->r->trace->model.n_modules - 1,
                               &casts[i].module));
        TSR_TRY(tsr__trace_text(at, json_array_get(v, 1), false, &casts[i].dtype));
        TSR_TRY(tsr__trace_u64(at, json_array_get(v, 2), 0, UINT64_C(1) << 53, &casts[i].bytes));
    }
    out->casts = casts;
    out->cast_at = tsr__trace_memory(at->r, at->r->trace->model.n_modules, sizeof(bool));
    for (size_t i = 0; out->cast_at && i < out->n_casts; i++)
        out->cast_at[casts[i].module] = true;
    if (!out->cast_at)
        return tsr_no_memory(at->r->path);
    return TSR_OK;
}

static tsr_status read_cannot(const struct tsr__trace_at *at, const json_t *list,
                              struct tsr_trace_variant *out)
{
    size_t n = at->r->trace->model.n_modules;
    out->cannot = tsr__trace_memory(at->r, n, sizeof *out->cannot);
    if (!out->cannot)
        return tsr_no_memory(at->r->path);
    if (!list)
        return TSR_OK;
    TSR_TRY(tsr__trace_list_of(at, list, 0, n));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        uint32_t module = 0;
        TSR_TRY(tsr__trace_list_of(at, v, 2, 2));
        TSR_TRY(tsr__trace_u32(at, json_array_get(v, 0), n - 1, &module));
        TSR_TRY(tsr__trace_text(at, json_array_get(v, 1), false, &out->cannot[module]));
    }
    return TSR_OK;
}

/* Stores each module's group number; a module has no more than one group. */
static tsr_status read_groups(const struct tsr__trace_at *at, const json_t *lists,
                              struct tsr_trace_variant *out)
{
    size_t n = at->r->trace->model.n_modules;
    uint32_t *groups = tsr__trace_memory(at->r, n, sizeof *groups);
    if (!groups)
        return tsr_no_memory(at->r->path);
    TSR_TRY(tsr__trace_list_of(at, lists, 1, n));
    for (size_t i = 0; i < json_array_size(lists); i++) {
        const json_t *list = json_array_get(lists, i);
        TSR_TRY(tsr__trace_list_of(at, list, 1, n));
        for (size_t k = 0; k < json_array_size(list); k++) {
            uint32_t module = 0;
            TSR_TRY(tsr__trace_u32(at, json_array_get(list, k), n - 1, &module));
            if (groups[module] || !out->hooked[module])
                return tsr__trace_wrong(at, json_array_get(list, k),
                                        "a hooked module, in one group");
            groups[module] = (uint32_t)i + 1;
        }
    }
    out->groups = groups;
    return TSR_OK;
}

static tsr_status read_output_dtype(const struct tsr__trace_at *at, const json_t *value,
                                    const char **out)
{
    static const char allowed[] = "bfloat16, float16 or float32";
    TSR_TRY(tsr__trace_text(at, value, false, out));
    return tsr_dtype_parse(*out) == TSR_DTYPE_NONE ? tsr__trace_wrong(at, value, allowed) : TSR_OK;
}

static tsr_status read_ddp_outputs(const struct tsr__trace_at *at, const json_t *value,
                                   const char **out)
{
    TSR_TRY(tsr__trace_text(at, value, false, out));
    return !strcmp(*out, "find_unused") || !strcmp(*out, "static_graph")
               ? TSR_OK
               : tsr__trace_wrong(at, value, "find_unused or static_graph");
}

/* These came later than the other conditions: a file may lack them. */
static tsr_status read_later(const struct tsr__trace_at *conditions, struct tsr_trace_variant *out)
{
    struct tsr__trace_at at = *conditions;
    const json_t *groups = json_object_get(at.value, "groups");
    const json_t *dtype = json_object_get(at.value, "output_dtype");
    at.list = "output_dtype of variants";
    if (dtype)
        TSR_TRY(read_output_dtype(&at, dtype, &out->output_dtype));
    const json_t *outputs = json_object_get(at.value, "ddp_outputs");
    at.list = "ddp_outputs of variants";
    if (outputs)
        TSR_TRY(read_ddp_outputs(&at, outputs, &out->ddp_outputs));
    at.list = "groups of variants";
    return groups ? read_groups(&at, groups, out) : TSR_OK;
}

static tsr_status read_conditions(const struct tsr__trace_at *variant,
                                  struct tsr_trace_variant *out)
{
    static const char *const keys[] = {
        "param_dtype",   "cast_inputs", "autocast",     "checkpointed",
        "sdpa",          "train",       "hooked",       "casts",
        "readbacks",     "routing",     "?cannot",      "?needs",
        "?output_dtype", "?groups",     "?ddp_outputs", NULL};
    struct tsr__trace_at at = *variant;
    at.value = json_object_get(variant->value, "conditions");
    TSR_TRY(tsr__trace_keys(&at, keys));
    TSR_TRY(
        tsr__trace_text(&at, json_object_get(at.value, "param_dtype"), true, &out->param_dtype));
    TSR_TRY(tsr__trace_text(&at, json_object_get(at.value, "autocast"), true, &out->autocast));
    TSR_TRY(tsr__trace_bool(&at, json_object_get(at.value, "cast_inputs"), &out->cast_inputs));
    TSR_TRY(read_set(&at, json_object_get(at.value, "checkpointed"), &out->checkpointed));
    TSR_TRY(read_set(&at, json_object_get(at.value, "hooked"), &out->hooked));
    TSR_TRY(read_later(&at, out));
    if (json_object_get(at.value, "needs"))
        TSR_TRY(read_set(&at, json_object_get(at.value, "needs"), &out->needs));
    TSR_TRY(read_cannot(&at, json_object_get(at.value, "cannot"), out));
    if (out->param_dtype && tsr_dtype_parse(out->param_dtype) == TSR_DTYPE_NONE)
        return tsr__trace_wrong(&at, json_object_get(at.value, "param_dtype"),
                                "null, bfloat16, float16 or float32");
    return read_casts(&at, json_object_get(at.value, "casts"), out);
}

/* ---- variants -------------------------------------------------------------------------------- */

static tsr_status read_variant(const struct tsr__trace_at *at, struct tsr_trace_variant *out)
{
    static const char *const keys[] = {"name",          "batch",  "seq",    "checkpoint",
                                       "conditions",    "inputs", "tokens", "iterations",
                                       "?instrumented", NULL};
    static const char *const choices[] = {"none", "full", "every2", "selective", NULL};
    const json_t *v = at->value, *seq = json_object_get(v, "seq");
    TSR_TRY(tsr__trace_keys(at, keys));
    TSR_TRY(tsr__trace_text(at, json_object_get(v, "name"), false, &out->name));
    TSR_TRY(tsr__trace_text(at, json_object_get(v, "checkpoint"), false, &out->checkpoint));
    bool known = false;
    for (size_t i = 0; choices[i]; i++)
        known = known || !strcmp(choices[i], out->checkpoint);
    if (!known)
        return tsr__trace_wrong(at, json_object_get(v, "checkpoint"),
                                "none, full, every2 or selective");
    TSR_TRY(tsr__trace_u64(at, json_object_get(v, "batch"), 1, UINT64_C(1) << 40, &out->batch));
    if (!json_is_null(seq))
        TSR_TRY(tsr__trace_u64(at, seq, 1, UINT64_C(1) << 40, &out->seq));
    TSR_TRY(tsr__trace_u64(at, json_object_get(v, "tokens"), 1, UINT64_C(1) << 40, &out->tokens));
    TSR_TRY(tsr__trace_list_of(at, json_object_get(v, "inputs"), 0, MOST_VARIANTS));
    TSR_TRY(read_conditions(at, out));
    TSR_TRY(read_iterations(at, "iterations", out->plain));
    return read_iterations(at, "instrumented", out->instrumented);
}

tsr_status tsr__trace_read_variants(const struct tsr__trace_reader *r, const json_t *root)
{
    struct tsr_traced_file *t = r->trace;
    const json_t *list = json_object_get(root, "variants");
    struct tsr__trace_at lists = {r, root, "variants", SIZE_MAX};
    TSR_TRY(tsr__trace_list_of(&lists, list, 1, MOST_VARIANTS));
    t->n_variants = json_array_size(list);
    t->variants = tsr__trace_memory(r, t->n_variants, sizeof *t->variants);
    if (!t->variants)
        return tsr_no_memory(r->path);
    for (size_t i = 0; i < t->n_variants; i++) {
        struct tsr__trace_at at = {r, json_array_get(list, i), "variants", i};
        TSR_TRY(read_variant(&at, &t->variants[i]));
    }
    return TSR_OK;
}
