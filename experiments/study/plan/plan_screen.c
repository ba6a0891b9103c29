/* plan_screen.c: the report of `tessera plan` for people (plan.h): one screen with the fastest, the
 * front in brief, why the first one wins and what to do with it; --wide has every row, the notes
 * have the rest. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"
#include "sim/base/text.h"

static double gib(uint64_t bytes)
{
    return (double)bytes / TSR__GIB;
}

/* ---- which rows ------------------------------------------------------------------------------ */

/* The rows that the screen shows, as indices of plan->shown: n_fastest ranked ones, then n_front
 * more of the front, then rows with a mark. */
struct rows {
    size_t n, *items;
    size_t n_fastest, n_front;
};

static bool has_row(const struct rows *rows, size_t k)
{
    for (size_t i = 0; i < rows->n; i++)
        if (rows->items[i] == k)
            return true;
    return false;
}

/* Adds the first row of the front that needs at most `most` bytes. plan->shown has the front from
 * fast to small. */
static void add_front(const struct tsr_plan *plan, uint64_t most, struct rows *rows)
{
    for (size_t k = 0; k < plan->n_ranked; k++) {
        const struct tsr_plan_point *point = &plan->points[plan->shown[k]];
        if (!point->front || point->need > most)
            continue;
        if (!has_row(rows, k)) {
            rows->items[rows->n++] = k;
            rows->n_front++;
        }
        return;
    }
}

/* Returns the bytes that the smallest row of the front needs, which is the last one; UINT64_MAX: no
 * front. */
static uint64_t smallest(const struct tsr_plan *plan)
{
    uint64_t out = UINT64_MAX;
    for (size_t k = 0; k < plan->n_ranked; k++)
        if (plan->points[plan->shown[k]].front)
            out = plan->points[plan->shown[k]].need;
    return out;
}

/* Chooses the N fastest rows, those of the front that are fastest within 3/4, 1/2 and 1/4 of the
 * budget, the smallest one, and the fastest with a mark. wide: chooses all. rows->items has room
 * for all. */
static void choose_rows(const struct tsr_plan *plan, bool wide, struct rows *rows)
{
    size_t top = wide ? plan->n_shown : plan->options.top;
    while (rows->n < plan->n_ranked && rows->n < top) {
        rows->items[rows->n] = rows->n;
        rows->n++;
    }
    rows->n_fastest = rows->n;
    if (plan->n_ranked && !wide) {
        for (uint64_t quarters = 3; quarters; quarters--)
            add_front(plan, plan->budget / 4 * quarters, rows);
        add_front(plan, smallest(plan), rows);
    }
    size_t n_marked = wide || !plan->n_ranked ? top : 1;
    for (size_t k = plan->n_ranked; k < plan->n_shown && n_marked; k++, n_marked--)
        rows->items[rows->n++] = k;
}

/* ---- the table ------------------------------------------------------------------------------- */

enum { N_COLUMNS = 11, STACK = 9, CELL = 512 };
typedef char cell[CELL];

static const struct column {
    const char *head;
    bool left;
    bool wide; /* only where there is room for all */
} columns[N_COLUMNS] = {{"#", false, false},         {"settings", true, false},
                        {"step ms", false, false},   {"tokens/s/GPU", false, false},
                        {"MFU %", false, true},      {"peak GiB", false, true},
                        {"needs GiB", false, false}, {"exposed ms", false, true},
                        {"front", true, true},       {"stack", true, true},
                        {"alike", false, true}};

static void fill(const struct tsr_plan *plan, size_t k, bool wide, cell *cells)
{
    struct tsr_plan_row row;
    tsr_plan_row_of(plan, k, &row);
    snprintf(cells[0], CELL, "%s%zu", row.is_marked && !wide ? "+" : "", k + 1);
    snprintf(cells[1], CELL, "%s", row.settings);
    snprintf(cells[2], CELL, "%.2f", row.step_s * 1e3);
    snprintf(cells[3], CELL, "%.0f", row.tokens_per_s);
    snprintf(cells[4], CELL, row.mfu >= 0 ? "%.1f" : "?", row.mfu * 100);
    snprintf(cells[5], CELL, "%.2f", gib(row.allocated));
    snprintf(cells[6], CELL, "%.2f", gib(row.needed));
    snprintf(cells[7], CELL, "%.2f", row.exposed_s * 1e3);
    snprintf(cells[8], CELL, "%s", row.front ? "yes" : "");
    tsr_needs_words(row.needs, cells[STACK], CELL);
    snprintf(cells[10], CELL, "%zu", row.alike);
    for (char *c = cells[1]; *c; c++)
        *c = *c == '|' ? '/' : *c; /* it would end the cell */
}

