/* report_memory.c: memory.csv, phases.csv and peak.csv of an iteration.
 *
 * The order of the changes is the host's issue order, in which PyTorch counts its peak; the time of
 * a change is the device's: when the next work issued after it starts (report_view.h). So the
 * highest point of the curve is the peak that the table gives, at the moment when it is in use.
 * Beside it is what the device really works on (report_view.h), which has no host in it.
 */
#include "experiments/study/detail/report_detail.h"
#include "experiments/study/job/owner.h"
#include "experiments/study/report/report_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the curve ---------------------------------------------------------------------------- */

static void keep_sample(void *user, const struct tsr_memory_sample *sample)
{
    struct tsr__curve *curve = user;
    if (!TSR_PUSH(curve->samples, curve->n, curve->cap, *sample))
        curve->failed = true;
}

static void keep_level(void *user, const struct tsr_memory_sample *sample)
{
    struct tsr_memory_sample *level = user;
    *level = *sample;
}

static tsr_status replay(struct tsr__curve *curve, struct tsr_memory *memory,
                         const struct tsr_detail *detail, uint32_t iteration)
{
    struct tsr_memory_sample level = {0};
    for (uint32_t i = 0; i < iteration; i++)
        TSR_TRY(tsr_memory_replay(memory, detail->programs[i], keep_level, &level, &curve->peak));
    level.instr = 0;
    keep_sample(curve, &level);
    TSR_TRY(
        tsr_memory_replay(memory, detail->programs[iteration], keep_sample, curve, &curve->peak));
    if (curve->failed)
        return tsr_fail(TSR_ENOMEM, "no memory left for a memory curve");
    return TSR_OK;
}

tsr_status tsr__curve_init(struct tsr__curve *curve, const struct tsr_detail *detail,
                           uint32_t iteration)
{
    *curve = (struct tsr__curve){0};
    struct tsr_memory *memory = NULL;
    TSR_TRY(tsr_memory_create(&memory));
    tsr_status status = replay(curve, memory, detail, iteration);
    tsr_memory_destroy(memory);
    if (status != TSR_OK) {
        tsr__curve_fini(curve);
        return status;
    }
    for (size_t i = 0; i < curve->n; i++) {
        for (int c = 0; c < TSR_N_CATEGORIES; c++)
            curve->occurs[c] |= curve->samples[i].by_category[c] != 0;
    }
    return TSR_OK;
}

void tsr__curve_fini(struct tsr__curve *curve)
{
    free(curve->samples);
    *curve = (struct tsr__curve){0};
}

/* ---- files -------------------------------------------------------------------------------- */

static double seconds(const struct tsr__view *view, size_t instr)
{
    return view->clock[instr] - view->start;
}

static void put_sample(FILE *out, const struct tsr__curve *curve,
                       const struct tsr_memory_sample *sample, double time)
{
    fprintf(out, "%.9f", time);
    for (int i = 0; i < TSR_N_CATEGORIES; i++) {
        int c = tsr__stack_order[i];
        if (curve->occurs[c])
            fprintf(out, ",%" PRIu64, sample->by_category[c]);
    }
    fprintf(out, ",%" PRIu64 ",%" PRIu64, sample->total, sample->reserved);
}

static void put_head(FILE *out, const struct tsr__curve *curve)
{
    fputs("time_s", out);
    for (int i = 0; i < TSR_N_CATEGORIES; i++) {
        char key[64];
        tsr__category_key(tsr__stack_order[i], key, sizeof key);
        if (curve->occurs[tsr__stack_order[i]])
            fprintf(out, ",%s_bytes", key);
    }
    fputs(",total_bytes,reserved_bytes", out);
}

static double sample_time(const struct tsr__page *page, size_t i)
{
    return i ? seconds(page->view, page->curve->samples[i].instr) : 0.0;
}

tsr_status tsr__write_memory(FILE *out, const void *user)
{
    const struct tsr__page *page = user;
    const struct tsr__curve *curve = page->curve;
    double end = page->view->end - page->view->start;
    size_t cursor = 0;
    tsr__put_provenance(out, page->info, page->view->detail->row->strategy,
                        "time_s: seconds of the steady step on the device's clock; then bytes of "
                        "blocks by owner, their total, what the allocator holds (reserved), what "
                        "was requested of the total, and the most that is in use on the device "
                        "until the next row; one row per change, in the host's issue order");
    put_head(out, curve);
    fputs(",requested_bytes,in_use_bytes\n", out);
    for (size_t i = 0; i <= curve->n; i++) {
        if (!curve->n)
            break;
        /* The last level holds to the end of the step. */
        const struct tsr_memory_sample *sample = &curve->samples[i < curve->n ? i : i - 1];
        double from = i < curve->n ? sample_time(page, i) : end;
        double to = i + 1 < curve->n ? sample_time(page, i + 1) : end;
        put_sample(out, curve, sample, from);
        fprintf(out, ",%" PRIu64 ",%" PRIu64 "\n", sample->requested,
                tsr__in_use_between(page->in_use, page->view->start + from, page->view->start + to,
                                    &cursor));
    }
    return TSR_OK;
}

