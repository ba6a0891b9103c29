/* report_overlap.c: the table of a step's collectives, and its files (report_overlap.h). */
#include "experiments/study/detail/report_overlap.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/job/owner.h"
#include "experiments/study/report/report_text.h"

/* ---- the table --------------------------------------------------------------------------- */

void tsr_overlap_table_fini(struct tsr_overlap_table *table)
{
    free(table->rows);
    tsr_arena_fini(&table->arena);
    memset(table, 0, sizeof(*table));
}

static void add_up(struct tsr_overlap_total *total, const struct tsr_overlap_row *row)
{
    total->n++;
    total->bytes += row->bytes;
    total->seconds += row->hidden + row->exposed + row->beside;
    total->hidden += row->hidden;
    total->exposed += row->exposed;
    total->beside += row->beside;
    for (int i = 0; i < TSR_N_EXPOSURES; i++)
        total->why[i] += row->why[i];
}

tsr_status tsr_overlap_table_add(struct tsr_overlap_table *table, const struct tsr_overlap_row *row)
{
    struct tsr_overlap_row kept = *row;
    const char **texts[] = {&kept.name, &kept.module, &kept.phase, &kept.comm, &kept.stream};
    bool ok = true;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        *texts[i] = tsr_arena_strdup(&table->arena, *texts[i]);
        ok = ok && *texts[i];
    }
    if (!ok || !TSR_PUSH(table->rows, table->n, table->cap, kept))
        return tsr_no_memory("the overlap of a step");
    add_up(&table->kinds[kept.kind], &kept);
    add_up(&table->all, &kept);
    return TSR_OK;
}

static tsr_status add_item(const struct tsr_detail *detail, const struct tsr_overlap *overlap,
                           const struct tsr_overlap_item *item, struct tsr_overlap_table *out)
{
    const struct tsr_program *program = detail->programs[item->iteration];
    const struct tsr_instr *instr = &program->instrs[item->instr];
    const struct tsr_tables *tables = program->tables;
    char name[160], buffer[32];
    tsr__work_label(tables, instr, name, sizeof name);
    struct tsr_overlap_row row = {
        .kind = item->kind,
        .name = name,
        .module = tsr_owner_of(tables, &instr->origin, buffer),
        .phase = tsr_phase_name(instr->origin.phase),
        .comm = instr->comm < tables->n_comms ? tables->comms[instr->comm].name : "",
        .stream = instr->stream < tables->n_streams ? tables->streams[instr->stream].name : "",
        .micro = instr->origin.micro,
        .bytes = instr->bytes,
        .issue = item->span.issue - overlap->start,
        .start = item->span.start - overlap->start,
        .end = item->span.end - overlap->start,
        .hidden = item->hidden,
        .exposed = item->exposed,
        .beside = item->beside};
    memcpy(row.why, item->why, sizeof row.why);
    return tsr_overlap_table_add(out, &row);
}

static const char *title_of(const struct tsr_study_info *info, const struct tsr_detail *detail,
                            struct tsr_arena *arena)
{
    char machine[64];
    return tsr_arena_printf(arena, "%s · %s · %s · %s", info->model_name, info->cluster_name,
                            tsr__machine_text(info, machine), detail->row->strategy);
}

tsr_status tsr_overlap_table_of(const struct tsr_study_info *info, const struct tsr_detail *detail,
                                struct tsr_overlap_table *out)
{
    const struct tsr_overlap_run run = {detail->programs, detail->spans, detail->iteration_end,
                                        detail->n_iterations, detail->joined};
    struct tsr_overlap overlap;
    memset(out, 0, sizeof(*out));
    TSR_TRY(tsr_overlap_of(&run, detail->steady, &overlap));
    tsr_arena_init(&out->arena);
    out->measured = info->measured;
    out->title = title_of(info, detail, &out->arena);
    out->has_rank = !info->measured;
    out->rank = detail->rank;
    out->slow_rank = detail->slow_rank;
    out->slow_factor = detail->slow_factor;
    out->step_s = overlap.step_s;
    out->compute_s = overlap.compute_s;
    out->comm_s = overlap.comm_s;
    out->exposed_s = overlap.exposed_s;
    out->host_bound_s = overlap.host_bound_s;
    out->unlaunched_s = overlap.unlaunched_s;
    tsr_status status = out->title ? TSR_OK : tsr_no_memory("a title");
    for (size_t i = 0; i < overlap.n && status == TSR_OK; i++)
        status = add_item(detail, &overlap, &overlap.items[i], out);
    tsr_overlap_fini(&overlap);
    if (status != TSR_OK)
        tsr_overlap_table_fini(out);
    return status;
}

/* ---- files ------------------------------------------------------------------------------- */

/* Texts come last: a plot script takes the others by their number, and a name may have a comma. */
static void write_row(FILE *out, const struct tsr_overlap_row *row)
{
    fprintf(out, "%s,%s,%" PRIu32 ",%" PRIu64 ",%.12g,%.12g,%.12g,%.15g,%.15g,%.15g",
            tsr_overlap_kind_key(row->kind), row->phase, row->micro, row->bytes, row->issue,
            row->start, row->end, row->hidden, row->exposed, row->beside);
    for (int i = 0; i < TSR_N_EXPOSURES; i++)
        fprintf(out, ",%.15g", row->why[i]);
    const char *const texts[] = {row->stream, row->comm, row->name, row->module};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fputc(',', out);
        tsr__put_csv(out, texts[i]);
    }
    fputc('\n', out);
}

void tsr_overlap_table_print(FILE *out, const struct tsr_overlap_table *table)
{
    fputs(
        "# Collectives of the steady step; times in seconds of it. exposed_s: the compute stream\n"
        "# is idle and this collective is charged with it; beside_s: idle, charged to another one\n"
        "# that runs meanwhile; the columns after beside_s say why: their sum is exposed_s.\n"
        "kind,phase,micro_batch,bytes,issue_s,start_s,end_s,hidden_s,exposed_s,beside_s",
        out);
    for (int i = 0; i < TSR_N_EXPOSURES; i++)
        fprintf(out, ",%s_s", tsr_exposure_key(i));
    fputs(",stream,communicator,name,module\n", out);
    for (size_t k = 0; k < table->n; k++)
        write_row(out, &table->rows[k]);
}

static tsr_status write_rows(FILE *out, const void *user)
{
    tsr_overlap_table_print(out, user);
    return TSR_OK;
}

static tsr_status write_frame(FILE *out, const void *user)
{
    const struct tsr_overlap_table *table = user;
    fputs("# What overlap.csv is part of: seconds of the steady step.\n"
          "measured,step_s,compute_s,communication_s,exposed_s,host_bound_s,unlaunched_s,title\n",
          out);
    fprintf(out, "%d,%.17g,%.17g,%.17g,%.17g,%.17g,%.17g,", table->measured, table->step_s,
            table->compute_s, table->comm_s, table->exposed_s, table->host_bound_s,
            table->unlaunched_s);
    tsr__put_plain(out, table->title);
    fputc('\n', out);
    return TSR_OK;
}

tsr_status tsr_overlap_table_write(const char *folder, const struct tsr_overlap_table *table)
{
    TSR_TRY(tsr_write_in(folder, "overlap-frame.csv", write_frame, table));
    return tsr_write_in(folder, "overlap.csv", write_rows, table);
}
