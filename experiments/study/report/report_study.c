/* report_study.c: the files of a whole comparison: the rows as CSV and JSON, and what the pictures
 * that compare strategies draw. Rows that failed are in the summary, not in the pictures.
 */
#include "experiments/study/base/files.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_labels.h"
#include "experiments/study/report/report_text.h"
#include "sim/base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct study {
    const struct tsr_study_info *info;
    const struct tsr_row *rows;
    size_t n;
    bool same_tokens; /* of all rows, per GPU and step */
};

static tsr_status write_summary_csv(FILE *out, const void *user)
{
    const struct study *study = user;
    tsr__put_rows_csv(out, study->rows, study->n);
    return TSR_OK;
}

static tsr_status write_summary_json(FILE *out, const void *user)
{
    const struct study *study = user;
    return tsr_put_json(out, tsr__rows_json(study->info, study->rows, study->n, true));
}

/* How long this machine took: apart, since all other files of two equal studies are equal. */
static tsr_status write_wall(FILE *out, const void *user)
{
    const struct study *study = user;
    json_t *rows = json_array();
    for (size_t i = 0; i < study->n; i++) {
        const struct tsr_row *row = &study->rows[i];
        json_array_append_new(rows,
                              json_pack("{ss sf sf}", "strategy", row->strategy, "emission_wall_s",
                                        row->emit_s, "simulation_wall_s", row->sim_s));
    }
    return tsr_put_json(out, rows);
}

/* ---- axes and names of compare-time-memory.gp --------------------------------------------- */

struct frame {
    double x0, x1, y0, y1; /* GiB; times as time_of() has them */
    double limit;          /* GiB; 0: unknown */
    bool log_x, log_y;
};

/* Milliseconds of a step; microseconds per token and GPU where steps have different tokens. */
static double time_of(const struct study *study, const struct tsr_row *row)
{
    return study->same_tokens ? row->steady.step_s * 1e3 : tsr__token_s(row) * 1e6;
}

enum { LOG_FROM = 4 }; /* largest over smallest value, from which an axis is logarithmic */

static double memory_of(const struct tsr_row *row)
{
    return (double)row->peak_reserved / TSR__GIB;
}

/* Widens an axis by a tenth on both sides. */
static void add_room(double *from, double *to, bool log_axis)
{
    if (log_axis) {
        double factor = pow(*to / *from, 0.09);
        *from /= factor;
        *to *= factor;
        return;
    }
    double room = *to > *from ? 0.09 * (*to - *from) : 0.2 * *to + 1e-3;
    *from = *from > room ? *from - room : 0;
    *to += room;
}

/* Where a value lies on an axis, 0 to 1; and the value at such a place. */
static double place_on(double value, double from, double to, bool log_axis)
{
    return log_axis ? log(value / from) / log(to / from) : (value - from) / (to - from);
}

static double value_at(double place, double from, double to, bool log_axis)
{
    return log_axis ? from * pow(to / from, place) : from + place * (to - from);
}

static struct frame frame_of(const struct study *study)
{
    struct frame f = {0};
    bool any = false;
    for (size_t i = 0; i < study->n; i++) {
        const struct tsr_row *row = &study->rows[i];
        if (row->failure[0])
            continue;
        double x = memory_of(row), y = time_of(study, row);
        f.x0 = !any || x < f.x0 ? x : f.x0;
        f.x1 = !any || x > f.x1 ? x : f.x1;
        f.y0 = !any || y < f.y0 ? y : f.y0;
        f.y1 = !any || y > f.y1 ? y : f.y1;
        if (row->usable_bytes)
            f.limit = (double)row->usable_bytes / TSR__GIB;
        any = true;
    }
    /* The card's limit is part of the picture unless it would press the points into a corner. */
    if (f.limit > f.x1 && f.limit < f.x1 + 2 * (f.x1 - f.x0))
        f.x1 = f.limit;
    if (f.limit > 0 && f.limit < f.x0)
        f.x0 = f.limit;
    f.log_x = f.x0 > 0 && f.x1 > LOG_FROM * f.x0;
    f.log_y = f.y0 > 0 && f.y1 > LOG_FROM * f.y0;
    add_room(&f.x0, &f.x1, f.log_x);
    add_room(&f.y0, &f.y1, f.log_y);
    return f;
}

