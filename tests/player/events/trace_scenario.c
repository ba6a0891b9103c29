/* trace_scenario.c: reads a recorded scenario, and makes its model, its wrapping and its step. */
#include "tests/player/events/trace_scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/model/model.h"

/* ---- small readers --------------------------------------------------------------------------- */

const char *tsr_text_or(const struct tsr_yaml_node *map, const char *key, const char *fallback)
{
    const struct tsr_yaml_node *node = tsr_node_get(map, key);
    return node && node->kind == TSR_NODE_SCALAR && !tsr_node_is_null(node) ? node->text : fallback;
}

uint64_t tsr_u64_or(const struct tsr_yaml_node *map, const char *key, uint64_t fallback)
{
    uint64_t value;
    return tsr_node_u64(tsr_node_get(map, key), &value) ? value : fallback;
}

bool tsr_bool_or(const struct tsr_yaml_node *map, const char *key, bool fallback)
{
    bool value;
    const struct tsr_yaml_node *node = tsr_node_get(map, key);
    return node && tsr_node_bool(node, &value) ? value : fallback;
}

/* A list of texts, to be freed (the texts belong to the document). */
struct texts {
    const char **items;
    size_t n;
};

static tsr_status read_texts(const struct tsr_yaml_node *list, struct texts *out)
{
    size_t n = list && list->kind == TSR_NODE_SEQ ? list->n : 0;
    *out = (struct texts){calloc(n + 1, sizeof(*out->items)), n};
    if (!out->items)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < n; i++)
        out->items[i] = list->items[i]->text;
    return TSR_OK;
}

static tsr_dtype dtype_or_none(const struct tsr_yaml_node *map, const char *key)
{
    const char *text = tsr_text_or(map, key, NULL);
    return text ? tsr_dtype_parse(text) : TSR_DTYPE_NONE;
}

/* ---- the file -------------------------------------------------------------------------------- */

static tsr_status read_mesh(const struct tsr_yaml_node *root, struct tsr_mesh *mesh)
{
    const struct tsr_yaml_node *node = tsr_node_get(root, "mesh");
    const struct tsr_yaml_node *shape = tsr_node_get(node, "shape");
    const struct tsr_yaml_node *names = tsr_node_get(node, "dim_names");
    *mesh = (struct tsr_mesh){0};
    if (!shape || shape->kind != TSR_NODE_SEQ || shape->n < 1 || shape->n > TSR_MAX_MESH)
        return tsr_node_error(node ? node : root,
                              "mesh.shape: found %s; allowed: a list of 1 to %d sizes",
                              tsr_node_show(shape), TSR_MAX_MESH);
    mesh->n_dims = (int)shape->n;
    for (size_t i = 0; i < shape->n; i++) {
        uint64_t size;
        if (!tsr_node_u64(shape->items[i], &size) || size < 1 || size > 1u << 24)
            return tsr_node_error(shape->items[i], "mesh.shape: found %s; allowed: 1 to 16777216",
                                  tsr_node_show(shape->items[i]));
        mesh->shape[i] = (uint32_t)size;
        if (names && names->kind == TSR_NODE_SEQ && i < names->n)
            snprintf(mesh->name[i], sizeof mesh->name[i], "%s", names->items[i]->text);
    }
    return TSR_OK;
}

tsr_status tsr_scenario_load(const char *path, struct tsr_scenario *out)
{
    *out = (struct tsr_scenario){0};
    TSR_TRY(tsr_doc_load(path, &out->doc));
    const struct tsr_yaml_node *root = out->doc.root;
    out->name = tsr_text_or(root, "name", "");
    out->kind = tsr_text_or(root, "kind", NULL);
    if (!out->kind) {
        tsr_status status = tsr_node_error(root, "kind: found %s; allowed: " TSR_TRACE_KINDS,
                                           tsr_node_show(tsr_node_get(root, "kind")));
        tsr_doc_fini(&out->doc);
        return status;
    }
    return TSR_OK;
}