static void put_line(FILE *out, const cell *cells, const size_t *widths, bool wide)
{
    for (size_t c = 0; c < N_COLUMNS; c++)
        if (wide || !columns[c].wide)
            fprintf(out, columns[c].left ? "| %-*s " : "| %*s ", (int)widths[c], cells[c]);
    fputs("|\n", out);
}

static void put_rule(FILE *out, const size_t *widths, bool wide)
{
    for (size_t c = 0; c < N_COLUMNS; c++) {
        if (columns[c].wide && !wide)
            continue;
        fputs(columns[c].left ? "|:" : "|-", out);
        for (size_t i = 0; i < widths[c]; i++)
            fputc('-', out);
        fputc(columns[c].left ? '-' : ':', out);
    }
    fputs("|\n", out);
}

static void put_table(FILE *out, const struct tsr_plan *plan, const struct rows *rows, bool wide)
{
    size_t widths[N_COLUMNS] = {0};
    cell cells[N_COLUMNS];
    for (size_t i = 0; i < rows->n; i++) {
        fill(plan, rows->items[i], wide, cells);
        for (size_t c = 0; c < N_COLUMNS; c++)
            widths[c] = strlen(cells[c]) > widths[c] ? strlen(cells[c]) : widths[c];
    }
    for (size_t c = 0; c < N_COLUMNS; c++) {
        widths[c] = strlen(columns[c].head) > widths[c] ? strlen(columns[c].head) : widths[c];
        snprintf(cells[c], CELL, "%s", columns[c].head);
    }
    put_line(out, (const cell *)cells, widths, wide);
    put_rule(out, widths, wide);
    for (size_t i = 0; i < rows->n; i++) {
        fill(plan, rows->items[i], wide, cells);
        put_line(out, (const cell *)cells, widths, wide);
    }
    fputc('\n', out);
}

/* What the rows behind the fastest are. */
static void put_others(FILE *out, const struct tsr_plan *plan, const struct rows *rows, bool wide)
{
    size_t on_front = 0;
    for (size_t k = 0; k < plan->n_ranked; k++)
        on_front += plan->points[plan->shown[k]].front;
    if (rows->n_front) {
        fprintf(out, "#%zu", rows->items[rows->n_fastest] + 1);
        for (size_t i = 1; i < rows->n_front; i++)
            fprintf(out, ", #%zu", rows->items[rows->n_fastest + i] + 1);
        fprintf(out,
                ": of the front (nothing else is as fast and as small; %zu rows, all with --wide) "
                "the fastest within 3/4, 1/2 and 1/4 of the budget, and the smallest.\n",
                on_front);
    }
    if (plan->n_ranked == plan->n_shown)
        return;
    struct tsr_plan_row first, marked;
    char needs[128];
    tsr_plan_row_of(plan, plan->n_ranked, &marked);
    tsr_needs_words(marked.needs & ~plan->space.allowed, needs, sizeof needs);
    fprintf(out, "%s%zu needs %s, which strategy %s does not have", wide ? "#" : "+",
            plan->n_ranked + 1, needs, tsr_show(plan->base->name).text);
    if (plan->n_ranked) {
        tsr_plan_row_of(plan, 0, &first);
        fprintf(out, ": %.1f %% %s than #1",
                fabs(marked.tokens_per_s / first.tokens_per_s - 1) * 100,
                marked.tokens_per_s > first.tokens_per_s ? "faster" : "slower");
    }
    fputs("; --allow all ranks such rows among the others.\n", out);
}

/* ---- the winner and its reason --------------------------------------------------------------- */

/* What a token takes, in microseconds. */
struct parts {
    double kernels, exposed, host, rest;
};

static struct parts parts_of(const struct tsr_row *row)
{
    const struct tsr_metrics *m = &row->steady;
    double scale = 1e6 / (double)row->tokens_per_rank;
    struct parts out = {.kernels = m->compute_s * scale,
                        .exposed = m->exposed_s * scale,
                        .host = m->host_bound_s * scale};
    out.rest = m->step_s * scale - out.kernels - out.exposed - out.host;
    return out;
}

/* Names the parts that make at least a twentieth of all differences. */
static void put_differences(FILE *out, const struct parts *a, const struct parts *b)
{
    const struct {
        const char *name;
        double us;
    } all[] = {{"kernels", a->kernels - b->kernels},
               {"exposed communication", a->exposed - b->exposed},
               {"waiting for the host", a->host - b->host},
               {"the rest", a->rest - b->rest}};
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        sum += fabs(all[i].us);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (sum > 0 && fabs(all[i].us) >= sum / 20)
            fprintf(out, "%s%s %+.3g us", n++ ? ", " : ": ", all[i].name, all[i].us);
}