static tsr_status write_frame(FILE *out, const void *user)
{
    const struct study *study = user;
    struct frame f = frame_of(study);
    tsr__put_provenance(
        out, study->info, NULL,
        "axes of compare-time-memory: GiB, and milliseconds of a step or, where tokens per step "
        "differ, microseconds per token and GPU; whether they are logarithmic; whether times are "
        "of a "
        "run on ranks");
    fprintf(out, "memory_min_gib,memory_max_gib,time_min,time_max,limit_gib,title,log_memory,"
                 "log_time,per_token,measured\n");
    fprintf(out, "%.6g,%.6g,%.6g,%.6g,", f.x0, f.x1, f.y0, f.y1);
    if (f.limit > 0)
        fprintf(out, "%.6g", f.limit);
    char title[384], machine[64];
    (void)snprintf(title, sizeof title, "%s · %s · %s", study->info->model_name,
                   study->info->cluster_name, tsr__machine_text(study->info, machine));
    fputc(',', out);
    tsr__put_plain(out, title);
    fprintf(out, ",%d,%d,%d,%d\n", f.log_x, f.log_y, !study->same_tokens, study->info->measured);
    return TSR_OK;
}

static double pixel_x(const struct frame *f, const struct tsr_row *row)
{
    return place_on(memory_of(row), f->x0, f->x1, f->log_x) * TSR__PLOT_WIDTH;
}

static double pixel_y(const struct study *study, const struct frame *f, const struct tsr_row *row)
{
    return place_on(time_of(study, row), f->y0, f->y1, f->log_y) * TSR__PLOT_HEIGHT;
}

/* The row of the front that comes next to the right, or NULL. */
static const struct tsr_row *next_best(const struct study *study, const struct tsr_row *row)
{
    const struct tsr_row *next = NULL;
    for (size_t i = 0; i < study->n; i++) {
        const struct tsr_row *other = &study->rows[i];
        if (tsr__on_front(study->rows, study->n, i) && other->peak_reserved > row->peak_reserved &&
            (!next || other->peak_reserved < next->peak_reserved))
            next = other;
    }
    return next;
}

static tsr_status write_front(FILE *out, const void *user)
{
    const struct study *study = user;
    static const struct tsr_row nothing = {.strategy = ""};
    tsr__put_provenance(out, study->info, NULL,
                        "the strategies that fit and of which no other is as fast and as small, "
                        "by memory");
    fputs("peak_reserved_bytes,step_s,strategy,token_s\n", out);
    for (const struct tsr_row *row = next_best(study, &nothing); row; row = next_best(study, row)) {
        fprintf(out, "%" PRIu64 ",%.9f,", row->peak_reserved, row->steady.step_s);
        tsr__put_plain(out, row->strategy);
        fprintf(out, ",%.9g\n", tsr__token_s(row));
    }
    return TSR_OK;
}

/* The lines that names should not cross: the card's limit, and the steps of the front. Room for
 * 2 n + 1. */
static size_t lines_of(const struct study *study, const struct frame *f, struct tsr__box *lines)
{
    size_t n = 0;
    if (f->limit > f->x0 && f->limit < f->x1) {
        double x = place_on(f->limit, f->x0, f->x1, f->log_x) * TSR__PLOT_WIDTH;
        lines[n++] = (struct tsr__box){x - 3, x + 3, 0, TSR__PLOT_HEIGHT};
    }
    for (size_t i = 0; i < study->n; i++) {
        const struct tsr_row *row = &study->rows[i];
        const struct tsr_row *next = NULL;
        if (tsr__on_front(study->rows, study->n, i))
            next = next_best(study, row);
        if (!next)
            continue;
        double x = pixel_x(f, row), y = pixel_y(study, f, row), to = pixel_x(f, next);
        lines[n++] = (struct tsr__box){x, to, y - 1, y + 1};
        lines[n++] = (struct tsr__box){to - 1, to + 1, pixel_y(study, f, next), y};
    }
    return n;
}