/* The result's name of a 1-D mesh's group: "replicate" if every wrap entry says so. */
tsr_status tsr_scenario_mesh(struct tsr_scenario *s)
{
    const struct tsr_yaml_node *wrap = tsr_node_get(s->doc.root, "wrap");
    bool replicate = wrap && wrap->n > 0;
    TSR_TRY(read_mesh(s->doc.root, &s->mesh));
    for (size_t i = 0; wrap && i < wrap->n; i++)
        replicate = replicate && !strcmp(tsr_text_or(wrap->items[i], "api", ""), "replicate");
    if (s->mesh.n_dims == 1)
        snprintf(s->mesh.name[0], sizeof s->mesh.name[0], "%s", replicate ? "replicate" : "shard");
    return TSR_OK;
}

void tsr_scenario_fini(struct tsr_scenario *s)
{
    tsr_doc_fini(&s->doc);
}

tsr_status tsr_scenario_version(const struct tsr_scenario *s, enum tsr_version *version)
{
    const struct tsr_yaml_node *node = tsr_node_get(s->doc.root, "torch");
    const char *text = tsr_text_or(s->doc.root, "torch", "2.11");
    *version = !strcmp(text, "2.15") ? TSR_TORCH_2_15 : TSR_TORCH_2_11;
    if (*version == TSR_TORCH_2_11 && strcmp(text, "2.11") != 0)
        return tsr_node_error(node, "torch: found %s; allowed: 2.11, 2.15", text);
    return TSR_OK;
}

/* ---- model ----------------------------------------------------------------------------------- */

/* A model of transformers: `config` is read as a config.json is. */
static tsr_status build_hf(struct tsr_engine *e, const struct tsr_yaml_node *model,
                           const char *type)
{
    const struct tsr_yaml_node *config = tsr_node_get(model, "config");
    struct tsr_model m;
    if (!config)
        return tsr_node_error(model, "model.config: found nothing; allowed: a mapping");
    TSR_TRY(tsr_model_read_hf_node(config, type, &m));
    /* dtypes and roundings as in the modules of transformers */
    m.llama.hand_norm = m.llama.table_dtypes = m.gpt2.hand_act = true;
    tsr_status status;
    if (m.llama.rope.other)
        status = tsr_node_error(config, "config: found another rope_type; allowed (modelled): "
                                        "default, linear, llama3");
    else
        status =
            m.family == TSR_FAMILY_GPT2 ? tsr_model_gpt2(e, &m.gpt2) : tsr_model_llama(e, &m.llama);
    tsr_model_fini(&m);
    return status;
}

static tsr_status apply_extras(struct tsr_engine *e, const struct tsr_model *m)
{
    for (size_t i = 0; i < m->extras.n_ties; i++)
        TSR_TRY(tsr_param_tie(e, m->extras.ties[i][0], m->extras.ties[i][1]));
    for (size_t i = 0; i < m->extras.n_frozen; i++)
        TSR_TRY(tsr_param_freeze(e, m->extras.frozen[i]));
    for (size_t i = 0; i < m->extras.n_dtypes; i++)
        TSR_TRY(tsr_param_set_dtype(e, m->extras.dtype_patterns[i], m->extras.dtypes[i]));
    return TSR_OK;
}

/* `frozen` and `param_dtypes` of a model that is not a tree. */
static tsr_status apply_lists(struct tsr_engine *e, const struct tsr_yaml_node *model)
{
    const struct tsr_yaml_node *frozen = tsr_node_get(model, "frozen");
    const struct tsr_yaml_node *dtypes = tsr_node_get(model, "param_dtypes");
    for (size_t i = 0; frozen && frozen->kind == TSR_NODE_SEQ && i < frozen->n; i++)
        TSR_TRY(tsr_param_freeze(e, frozen->items[i]->text));
    for (size_t i = 0; dtypes && dtypes->kind == TSR_NODE_SEQ && i < dtypes->n; i++) {
        const struct tsr_yaml_node *pair = dtypes->items[i];
        if (pair->kind != TSR_NODE_SEQ || pair->n != 2)
            return tsr_node_error(pair, "param_dtypes: found %s; allowed: [PATTERN, DTYPE]",
                                  tsr_node_show(pair));
        TSR_TRY(
            tsr_param_set_dtype(e, pair->items[0]->text, tsr_dtype_parse(pair->items[1]->text)));
    }
    return TSR_OK;
}

