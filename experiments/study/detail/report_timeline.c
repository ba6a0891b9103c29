/* report_timeline.c: timeline.csv: what the streams do in the first and the last 60 ms of the
 * steady iteration, where there is little to hide communication behind, and during three
 * consecutive blocks in the middle of the model, once in forward and once in backward; for
 * plots/timeline.gp.
 *
 * Blocks are the entries of the longest numbered list of modules (model.layers.0, .1, ...).
 * Neighbouring kernels of one kind are joined where the gap is narrower than a line is drawn.
 */
#include "experiments/study/detail/report_detail.h"
#include "experiments/study/report/report_text.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LISTS = 32, N_SHOWN = 3, MAX_PARTS = 256, N_WINDOWS = 4 };
static const double EDGE = 0.06;                       /* seconds at both ends of the step */
static const double MARGIN = 0.02, JOIN = 0.0015;      /* shares of the window */
static const double PICTURE_WIDTH = 955, LETTER = 6.6; /* pixels, as in plots/timeline.gp */

/* ---- the blocks of a model ---------------------------------------------------------------- */

struct blocks {
    int *of_module;  /* [n_modules]: number of the block, or -1 */
    int first, last; /* that are shown */
};

struct list {
    const char *prefix;
    size_t length;
    int n;
};

/* Length of the prefix of "prefix.NUMBER" with its dot, or -1 if the name does not end so. */
static int list_prefix(const char *fqn)
{
    size_t n = strlen(fqn), at = n;
    while (at > 0 && isdigit((unsigned char)fqn[at - 1]))
        at--;
    return at == n || (at > 0 && fqn[at - 1] != '.') ? -1 : (int)at;
}

static struct list longest_list(const struct tsr_tables *tables)
{
    struct list lists[MAX_LISTS];
    int n_lists = 0, best = -1;
    for (uint32_t m = 0; m < tables->n_modules; m++) {
        const char *fqn = tables->modules[m];
        int length = list_prefix(fqn), l = 0;
        if (length < 0)
            continue;
        while (l < n_lists && (lists[l].length != (size_t)length ||
                               strncmp(lists[l].prefix, fqn, (size_t)length) != 0))
            l++;
        if (l == MAX_LISTS)
            continue;
        if (l == n_lists)
            lists[n_lists++] = (struct list){fqn, (size_t)length, 0};
        lists[l].n++;
        if (best < 0 || lists[l].n > lists[best].n)
            best = l;
    }
    return best < 0 ? (struct list){NULL, 0, 0} : lists[best];
}

static tsr_status find_blocks(const struct tsr_tables *tables, struct blocks *blocks)
{
    struct list list = longest_list(tables);
    *blocks = (struct blocks){.of_module = malloc((tables->n_modules + 1) * sizeof(int))};
    if (!blocks->of_module)
        return tsr_fail(TSR_ENOMEM, "no memory left for a timeline");
    for (uint32_t m = 0; m < tables->n_modules; m++) {
        const char *fqn = tables->modules[m];
        bool inside = list.n && strncmp(fqn, list.prefix, list.length) == 0 &&
                      isdigit((unsigned char)fqn[list.length]);
        blocks->of_module[m] = inside ? atoi(fqn + list.length) : -1;
    }
    blocks->first = list.n > N_SHOWN ? (list.n - N_SHOWN) / 2 : 0;
    blocks->last = blocks->first + (list.n > N_SHOWN ? N_SHOWN : list.n) - 1;
    return TSR_OK;
}

static int block_of(const struct blocks *blocks, const struct tsr_tables *tables,
                    const struct tsr_instr *instr)
{
    return instr->origin.module < tables->n_modules ? blocks->of_module[instr->origin.module] : -1;
}

/* ---- the window --------------------------------------------------------------------------- */

struct window {
    const char *panel;
    char title[32];
    uint8_t phase;
    uint16_t micro; /* the last one: the one that reduces */
    bool found;
    double start, end; /* simulation's clock */
};

