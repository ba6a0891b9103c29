/* report_run.c: run.csv, run-plot.csv and run-peaks.csv: the memory of a run over its sections
 * (init, load, the first steps, eval, save) as one curve, on the device and on the host, and the
 * peak of each.
 *
 * Written where `phases` asks for it. Iterations after the second are left out; the sections that
 * are shown follow each other without gaps.
 */
#include "experiments/study/detail/report_detail.h"
#include "experiments/study/job/owner.h"
#include "experiments/study/report/report_text.h"

#include "engine/graph/host_memory.h"

#include <inttypes.h>
#include <stdlib.h>

static const char *const section_names[TSR_N_SECTIONS] = {TSR_SECTION_WORDS};

/* The state after an instruction that changes memory. */
struct point {
    size_t instr;
    struct tsr_memory_sample device;
    struct tsr_host_level host;
};

/* A section that is shown. */
struct part {
    uint32_t program; /* index in the detail */
    enum tsr_section section;
    struct point *points;
    size_t n, cap;
    struct tsr_memory_peak peak;
    struct tsr_host_peak host;
};

struct run {
    struct part parts[TSR_N_SECTIONS];
    int n;
    bool occurs[TSR_N_CATEGORIES];
    /* while it is replayed: */
    struct part *into; /* NULL: a program that is not shown */
    struct point last;
    bool failed;
};

static void fini(struct run *run)
{
    for (int i = 0; i < run->n; i++)
        free(run->parts[i].points);
}

/* ---- replay ------------------------------------------------------------------------------- */

static void keep(struct run *run)
{
    struct part *part = run->into;
    for (int c = 0; c < TSR_N_CATEGORIES; c++)
        run->occurs[c] |= run->last.device.by_category[c] != 0;
    if (!TSR_PUSH(part->points, part->n, part->cap, run->last))
        run->failed = true;
}

static void on_sample(void *user, const struct tsr_memory_sample *sample)
{
    struct run *run = user;
    run->last.device = *sample;
    run->last.instr = sample->instr;
    if (run->into)
        keep(run);
}

static bool is_host(const struct tsr_instr *instr)
{
    return instr->kind == TSR_HOST_ALLOC || instr->kind == TSR_HOST_FREE || instr->kind == TSR_PIN;
}

/* Puts the changes of the host's memory between those of the device's. */
static tsr_status merge_host(struct run *run, struct part *part, const struct tsr_program *program,
                             const struct tsr_host_level *before)
{
    struct tsr_host_level level = *before;
    struct point *device = part->points;
    size_t n = part->n, next = 1; /* [0] is the state at the start */
    part->points = NULL;
    part->n = part->cap = 0;
    run->last = device[0];
    tsr_status status = TSR_OK;
    run->last.host = level;
    keep(run);
    for (size_t i = 0; i < program->n_instrs && status == TSR_OK; i++) {
        bool changed = next < n && device[next].instr == i;
        status = tsr_host_apply(&level, &program->instrs[i]);
        if (changed)
            run->last = device[next++];
        if (!changed && !is_host(&program->instrs[i]))
            continue;
        run->last.instr = i;
        run->last.host = level;
        keep(run);
    }
    free(device);
    return status;
}

static tsr_status replay_one(struct run *run, struct tsr_memory *memory,
                             const struct tsr_program *program, struct tsr_host_level *level)
{
    struct tsr_memory_peak peak;
    struct tsr_host_peak host;
    struct tsr_host_level before = *level;
    run->last.instr = 0;
    if (run->into)
        keep(run); /* the level at its start */
    TSR_TRY(tsr_memory_replay(memory, program, on_sample, run, &peak));
    TSR_TRY(tsr_host_replay(level, program, &host));
    if (!run->into || run->failed)
        return TSR_OK;
    run->into->peak = peak;
    run->into->host = host;
    return merge_host(run, run->into, program, &before);
}

static tsr_status replay_all(struct run *run, struct tsr_memory *memory,
                             const struct tsr_detail *detail)
{
    struct tsr_host_level level = {0};
    for (uint32_t i = 0; i < detail->n_iterations; i++) {
        run->into = NULL;
        if (detail->shown[i]) {
            run->into = &run->parts[run->n++];
            *run->into =
                (struct part){.program = i, .section = (enum tsr_section)(detail->shown[i] - 1)};
        }
        TSR_TRY(replay_one(run, memory, detail->programs[i], &level));
        if (run->failed)
            return tsr_fail(TSR_ENOMEM, "no memory left for the memory curve of a run");
    }
    return TSR_OK;
}

static tsr_status init(struct run *run, const struct tsr_detail *detail)
{
    struct tsr_memory *memory = NULL;
    *run = (struct run){0};
    TSR_TRY(tsr_memory_create(&memory));
    tsr_status status = replay_all(run, memory, detail);
    tsr_memory_destroy(memory);
    if (status != TSR_OK)
        fini(run);
    return status;
}

/* ---- files -------------------------------------------------------------------------------- */

/* The picture gives every section the same width, and shows so many moments of it. */
enum { MOMENTS = 250 };

/* Where a curve is written, and what of it. */
struct pen {
    FILE *out;
    const struct run *run;
    const struct tsr_detail *detail;
    double begin; /* of the section, seconds of the curve */
    int place;    /* number of the section in the curve */
    bool thin;    /* of each moment only the fullest and the last level */
};

static double length_of(const struct tsr_detail *detail, uint32_t program)
{
    double start = program ? detail->iteration_end[program - 1] : 0.0;
    return detail->iteration_end[program] - start;
}