/* A curve of steps: each level is written where it begins and where it ends. */
struct steps {
    FILE *out;
    const struct tsr__curve *curve;
    const struct tsr_memory_sample *level;
    uint64_t visible; /* bytes: smaller changes cannot be seen */
};

static bool looks_the_same(const struct steps *steps, const struct tsr_memory_sample *other)
{
    for (int c = 0; c < TSR_N_CATEGORIES; c++) {
        uint64_t a = steps->level->by_category[c], b = other->by_category[c];
        if ((a > b ? a - b : b - a) > steps->visible)
            return false;
    }
    /* The peak is drawn to the byte. */
    return other->total != steps->curve->peak.allocated || steps->level->total == other->total;
}

static void put_step(const struct steps *steps, const struct tsr_memory_sample *level, double time)
{
    put_sample(steps->out, steps->curve, level, time);
    fputc('\n', steps->out);
}

static void step_to(struct steps *steps, const struct tsr_memory_sample *level, double time)
{
    if (steps->level && looks_the_same(steps, level))
        return;
    if (steps->level)
        put_step(steps, steps->level, time);
    put_step(steps, level, time);
    steps->level = level;
}

/* Changes closer than a line of the picture are one: the last level is what stays; a fuller one
 * before it is drawn as a spike just wide enough to be seen. */
tsr_status tsr__write_memory_plot(FILE *out, const void *user)
{
    const struct tsr__page *page = user;
    const struct tsr__curve *curve = page->curve;
    struct steps steps = {out, curve, NULL, curve->peak.allocated / 1500};
    double end = page->view->end - page->view->start, line = end / 750, begin = 0;
    size_t first = 0, fullest = 0;
    tsr__put_provenance(out, page->info, page->view->detail->row->strategy,
                        "as memory.csv at the resolution of the picture: within 1/750 of the step "
                        "only the fullest and the last level, no change under 1/1500 of the peak; "
                        "each level twice, where it begins and where it ends");
    put_head(out, curve);
    fputc('\n', out);
    for (size_t i = 0; i < curve->n; i++) {
        if (i == first)
            begin = sample_time(page, i);
        if (i == first || curve->samples[i].total > curve->samples[fullest].total)
            fullest = i;
        if (i + 1 < curve->n && sample_time(page, i + 1) < begin + line)
            continue;
        if (curve->samples[fullest].total > curve->samples[i].total) {
            step_to(&steps, &curve->samples[fullest], begin);
            begin += line / 2 < end - begin ? line / 2 : 0;
        }
        step_to(&steps, &curve->samples[i], begin);
        first = i + 1;
    }
    if (steps.level)
        put_step(&steps, steps.level, end);
    return TSR_OK;
}

/* At the resolution of the picture: within a line of it the most that is in use. */
tsr_status tsr__write_in_use_plot(FILE *out, const void *user)
{
    enum { LINES = 750 };
    const struct tsr__page *page = user;
    double start = page->view->start, line = (page->view->end - start) / LINES;
    uint64_t visible = page->in_use->peak / 1500, level = 0;
    size_t cursor = 0;
    tsr__put_provenance(out, page->info, page->view->detail->row->strategy,
                        "time_s: seconds of the steady step; in_use_bytes: the most that is in use "
                        "on the device until the next row; no change under 1/1500 of the peak");
    fputs("time_s,in_use_bytes\n", out);
    for (int i = 0; i <= LINES; i++) {
        double from = i * line;
        uint64_t bytes =
            tsr__in_use_between(page->in_use, start + from, start + from + line, &cursor);
        bool shows = bytes > level + visible || level > bytes + visible;
        if (!shows && i > 0 && i < LINES && bytes != page->in_use->peak)
            continue;
        fprintf(out, "%.9f,%" PRIu64 "\n", from, bytes);
        level = bytes;
    }
    return TSR_OK;
}

/* ---- phases and the peak ------------------------------------------------------------------ */

/* Names of short phases would lie on their neighbours': each goes to the lowest of a few rows where
 * there is room. With more than FEW_MICROS micro-batches only forward phases have a name, in one
 * row and at equal distances. Sizes are those of plots/memory.gp. */
enum { PHASE_ROWS = 3, FEW_MICROS = 4 };
static const double PICTURE_WIDTH = 715, LETTER_WIDTH = 7.4, ROW_GAP = 6;

struct phase_label {
    double middle; /* seconds */
    int row;       /* -1: too short to be named */
};

