/* html_memory.c: the memory of a view: each allocation and release of the step, so that the page
 * can say at any moment what is alive.
 *
 * Events are in the host's issue order, in which the peak is counted, at the device's time
 * (report_view.h). Where there are more than can be seen, small buffers that come and go in the
 * step are left out; their sum by category is told where it has changed by what could be seen, and
 * at the peak, which thus is exact to the byte.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/html/html_view.h"
#include "experiments/study/job/owner.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/snapshot/report_heap.h"

enum { MAX_EVENTS = 10000, N_LEVELS = 1500 };

/* An event's first number is its time after the event before, times N_EVENTS, and its type. */
enum event { EVENT_ALLOC, EVENT_FREE, EVENT_SMALL, N_EVENTS };

struct memory {
    struct tsr__html *html;
    const struct tsr_instr **alive; /* [n_alive] at the start */
    size_t n_alive;
    uint32_t *number; /* [buffers] of its allocation; TSR_NO_ID: left out, or unknown */
    uint32_t n_buffers, n_allocs;
    uint64_t smallest; /* smaller buffers are left out */
    uint64_t *sizes;   /* [n_sizes] */
    size_t n_sizes, sizes_cap;
    struct tsr__pack events;
    size_t n_events, peak_event; /* the peak is the state after so many of them */
    int64_t time;
    int64_t small[TSR_N_CATEGORIES], told[TSR_N_CATEGORIES];
    int64_t owner; /* of the allocation before */
    bool was_peak; /* the change before */
    bool failed;
};

static void forget_numbers(struct memory *m)
{
    memset(m->number, 0xff, ((size_t)m->n_buffers + 1) * sizeof *m->number); /* TSR_NO_ID */
}

static uint32_t size_number(struct memory *m, uint64_t bytes)
{
    for (size_t i = m->n_sizes; i-- > 0;)
        if (m->sizes[i] == bytes)
            return (uint32_t)i;
    if (!TSR_PUSH(m->sizes, m->n_sizes, m->sizes_cap, bytes))
        m->failed = true;
    return (uint32_t)m->n_sizes - !m->failed;
}

static void begin_event(struct memory *m, enum event type, int64_t time)
{
    uint64_t later = time > m->time ? (uint64_t)(time - m->time) : 0;
    tsr__pack_put(&m->events, later * N_EVENTS + type);
    m->time += (int64_t)later;
    m->n_events++;
}

/* category, module, what for, bytes of the block, bytes that were asked for */
static void put_alloc(struct memory *m, const struct tsr_instr *instr, const char *op, int64_t time)
{
    char buffer[32];
    const struct tsr_tables *tables = m->html->page->view->tables;
    uint32_t owner = tsr__words_of(&m->html->owners, tsr_owner_of(tables, &instr->origin, buffer));
    begin_event(m, EVENT_ALLOC, time);
    tsr__pack_put(&m->events, instr->category);
    tsr__pack_put_signed(&m->events, (int64_t)owner - m->owner);
    tsr__pack_put(&m->events, tsr__words_of(&m->html->ops, op));
    tsr__pack_put(&m->events, size_number(m, instr->block_bytes));
    m->owner = owner;
    if (instr->buffer < m->n_buffers)
        m->number[instr->buffer] = m->n_allocs;
    m->n_allocs++;
}

/* What was left out, where it has changed by what can be seen. It is told a little too low, so that
 * no moment looks fuller than it is; at the peak it is exact. */
static void tell_small(struct memory *m, bool is_peak, int64_t time)
{
    int64_t visible =
        (int64_t)tsr_max_u64(m->html->page->curve->peak.allocated / 1500, m->smallest);
    for (int c = 0; c < TSR_N_CATEGORIES && m->smallest; c++) {
        int64_t low = m->small[c] > visible ? m->small[c] - visible : 0;
        int64_t change = (is_peak ? m->small[c] : low) - m->told[c];
        bool shows = is_peak || m->was_peak || m->told[c] > m->small[c] || change >= visible;
        if (change == 0 || !shows)
            continue;
        begin_event(m, EVENT_SMALL, time);
        tsr__pack_put(&m->events, (uint64_t)c);
        tsr__pack_put_signed(&m->events, change);
        m->told[c] += change;
    }
    m->was_peak = is_peak;
}