static void put_winner(FILE *out, const struct tsr_plan *plan)
{
    const struct tsr_plan_point *own = plan->own < plan->space.n ? &plan->points[plan->own] : NULL;
    const struct tsr_plan_point *best = &plan->points[plan->shown[0]];
    const struct tsr_plan_point *other = plan->n_ranked > 1 ? &plan->points[plan->shown[1]] : NULL;
    bool own_wins = own && plan->shown[0] == plan->own;
    bool own_known = own && own->state == TSR_PLAN_SIMULATED && own->fits;
    const char *name = tsr_show(plan->base->name).text;
    double time = tsr_plan_time(&best->m->row);
    if (own_wins)
        fprintf(out, "Strategy %s as it is in the file wins", name);
    else
        fputs("#1 wins", out);
    fprintf(out, ": %.0f tokens/s/GPU, %.2f of %.2f GiB.", time > 0 ? 1 / time : 0, gib(best->need),
            gib(plan->budget));
    if (!own_wins && own && !own_known)
        fprintf(out, " As it is in the file, strategy %s does not fit%s.", name,
                tsr_plan_is_emitted(own) ? "" : ", or cannot be built");
    other = own_known && !own_wins ? own : other;
    if (other && other->state == TSR_PLAN_SIMULATED) {
        struct parts a = parts_of(&best->m->row), b = parts_of(&other->m->row);
        fprintf(out, " A token takes %.4g us, %.4g %s", time * 1e6,
                tsr_plan_time(&other->m->row) * 1e6,
                other == own ? "with the file's own settings" : "with #2");
        put_differences(out, &a, &b);
        fputc('.', out);
    }
    fputc('\n', out);
}

/* ---- what to do next ------------------------------------------------------------------------- */

/* True if the program trains the configuration on GPUs of this machine: it names data, its kernels
 * exist, and there are enough GPUs. */
static bool runs_here(const struct tsr_plan *plan, size_t k, uint32_t gpus)
{
    size_t i = plan->shown[k];
    const struct tsr_row *row = &plan->points[i].m->row;
    unsigned needs = tsr_plan_needs(&plan->space, i) | tsr_needs_of(plan->job.settings);
    return row->trains && row->world <= gpus && !(needs & 1u << TSR_NEED_COMPILE);
}

static void put_next(FILE *out, const struct tsr_plan *plan, const struct tsr_plan_view *view)
{
    fputs("\nNext: #1 as PyTorch code, with what you bring at its top", out);
    bool runs = runs_here(plan, 0, view->gpus);
    fputs(runs ? "; trained on this machine's GPUs:\n\n    " : ":\n\n    ", out);
    tsr_plan_put_shown_command(out, plan, "sim", 0);
    fputs(" --emit torch out/code\n", out);
    if (runs) {
        fputs("    ", out);
        tsr_plan_put_shown_command(out, plan, "run", 0);
        fputs(" --on cuda\n", out);
    }
    fputs("\n--write N FILE leaves row N as an experiment for compare, explain and run; --commands "
          "prints a command for each row.\n",
          out);
}

static void put_commands(FILE *out, const struct tsr_plan *plan)
{
    fputs("\nThese simulate them again:\n\n", out);
    for (size_t k = 0; k < plan->n_shown; k++) {
        fprintf(out, "    # %zu\n    ", k + 1);
        tsr_plan_put_shown_command(out, plan, "sim", k);
        fputc('\n', out);
    }
}

/* ---- notes ----------------------------------------------------------------------------------- */

static const char *first_refusal(const struct tsr_plan *plan)
{
    for (size_t i = 0; i < plan->space.n; i++)
        if (plan->points[i].state == TSR_PLAN_IMPOSSIBLE)
            return plan->points[i].m ? plan->points[i].m->row.failure : tsr_plan_excludes(plan, i);
    return "";
}

/* Prints which rows make the allocator free its cache and ask again. */
static void put_retries(FILE *out, const struct tsr_plan *plan, const struct rows *rows)
{
    size_t n = 0;
    for (size_t i = 0; i < rows->n; i++)
        if (plan->points[plan->shown[rows->items[i]]].m->row.fits == TSR_FITS_RETRIES)
            fprintf(out, "%s#%zu", n++ ? ", " : "", rows->items[i] + 1);
    if (n)
        fputs(": the card is full, so the allocator frees what it has cached and asks again, which "
              "their times have in them.\n",
              out);
}

