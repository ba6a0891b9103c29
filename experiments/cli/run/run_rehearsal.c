/* run_rehearsal.c: a step that nobody runs: which kernels it needs, what it costs, how much memory
 * it takes. */
#include "experiments/cli/run/run.h"

#include <stdio.h>

#include "engine/layout/tensor_parallel.h"
#include "exec/executor/executor.h"
#include "experiments/study/job/build.h"

struct rehearsal {
    struct tsr_executor base;
    const struct tsr_tables *tables;
    bool counts;
    uint64_t device, host; /* bytes that it takes now */
    const struct tsr_device_ops *gpu;
    struct tsr_run_rehearsal *out;
};

static void take_account(struct rehearsal *r, const struct tsr_instr *instr)
{
    bool pageable = instr->segment == 0; /* of HOST_ALLOC; what is pinned has been taken by PIN */
    if (r->counts && instr->work)
        r->out->model_flops += instr->work->model_flops;
    if (instr->kind == TSR_SEGMENT_ALLOC)
        r->device += instr->bytes;
    else if (instr->kind == TSR_SEGMENT_FREE)
        r->device -= instr->bytes;
    else if (instr->kind == TSR_PIN || (instr->kind == TSR_HOST_ALLOC && pageable))
        r->host += instr->block_bytes;
    else if (instr->kind == TSR_HOST_FREE && pageable)
        r->host -= instr->block_bytes;
    r->out->device_bytes = tsr_max_u64(r->out->device_bytes, r->device);
    r->out->host_bytes = tsr_max_u64(r->out->host_bytes, r->host);
    r->out->peak_bytes = tsr_max_u64(r->out->peak_bytes, r->device + r->host);
}

static tsr_status look(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct rehearsal *r = (struct rehearsal *)x;
    char text[400];
    take_account(r, instr);
    if (tsr_exec_supports(r->gpu, instr, NULL, 0) == TSR_OK)
        return TSR_OK;
    snprintf(text, sizeof text, "%s", tsr_error_text());
    bool known = r->tables && instr->origin.module < r->tables->n_modules;
    return tsr_fail(TSR_EUNSUPPORTED, "%s, which module '%s' needs; --on sim simulates it", text,
                    known ? r->tables->modules[instr->origin.module] : "");
}

static const struct tsr_executor_ops look_ops = {.size = sizeof(struct tsr_executor_ops),
                                                 .version = TSR_EXECUTOR_VERSION,
                                                 .name = "rehearsal",
                                                 .submit = look};

static tsr_status emit(struct rehearsal *r, struct tsr_engine *e, bool evaluates,
                       const enum tsr_save *save)
{
    r->tables = tsr_engine_tables(e);
    TSR_TRY(tsr_engine_init_params(e));
    r->counts = true;
    TSR_TRY(tsr_step_run(e, 0));
    r->counts = false;
    if (evaluates)
        TSR_TRY(tsr_eval_run(e));
    if (save)
        TSR_TRY(tsr_save_run(e, *save));
    return TSR_OK;
}

/* PyTorch leaves such a parameter alone: every rank would train a copy of its own. */
static tsr_status check_managed(const struct tsr_job *job, struct tsr_engine *e)
{
    if (job->world == 1 || job->settings->api == TSR_API_DDP)
        return TSR_OK;
    for (size_t i = 0; i < tsr_n_param_layouts(e); i++) {
        struct tsr_param_dtensor p;
        TSR_TRY(tsr_param_dtensor(e, i, &p));
        if (!p.group)
            return tsr_node_error(
                tsr_job_at(job, "wrap"),
                "wrap: found parameter %s in no group, so that no gradient of it "
                "would be reduced; allowed to run: a list with {modules: [\"\"]}, "
                "which takes the rest",
                p.fqn);
    }
    return TSR_OK;
}

tsr_status tsr_run_rehearse(const struct tsr_job *job, const struct tsr_device_ops *gpu,
                            bool evaluates, const enum tsr_save *save,
                            struct tsr_run_rehearsal *out)
{
    struct rehearsal r = {.base = {.ops = &look_ops}, .gpu = gpu, .out = out};
    struct tsr_engine *engine = NULL;
    *out = (struct tsr_run_rehearsal){.peak_bytes = 0};
    TSR_TRY(tsr_build(job, 0, &r.base, &engine));
    tsr_status status = check_managed(job, engine);
    if (status == TSR_OK)
        status = emit(&r, engine, evaluates, save);
    tsr_engine_destroy(engine);
    return status;
}