static const char *op_of(const struct tsr_program *program, size_t alloc)
{
    size_t work = tsr_work_of_alloc(program, alloc);
    return work < program->n_instrs ? tsr_work_name(&program->instrs[work]) : "";
}

static void put_change(struct memory *m, size_t i)
{
    const struct tsr__view *view = m->html->page->view;
    const struct tsr_memory_peak *peak = &m->html->page->curve->peak;
    const struct tsr_instr *instr = &view->program->instrs[i];
    int64_t time = tsr__html_time(m->html, view->clock[i]);
    uint32_t number = instr->buffer < m->n_buffers ? m->number[instr->buffer] : TSR_NO_ID;
    if (instr->kind == TSR_ALLOC && instr->block_bytes >= m->smallest) {
        put_alloc(m, instr, op_of(view->program, i), time);
    } else if (instr->kind == TSR_FREE && number != TSR_NO_ID) {
        begin_event(m, EVENT_FREE, time);
        tsr__pack_put(&m->events, m->n_allocs - number);
    } else if (instr->kind == TSR_ALLOC) {
        m->small[instr->category] += (int64_t)instr->block_bytes;
    } else {
        m->small[instr->category] -= (int64_t)instr->block_bytes;
    }
    bool is_peak = i == peak->instr && instr->kind == TSR_ALLOC;
    tell_small(m, is_peak, time);
    if (is_peak)
        m->peak_event = m->n_events;
}

static void put_events(struct memory *m)
{
    const struct tsr_program *program = m->html->page->view->program;
    for (size_t i = 0; i < m->n_alive; i++)
        put_alloc(m, m->alive[i], "", 0);
    m->peak_event = m->n_events;
    for (size_t i = 0; i < program->n_instrs && !m->failed; i++)
        if (program->instrs[i].kind == TSR_ALLOC || program->instrs[i].kind == TSR_FREE)
            put_change(m, i);
}