struct timeline {
    FILE *out;
    const struct tsr__view *view;
    struct blocks blocks;
    int lanes[64]; /* [stream]: its lane from the top, -1: not shown */
};

static bool is_shown(const struct timeline *t, const struct window *w, size_t i)
{
    const struct tsr_instr *instr = &t->view->program->instrs[i];
    if (instr->stream != t->view->compute || !tsr__is_busy_work(instr) ||
        instr->origin.phase != w->phase || instr->origin.micro != w->micro)
        return false;
    int block = block_of(&t->blocks, t->view->tables, instr);
    /* A model without a list of blocks is shown whole. */
    return t->blocks.last < 0 || (block >= t->blocks.first && block <= t->blocks.last);
}

static void find_window(const struct timeline *t, struct window *w)
{
    const struct tsr_program *program = t->view->program;
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_origin *origin = &program->instrs[i].origin;
        if (origin->phase == w->phase && origin->micro > w->micro)
            w->micro = origin->micro;
    }
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_sim_span *span = &t->view->spans[i];
        if (!is_shown(t, w, i))
            continue;
        w->start = !w->found || span->start < w->start ? span->start : w->start;
        w->end = !w->found || span->end > w->end ? span->end : w->end;
        w->found = true;
    }
    w->found = w->found && w->end > w->start;
    double margin = MARGIN * (w->end - w->start);
    w->start -= margin;
    w->end += margin;
}

/* `at`; or the other end of the stretch around it in which a collective is exposed. */
static double past_exposed(const struct tsr__view *view, double at, bool later)
{
    struct tsr__interval parts[MAX_PARTS];
    double past = at;
    for (size_t i = 0; i < view->program->n_instrs; i++) {
        struct tsr__interval span = {view->spans[i].start, view->spans[i].end};
        if (!tsr__is_collective(&view->program->instrs[i]) || span.start >= at || span.end <= at)
            continue;
        size_t n = tsr__idle_parts(view, span, parts, MAX_PARTS);
        for (size_t p = 0; p < n && p < MAX_PARTS; p++) {
            if (parts[p].start >= at || parts[p].end <= at)
                continue;
            past = later ? fmax(past, parts[p].end) : fmin(past, parts[p].start);
        }
    }
    return past;
}

static void name_edge(struct window *w, const char *which)
{
    double length = w->end - w->start;
    (void)snprintf(w->title, sizeof w->title, "%s %.3g %s", which,
                   length < 1 ? length * 1e3 : length, length < 1 ? "ms" : "s");
}

/* The two ends of the step, each to where its exposed communication ends; one panel if they meet.
 */
static void find_edges(const struct timeline *t, struct window *head, struct window *tail)
{
    const struct tsr__view *view = t->view;
    double from = view->end - EDGE, to = view->start + EDGE;
    double past = past_exposed(view, to, true), before = past_exposed(view, from, false);
    *head = (struct window){.panel = "start", .found = true, .start = view->start};
    *tail = (struct window){.panel = "end", .found = true, .end = view->end};
    head->end = past > to ? past + MARGIN * (past - view->start) : to;
    tail->start = before < from ? before - MARGIN * (view->end - before) : from;
    if (head->end >= tail->start) {
        *head =
            (struct window){.panel = "step", .found = true, .start = view->start, .end = view->end};
        (void)snprintf(head->title, sizeof head->title, "whole step");
        tail->found = false;
        return;
    }
    name_edge(head, "first");
    name_edge(tail, "last");
}

static bool meets(const struct window *w, const struct tsr_sim_span *span)
{
    return w->found && span->end > w->start && span->start < w->end;
}