static struct phase_label place_phase(const struct tsr__phase *phase, const char *text,
                                      const struct tsr__view *view, double *row_ends)
{
    double step = view->end - view->start, scale = PICTURE_WIDTH / step;
    double half = (double)strlen(text) * LETTER_WIDTH / 2;
    double middle = ((phase->start + phase->end) / 2 - view->start) * scale;
    bool always = phase->phase == TSR_PHASE_FORWARD || phase->phase == TSR_PHASE_BACKWARD ||
                  phase->phase == TSR_PHASE_LOSS || phase->phase == TSR_PHASE_OPTIMIZER;
    struct phase_label label = {0, -1};
    if (!always && (phase->end - phase->start) * scale < 4)
        return label;
    if (middle < half)
        middle = half;
    if (middle > PICTURE_WIDTH + 20 - half) /* the last name may reach into the margin */
        middle = PICTURE_WIDTH + 20 - half;
    label.middle = middle / scale;
    for (int row = 0; row < PHASE_ROWS && label.row < 0; row++) {
        if (middle - half < row_ends[row] + ROW_GAP)
            continue;
        row_ends[row] = middle + half;
        label.row = row;
    }
    return label;
}

/* Every which micro-batch of `n` has a name, so that names have room in one row; 0: all phases are
 * named. */
static uint32_t micros_per_name(uint32_t n)
{
    const double width = LETTER_WIDTH * (double)strlen("forward 00") + ROW_GAP;
    return n > FEW_MICROS ? (uint32_t)ceil(1.3 * (double)n * width / PICTURE_WIDTH) : 0;
}

tsr_status tsr__write_phases(FILE *out, const void *user)
{
    const struct tsr__page *page = user;
    const struct tsr__view *view = page->view;
    double row_ends[PHASE_ROWS] = {-ROW_GAP, -ROW_GAP, -ROW_GAP};
    struct tsr__phase *phases;
    size_t n;
    TSR_TRY(tsr__phases(view, &phases, &n));
    tsr__put_provenance(out, page->info, view->detail->row->strategy,
                        "phase; start, end in seconds of the step on the device's clock; where "
                        "the picture writes the name (row -1: nowhere)");
    fputs("phase,start_s,end_s,label_s,label_row\n", out);
    uint32_t n_micros = 1;
    for (size_t i = 0; i < n; i++)
        n_micros = phases[i].micro >= n_micros ? phases[i].micro + 1u : n_micros;
    const uint32_t each = micros_per_name(n_micros);
    for (size_t i = 0; i < n; i++) {
        char name[48];
        struct phase_label label = {0, -1};
        tsr__phase_label(&phases[i], n_micros > 1, name, sizeof name);
        if (!each || (phases[i].phase == TSR_PHASE_FORWARD && phases[i].micro % each == 0))
            label = place_phase(&phases[i], name, view, row_ends);
        fprintf(out, "%s,%.9f,%.9f,%.9f,%d\n", name, phases[i].start - view->start,
                phases[i].end - view->start, label.middle, label.row);
    }
    free(phases);
    return TSR_OK;
}

/* What the allocation of the peak is for; "" where the peak is the level at the start. */
static const char *operation_of(const struct tsr_program *program, size_t instr)
{
    if (instr >= program->n_instrs || program->instrs[instr].kind != TSR_ALLOC)
        return "";
    size_t work = tsr_work_of_alloc(program, instr);
    return work < program->n_instrs ? tsr_work_name(&program->instrs[work]) : "";
}

tsr_status tsr__write_peak(FILE *out, const void *user)
{
    const struct tsr__page *page = user;
    const struct tsr__view *view = page->view;
    const struct tsr_memory_peak *peak = &page->curve->peak;
    char buffer[32];
    tsr__put_provenance(out, page->info, view->detail->row->strategy,
                        "the peak of memory.csv: time_s, bytes, module and phase of the "
                        "allocation that made it, the card's usable bytes (empty: unknown); most "
                        "bytes reserved, and in use on the device; what the allocation is for; 1: "
                        "of a run on ranks");
    fputs("time_s,peak_bytes,module,phase,limit_bytes,reserved_bytes,step_s,title,in_use_bytes,"
          "operation,measured\n",
          out);
    fprintf(out, "%.9f,%" PRIu64 ",", seconds(view, peak->instr), peak->allocated);
    tsr__put_plain(out, tsr_owner_of(view->tables, &peak->origin, buffer));
    fprintf(out, ",%s,", tsr_phase_name(peak->origin.phase));
    if (view->detail->row->usable_bytes)
        fprintf(out, "%" PRIu64, view->detail->row->usable_bytes);
    fprintf(out, ",%" PRIu64 ",%.9f,", peak->reserved, view->end - view->start);
    tsr__put_title(out, page);
    fprintf(out, ",%" PRIu64 ",", page->in_use->peak);
    tsr__put_plain(out, operation_of(view->program, peak->instr));
    fprintf(out, ",%d\n", page->info->measured);
    return TSR_OK;
}