static void put_head(const struct pen *pen)
{
    fputs("time_s,place,section,phase", pen->out);
    for (int i = 0; i < TSR_N_CATEGORIES; i++) {
        char key[64];
        tsr__category_key(tsr__stack_order[i], key, sizeof key);
        if (pen->run->occurs[tsr__stack_order[i]])
            fprintf(pen->out, ",%s_bytes", key);
    }
    fputs(",total_bytes,reserved_bytes,host_bytes,pinned_bytes,pinned_held_bytes\n", pen->out);
}

/* Seconds into the section: on the device's clock; what the host does when the device has nothing
 * left to do, on the host's. Never falls. */
static double time_of(const struct part *part, const struct tsr__view *view, size_t i)
{
    size_t instr = part->points[i].instr;
    double clock = view->clock[instr], issue = view->spans[instr].issue;
    return i ? (issue > clock ? issue : clock) - view->start : 0.0;
}

static void put_point(const struct pen *pen, const struct part *part, const struct tsr__view *view,
                      size_t i, double time)
{
    const struct point *point = &part->points[i];
    double length = view->end - view->start, share = length > 0 ? time / length : 0.0;
    int phase =
        view->program->n_instrs ? view->program->instrs[point->instr].origin.phase : TSR_PHASE_INIT;
    fprintf(pen->out, "%.9f,%.6f,%s,%s", pen->begin + time, pen->place + (share < 1 ? share : 1.0),
            section_names[part->section], tsr_phase_name(phase));
    for (int c = 0; c < TSR_N_CATEGORIES; c++)
        if (pen->run->occurs[tsr__stack_order[c]])
            fprintf(pen->out, ",%" PRIu64, point->device.by_category[tsr__stack_order[c]]);
    fprintf(pen->out, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n",
            point->device.total, point->device.reserved, point->host.host, point->host.pinned,
            point->host.held);
}

static tsr_status put_part(const struct pen *pen, const struct part *part)
{
    struct tsr__view view;
    size_t fullest = 0;
    TSR_TRY(tsr__view_init(&view, pen->detail, part->program));
    double length = view.end - view.start, scale = length > 0 ? MOMENTS / length : 0.0;
    for (size_t i = 0; i < part->n; i++) {
        double time = time_of(part, &view, i);
        bool last =
            i + 1 == part->n || (int)(scale * time_of(part, &view, i + 1)) != (int)(scale * time);
        if (part->points[i].device.total > part->points[fullest].device.total)
            fullest = i;
        if (pen->thin && !last)
            continue;
        if (pen->thin && fullest != i)
            put_point(pen, part, &view, fullest, time_of(part, &view, fullest));
        put_point(pen, part, &view, i, time);
        fullest = i + 1;
    }
    /* The last level holds to the end of the section. */
    if (part->n)
        put_point(pen, part, &view, part->n - 1, length);
    tsr__view_fini(&view);
    return TSR_OK;
}

static tsr_status write_curve(FILE *out, const struct tsr__page *page, bool thin,
                              const char *columns)
{
    struct run run;
    struct pen pen = {.out = out, .run = &run, .detail = page->view->detail, .thin = thin};
    TSR_TRY(init(&run, pen.detail));
    tsr__put_provenance(out, page->info, pen.detail->row->strategy, columns);
    put_head(&pen);
    tsr_status status = TSR_OK;
    for (int i = 0; i < run.n && status == TSR_OK; i++) {
        pen.place = i;
        status = put_part(&pen, &run.parts[i]);
        pen.begin += length_of(pen.detail, run.parts[i].program);
    }
    fini(&run);
    return status;
}

tsr_status tsr__write_run(FILE *out, const void *page)
{
    return write_curve(out, page, false,
                       "time_s: seconds on the device's clock, sections without gaps; place: "
                       "number of the section and the share of it that has passed; bytes on the "
                       "device by owner; host_bytes pageable, pinned_bytes in use, "
                       "pinned_held_bytes page-locked; one row per change");
}

tsr_status tsr__write_run_plot(FILE *out, const void *page)
{
    return write_curve(out, page, true,
                       "as run.csv at the resolution of the picture: of each 1/250 of a section "
                       "the fullest and the last level");
}

tsr_status tsr__write_run_peaks(FILE *out, const void *user)
{
    const struct tsr__page *page = user;
    const struct tsr_detail *detail = page->view->detail;
    struct run run;
    double begin = 0;
    TSR_TRY(init(&run, detail));
    tsr__put_provenance(out, page->info, detail->row->strategy,
                        "sections of run.csv: seconds, the largest bytes of each kind, module and "
                        "phase of the allocation that made the allocated peak; the card's usable "
                        "bytes (empty: unknown)");
    fputs("section,start_s,end_s,peak_allocated_bytes,peak_reserved_bytes,host_bytes,pinned_bytes,"
          "pinned_held_bytes,end_allocated_bytes,module,phase,limit_bytes,title\n",
          out);
    for (int i = 0; i < run.n; i++) {
        const struct part *part = &run.parts[i];
        char buffer[32];
        double end = begin + length_of(detail, part->program);
        fprintf(out,
                "%s,%.9f,%.9f,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                ",",
                section_names[part->section], begin, end, part->peak.allocated, part->peak.reserved,
                part->host.most.host, part->host.most.pinned, part->host.most.held,
                part->peak.end_allocated);
        tsr__put_plain(out, tsr_owner_of(page->view->tables, &part->peak.origin, buffer));
        fprintf(out, ",%s,", tsr_phase_name(part->peak.origin.phase));
        if (detail->row->usable_bytes)
            fprintf(out, "%" PRIu64, detail->row->usable_bytes);
        fputc(',', out);
        tsr__put_title(out, page);
        fputc('\n', out);
        begin = end;
    }
    fini(&run);
    return TSR_OK;
}