static void put_over_peak(FILE *out, const struct tsr_plan *plan)
{
    for (size_t k = 0; k < plan->n_shown; k++)
        if (plan->points[plan->shown[k]].m->row.mfu > 1) {
            fputs(TSR_MFU_OVER_PEAK "\n", out);
            return;
        }
}

/* Prints the share of a step that is priced without a model of its kernels: a user must not act on
 * such a row as on others. */
static void put_unknown(FILE *out, const struct tsr_plan *plan)
{
    double most = 0, first = 0;
    for (size_t k = plan->n_shown; k-- > 0;) {
        first = tsr__unknown_share(&plan->points[plan->shown[k]].m->row);
        most = fmax(most, first);
    }
    if (most >= 0.0005) /* 0.1 % as it is printed */
        fprintf(out,
                "%.1f %% of #1's step, and at most %.1f %% of a row's, is in kernels of the trace "
                "that the cost model does not know, which are priced by FLOP and bytes.\n",
                100 * fmax(first, 0), 100 * most);
}

static void put_counts(FILE *out, const struct tsr_plan *plan)
{
    const struct tsr_plan_counts *c = &plan->counts;
    fprintf(out,
            "%zu configurations of %s: %zu emitted, %zu of them different, %zu of these fit, "
            "%zu simulated.\n",
            plan->space.n - c->repeats, plan->space.is_default ? "the default space" : "plan.space",
            c->emitted, c->distinct, c->fitting, c->simulated);
    if (c->too_large)
        fprintf(out, "%zu were not emitted: their tensors alone exceed the budget.\n",
                c->too_large);
    if (c->beaten)
        fprintf(out, "%zu were not emitted: others are faster than they can be, and need less.\n",
                c->beaten);
    if (!plan->options.exhaustive && c->simulated < c->fitting)
        fputs("What was not simulated is neither among the fastest nor on the front: its kernels "
              "alone "
              "take longer.\n",
              out);
    if (c->impossible)
        fprintf(out, "%zu are not possible; the first: %s\n", c->impossible,
                tsr_show_line(first_refusal(plan)).text);
}

static void put_notes(FILE *out, const struct tsr_plan *plan, bool wide)
{
    put_counts(out, plan);
    fprintf(out,
            "Ordered by tokens per second, those without a mark first. `needs`: what the card must "
            "have for it: reserved memory at its most, context, libraries and NCCL.%s\n",
            wide
                ? " `peak`: allocated memory of the fullest GPU. `stack`: what the row needs and "
                  "the strategy does not have. `alike`: other configurations with the same figures."
                : "");
}

/* ---- the report ------------------------------------------------------------------------------ */

static void put_head(FILE *out, const struct tsr_plan *plan)
{
    const struct tsr_job *job = &plan->job;
    if (plan->experiment.title[0])
        fprintf(out, "## %s\n\n", tsr_show_line(plan->experiment.title).text);
    fprintf(out,
            "%s on %s: %" PRIu32 " x %s; strategy %s with other settings; budget %.2f GiB%s\n\n",
            tsr_show_line(job->model.name).text, tsr_show_line(job->cluster.name).text, job->world,
            tsr_show(job->cluster.gpu.name).text, tsr_show(plan->base->name).text,
            gib(plan->budget), plan->own_budget ? "" : ", what the card certainly has");
}

void tsr_plan_put_screen(FILE *out, FILE *notes, const struct tsr_plan *plan, bool wide,
                         const struct tsr_plan_view *view)
{
    struct rows rows = {.items = calloc(plan->n_shown + 1, sizeof *rows.items)};
    put_head(out, plan);
    if (rows.items) {
        choose_rows(plan, wide, &rows);
        put_table(out, plan, &rows, wide);
        put_others(out, plan, &rows, wide);
    }
    put_retries(out, plan, &rows);
    if (wide)
        put_over_peak(out, plan);
    if (plan->n_shown)
        put_winner(out, plan);
    if (plan->counts.interrupted)
        fprintf(out,
                "Interrupted: nothing is known yet of %zu; what is shown is the best so far.\n",
                plan->counts.left);
    fprintf(out, "All times are simulated, for the device file %s.\n",
            tsr_show_line(plan->job.cluster.gpu.path).text);
    put_unknown(out, plan);
    tsr_put_validated(out, notes, &plan->info);
    if (plan->n_shown)
        put_next(out, plan, view);
    if (view->commands)
        put_commands(out, plan);
    put_notes(notes, plan, wide);
    free(rows.items);
}