/* The name, or for a long one a number that a legend explains. */
static void name_text(const struct study *study, size_t i, char out[96])
{
    size_t number = 1;
    if (tsr_text_columns(study->rows[i].strategy) <= TSR__LABEL_LETTERS) {
        (void)snprintf(out, 96, "%s", study->rows[i].strategy);
        return;
    }
    for (size_t k = 0; k < i; k++)
        number += !study->rows[k].failure[0] &&
                  tsr_text_columns(study->rows[k].strategy) > TSR__LABEL_LETTERS;
    (void)snprintf(out, 96, "%zu", number);
}

/* Both rows have points, which a reader cannot tell apart: less than half of a mark lies between
 * them. */
static bool coincide(const struct study *study, const struct frame *f, size_t i, size_t k)
{
    const struct tsr_row *a = &study->rows[i], *b = &study->rows[k];
    return !a->failure[0] && !b->failure[0] && fabs(pixel_x(f, a) - pixel_x(f, b)) < 3 &&
           fabs(pixel_y(study, f, a) - pixel_y(study, f, b)) < 3;
}

/* owner[i]: the first row whose point is that of row i, whose label both share; NULL when out of
 * memory. The caller frees it. */
static size_t *owners_of(const struct study *study, const struct frame *f)
{
    size_t *owner = malloc((study->n + 1) * sizeof *owner);
    for (size_t i = 0; owner && i < study->n; i++) {
        owner[i] = i;
        for (size_t k = 0; k < i && owner[i] == i; k++)
            if (owner[k] == k && coincide(study, f, i, k))
                owner[i] = k;
    }
    return owner;
}

/* Writes what stands beside the point of row i: its name and those of the rows that share its
 * label; nothing if row i shares the label of another. */
static void label_text(const struct study *study, const size_t *owner, size_t i, char out[96])
{
    size_t others = 0;
    out[0] = '\0';
    if (owner[i] != i)
        return;
    name_text(study, i, out);
    for (size_t k = i + 1; k < study->n; k++)
        others += owner[k] == i;
    for (size_t k = i + 1; k < study->n && others; k++) {
        char name[96];
        size_t n = strlen(out);
        if (owner[k] != i)
            continue;
        name_text(study, k, name);
        if (tsr_text_columns(out) + 3 + tsr_text_columns(name) > TSR__LABEL_LETTERS) {
            (void)snprintf(out + n, 96 - n, " and %zu more", others);
            return;
        }
        (void)snprintf(out + n, 96 - n, " / %s", name);
        others--;
    }
}

/* One label per row that did not fail, in order; NULL when out of memory. */
static struct tsr__label *labels_of(const struct study *study, const struct frame *f,
                                    const size_t *owner)
{
    struct tsr__label *labels = calloc(study->n + 1, sizeof *labels);
    struct tsr__box *lines = calloc(2 * study->n + 1, sizeof *lines);
    size_t n = 0;
    if (!labels || !lines) {
        free(labels);
        free(lines);
        return NULL;
    }
    for (size_t i = 0; i < study->n; i++) {
        const struct tsr_row *row = &study->rows[i];
        char text[96];
        if (row->failure[0])
            continue;
        label_text(study, owner, i, text);

        labels[n++] = (struct tsr__label){
            .x = pixel_x(f, row), .y = pixel_y(study, f, row), .length = tsr_text_columns(text)};
    }
    tsr__place_labels(labels, n, lines, lines_of(study, f, lines));
    free(lines);
    return labels;
}