tsr_status tsr_scenario_model(const struct tsr_scenario *s, struct tsr_engine *e)
{
    const struct tsr_yaml_node *model = tsr_node_get(s->doc.root, "model");
    const char *kind = tsr_text_or(model, "kind", "");
    if (!strcmp(kind, "llama") || !strcmp(kind, "gpt2")) {
        TSR_TRY(build_hf(e, model, kind[0] == 'l' ? "llama" : "gpt2"));
        TSR_TRY(apply_lists(e, model));
    } else if (!strcmp(kind, "tree")) {
        struct tsr_model tree;
        TSR_TRY(tsr_model_read_tree_node(model, &tree));
        tsr_status status = tsr_model_tree(e, &tree.tree);
        if (status == TSR_OK)
            status = apply_extras(e, &tree);
        tsr_model_fini(&tree);
        TSR_TRY(status);
    } else {
        return tsr_node_error(model ? model : s->doc.root,
                              "model.kind: found %s; allowed: tree, llama, gpt2",
                              *kind ? kind : "nothing");
    }
    bool layout = !strcmp(s->kind, "layout"); /* never materialised, never run */
    tsr_model_set_meta(e, tsr_bool_or(model, "meta", false) && !layout);
    const struct tsr_yaml_node *transposed = tsr_node_get(model, "noncontiguous");
    for (size_t i = 0; transposed && transposed->kind == TSR_NODE_SEQ && i < transposed->n; i++)
        TSR_TRY(tsr_param_set_noncontiguous(e, transposed->items[i]->text));
    return TSR_OK;
}

/* ---- wrap ------------------------------------------------------------------------------------ */

static tsr_status read_reshard(const struct tsr_yaml_node *entry, struct tsr_wrap_options *o)
{
    const struct tsr_yaml_node *node = tsr_node_get(entry, "reshard_after_forward");
    bool flag;
    if (tsr_node_is_null(node))
        return TSR_OK;
    if (tsr_node_bool(node, &flag))
        o->reshard = flag ? TSR_RESHARD_TRUE : TSR_RESHARD_FALSE;
    else if (tsr_node_i64(node, &o->reshard_int))
        o->reshard = TSR_RESHARD_INT;
    else
        o->reshard_invalid = node->kind == TSR_NODE_SCALAR ? node->text : tsr_node_show(node);
    return TSR_OK;
}

static tsr_status read_shard_dims(const struct tsr_yaml_node *list, struct tsr_shard_dim **out,
                                  size_t *n)
{
    *n = list && list->kind == TSR_NODE_SEQ ? list->n : 0;
    *out = calloc(*n + 1, sizeof(**out));
    if (!*out)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < *n; i++) {
        const struct tsr_yaml_node *pair = list->items[i];
        int64_t dim = 0;
        if (pair->kind != TSR_NODE_SEQ || pair->n != 2)
            return tsr_node_error(pair, "shard_dim: found %s; allowed: [PATTERN, DIM]",
                                  tsr_node_show(pair));
        (*out)[i].pattern = pair->items[0]->text;
        if (!tsr_node_i64(pair->items[1], &dim))
            (*out)[i].replicate = true;
        (*out)[i].dim = (int)dim;
    }
    return TSR_OK;
}

static tsr_status apply_entry(struct tsr_engine *e, const struct tsr_yaml_node *entry,
                              const struct tsr_wrap_options *o, struct tsr_module *const *modules,
                              size_t n)
{
    bool replicate = !strcmp(tsr_text_or(entry, "api", ""), "replicate");
    bool group = tsr_bool_or(entry, "group", false);
    if (group)
        return replicate ? tsr_replicate(e, modules, n, o) : tsr_fully_shard(e, modules, n, o);
    for (size_t i = 0; i < n; i++)
        TSR_TRY(replicate ? tsr_replicate(e, &modules[i], 1, o)
                          : tsr_fully_shard(e, &modules[i], 1, o));
    return TSR_OK;
}

