/* example.c: the engine as a library: an own model, fully_shard, an own all-reduce hook, and the
 * recorder as executor. Prints the collectives of one step as rank 0 of 4 issues them.
 */
#include <stdio.h>

#include "engine/ops/ops.h"
#include "engine/tessera.h"

/* y = relu(x W^T): what a layer of the model does. Its children would be run with tsr_call(). */
static void layer(struct tsr_engine *e, struct tsr_module *self, void *impl, struct tsr_tensor *x,
                  struct tsr_tensor **y)
{
    (void)impl;
    struct tsr_tensor *h = tsr_op_linear(e, x, tsr_module_param(self, 0), NULL);
    *y = tsr_op_relu(e, h);
    tsr_release(e, h);
}

static void model(struct tsr_engine *e, struct tsr_module *self, void *impl, struct tsr_tensor *x,
                  struct tsr_tensor **y)
{
    (void)impl;
    struct tsr_tensor *h = tsr_call(e, tsr_module_child(self, 0), x);
    *y = tsr_call(e, tsr_module_child(self, 1), h);
    tsr_release(e, h);
}

/* Runs on the reduced gradient of a layer: one kernel of our own, simulated like any other. */
static void scale_gradient(struct tsr_engine *e, struct tsr_tensor *gradient, void *user)
{
    tsr_emit_user_op(e, gradient, user, 64.0 * 64.0);
}

static tsr_status build(struct tsr_engine *e)
{
    const uint64_t shape[2] = {64, 64};
    struct tsr_module *root = tsr_module_add(e, NULL, "", model, NULL), *layers[2];
    for (int i = 0; i < 2; i++) {
        layers[i] = tsr_module_add(e, root, i ? "second" : "first", layer, NULL);
        if (!layers[i] || !tsr_param_add(e, layers[i], "weight", 2, shape, TSR_F32))
            return tsr_no_memory(NULL);
        TSR_TRY(tsr_fully_shard(e, &layers[i], 1, NULL));
        TSR_TRY(tsr_set_all_reduce_hook(e, layers[i], scale_gradient, "scale_gradient", false));
    }
    TSR_TRY(tsr_fully_shard(e, &root, 1, NULL));
    tsr_model_set_float_input(e, 64);
    return tsr_step_configure(
        e, &(struct tsr_step_config){.batch = 8, .seq = 1, .n_micro = 1, .optimizer = TSR_OPT_SGD});
}

static void print_work(const struct tsr_program *p)
{
    for (size_t i = 0; i < p->n_instrs; i++) {
        const struct tsr_instr *in = &p->instrs[i];
        bool hook = in->kind == TSR_OP && in->work->op == TSR_OP_USER;
        if (in->kind == TSR_ALL_GATHER || in->kind == TSR_REDUCE_SCATTER || hook)
            printf("%-15s %-14s %6llu bytes  group %s\n", p->tables->streams[in->stream].name,
                   hook ? in->work->name : tsr_instr_kind_name(in->kind),
                   (unsigned long long)(hook ? in->work->bytes_written : in->bytes),
                   in->origin.group == TSR_NO_ID ? "-" : p->tables->groups[in->origin.group]);
    }
}

int main(void)
{
    struct tsr_recorder recorder;
    struct tsr_program init, step;
    struct tsr_engine *e = NULL;
    tsr_recorder_init(&recorder, &init);
    struct tsr_engine_config config = {.mesh = {.n_dims = 1, .shape = {4}},
                                       .executor = &recorder.base};
    tsr_status status = tsr_engine_create(&config, &e);
    if (status != TSR_OK) {
        fprintf(stderr, "example: %s\n", tsr_error_text());
        return 1;
    }
    tsr_program_init(&init, tsr_engine_tables(e));
    tsr_program_init(&step, tsr_engine_tables(e));
    TSR_GOTO(done, build(e));
    TSR_GOTO(done, tsr_engine_init_params(e));
    recorder.into = &step;
    TSR_GOTO(done, tsr_step_run(e, 0));
    print_work(&step);
done:
    if (status != TSR_OK)
        fprintf(stderr, "example: %s\n", tsr_error_text());
    tsr_program_fini(&step);
    tsr_program_fini(&init);
    tsr_engine_destroy(e);
    return status == TSR_OK ? 0 : 1;
}
