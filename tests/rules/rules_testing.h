/* rules_testing.h: what the tests of the rules share: a small wrapped model, its iterations, and
 * questions about what the engine said (events) and emitted (instructions).
 *
 *   struct rig r;
 *   rig_open(&r, (struct rig_setup){.shards = 4});      engine and model: emb, layers.I, norm, out
 *   rig_wrap(&r, &options_of_layers, &options_of_root); NULL: defaults
 *   rig_start(&r);
 *   rig_step(&r);                                       one iteration: r.now and r.events are its
 *   assert_string_equal(rig_trace(&r, "forward", "AG F"), "AG 0, F 0, AG 1, F 1");
 *   rig_close(&r);
 *
 * An event is a line: "unshard g=layers.0 state=forward async=false res=issue". A query is a line
 * too; it matches events of that name that have all of its fields. Root and null are spelled out;
 * blanks inside a value become underscores.
 */
#ifndef TSR_RULES_TESTING_H
#define TSR_RULES_TESTING_H

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/program/memory.h"
#include "engine/tessera.h"

struct rig_event {
    char *text;
    size_t at; /* instructions of this iteration before it */
    uint8_t phase;
};

struct rig_setup {
    uint32_t shards, replicas; /* replicas 0: a 1-D mesh */
    uint32_t rank;
    unsigned layers, micro;       /* 0: 3 layers, 1 micro-batch */
    bool eager;                   /* eager attention, which returns its weights too */
    bool floats;                  /* float input of `width`; the first layer is not an embedding */
    uint64_t width;               /* 0: 8 */
    enum tsr_optimizer optimizer; /* 0: AdamW, foreach */
    tsr_dtype dtype;
    enum tsr_version version; /* of PyTorch: 0 = the default */
    enum tsr_init init;
    struct tsr_allocator_config allocator;
};

struct rig {
    struct tsr_executor base; /* first: it is handed out as the executor */
    struct rig_setup setup;
    struct tsr_engine *e;
    struct tsr_program now, all; /* this iteration; every iteration */
    struct tsr_memory *memory;
    struct tsr_memory_peak peak; /* of the latest iteration */
    size_t n_replayed;           /* instructions of `now` that `memory` knows */
    struct rig_event *events;
    size_t n_events, cap_events;
    uint64_t level[TSR_N_CATEGORIES]; /* requested device bytes when the iteration began */
    uint32_t iteration;
    char text[4096]; /* of rig_trace() */
};

/* ---- recording ------------------------------------------------------------------------------- */

static inline tsr_status rig_submit(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct rig *r = (struct rig *)x;
    TSR_TRY(tsr_program_append(&r->now, instr));
    return tsr_program_append(&r->all, instr);
}

static inline tsr_status rig_drain(struct tsr_executor *x)
{
    (void)x;
    return TSR_OK;
}

static inline size_t rig_put(char *out, size_t used, size_t size, const char *value)
{
    if (!*value)
        value = "root";
    for (; *value && used + 1 < size; value++)
        out[used++] = *value == ' ' ? '_' : *value;
    out[used] = 0;
    return used;
}

static inline size_t rig_put_field(char *out, size_t used, size_t size, const struct tsr_field *f)
{
    used += (size_t)snprintf(out + used, size - used, " %s=", f->key);
    switch (f->type) {
    case TSR_FIELD_NULL:
        return rig_put(out, used, size, "null");
    case TSR_FIELD_BOOL:
        return rig_put(out, used, size, f->i ? "true" : "false");
    case TSR_FIELD_INT:
        return used + (size_t)snprintf(out + used, size - used, "%" PRId64, f->i);
    case TSR_FIELD_DOUBLE:
        return used + (size_t)snprintf(out + used, size - used, "%g", f->d);
    case TSR_FIELD_STRING:
        return rig_put(out, used, size, f->s);
    case TSR_FIELD_STRINGS:
        used = rig_put(out, used, size, "[");
        for (int64_t i = 0; i < f->i; i++) {
            if (i)
                used = rig_put(out, used, size, ",");
            used = rig_put(out, used, size, f->strings[i]);
        }
        return rig_put(out, used, size, "]");
    case TSR_FIELD_INTS:
        break;
    }
    return used;
}

static inline void rig_on_event(void *user, const struct tsr_event *ev)
{
    struct rig *r = user;
    char text[2048];
    size_t used = (size_t)snprintf(text, sizeof text, "%s", ev->name);
    for (int i = 0; i < ev->n_fields; i++)
        used = rig_put_field(text, used, sizeof text, &ev->fields[i]);
    struct rig_event event = {.text = malloc(used + 1), .at = r->now.n_instrs};
    assert_non_null(event.text);
    memcpy(event.text, text, used + 1);
    if (r->now.n_instrs)
        event.phase = r->now.instrs[r->now.n_instrs - 1].origin.phase;
    assert_true(TSR_PUSH(r->events, r->n_events, r->cap_events, event));
}

static inline void rig_ok(tsr_status status)
{
    if (status != TSR_OK)
        fail_msg("%s: %s", tsr_status_class(status), tsr_error_text());
}