/* Modules that a list of patterns names; to be freed. */
static tsr_status match(struct tsr_engine *e, const struct tsr_yaml_node *patterns,
                        struct tsr_module ***out, size_t *n)
{
    struct texts texts;
    *out = NULL;
    TSR_TRY(read_texts(patterns, &texts));
    *n = 0;
    tsr_module_match(e, texts.items, texts.n, NULL, n);
    *out = calloc(*n + 1, sizeof(struct tsr_module *));
    if (*out)
        tsr_module_match(e, texts.items, texts.n, *out, n);
    free(texts.items);
    return *out ? TSR_OK : tsr_no_memory(NULL);
}

static tsr_status wrap_entry(struct tsr_engine *e, const struct tsr_yaml_node *entry)
{
    struct tsr_wrap_options o = {0};
    struct tsr_shard_dim *dims = NULL;
    struct tsr_module **modules = NULL;
    struct texts ignored = {0}, mesh_dims = {0};
    size_t n = 0;
    const struct tsr_yaml_node *mp = tsr_node_get(entry, "mp");
    const char *offload = tsr_text_or(entry, "offload", "");
    o.mp.param = dtype_or_none(mp, "param");
    o.mp.reduce = dtype_or_none(mp, "reduce");
    o.mp.output = dtype_or_none(mp, "output");
    o.mp.no_cast_inputs = !tsr_bool_or(mp, "cast_inputs", true);
    o.offload = !strcmp(offload, "cpu")          ? TSR_OFFLOAD_CPU
                : !strcmp(offload, "cpu_pinned") ? TSR_OFFLOAD_CPU_PINNED
                                                 : TSR_OFFLOAD_NONE;
    tsr_status status;
    TSR_GOTO(done, read_reshard(entry, &o));
    TSR_GOTO(done, read_shard_dims(tsr_node_get(entry, "shard_dim"), &dims, &o.n_shard_dims));
    TSR_GOTO(done, read_texts(tsr_node_get(entry, "ignored"), &ignored));
    TSR_GOTO(done, read_texts(tsr_node_get(entry, "mesh_dims"), &mesh_dims));
    TSR_GOTO(done, match(e, tsr_node_get(entry, "modules"), &modules, &n));
    o.mesh_dims = mesh_dims.items;
    o.n_mesh_dims = (int)mesh_dims.n;
    o.shard_dims = dims;
    o.ignored = ignored.items;
    o.n_ignored = ignored.n;
    TSR_GOTO(done, apply_entry(e, entry, &o, modules, n));

done:
    free(modules);
    free(ignored.items);
    free(mesh_dims.items);
    free(dims);
    return status;
}

static tsr_status checkpoint_entry(struct tsr_engine *e, const struct tsr_yaml_node *entry)
{
    struct tsr_module **modules;
    size_t n;
    TSR_TRY(match(e, tsr_node_get(entry, "modules"), &modules, &n));
    tsr_status status = TSR_OK;
    bool outside = !strcmp(tsr_text_or(entry, "where", "inside"), "outside");
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        status = tsr_checkpoint(e, modules[i], outside, tsr_bool_or(entry, "early_stop", true));
    free(modules);
    return status;
}

tsr_status tsr_scenario_wrap(const struct tsr_scenario *s, struct tsr_engine *e)
{
    const struct tsr_yaml_node *ac = tsr_node_get(s->doc.root, "ac");
    const struct tsr_yaml_node *wrap = tsr_node_get(s->doc.root, "wrap");
    for (size_t i = 0; ac && i < ac->n; i++)
        TSR_TRY(checkpoint_entry(e, ac->items[i]));
    for (size_t i = 0; wrap && i < wrap->n; i++)
        TSR_TRY(wrap_entry(e, wrap->items[i]));
    return TSR_OK;
}

