/* run_prepare.c: what a run needs before its ranks compute: a job, the same on all ranks, enough
 * memory, and a folder of its own.
 */
#include "experiments/cli/run/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/cli/run/run_watch.h"

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