/* Gives a lane to every stream that works in a window; the compute stream is the first. */
static void find_lanes(struct timeline *t, const struct window *windows, int n_windows)
{
    bool used[64] = {false};
    const struct tsr__view *view = t->view;
    for (size_t i = 0; i < view->program->n_instrs; i++) {
        const struct tsr_instr *instr = &view->program->instrs[i];
        for (int w = 0; w < n_windows; w++) {
            if (instr->stream < 64 && tsr__is_busy_work(instr) &&
                meets(&windows[w], &view->spans[i]))
                used[instr->stream] = true;
        }
    }
    int n = 0;
    for (int s = 0; s < 64; s++)
        t->lanes[s] = -1;
    if (view->compute < 64)
        t->lanes[view->compute] = n++;
    for (int s = 0; s < 64; s++) {
        if (used[s] && s != view->compute)
            t->lanes[s] = n++;
    }
}

/* ---- rows --------------------------------------------------------------------------------- */

struct box {
    int lane, block;
    bool recompute;
    const char *kind;
    char label[160];
    double start, end;
};

static void put_box(const struct timeline *t, const struct window *w, const struct box *box)
{
    double start = box->start > w->start ? box->start : w->start;
    double end = box->end < w->end ? box->end : w->end;
    if (end <= start)
        return;
    fprintf(t->out, "%s,%d,%s,%.9f,%.9f,", w->panel, box->lane, box->kind, start - t->view->start,
            end - t->view->start);
    tsr__put_plain(t->out, box->label);
    fputc('\n', t->out);
}

/* The longest part of a span that is not hatched. */
static struct tsr__interval clear_part(const struct tsr__view *view, struct tsr__interval span)
{
    struct tsr__interval parts[MAX_PARTS], best = {span.start, span.start};
    size_t n = tsr__idle_parts(view, span, parts, MAX_PARTS);
    double from = span.start;
    for (size_t i = 0; i <= n && i < MAX_PARTS; i++) {
        double to = i < n ? parts[i].start : span.end;
        if (to - from > best.end - best.start)
            best = (struct tsr__interval){from, to};
        from = i < n ? parts[i].end : to;
    }
    return best;
}

/* Writes `text` to a box of a lane: inside it, or in the free room beside it (`before`, `after`:
 * the ends of the neighbours and their names). False if there is no room; *box_end becomes where
 * box and text end. */
static bool try_name(const struct timeline *t, const struct window *w, const struct box *box,
                     const char *text, double before, double after, double *box_end)
{
    double width = (double)strlen(text) * LETTER / PICTURE_WIDTH * (w->end - w->start);
    double gap = LETTER / 2 / PICTURE_WIDTH * (w->end - w->start);
    double start = box->start > w->start ? box->start : w->start;
    double end = box->end < w->end ? box->end : w->end;
    struct box name = *box;
    (void)snprintf(name.label, sizeof name.label, "%s", text);
    *box_end = end;
    if (!text[0] || end <= start)
        return true;
    before = before > w->start ? before : w->start;
    after = after < w->end ? after : w->end;
    if (width + gap <= end - start) {
        struct tsr__interval clear = clear_part(t->view, (struct tsr__interval){start, end});
        bool hatched = clear.end - clear.start < width + gap;
        name.kind = hatched ? "name_exposed" : "name";
        name.start = hatched ? start : clear.start;
        name.end = hatched ? end : clear.end;
    } else if (after - end >= width + 2 * gap) {
        name.kind = "name_right";
        name.start = end + gap;
        name.end = end + gap + width;
        *box_end = name.end;
    } else if (start - before >= width + 2 * gap) {
        name.kind = "name_left";
        name.start = start - gap - width;
        name.end = start - gap;
    } else {
        return false;
    }
    put_box(t, w, &name);
    return true;
}

/* The name with its collective, else without (the lane tells which it is), else nothing. */
static double put_name(const struct timeline *t, const struct window *w, const struct box *box,
                       double before, double after)
{
    double end = box->end;
    const char *space = strchr(box->label, ' ');
    if (!try_name(t, w, box, box->label, before, after, &end) && space)
        (void)try_name(t, w, box, space + 1, before, after, &end);
    return end;
}

