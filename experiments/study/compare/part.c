/* part.c: which part of a sweep this process is (part.h). */
#include "experiments/study/compare/part.h"

#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/listener.h"

enum { MAX_PARTS = 100000 };

/* Variables of those that start many processes. The first index is 0 unless `first` says so. */
static const struct source {
    const char *index, *count, *first, *step;
} sources[] = {
    {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN",
     "SLURM_ARRAY_TASK_STEP"},
    {"SLURM_PROCID", "SLURM_NTASKS", NULL, NULL},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, NULL},
    {"PMI_RANK", "PMI_SIZE", NULL, NULL},
    {"RANK", "WORLD_SIZE", NULL, NULL},
};

static bool number(const char *text, size_t n, uint64_t *out)
{
    if (n == 0 || n > 9 || strspn(text, "0123456789") < n)
        return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

static tsr_status variable(const char *name, uint64_t fallback, uint64_t *out)
{
    const char *text = name ? getenv(name) : NULL;
    *out = fallback;
    if (!text || number(text, strlen(text), out))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "--part auto: %s: found %s; allowed: a number", name, text);
}

static tsr_status from_environment(struct tsr_sweep_part *out)
{
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        const struct source *s = &sources[i];
        uint64_t index, count, first, step;
        if (!getenv(s->index) || !getenv(s->count))
            continue;
        TSR_TRY(variable(s->index, 0, &index));
        TSR_TRY(variable(s->count, 0, &count));
        TSR_TRY(variable(s->first, 0, &first));
        TSR_TRY(variable(s->step, 1, &step));
        if (index < first || step == 0 || (index - first) % step || (index - first) / step >= count)
            return tsr_fail(
                TSR_ECONFIG, "--part auto: %s: found %s of %s=%s; allowed: one of the %llu parts",
                s->index, getenv(s->index), s->count, getenv(s->count), (unsigned long long)count);
        *out = (struct tsr_sweep_part){(index - first) / step + 1, count};
        return TSR_OK;
    }
    return tsr_fail(TSR_ECONFIG,
                    "--part: found auto, but no variable of a Slurm array, srun, mpirun or "
                    "torchrun is set; allowed: I/N");
}

tsr_status tsr_part_parse(const char *text, struct tsr_sweep_part *out)
{
    if (!strcmp(text, "auto"))
        return from_environment(out);
    const char *slash = strchr(text, '/');
    if (slash && number(text, (size_t)(slash - text), &out->index) &&
        number(slash + 1, strlen(slash + 1), &out->of) && out->index >= 1 &&
        out->index <= out->of && out->of <= MAX_PARTS)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "--part: found %s; allowed: I/N, with I from 1 to N, and N up to %d, or auto",
                    text, MAX_PARTS);
}

/* ---- running it -------------------------------------------------------------------------- */

struct part_run {
    const struct tsr_sweep_part *part;
    const char *dir;
    struct tsr_part_rows kept;
    bool *there; /* [strategy]: an earlier run has left its row */
};

static bool wants(void *user, size_t item)
{
    const struct part_run *p = user;
    return tsr_part_has(p->part, item) && !p->there[item];
}

static tsr_status keep(void *user, size_t item, const struct tsr_row *row)
{
    const struct part_run *p = user;
    return tsr_part_keep(&p->kept, p->dir, item, row);
}

static tsr_status find_rows(const struct part_run *p, size_t n, struct tsr_row *rows)
{
    size_t mine = 0, found = 0;
    for (size_t i = 0; i < n; i++) {
        if (!tsr_part_has(p->part, i))
            continue;
        TSR_TRY(tsr_part_find(&p->kept, p->dir, i, &rows[i], &p->there[i]));
        found += p->there[i];
        mine++;
    }
    if (found)
        tsr_tell("note: %zu of the %zu strategies of this part are there already", found, mine);
    return TSR_OK;
}

static tsr_status run(const struct tsr_study *study, struct part_run *p, uint64_t jobs,
                      struct tsr_row *rows)
{
    const struct tsr_pool_hooks hooks = {p, wants, keep};
    TSR_TRY(tsr_part_rows_open(study, &p->kept));
    TSR_TRY(tsr_part_begin(study, p->dir));
    TSR_TRY(find_rows(p, study->n, rows));
    return tsr_pool_run(study, p->dir, jobs, &hooks, rows);
}

tsr_status tsr_part_run(const struct tsr_study *study, const struct tsr_sweep_part *part,
                        const char *dir, uint64_t jobs, struct tsr_row *rows)
{
    struct part_run p = {.part = part, .dir = dir};
    p.there = calloc(study->n + 1, sizeof *p.there);
    tsr_status status = p.there ? run(study, &p, jobs, rows) : tsr_no_memory(NULL);
    free(p.there);
    return status;
}
