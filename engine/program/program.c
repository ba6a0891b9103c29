/* program.c: recorded instructions, the names of their codes, and the recorder: the simplest
 * executor, which appends every instruction to a program.
 */
#include "engine/program/executor.h"

#include <stdlib.h>
#include <string.h>

void tsr_program_init(struct tsr_program *program, const struct tsr_tables *tables)
{
    *program = (struct tsr_program){.tables = tables};
    tsr_arena_init(&program->arena);
}

void tsr_program_fini(struct tsr_program *program)
{
    free(program->instrs);
    tsr_arena_fini(&program->arena);
    tsr_program_init(program, NULL);
}

static bool copy_args(struct tsr_program *program, struct tsr_work *work)
{
    size_t bytes = work->n_args * sizeof *work->args;
    if (bytes == 0)
        return true;
    uint64_t *args = tsr_arena_alloc(&program->arena, bytes);
    if (args)
        memcpy(args, work->args, bytes);
    work->args = args;
    return args != NULL;
}

tsr_status tsr_program_append(struct tsr_program *program, const struct tsr_instr *instr)
{
    struct tsr_instr copy = *instr;
    copy.operands = NULL;
    copy.work = NULL;
    if (instr->n_operands) {
        size_t bytes = instr->n_operands * sizeof *instr->operands;
        struct tsr_operand *operands = tsr_arena_alloc(&program->arena, bytes);
        if (!operands)
            return tsr_no_memory("operands of an instruction");
        memcpy(operands, instr->operands, bytes);
        copy.operands = operands;
    }
    if (instr->work) {
        struct tsr_work *work = tsr_arena_alloc(&program->arena, sizeof *work);
        if (!work)
            return tsr_no_memory("work of an instruction");
        *work = *instr->work;
        copy.work = work;
        if (!copy_args(program, work))
            return tsr_no_memory("work of an instruction");
    }
    if (!TSR_PUSH(program->instrs, program->n_instrs, program->cap, copy))
        return tsr_fail(TSR_ENOMEM, "out of memory: a program of %zu instructions",
                        program->n_instrs);
    return TSR_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

static const char *name_of(const char *const *names, int n, int i)
{
    return i >= 0 && i < n && names[i] ? names[i] : "?";
}

const char *tsr_instr_kind_name(int kind)
{
    static const char *const names[TSR_N_INSTR_KINDS] = {
        [TSR_SEGMENT_ALLOC] = "segment_alloc",
        [TSR_SEGMENT_FREE] = "segment_free",
        [TSR_ALLOC] = "alloc",
        [TSR_FREE] = "free",
        [TSR_COPY] = "copy",
        [TSR_FILL] = "fill",
        [TSR_OP] = "op",
        [TSR_ALL_GATHER] = "all_gather",
        [TSR_REDUCE_SCATTER] = "reduce_scatter",
        [TSR_ALL_REDUCE] = "all_reduce",
        [TSR_BROADCAST] = "broadcast",
        [TSR_ALL_TO_ALL] = "all_to_all",
        [TSR_SEND] = "send",
        [TSR_RECV] = "recv",
        [TSR_GROUP_BEGIN] = "group_begin",
        [TSR_GROUP_END] = "group_end",
        [TSR_CUSTOM_COLLECTIVE] = "custom_collective",
        [TSR_COMM_CREATE] = "comm_create",
        [TSR_RECORD] = "record",
        [TSR_WAIT] = "wait",
        [TSR_HOST_WAIT] = "host_wait",
        [TSR_HOST_READ] = "host_read",
        [TSR_HOST_OP] = "host_op",
        [TSR_MARK] = "mark",
        [TSR_HOST_ALLOC] = "host_alloc",
        [TSR_HOST_FREE] = "host_free",
        [TSR_PIN] = "pin",
    };
    return name_of(names, TSR_N_INSTR_KINDS, kind);
}

const char *tsr_op_kind_name(int op)
{
    static const char *const names[TSR_N_OP_KINDS] = {
        [TSR_OP_GEMM] = "gemm",
        [TSR_OP_ATTENTION] = "attention",
        [TSR_OP_ATTENTION_BWD] = "attention_bwd",
        [TSR_OP_NORM] = "norm",
        [TSR_OP_NORM_BWD] = "norm_bwd",
        [TSR_OP_SOFTMAX] = "softmax",
        [TSR_OP_POINTWISE] = "pointwise",
        [TSR_OP_REDUCTION] = "reduction",
        [TSR_OP_EMBEDDING] = "embedding",
        [TSR_OP_EMBEDDING_BWD] = "embedding_bwd",
        [TSR_OP_LOSS] = "loss",
        [TSR_OP_CHUNK_CAT] = "chunk_cat",
        [TSR_OP_SPLIT_COPY] = "split_copy",
        [TSR_OP_OPTIMIZER] = "optimizer",
        [TSR_OP_USER] = "user",
        [TSR_OP_GENERIC] = "generic",
    };
    return name_of(names, TSR_N_OP_KINDS, op);
}

const char *tsr_category_name(int category)
{
    static const char *const names[TSR_N_CATEGORIES] = {
        [TSR_CAT_SHARDED_PARAM] = "Sharded Param",
        [TSR_CAT_BUFFER] = "Buffer",
        [TSR_CAT_INPUTS] = "Inputs",
        [TSR_CAT_ALL_GATHER] = "All Gather",
        [TSR_CAT_ALL_GATHER_INPUT] = "All Gather Input",
        [TSR_CAT_UNSHARDED_PARAM] = "Unsharded Param",
        [TSR_CAT_POST_FORWARD_SHARD] = "Post-Forward Shard",
        [TSR_CAT_UNSHARDED_GRAD] = "Unsharded Grad",
        [TSR_CAT_UNSHARDED_ACC_GRAD] = "Unsharded Accumulated Grad",
        [TSR_CAT_REDUCE_SCATTER] = "Reduce Scatter",
        [TSR_CAT_REDUCE_SCATTER_OUTPUT] = "Reduce Scatter Output",
        [TSR_CAT_PARTIAL_REDUCE_OUTPUT] = "Partial Reduce Output",
        [TSR_CAT_SHARDED_GRAD] = "Sharded Grad",
        [TSR_CAT_OPT_STATE] = "OptState",
        [TSR_CAT_OPT_TEMP] = "OptTemp",
        [TSR_CAT_ACTIVATION] = "Activation",
        [TSR_CAT_TEMP] = "Temp",
        [TSR_CAT_WORKSPACE] = "Workspace",
        [TSR_CAT_INIT] = "Init",
    };
    return name_of(names, TSR_N_CATEGORIES, category);
}

const char *tsr_phase_name(int phase)
{
    static const char *const names[TSR_N_PHASES] = {
        [TSR_PHASE_INIT] = "init",           [TSR_PHASE_INPUTS] = "inputs",
        [TSR_PHASE_ZERO_GRAD] = "zero_grad", [TSR_PHASE_FORWARD] = "forward",
        [TSR_PHASE_LOSS] = "loss",           [TSR_PHASE_BACKWARD] = "backward",
        [TSR_PHASE_METRICS] = "metrics",     [TSR_PHASE_CLIP] = "clip",
        [TSR_PHASE_OPTIMIZER] = "optimizer", [TSR_PHASE_END] = "end",
        [TSR_PHASE_LOAD] = "load",           [TSR_PHASE_EVAL] = "eval",
        [TSR_PHASE_SAVE] = "save",
    };
    return name_of(names, TSR_N_PHASES, phase);
}

const char *tsr_hook_name(int hook)
{
    static const char *const names[TSR_N_HOOKS] = {
        [TSR_HOOK_NONE] = "none",
        [TSR_HOOK_PRE_FORWARD] = "pre_forward",
        [TSR_HOOK_POST_FORWARD] = "post_forward",
        [TSR_HOOK_PRE_BACKWARD] = "pre_backward",
        [TSR_HOOK_POST_BACKWARD] = "post_backward",
        [TSR_HOOK_FINAL_CALLBACK] = "final_callback",
        [TSR_HOOK_USER] = "user",
    };
    return name_of(names, TSR_N_HOOKS, hook);
}

const char *tsr_mark_name(int mark)
{
    static const char *const names[TSR_N_MARKS] = {
        [TSR_MARK_ITERATION] = "iteration",         [TSR_MARK_PHASE] = "phase",
        [TSR_MARK_PRE_FORWARD] = "pre_forward",     [TSR_MARK_POST_FORWARD] = "post_forward",
        [TSR_MARK_PRE_BACKWARD] = "pre_backward",   [TSR_MARK_POST_BACKWARD] = "post_backward",
        [TSR_MARK_ITERATION_END] = "iteration_end", [TSR_MARK_GROUP_BEGIN] = "group_begin",
        [TSR_MARK_GROUP_END] = "group_end",         [TSR_MARK_DROPPED] = "dropped",
    };
    return name_of(names, TSR_N_MARKS, mark);
}

const char *tsr_reduce_op_name(int op)
{
    static const char *const names[] = {
        [TSR_REDUCE_NONE] = "none", [TSR_REDUCE_SUM] = "sum",
        [TSR_REDUCE_AVG] = "avg",   [TSR_REDUCE_PREMUL_SUM] = "premul_sum",
        [TSR_REDUCE_MAX] = "max",
    };
    return name_of(names, (int)(sizeof names / sizeof names[0]), op);
}

/* ---- recording ------------------------------------------------------------------------------- */

static tsr_status record_submit(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct tsr_recorder *recorder = (struct tsr_recorder *)x;
    return tsr_program_append(recorder->into, instr);
}

static tsr_status record_drain(struct tsr_executor *x)
{
    (void)x; /* nothing runs: everything submitted is done */
    return TSR_OK;
}

static const struct tsr_executor_ops record_ops = {
    .size = sizeof(struct tsr_executor_ops),
    .version = TSR_EXECUTOR_VERSION,
    .name = "record",
    .submit = record_submit,
    .drain = record_drain,
};

void tsr_recorder_init(struct tsr_recorder *recorder, struct tsr_program *into)
{
    *recorder = (struct tsr_recorder){.base = {.ops = &record_ops}, .into = into};
}