/* The colour of a box. */
static const char *kind_of(const struct tsr__view *view, const struct tsr_instr *instr)
{
    if (instr->kind == TSR_ALL_GATHER)
        return "all_gather";
    if (instr->kind == TSR_REDUCE_SCATTER)
        return "reduce_scatter";
    if (instr->kind == TSR_ALL_REDUCE)
        return "all_reduce";
    if (tsr__is_collective(instr))
        return "collective";
    if (instr->stream != view->compute || !instr->work || instr->kind != TSR_OP)
        return "copy";
    switch (instr->work->op) {
    case TSR_OP_GEMM:
        return "matmul";
    case TSR_OP_ATTENTION:
    case TSR_OP_ATTENTION_BWD:
        return "attention";
    case TSR_OP_CHUNK_CAT:
    case TSR_OP_SPLIT_COPY:
        return "copy";
    default:
        return "pointwise";
    }
}

static struct box box_of(const struct timeline *t, size_t i)
{
    const struct tsr__view *view = t->view;
    const struct tsr_instr *instr = &view->program->instrs[i];
    struct box box = {.lane = t->lanes[instr->stream],
                      .block = block_of(&t->blocks, view->tables, instr),
                      .recompute = instr->origin.recompute != 0,
                      .kind = kind_of(view, instr),
                      .start = view->spans[i].start,
                      .end = view->spans[i].end};
    if (tsr__is_collective(instr))
        tsr__work_label(view->tables, instr, box.label, sizeof box.label);
    return box;
}

/* The works of one stream, neighbours joined; each name once its right neighbour is known. */
static void put_lane(const struct timeline *t, const struct window *w, uint16_t stream)
{
    const struct tsr__view *view = t->view;
    struct box open = {.kind = NULL};
    double gap = JOIN * (w->end - w->start), before = w->start;
    for (size_t i = 0; i < view->program->n_instrs; i++) {
        const struct tsr_instr *instr = &view->program->instrs[i];
        if (instr->stream != stream || !tsr__is_busy_work(instr) || !meets(w, &view->spans[i]))
            continue;
        struct box box = box_of(t, i);
        if (open.kind && !box.label[0] && strcmp(open.kind, box.kind) == 0 &&
            open.block == box.block && box.start - open.end <= gap) {
            open.end = box.end;
            continue;
        }
        if (open.kind) {
            put_box(t, w, &open);
            before = put_name(t, w, &open, before, box.start);
        }
        open = box;
    }
    if (open.kind) {
        put_box(t, w, &open);
        (void)put_name(t, w, &open, before, w->end);
    }
}

/* A cut-off block at the edge of the window keeps its strip and loses its name. */
static void put_strip(const struct timeline *t, const struct window *w, struct box *strip)
{
    double start = strip->start > w->start ? strip->start : w->start;
    double end = strip->end < w->end ? strip->end : w->end;
    double width = (double)strlen(strip->label) * LETTER / PICTURE_WIDTH * (w->end - w->start);
    if (strip->block < 0)
        return;
    if (width * 1.2 > end - start)
        strip->label[0] = '\0';
    put_box(t, w, strip);
}

/* A strip that names the blocks above the compute lane. */
static void put_blocks(const struct timeline *t, const struct window *w)
{
    const struct tsr__view *view = t->view;
    struct box open = {.block = -1};
    for (size_t i = 0; i < view->program->n_instrs; i++) {
        const struct tsr_instr *instr = &view->program->instrs[i];
        if (instr->stream != view->compute || !tsr__is_busy_work(instr) ||
            !meets(w, &view->spans[i]))
            continue;
        struct box box = box_of(t, i);
        if (box.block < 0)
            continue;
        if (open.block == box.block && open.recompute == box.recompute) {
            open.end = box.end;
            continue;
        }
        put_strip(t, w, &open);
        open = box;
        open.kind = "block";
        char name[96];
        const char *fqn = view->tables->modules[instr->origin.module];
        struct list list = longest_list(view->tables);
        size_t length = list.length + strspn(fqn + list.length, "0123456789");
        (void)snprintf(name, sizeof name, "%.*s", (int)length, fqn);
        tsr__short_name(name, open.label, sizeof open.label);
        if (box.recompute)
            (void)snprintf(open.label, sizeof open.label, "recompute");
    }
    put_strip(t, w, &open);
}