/* Brings the memory up to now. */
static inline void rig_replay(struct rig *r)
{
    struct tsr_program rest = {.n_instrs = r->now.n_instrs - r->n_replayed,
                               .instrs = r->now.instrs + r->n_replayed,
                               .tables = r->now.tables};
    if (rest.n_instrs)
        rig_ok(tsr_memory_replay(r->memory, &rest, NULL, NULL, &r->peak));
    r->n_replayed = r->now.n_instrs;
}

static inline void rig_forget(struct rig *r)
{
    rig_replay(r);
    r->n_replayed = 0;
    for (size_t i = 0; i < r->now.n_instrs; i++) {
        const struct tsr_instr *instr = &r->now.instrs[i];
        if (instr->kind == TSR_ALLOC)
            r->level[instr->category] += instr->bytes;
        if (instr->kind == TSR_FREE)
            r->level[instr->category] -= instr->bytes;
    }
    tsr_program_fini(&r->now);
    tsr_program_init(&r->now, tsr_engine_tables(r->e));
    for (size_t i = 0; i < r->n_events; i++)
        free(r->events[i].text);
    r->n_events = 0;
}

/* ---- model ----------------------------------------------------------------------------------- */

static inline struct tsr_tree_node rig_leaf(const char *name, enum tsr_tree_type type, uint64_t in,
                                            uint64_t out)
{
    return (struct tsr_tree_node){.name = name, .type = type, .in = in, .out = out};
}

/* An engine without a model: for models of the test's own. */
static inline void rig_engine(struct rig *r, struct rig_setup s)
{
    static const struct tsr_executor_ops ops = {.size = sizeof ops,
                                                .version = TSR_EXECUTOR_VERSION,
                                                .name = "rig",
                                                .submit = rig_submit,
                                                .drain = rig_drain};
    struct tsr_trace_sink sink = {rig_on_event, r};
    struct tsr_engine_config config = {.rank = s.rank, .executor = &r->base, .trace = &sink};
    config.version = s.version;
    config.init = s.init;
    config.allocator = s.allocator;
    config.attention = s.eager ? TSR_ATTENTION_EAGER : TSR_SDPA_FLASH;
    *r = (struct rig){.base.ops = &ops, .setup = s};
    config.mesh.n_dims = s.replicas ? 2 : 1;
    config.mesh.shape[0] = s.replicas ? s.replicas : s.shards;
    config.mesh.shape[1] = s.replicas ? s.shards : 0;
    if (s.replicas) {
        strcpy(config.mesh.name[0], "replicate");
        strcpy(config.mesh.name[1], "shard");
    }
    assert_int_equal(tsr_engine_create(&config, &r->e), TSR_OK);
    tsr_program_init(&r->now, tsr_engine_tables(r->e));
    tsr_program_init(&r->all, tsr_engine_tables(r->e));
    assert_int_equal(tsr_memory_create(&r->memory), TSR_OK);
}

/* emb (or inp), layers.I = x + down(silu(up(norm(x)))), norm, out. Shapes: up (12, width) with a
 * bias, down (width, 12) without. */
static inline void rig_open(struct rig *r, struct rig_setup s)
{
    static const char *const digits[] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    uint64_t d = s.width ? s.width : 8;
    unsigned n = s.layers ? s.layers : 3;
    struct tsr_tree_node body[8][4], layer[8];
    rig_engine(r, s);
    for (unsigned i = 0; i < n; i++) {
        body[i][0] = rig_leaf("norm", TSR_TREE_RMSNORM, d, 0);
        body[i][1] = rig_leaf("up", TSR_TREE_LINEAR, d, 12);
        body[i][1].bias = true;
        body[i][2] = rig_leaf("act", TSR_TREE_SILU, 0, 0);
        body[i][3] = rig_leaf("down", TSR_TREE_LINEAR, 12, d);
        layer[i] = (struct tsr_tree_node){.name = digits[i],
                                          .type = TSR_TREE_SEQ,
                                          .residual = true,
                                          .n_children = 4,
                                          .children = body[i]};
    }
    struct tsr_tree_node top[] = {
        s.floats ? rig_leaf("inp", TSR_TREE_LINEAR, d, d)
                 : rig_leaf("emb", TSR_TREE_EMBEDDING, 16, d),
        {.name = "layers", .type = TSR_TREE_SEQ, .n_children = n, .children = layer},
        rig_leaf("norm", TSR_TREE_RMSNORM, d, 0),
        rig_leaf("out", TSR_TREE_LINEAR, d, 16)};
    struct tsr_tree_config config = {
        .root = {.name = "", .type = TSR_TREE_SEQ, .n_children = 4, .children = top},
        .tokens = s.floats ? 0 : 16,
        .in_dim = s.floats ? d : 0,
        .loss_mse = s.floats,
        .param_dtype = s.dtype};
    assert_int_equal(tsr_model_tree(r->e, &config), TSR_OK);
}

static inline struct tsr_module *rig_module(struct rig *r, const char *fqn)
{
    struct tsr_module *m = tsr_module_find(r->e, fqn);
    if (!m)
        fail_msg("no module '%s'", fqn);
    return m;
}

