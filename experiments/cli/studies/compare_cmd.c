/* compare.c: `tessera compare`: every strategy of a file, one table. */
#include <stdio.h>
#include <stdlib.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/study/base/out_file.h"
#include "experiments/study/compare/measured.h"
#include "experiments/study/compare/part.h"
#include "experiments/study/report/report.h"
#include "experiments/study/simulate/open.h"

static const char *const formats[] = {"md", "csv", "json", NULL};

static tsr_status compare(const struct tsr_args *args, const struct tsr_study *study)
{
    if (args->out)
        TSR_TRY(tsr_prepare_out(args->out));
    struct tsr_row *rows = calloc(study->n + 1, sizeof(*rows));
    size_t n = study->n;
    if (!rows)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    tsr_status status = TSR_OK;
    if (args->measured)
        status = tsr_measured_load(args->measured, args->out, &rows[n++]);
    if (status == TSR_OK)
        status = tsr_pool_run(study, args->out, args->jobs, NULL, rows);
    if (status == TSR_OK)
        status = tsr_report_table(stdout, args->format, &study->info, rows, n);
    if (status == TSR_OK)
        status = tsr_flush(stdout, "standard output");
    if (status == TSR_OK)
        tsr_study_notes(study);
    if (status == TSR_OK && args->out)
        status = tsr_study_write(study, args->out, rows, n);
    free(rows);
    return status;
}

/* ---- a part of a sweep ------------------------------------------------------------------- */

struct part_run {
    const char *dir;
    struct tsr_sweep_part part;
    struct tsr_part_rows kept;
    struct tsr_row *rows;
    bool *there; /* [strategy]: an earlier run has left its row */
};

static bool wants(void *user, size_t item)
{
    const struct part_run *p = user;
    return tsr_part_has(&p->part, item) && !p->there[item];
}

static tsr_status keep(void *user, size_t item, const struct tsr_row *row)
{
    const struct part_run *p = user;
    return tsr_part_keep(&p->kept, p->dir, item, row);
}

static tsr_status find_rows(struct part_run *p, size_t n)
{
    size_t mine = 0, found = 0;
    for (size_t i = 0; i < n; i++) {
        if (!tsr_part_has(&p->part, i))
            continue;
        TSR_TRY(tsr_part_find(&p->kept, p->dir, i, &p->rows[i], &p->there[i]));
        found += p->there[i];
        mine++;
    }
    if (found)
        fprintf(stderr, "tessera: note: %zu of the %zu strategies of this part are there already\n",
                found, mine);
    return TSR_OK;
}

/* The rows of this part alone. */
static tsr_status print_part(struct part_run *p, const struct tsr_args *args,
                             const struct tsr_study *study)
{
    size_t n = 0;
    for (size_t i = 0; i < study->n; i++)
        if (tsr_part_has(&p->part, i))
            p->rows[n++] = p->rows[i];
    TSR_TRY(tsr_report_table(stdout, args->format, &study->info, p->rows, n));
    return tsr_flush(stdout, "standard output");
}

static tsr_status run_part(struct part_run *p, const struct tsr_args *args,
                           const struct tsr_study *study)
{
    const struct tsr_pool_hooks hooks = {p, wants, keep};
    TSR_TRY(tsr_prepare_out(p->dir));
    TSR_TRY(tsr_part_rows_open(study, &p->kept));
    TSR_TRY(tsr_part_begin(study, p->dir));
    TSR_TRY(find_rows(p, study->n));
    TSR_TRY(tsr_pool_run(study, p->dir, args->jobs, &hooks, p->rows));
    TSR_TRY(print_part(p, args, study));
    fprintf(stderr,
            "tessera: note: part %llu of %llu; all of them: tessera compare --merge DIR...\n",
            (unsigned long long)p->part.index, (unsigned long long)p->part.of);
    return TSR_OK;
}

static tsr_status compare_part(const struct tsr_args *args, const struct tsr_study *study)
{
    struct part_run p = {.dir = args->out};
    TSR_TRY(tsr_part_parse(args->part, &p.part));
    if (!args->out || args->measured)
        return tsr_fail(TSR_ECONFIG,
                        "--part: found %s; allowed: --part with --out DIR, without --measured",
                        args->measured ? "--measured" : "no --out");
    p.rows = calloc(study->n + 1, sizeof *p.rows);
    p.there = calloc(study->n + 1, sizeof *p.there);
    tsr_status status =
        p.rows && p.there ? run_part(&p, args, study) : tsr_fail(TSR_ENOMEM, "out of memory");
    free(p.rows);
    free(p.there);
    return status;
}

tsr_status tsr_cmd_compare(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_study study;
    TSR_TRY(tsr_args_format(args, formats));
    if (args->merge)
        return tsr_part_merge(args);
    TSR_TRY(tsr_args_need_file(usage, args));
    if (args->print_config)
        return tsr_print_config(args);
    TSR_TRY(tsr_study_open(args, &study));
    tsr_status status = args->part ? compare_part(args, &study) : compare(args, &study);
    tsr_study_fini(&study);
    return status;
}