static void put_exposed(const struct timeline *t, const struct window *w)
{
    const struct tsr__view *view = t->view;
    struct tsr__interval parts[MAX_PARTS];
    for (size_t i = 0; i < view->program->n_instrs; i++) {
        const struct tsr_instr *instr = &view->program->instrs[i];
        if (!tsr__is_collective(instr) || !meets(w, &view->spans[i]))
            continue;
        struct tsr__interval span = {view->spans[i].start, view->spans[i].end};
        size_t n = tsr__idle_parts(view, span, parts, MAX_PARTS);
        for (size_t p = 0; p < n && p < MAX_PARTS; p++) {
            struct box box = {.lane = t->lanes[instr->stream],
                              .kind = "exposed",
                              .start = parts[p].start,
                              .end = parts[p].end};
            put_box(t, w, &box);
        }
    }
}

static void put_window(const struct timeline *t, const struct window *w)
{
    const struct tsr_tables *tables = t->view->tables;
    struct box range = {.kind = "window", .start = w->start, .end = w->end};
    (void)snprintf(range.label, sizeof range.label, "%s", w->title);
    put_box(t, w, &range);
    for (uint16_t s = 0; s < tables->n_streams && s < 64; s++) {
        if (t->lanes[s] < 0)
            continue;
        struct box lane = {.lane = t->lanes[s], .kind = "lane", .start = w->start, .end = w->end};
        (void)snprintf(lane.label, sizeof lane.label, "%s",
                       s == t->view->compute ? "compute" : tables->streams[s].name);
        for (char *c = strchr(lane.label, '_'); c; c = strchr(c, '_'))
            *c = '-';
        put_box(t, w, &lane);
        put_lane(t, w, s);
    }
    put_blocks(t, w);
    put_exposed(t, w);
}

tsr_status tsr__write_timeline(FILE *out, const void *user)
{
    const struct tsr__page *page = user;
    struct timeline t = {.out = out, .view = page->view};
    struct window windows[N_WINDOWS] = {
        [1] = {.panel = "forward", .title = "forward", .phase = TSR_PHASE_FORWARD},
        [2] = {.panel = "backward", .title = "backward", .phase = TSR_PHASE_BACKWARD}};
    TSR_TRY(find_blocks(t.view->tables, &t.blocks));
    find_edges(&t, &windows[0], &windows[3]);
    for (int w = 1; w <= 2; w++)
        find_window(&t, &windows[w]);
    find_lanes(&t, windows, N_WINDOWS);
    tsr__put_provenance(out, page->info, t.view->detail->row->strategy,
                        "panel (start, end, or step where they meet; forward and backward: "
                        "three blocks); lane from the top (of the title: 1 if times are measured); "
                        "kind (window with the panel's title, "
                        "lane, title: the frame; block, name: texts; exposed: the compute stream "
                        "is idle; else the colour of "
                        "a box); "
                        "seconds of the steady step");
    fputs("panel,lane,kind,start_s,end_s,label\n", out);
    fprintf(out, "title,%d,title,0,0,", page->info->measured);
    tsr__put_title(out, page);
    fputc('\n', out);
    for (int w = 0; w < N_WINDOWS; w++) {
        if (windows[w].found)
            put_window(&t, &windows[w]);
    }
    free(t.blocks.of_module);
    return TSR_OK;
}
