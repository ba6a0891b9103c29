/* extend.c: what a program can put in the engine's place: a second way to run a module, an
 * all-gather and a reduce-scatter of its own. Prints what rank 0 of 4 then launches in one step.
 */
#include <stdio.h>

#include "engine/ops/ops.h"
#include "engine/tessera.h"

static void layer(struct tsr_engine *e, struct tsr_module *self, void *impl, struct tsr_tensor *x,
                  struct tsr_tensor **y)
{
    (void)impl;
    *y = tsr_op_linear(e, x, tsr_module_param(self, 0), NULL);
}

/* The model asks its first layer to encode(), which is not its forward. */
static void model(struct tsr_engine *e, struct tsr_module *self, void *impl, struct tsr_tensor *x,
                  struct tsr_tensor **y)
{
    (void)impl;
    struct tsr_tensor *h = tsr_call_method(e, tsr_module_child(self, 0), "encode", x);
    *y = tsr_call(e, tsr_module_child(self, 1), h);
    tsr_release(e, h);
}

/* Every rank gets all sums and keeps its own part: more bytes, but each sum is the same everywhere.
 */
static void reduce_by_all_reduce(struct tsr_engine *e, struct tsr_tensor *out,
                                 struct tsr_tensor *in, const struct tsr_custom_call *call,
                                 void *user)
{
    uint64_t bytes = tsr_tensor_bytes(out);
    (void)user;
    tsr_emit_all_reduce(e, in, call->comm);
    tsr_emit_device_copy(e, out, 0, in, call->index * bytes, bytes);
}

static tsr_status build(struct tsr_engine *e, struct tsr_two_level *gather)
{
    static const struct tsr_custom_comm reduce = {.name = "by_all_reduce",
                                                  .run = reduce_by_all_reduce};
    const uint64_t shape[2] = {64, 64};
    struct tsr_module *root = tsr_module_add(e, NULL, "", model, NULL), *layers[2];
    for (int i = 0; i < 2; i++) {
        layers[i] = tsr_module_add(e, root, i ? "decoder" : "encoder", layer, NULL);
        if (!layers[i] || !tsr_param_add(e, layers[i], "weight", 2, shape, TSR_F32))
            return tsr_no_memory(NULL);
        TSR_TRY(tsr_fully_shard(e, &layers[i], 1, NULL));
    }
    TSR_TRY(tsr_fully_shard(e, &root, 1, NULL));
    TSR_TRY(tsr_module_add_method(e, layers[0], "encode", layer));
    TSR_TRY(tsr_register_forward_method(e, layers[0], "encode")); /* else nothing is gathered */
    tsr_two_level_init(gather, 2);                                /* nodes of two GPUs */
    TSR_TRY(tsr_set_custom_all_gather(e, layers[0], &gather->comm));
    TSR_TRY(tsr_set_custom_reduce_scatter(e, layers[1], &reduce));
    tsr_model_set_float_input(e, 64);
    TSR_TRY(tsr_step_configure(
        e,
        &(struct tsr_step_config){.batch = 8, .seq = 1, .n_micro = 1, .optimizer = TSR_OPT_SGD}));
    return tsr_engine_init_params(e);
}

static void print_launches(const struct tsr_program *p)
{
    for (size_t i = 0; i < p->n_instrs; i++) {
        const struct tsr_instr *in = &p->instrs[i];
        bool mine = in->origin.hook == TSR_HOOK_USER && in->kind == TSR_COPY;
        if (in->comm != UINT16_MAX || mine)
            printf("%-14s %-14s %6llu bytes  group %s\n", p->tables->streams[in->stream].name,
                   tsr_instr_kind_name(in->kind), (unsigned long long)in->bytes,
                   p->tables->groups[in->origin.group]);
    }
}

int main(void)
{
    struct tsr_recorder recorder;
    struct tsr_program init = {0}, step = {0};
    struct tsr_two_level gather; /* lives as long as the engine */
    struct tsr_engine *e = NULL;
    tsr_recorder_init(&recorder, &init);
    struct tsr_engine_config config = {.mesh = {.n_dims = 1, .shape = {4}},
                                       .executor = &recorder.base};
    tsr_status status;
    TSR_GOTO(done, tsr_engine_create(&config, &e));
    tsr_program_init(&init, tsr_engine_tables(e));
    tsr_program_init(&step, tsr_engine_tables(e));
    TSR_GOTO(done, build(e, &gather));
    recorder.into = &step;
    TSR_GOTO(done, tsr_step_run(e, 0));
    print_launches(&step);

done:
    if (status != TSR_OK)
        fprintf(stderr, "extend: %s\n", tsr_error_text());
    tsr_program_fini(&step);
    tsr_program_fini(&init);
    tsr_engine_destroy(e);
    return status == TSR_OK ? 0 : 1;
}