static tsr_status write_compare(FILE *out, const void *user)
{
    static const char *const aligns[] = {"left", "center", "right"};
    static const char *const changes[TSR_ALL_CHANGES + 1] = {
        "none", "stack", "numbers", "both", "hardware", "both", "both", "both"};
    const struct study *study = user;
    struct frame f = frame_of(study);
    size_t *owner = owners_of(study, &f);
    struct tsr__label *labels = owner ? labels_of(study, &f, owner) : NULL, *label = labels;
    if (!labels) {
        free(owner);
        return tsr_fail(TSR_ENOMEM, "no memory left for the comparison");
    }
    tsr__put_provenance(out, study->info, NULL,
                        "steady step: seconds; bytes of the fullest GPU; best: no other is as fast "
                        "and as small; label: where the name stands, GiB and milliseconds; "
                        "text: the names of all points there, or numbers in their place; number: "
                        "what stands for this name");
    fputs("strategy,step_s,compute_s,exposed_s,other_s,peak_allocated_bytes,peak_reserved_bytes,"
          "fits,best,mfu,label_gib,label_time,label_align,leader,token_s,changes,text,number\n",
          out);
    for (size_t i = 0; i < study->n; i++) {
        const struct tsr_row *row = &study->rows[i];
        if (row->failure[0])
            continue;
        const struct tsr_metrics *m = &row->steady;
        double other = m->step_s - m->compute_s - m->exposed_s;
        tsr__put_plain(out, row->strategy);
        fprintf(out, ",%.9f,%.9f,%.9f,%.9f,%" PRIu64 ",%" PRIu64 ",%s,%d,", m->step_s, m->compute_s,
                m->exposed_s, other > 0 ? other : 0, row->peak_allocated, row->peak_reserved,
                tsr_fits_word(row->fits), tsr__on_front(study->rows, study->n, i));
        if (row->mfu >= 0)
            fprintf(out, "%.6f", row->mfu);
        char text[96];
        label_text(study, owner, i, text);
        fprintf(out, ",%.6g,%.6g,%s,%d,%.9g,%s,",
                value_at(label->text_x / TSR__PLOT_WIDTH, f.x0, f.x1, f.log_x),
                value_at(label->text_y / TSR__PLOT_HEIGHT, f.y0, f.y1, f.log_y),
                aligns[label->align + 1], label->leader, tsr__token_s(row),
                changes[row->changes.kinds]);
        tsr__put_plain(out, text);
        name_text(study, i, text);
        fprintf(out, ",%s\n", strcmp(text, row->strategy) ? text : "");
        label++;
    }
    free(labels);
    free(owner);
    return TSR_OK;
}

/* ---- bars --------------------------------------------------------------------------------- */

static tsr_status write_categories(FILE *out, const void *user)
{
    const struct study *study = user;
    bool occurs[TSR_N_CATEGORIES] = {false};
    for (size_t i = 0; i < study->n; i++) {
        for (int c = 0; c < TSR_N_CATEGORIES && !study->rows[i].failure[0]; c++)
            occurs[c] |= study->rows[i].peak_by_category[c] != 0;
    }
    tsr__put_provenance(out, study->info, NULL,
                        "bytes of the fullest GPU at the peak of allocated memory, by owner; the "
                        "peak of reserved memory; the card's usable bytes (empty: unknown)");
    fputs("strategy,usable_bytes,peak_reserved_bytes,peak_allocated_bytes", out);
    for (int c = 0; c < TSR_N_CATEGORIES; c++) {
        char key[64];
        tsr__category_key(tsr__stack_order[c], key, sizeof key);
        if (occurs[tsr__stack_order[c]])
            fprintf(out, ",%s_bytes", key);
    }
    fputc('\n', out);
    for (size_t i = 0; i < study->n; i++) {
        const struct tsr_row *row = &study->rows[i];
        if (row->failure[0])
            continue;
        tsr__put_plain(out, row->strategy);
        fputc(',', out);
        if (row->usable_bytes)
            fprintf(out, "%" PRIu64, row->usable_bytes);
        fprintf(out, ",%" PRIu64 ",%" PRIu64, row->peak_reserved, row->peak_allocated);
        for (int c = 0; c < TSR_N_CATEGORIES; c++) {
            if (occurs[tsr__stack_order[c]])
                fprintf(out, ",%" PRIu64, row->peak_by_category[tsr__stack_order[c]]);
        }
        fputc('\n', out);
    }
    return TSR_OK;
}