/* Leaves out as little as it can: what is alive at the start is always told. */
static void put_few_events(struct memory *m)
{
    const struct memory fresh = *m;
    put_events(m);
    while (!m->failed && m->n_events > m->n_alive + MAX_EVENTS &&
           m->smallest < m->html->page->curve->peak.allocated) {
        uint64_t smallest = m->smallest ? m->smallest / 2 * 3 : 4096;
        tsr__pack_fini(&m->events);
        free(m->sizes);
        *m = fresh;
        m->smallest = smallest;
        forget_numbers(m);
        put_events(m);
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

/* What the allocator holds: time after the change before, bytes more or less. */
static void put_reserved(FILE *out, const struct memory *m)
{
    const struct tsr__page *page = m->html->page;
    struct tsr__pack pack = {0};
    int64_t before = 0, time = 0;
    size_t n = 0;
    for (size_t i = 0; i < page->curve->n; i++) {
        const struct tsr_memory_sample *sample = &page->curve->samples[i];
        int64_t now = i ? tsr__html_time(m->html, page->view->clock[sample->instr]) : 0;
        if (i && (int64_t)sample->reserved == before)
            continue;
        tsr__pack_put(&pack, now > time ? (uint64_t)(now - time) : 0);
        tsr__pack_put_signed(&pack, (int64_t)sample->reserved - before);
        before = (int64_t)sample->reserved;
        time = now > time ? now : time;
        n++;
    }
    fprintf(out, ",\n\"reserved\":{\"n\":%zu,\"data\":", n);
    tsr__pack_write(out, &pack);
    fputc('}', out);
    tsr__pack_fini(&pack);
}

/* The most that is in use within each of N_LEVELS parts of the step, KiB. */
static void put_in_use(FILE *out, const struct memory *m)
{
    const struct tsr__page *page = m->html->page;
    double start = page->view->start, part = (page->view->end - start) / N_LEVELS;
    struct tsr__pack pack = {0};
    int64_t before = 0;
    size_t cursor = 0;
    for (int i = 0; i < N_LEVELS; i++) {
        uint64_t bytes =
            tsr__in_use_between(page->in_use, start + i * part, start + (i + 1) * part, &cursor);
        tsr__pack_put_signed(&pack, (int64_t)(bytes / 1024) - before);
        before = (int64_t)(bytes / 1024);
    }
    fprintf(out, ",\n\"in_use\":{\"n\":%d,\"data\":", N_LEVELS);
    tsr__pack_write(out, &pack);
    fputc('}', out);
    tsr__pack_fini(&pack);
}

static void put_peak(FILE *out, const struct memory *m)
{
    const struct tsr__page *page = m->html->page;
    const struct tsr__view *view = page->view;
    const struct tsr_memory_peak *peak = &page->curve->peak;
    char buffer[32];
    bool made = peak->instr < view->program->n_instrs &&
                view->program->instrs[peak->instr].kind == TSR_ALLOC;
    fprintf(out,
            ",\n\"peak\":{\"time_s\":%.9f,\"events\":%zu,\"allocated_bytes\":%" PRIu64
            ",\"reserved_bytes\":%" PRIu64 ",\"in_use_bytes\":%" PRIu64 ",\"module\":",
            made ? view->clock[peak->instr] - view->start : 0.0, m->peak_event, peak->allocated,
            peak->reserved, page->in_use->peak);
    tsr__put_json(out, tsr_owner_of(view->tables, &peak->origin, buffer));
    fprintf(out, ",\"phase\":\"%s\",\"operation\":", tsr_phase_name(peak->origin.phase));
    tsr__put_json(out, made ? op_of(view->program, peak->instr) : "");
    fputc('}', out);
}

static void put_all(FILE *out, const struct memory *m)
{
    fprintf(out,
            ",\n\"memory\":{\"n_alive\":%zu,\"n_events\":%zu,\"left_out_below_bytes\":%" PRIu64
            ",\n\"categories\":[",
            m->n_alive, m->n_events, m->smallest);
    for (int c = 0; c < TSR_N_CATEGORIES; c++)
        fprintf(out, "%s\"%s\"", c ? "," : "", tsr_category_name(c));
    fputs("],\n\"order\":[", out);
    for (int c = 0; c < TSR_N_CATEGORIES; c++)
        fprintf(out, "%s%d", c ? "," : "", tsr__stack_order[c]);
    fputs("],\n\"sizes\":[", out);
    for (size_t i = 0; i < m->n_sizes; i++)
        fprintf(out, "%s%" PRIu64, i ? "," : "", m->sizes[i]);
    fputs("],\n\"events\":", out);
    tsr__pack_write(out, &m->events);
    put_reserved(out, m);
    put_in_use(out, m);
    put_peak(out, m);
    fputc('}', out);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static tsr_status live_at_start(struct memory *m)
{
    const struct tsr_detail *detail = m->html->page->view->detail;
    struct tsr_memory *memory = NULL;
    struct tsr_memory_peak peak;
    tsr_status status;
    TSR_TRY(tsr_memory_create(&memory));
    for (uint32_t i = 0; i < m->html->page->view->iteration; i++)
        TSR_GOTO(done, tsr_memory_replay(memory, detail->programs[i], NULL, NULL, &peak));
    status = tsr_memory_live(memory, &m->alive, &m->n_alive);
done:
    tsr_memory_destroy(memory);
    return status;
}

tsr_status tsr__html_put_memory(FILE *out, struct tsr__html *html)
{
    const struct tsr__view *view = html->page->view;
    struct memory m = {.html = html};
    m.n_buffers = tsr__n_buffers(view->detail->programs, view->iteration + 1);
    m.number = malloc(((size_t)m.n_buffers + 1) * sizeof *m.number);
    tsr_status status = m.number ? live_at_start(&m) : tsr_no_memory("the page of a strategy");
    if (status == TSR_OK) {
        forget_numbers(&m);
        put_few_events(&m);
        put_all(out, &m);
        if (m.failed || m.events.failed)
            status = tsr_no_memory("the page of a strategy");
    }
    free(m.alive);
    free(m.number);
    free(m.sizes);
    tsr__pack_fini(&m.events);
    return status;
}