static inline tsr_status rig_try_shard(struct rig *r, const char *fqn,
                                       const struct tsr_wrap_options *options)
{
    struct tsr_module *m = rig_module(r, fqn);
    return tsr_fully_shard(r->e, &m, 1, options);
}

static inline void rig_shard(struct rig *r, const char *fqn, const struct tsr_wrap_options *options)
{
    tsr_status status = rig_try_shard(r, fqn, options);
    if (status != TSR_OK)
        fail_msg("fully_shard of '%s': %s", fqn, tsr_error_text());
}

static inline void rig_replicate(struct rig *r, const char *fqn,
                                 const struct tsr_wrap_options *options)
{
    struct tsr_module *m = rig_module(r, fqn);
    assert_int_equal(tsr_replicate(r->e, &m, 1, options), TSR_OK);
}

static inline unsigned rig_layers(const struct rig *r)
{
    return r->setup.layers ? r->setup.layers : 3;
}

/* Every layer, then the root. */
static inline void rig_wrap(struct rig *r, const struct tsr_wrap_options *layers,
                            const struct tsr_wrap_options *root)
{
    char fqn[32];
    for (unsigned i = 0; i < rig_layers(r); i++) {
        snprintf(fqn, sizeof fqn, "layers.%u", i);
        rig_shard(r, fqn, layers);
    }
    rig_shard(r, "", root);
}

static inline void rig_start(struct rig *r)
{
    struct tsr_step_config config = {.batch = 2,
                                     .seq = 4,
                                     .n_micro = r->setup.micro ? r->setup.micro : 1,
                                     .optimizer = r->setup.optimizer};
    assert_int_equal(tsr_step_configure(r->e, &config), TSR_OK);
    assert_int_equal(tsr_engine_init_params(r->e), TSR_OK);
}

/* The three together: a rig that can step. */
static inline void rig_ready(struct rig *r, struct rig_setup setup,
                             const struct tsr_wrap_options *layers,
                             const struct tsr_wrap_options *root)
{
    rig_open(r, setup);
    rig_wrap(r, layers, root);
    rig_start(r);
}

/* An engine with another model: linear layers a, b and c, of which `run` names those that run, in
 * that order (NULL: all). */
static inline void rig_abc(struct rig *r, struct rig_setup setup, const char *const *run,
                           size_t n_run)
{
    const struct tsr_tree_node leaf[] = {rig_leaf("a", TSR_TREE_LINEAR, 8, 8),
                                         rig_leaf("b", TSR_TREE_LINEAR, 8, 8),
                                         rig_leaf("c", TSR_TREE_LINEAR, 8, 8)};
    const struct tsr_tree_config config = {.root = {.name = "",
                                                    .type = TSR_TREE_SEQ,
                                                    .n_children = 3,
                                                    .children = leaf,
                                                    .n_run = n_run,
                                                    .run = run},
                                           .in_dim = 8,
                                           .loss_mse = true};
    rig_engine(r, setup);
    rig_ok(tsr_model_tree(r->e, &config));
}

/* An engine with a Llama of two layers. */
static inline void rig_llama(struct rig *r, struct rig_setup setup)
{
    const struct tsr_llama_config llama = {.hidden_size = 16,
                                           .intermediate_size = 32,
                                           .n_layers = 2,
                                           .n_heads = 2,
                                           .n_kv_heads = 2,
                                           .head_dim = 8,
                                           .vocab_size = 32,
                                           .max_positions = 64};
    rig_engine(r, setup);
    rig_ok(tsr_model_llama(r->e, &llama));
}

/* ---- iterations ------------------------------------------------------------------------------ */

/* The class of the error and words of its text. */
static inline void rig_refused(tsr_status got, tsr_status want, const char *words)
{
    assert_int_equal(got, want);
    if (!strstr(tsr_error_text(), words))
        fail_msg("'%s' does not say '%s'", tsr_error_text(), words);
}

static inline void rig_begin(struct rig *r)
{
    rig_forget(r);
    rig_ok(tsr_step_begin(r->e, r->iteration++));
}

static inline void rig_forward(struct rig *r, uint32_t micro)
{
    rig_ok(tsr_step_forward(r->e, micro, NULL, false));
}

static inline void rig_backward(struct rig *r, uint32_t micro)
{
    rig_ok(tsr_step_backward(r->e, &micro, 1));
}

static inline void rig_end(struct rig *r)
{
    rig_ok(tsr_step_optimizer(r->e));
    rig_ok(tsr_step_end(r->e));
    rig_replay(r);
}

static inline void rig_step(struct rig *r)
{
    rig_begin(r);
    for (uint32_t m = 0; m < (r->setup.micro ? r->setup.micro : 1); m++) {
        rig_forward(r, m);
        rig_backward(r, m);
    }
    rig_end(r);
}

static inline void rig_close(struct rig *r)
{
    rig_forget(r);
    free(r->events);
    tsr_program_fini(&r->now);
    tsr_program_fini(&r->all);
    tsr_memory_destroy(r->memory);
    tsr_engine_destroy(r->e);
}

#include "tests/rules/rules_queries.h"

#endif