/* `comm_hook`: one of torch.distributed.algorithms.ddp_comm_hooks.default_hooks. */
static tsr_status register_comm_hook(const struct tsr_yaml_node *ddp, struct tsr_engine *e)
{
    static const char *const names[] = {[TSR_DDP_HOOK_ALLREDUCE] = "allreduce",
                                        [TSR_DDP_HOOK_FP16_COMPRESS] = "fp16_compress",
                                        [TSR_DDP_HOOK_BF16_COMPRESS] = "bf16_compress"};
    const char *name = tsr_text_or(ddp, "comm_hook", NULL);
    for (int i = 0; name && i < (int)(sizeof names / sizeof *names); i++)
        if (!strcmp(names[i], name))
            return tsr_ddp_register_comm_hook(e, (enum tsr_ddp_hook)i, NULL, NULL);
    return name ? tsr_node_error(
                      tsr_node_get(ddp, "comm_hook"),
                      "comm_hook: found %s; allowed: allreduce, fp16_compress, bf16_compress", name)
                : TSR_OK;
}

tsr_status tsr_scenario_ddp(const struct tsr_scenario *s, struct tsr_engine *e)
{
    const struct tsr_yaml_node *ddp = tsr_node_get(s->doc.root, "ddp");
    struct tsr_ddp_options o = {
        .find_unused = tsr_bool_or(ddp, "find_unused_parameters", false),
        .static_graph = tsr_bool_or(ddp, "static_graph", false),
        .gradient_as_bucket_view = tsr_bool_or(ddp, "gradient_as_bucket_view", false),
        .skip_all_reduce_unused = tsr_bool_or(ddp, "skip_all_reduce_unused_params", false)};
    const struct tsr_yaml_node *cap = tsr_node_get(ddp, "bucket_cap_mb");
    if (!tsr_node_is_null(cap) && !tsr_node_double(cap, &o.bucket_cap_mb))
        return tsr_node_error(cap, "bucket_cap_mb: found %s; allowed: a number",
                              tsr_node_show(cap));
    TSR_TRY(tsr_ddp(e, &o));
    return register_comm_hook(ddp, e);
}

tsr_status tsr_scenario_step(const struct tsr_scenario *s, struct tsr_engine *e)
{
    const struct tsr_yaml_node *train = tsr_node_get(s->doc.root, "train");
    const struct tsr_yaml_node *optimizer = tsr_node_get(train, "optimizer");
    const char *name = tsr_text_or(optimizer, "name", "sgd");
    double momentum = 0, decay = 0, dampening = 0;
    tsr_node_double(tsr_node_get(optimizer, "momentum"), &momentum);
    tsr_node_double(tsr_node_get(optimizer, "dampening"), &dampening);
    tsr_node_double(tsr_node_get(optimizer, "weight_decay"), &decay);
    struct tsr_step_config step = {.batch = tsr_u64_or(train, "batch", 1),
                                   .seq = tsr_u64_or(train, "seq", 1),
                                   .n_micro = (uint32_t)tsr_u64_or(train, "micro", 1),
                                   .report = true,
                                   .sgd_decay = decay != 0,
                                   .nesterov = tsr_bool_or(optimizer, "nesterov", false),
                                   .maximize = tsr_bool_or(optimizer, "maximize", false),
                                   .amsgrad = tsr_bool_or(optimizer, "amsgrad", false)};
    if (step.nesterov && (momentum == 0 || dampening != 0)) /* as torch.optim.SGD */
        return tsr_node_error(tsr_node_get(optimizer, "nesterov"),
                              "nesterov: found true; allowed: false without momentum, or with "
                              "dampening");
    step.optimizer = !strcmp(name, "adamw") ? TSR_OPT_ADAMW_FOREACH
                     : momentum != 0        ? TSR_OPT_SGD_MOMENTUM
                                            : TSR_OPT_SGD;
    return tsr_step_configure(e, &step);
}
