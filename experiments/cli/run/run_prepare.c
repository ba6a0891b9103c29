/* run_prepare.c: what a run needs before its ranks compute: a job, the same on all ranks, enough
 * memory, and a folder of its own. A rehearsal says how much.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/layout/tensor_parallel.h"
#include "engine/program/memory.h"
#include "exec/executor/executor.h"
#include "experiments/cli/run/run.h"
#include "experiments/cli/run/run_watch.h"
#include "experiments/study/job/build.h"
#include "experiments/study/job/job.h"

static tsr_status compare(const uint64_t *all, uint32_t ranks, size_t n)
{
    for (uint32_t r = 1; r < ranks; r++)
        for (size_t i = 0; i < n; i++)
            if (all[r * n + i] != all[i])
                return tsr_fail(TSR_ECONFIG,
                                "%s: found on rank %u another value than on rank 0; allowed: the "
                                "same on all ranks",
                                tsr_run_job_hash_name(i), r);
    return TSR_OK;
}

static tsr_status compare_ranks(struct tsr_world *world, const struct tsr_run_job *job)
{
    size_t n = tsr_run_job_n_hashes();
    uint64_t *all = malloc((world->size + 1) * n * sizeof *all);
    if (!all)
        return tsr_no_memory(NULL);
    uint64_t *mine = all + world->size * n;
    tsr_run_job_hashes(job, mine);
    tsr_status status = world->ops->exchange(world, mine, all, n * sizeof *mine);
    if (status == TSR_OK)
        status = tsr_world_agree(world, compare(all, world->size, n));
    free(all);
    return status;
}

static tsr_status check_size(const struct tsr_launch *launch, uint32_t world)
{
    if (launch->size == world)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "world: found a job of %u ranks, but %s started %u; allowed: as many (--ranks)",
                    world, launch->source, launch->size);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t machine_name(void)
{
    char name[256] = "";
    (void)!gethostname(name, sizeof name - 1);
    return tsr_hash_bytes(TSR_HASH_INIT, name, strlen(name));
}

/* How many ranks run on this machine. */
static tsr_status count_local(struct tsr_world *world, const struct tsr_run *run, uint32_t *n)
{
    *n = run->job.job.world;
    if (!world)
        return TSR_OK;
    uint64_t mine = machine_name(), *all = malloc(world->size * sizeof *all);
    if (!all)
        return tsr_no_memory(NULL);
    tsr_status status = world->ops->exchange(world, &mine, all, sizeof mine);
    *n = 0;
    for (uint32_t r = 0; status == TSR_OK && r < world->size; r++)
        *n += all[r] == mine;
    free(all);
    return status;
}

/* What the group of this process may use; UINT64_MAX: no limit is known. */
static uint64_t group_limit(void)
{
    unsigned long long bytes = 0;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "re");
    bool has = file && fscanf(file, "%llu", &bytes) == 1 && bytes > 0;
    if (file)
        (void)fclose(file);
    return has ? bytes : UINT64_MAX;
}

/* Better than a process that the system ends in the middle of a step. */
static tsr_status check_memory(const struct tsr_run *run, uint32_t n_local)
{
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES), page = (uint64_t)sysconf(_SC_PAGESIZE);
    double gib = (double)(1 << 30), each = (double)run->job.peak_bytes / gib,
           machine = (double)tsr_min_u64(pages * page, group_limit()) / gib;
    if (each * n_local <= machine)
        return TSR_OK;
    bool copies = run->job.config.dir && run->job.config.save == TSR_SAVE_SHARDED_ASYNC;
    return tsr_fail(TSR_ECONFIG,
                    "memory: found a job of %.1f GiB for each of %u ranks on this machine; "
                    "allowed: %.1f GiB together, what it has (%s--on sim needs none)",
                    each, n_local, machine,
                    copies ? "--set save=sharded saves without copies of all shards; " : "");
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* One process looks at the programs of all ranks. */
static tsr_status check_programs(const struct tsr_args *args, const struct tsr_launch *launch,
                                 const struct tsr_run *run)
{
    return args->check && launch->rank == 0 ? tsr_run_check_job(&run->job.job) : TSR_OK;
}

static tsr_status claim(const struct tsr_launch *launch, struct tsr_run *run)
{
    const struct tsr_train_config *c = &run->job.config;
    if (launch->rank != 0 || !c->dir)
        return TSR_OK;
    return tsr_run_folder_claim(c->dir, c->resume_from, &run->lock);
}

tsr_status tsr_run_prepare(const struct tsr_args *args, const struct tsr_gpu_ops *gpus,
                           const struct tsr_launch *launch, struct tsr_world *world,
                           struct tsr_run *run)
{
    tsr_status status = tsr_run_job_open(args, gpus, &run->job);
    run->has_job = status == TSR_OK;
    TSR_TRY(tsr_world_agree(world, status));
    if (launch->rank == 0)
        tsr_tell_unread(&run->job.experiment, run->job.job.strategy);
    if (world) {
        TSR_TRY(compare_ranks(world, &run->job));
        TSR_TRY(tsr_world_agree(world, check_size(launch, run->job.job.world)));
    }
    uint32_t n_local;
    TSR_TRY(count_local(world, run, &n_local));
    TSR_TRY(tsr_world_agree(world, check_memory(run, n_local)));
    TSR_TRY(tsr_world_agree(world, check_programs(args, launch, run)));
    return tsr_world_agree(world, claim(launch, run));
}

void tsr_run_close(struct tsr_run *run)
{
    if (run->has_job)
        tsr_run_job_close(&run->job);
    run->has_job = false;
    if (run->lock >= 0)
        (void)close(run->lock);
    run->lock = -1;
}

/* ---- rehearsal ------------------------------------------------------------------------------- */

/* A step that nobody runs: which kernels it needs, what it costs, how much memory
 * it takes. */

struct rehearsal {
    struct tsr_executor base;
    const struct tsr_tables *tables;
    bool counts, deterministic;
    struct tsr_workspaces workspaces;
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
    if (r->gpu && r->gpu->has_workspaces)
        tsr_workspaces_take(&r->workspaces, instr, r->deterministic);
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
                tsr_job_at(job, TSR_K_WRAP),
                "wrap: found parameter %s in no group, so that no gradient of it "
                "would be reduced; allowed to run: a list with {modules: [\"\"]}, "
                "which takes the rest",
                p.fqn);
    }
    return TSR_OK;
}

tsr_status tsr_run_rehearse(const struct tsr_job *job, const struct tsr_device_ops *gpu,
                            bool deterministic, bool evaluates, const enum tsr_save *save,
                            struct tsr_run_rehearsal *out)
{
    struct rehearsal r = {
        .base = {.ops = &look_ops}, .gpu = gpu, .deterministic = deterministic, .out = out};
    struct tsr_engine *engine = NULL;
    *out = (struct tsr_run_rehearsal){.peak_bytes = 0};
    TSR_TRY(tsr_build(job, 0, &r.base, &engine));
    tsr_status status = check_managed(job, engine);
    if (status == TSR_OK)
        status = emit(&r, engine, evaluates, save);
    out->scratch_bytes = r.workspaces.bytes;
    tsr_engine_destroy(engine);
    return status;
}