/* ---- all files ----------------------------------------------------------------------------- */

/* The rows whose times were measured, or those whose times were not; NULL: no memory. */
static struct tsr_row *rows_with(const struct tsr_row *rows, size_t n, bool measured, size_t *n_out)
{
    struct tsr_row *out = calloc(n + 1, sizeof *out);
    *n_out = 0;
    for (size_t i = 0; out && i < n; i++)
        if (rows[i].measured == measured)
            out[(*n_out)++] = rows[i];
    return out;
}

/* What is drawn about time: of rows of one kind, as compare.csv and so on. */
static tsr_status write_times(const char *dir, const struct tsr_study_info *info,
                              const struct tsr_row *rows, size_t n)
{
    static const struct tsr_named_write compare[] = {{"compare.csv", write_compare},
                                                     {"compare-frame.csv", write_frame},
                                                     {"compare-front.csv", write_front}};
    struct study study = {info, rows, n, tsr__same_tokens(rows, n)};
    return tsr_write_each(dir, compare, sizeof compare / sizeof *compare, &study);
}

/* A run in earnest has another machine, and a picture of its own. */
static tsr_status write_measured(const char *dir, const struct tsr_study_info *info,
                                 const struct tsr_row *rows, size_t n)
{
    static const struct tsr_named_write files[] = {{"measured.csv", write_compare},
                                                   {"measured-frame.csv", write_frame}};
    struct tsr_study_info run = *info;
    run.cluster_name = "machine of the run";
    run.device_file = "";
    run.world = run.most_world = rows[0].world;
    run.measured = true;
    struct study study = {&run, rows, n, tsr__same_tokens(rows, n)};
    return tsr_write_each(dir, files, sizeof files / sizeof *files, &study);
}

static tsr_status write_mixed(const char *dir, const struct tsr_study_info *info,
                              const struct tsr_row *rows, size_t n)
{
    size_t n_simulated, n_measured;
    struct tsr_row *simulated = rows_with(rows, n, false, &n_simulated);
    struct tsr_row *measured = rows_with(rows, n, true, &n_measured);
    tsr_status status = TSR_ENOMEM;
    if (!simulated || !measured)
        TSR_GOTO(done, tsr_fail(TSR_ENOMEM, "no memory left for the comparison"));
    TSR_GOTO(done, write_times(dir, info, simulated, n_simulated));
    status = write_measured(dir, info, measured, n_measured);
done:
    free(simulated);
    free(measured);
    return status;
}

tsr_status tsr_report_study(const char *dir, const struct tsr_study_info *info,
                            const struct tsr_row *rows, size_t n)
{
    static const struct tsr_named_write files[] = {{"summary.csv", write_summary_csv},
                                                   {"summary.json", write_summary_json},
                                                   {"compare-categories.csv", write_categories},
                                                   {"wall.json", write_wall}};
    struct study study = {info, rows, n, tsr__same_tokens(rows, n)};
    TSR_TRY(tsr_make_folder(dir));
    TSR_TRY(tsr_write_each(dir, files, sizeof files / sizeof *files, &study));
    if (tsr__is_mixed(rows, n))
        return write_mixed(dir, info, rows, n);
    return write_times(dir, info, rows, n);
}
