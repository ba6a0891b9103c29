/* html_slices.c: the slices of a view: when each stream, and the host, does what.
 *
 * A slice is: lane, start after the start before, length, launch before start, kind, module,
 * part (phase and micro-batch), and how many instructions it stands for. Long programs have more
 * slices than can be seen: then short neighbours of one lane, module and part become one, the
 * shortest first, until few enough are left. Collectives never do: their exposure is told of each.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/html/html_view.h"
#include "experiments/study/job/owner.h"
#include "experiments/study/report/report_text.h"
#include "sim/figures/overlap.h"

enum { MAX_SLICES = 6000 };

/* What a slice does, by what it is coloured. The page has the same order (page/model.js). */
enum class {
    CLASS_GEMM,
    CLASS_ATTENTION,
    CLASS_ROWS,
    CLASS_POINTWISE,
    CLASS_OPTIMIZER,
    CLASS_COPY,
    CLASS_GATHER,
    CLASS_SCATTER,
    CLASS_REDUCE,
    CLASS_MESSAGE,
    CLASS_HOST,
};

struct kind {
    uint32_t op; /* number of its name */
    enum class class;
    uint64_t bytes;
    double flops;
    const char *comm; /* NULL: none */
};

struct slice {
    size_t instr; /* the first one */
    int64_t issue, start, end;
    uint32_t lane, kind, owner, part, count;
    bool joins; /* it may become one with its neighbours */
};

struct part {
    uint8_t phase;
    uint16_t micro;
};

struct slices {
    struct tsr__html *html;
    struct slice *items;
    struct kind *kinds;
    struct part *parts;
    size_t n, cap, n_kinds, kinds_cap, n_parts, parts_cap;
    uint32_t joined; /* the kind of what was joined */
    bool failed;
};

/* ---- kinds and parts ------------------------------------------------------------------------- */

static enum class class_of_op(const struct tsr_work *work) {
    switch (work ? work->op : TSR_N_OP_KINDS){
        case TSR_OP_GEMM : return CLASS_GEMM;
        case TSR_OP_ATTENTION : case TSR_OP_ATTENTION_BWD : return CLASS_ATTENTION;
        case TSR_OP_NORM : case TSR_OP_NORM_BWD : case TSR_OP_SOFTMAX : case TSR_OP_REDUCTION : case
        TSR_OP_LOSS : return CLASS_ROWS;
        case TSR_OP_OPTIMIZER : return CLASS_OPTIMIZER;
        case TSR_OP_CHUNK_CAT : case TSR_OP_SPLIT_COPY : return CLASS_COPY;
        default : return CLASS_POINTWISE;
    }
}

static enum class class_of(const struct tsr_instr *instr) {
    switch (instr->kind){
        case TSR_ALL_GATHER : return CLASS_GATHER; case TSR_REDUCE_SCATTER : return CLASS_SCATTER;
        case TSR_ALL_REDUCE : return CLASS_REDUCE;
        case TSR_COPY : case TSR_FILL : return CLASS_COPY;
        case TSR_OP : return class_of_op(instr->work);
        case TSR_HOST_WAIT : case TSR_HOST_READ : case TSR_HOST_OP : return CLASS_HOST;
        default : return tsr__is_collective(instr) ? CLASS_MESSAGE : CLASS_POINTWISE;
    }
}

static uint32_t add_kind(struct slices *s, const struct kind *kind)
{
    for (size_t i = s->n_kinds; i-- > 0;) {
        const struct kind *k = &s->kinds[i];
        if (k->op == kind->op && k->class == kind->class && k->bytes == kind->bytes &&
            k->flops <= kind->flops && k->flops >= kind->flops && k->comm == kind->comm)
            return (uint32_t)i;
    }
    if (!TSR_PUSH(s->kinds, s->n_kinds, s->kinds_cap, *kind))
        s->failed = true;
    return (uint32_t)s->n_kinds - !s->failed;
}

static uint32_t kind_of(struct slices *s, const struct tsr_instr *instr)
{
    const struct tsr_tables *tables = s->html->page->view->tables;
    const struct tsr_work *work = instr->work;
    bool is_op = instr->kind == TSR_OP && work;
    struct kind kind = {.op = tsr__words_of(&s->html->ops, tsr_work_name(instr)),
                        .class = class_of(instr),
                        .bytes = is_op ? work->bytes_read + work->bytes_written : instr->bytes,
                        .flops = is_op ? work->flops : 0};
    if (tsr__is_collective(instr) && instr->comm < tables->n_comms)
        kind.comm = tables->comms[instr->comm].name;
    return add_kind(s, &kind);
}

static uint32_t part_of(struct slices *s, const struct tsr_origin *origin)
{
    for (size_t i = s->n_parts; i-- > 0;)
        if (s->parts[i].phase == origin->phase && s->parts[i].micro == origin->micro)
            return (uint32_t)i;
    struct part part = {origin->phase, origin->micro};
    if (!TSR_PUSH(s->parts, s->n_parts, s->parts_cap, part))
        s->failed = true;
    return (uint32_t)s->n_parts - !s->failed;
}

/* ---- collecting ------------------------------------------------------------------------------ */

static bool is_of_host(const struct tsr_instr *instr)
{
    return instr->kind == TSR_HOST_WAIT || instr->kind == TSR_HOST_READ ||
           instr->kind == TSR_HOST_OP;
}

static void add_slice(struct slices *s, size_t i)
{
    const struct tsr__view *view = s->html->page->view;
    const struct tsr_instr *instr = &view->program->instrs[i];
    const struct tsr_sim_span *span = &view->spans[i];
    bool host = is_of_host(instr);
    char buffer[32];
    struct slice slice = {.instr = i,
                          .issue = tsr__html_time(s->html, span->issue),
                          .start = tsr__html_time(s->html, host ? span->issue : span->start),
                          .end = tsr__html_time(s->html, span->end),
                          .lane = host ? view->tables->n_streams : instr->stream,
                          .count = 1,
                          .joins = !host && !tsr__is_collective(instr)};
    slice.end = slice.end < slice.start ? slice.start : slice.end;
    slice.kind = kind_of(s, instr);
    slice.part = part_of(s, &instr->origin);
    slice.owner =
        tsr__words_of(&s->html->owners, tsr_owner_of(view->tables, &instr->origin, buffer));
    if (!TSR_PUSH(s->items, s->n, s->cap, slice))
        s->failed = true;
}

static tsr_status collect(struct slices *s)
{
    const struct tsr_program *program = s->html->page->view->program;
    for (size_t i = 0; i < program->n_instrs && !s->failed; i++)
        if (tsr__is_busy_work(&program->instrs[i]) || is_of_host(&program->instrs[i]))
            add_slice(s, i);
    return s->failed ? tsr_no_memory("the page of a strategy") : TSR_OK;
}

/* ---- joining --------------------------------------------------------------------------------- */

/* What neighbours must have in common, beside their lane and part. */
enum alike { SAME_MODULE, SAME_BLOCK, SAME_PART, N_ALIKE };

static bool may_join(const struct slices *s, const struct slice *a, const struct slice *b,
                     int64_t longest, enum alike alike)
{
    if (!a->joins || !b->joins || a->lane != b->lane || a->part != b->part ||
        b->end - a->start > longest || b->start < a->end)
        return false;
    if (a->owner == b->owner || alike == SAME_PART)
        return true;
    const char *x = s->html->owners.texts[a->owner], *y = s->html->owners.texts[b->owner];
    size_t n = tsr_owner_block_length(x);
    return alike == SAME_BLOCK && n && n == tsr_owner_block_length(y) && !strncmp(x, y, n);
}

/* One pass over all: the last slice of each lane takes in the next if both are short. */
static void join(struct slices *s, int64_t longest, enum alike alike, size_t *last)
{
    size_t kept = 0, n_lanes = (size_t)s->html->page->view->tables->n_streams + 1;
    for (size_t lane = 0; lane < n_lanes; lane++)
        last[lane] = SIZE_MAX;
    for (size_t i = 0; i < s->n; i++) {
        struct slice *slice = &s->items[i];
        size_t before = last[slice->lane];
        if (before != SIZE_MAX && may_join(s, &s->items[before], slice, longest, alike)) {
            s->items[before].end = slice->end;
            s->items[before].count += slice->count;
            s->items[before].kind = s->joined;
            continue;
        }
        s->items[kept] = *slice;
        last[slice->lane] = kept++;
    }
    s->n = kept;
}

static tsr_status join_all(struct slices *s)
{
    const struct tsr__view *view = s->html->page->view;
    if (s->n <= MAX_SLICES)
        return TSR_OK;
    size_t *last = calloc((size_t)view->tables->n_streams + 1, sizeof *last);
    if (!last)
        return tsr_no_memory("the page of a strategy");
    struct kind many = {.op = tsr__words_of(&s->html->ops, "several"), .class = CLASS_POINTWISE};
    s->joined = add_kind(s, &many);
    int64_t step = tsr__html_time(s->html, view->end);
    for (int alike = SAME_MODULE; alike < N_ALIKE; alike++) {
        /* Longer than a visit of a block takes, blocks and modules are all that is left of a lane.
         */
        int64_t most = alike == SAME_PART ? step : step / 100;
        for (int64_t longest = step / 4000 + 1; longest < most && s->n > MAX_SLICES; longest *= 2)
            join(s, longest, (enum alike)alike, last);
    }
    free(last);
    return s->failed ? tsr_no_memory("the page of a strategy") : TSR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static tsr_status put_items(FILE *out, const struct slices *s)
{
    struct tsr__pack pack = {0};
    int64_t start = 0;
    int64_t owner = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct slice *item = &s->items[i];
        tsr__pack_put(&pack, item->lane);
        tsr__pack_put_signed(&pack, item->start - start);
        tsr__pack_put(&pack, (uint64_t)(item->end - item->start));
        tsr__pack_put_signed(&pack, item->start - item->issue);
        tsr__pack_put(&pack, item->kind);
        tsr__pack_put_signed(&pack, (int64_t)item->owner - owner);
        tsr__pack_put(&pack, item->part);
        tsr__pack_put(&pack, item->count);
        start = item->start;
        owner = item->owner;
    }
    tsr_status status = pack.failed ? tsr_no_memory("the page of a strategy") : TSR_OK;
    fprintf(out, ",\n\"slices\":{\"n\":%zu,\"data\":", s->n);
    tsr__pack_write(out, &pack);
    fputc('}', out);
    tsr__pack_fini(&pack);
    return status;
}

/* [name, class, bytes, FLOP, communicator] */
static void put_kinds(FILE *out, const struct slices *s)
{
    fputs(",\n\"kinds\":[", out);
    for (size_t i = 0; i < s->n_kinds; i++) {
        const struct kind *k = &s->kinds[i];
        fprintf(out, "%s[%" PRIu32 ",%d,%" PRIu64 ",%.6g", i ? "," : "", k->op, (int)k->class,
                k->bytes, k->flops);
        if (k->comm) {
            fputc(',', out);
            tsr__put_json(out, k->comm);
        }
        fputc(']', out);
    }
    fputs("],\n\"parts\":[", out);
    for (size_t i = 0; i < s->n_parts; i++)
        fprintf(out, "%s[\"%s\",%u]", i ? "," : "", tsr_phase_name(s->parts[i].phase),
                s->parts[i].micro);
    fputc(']', out);
}

/* Index of the slice of an instruction; s->n: it has none. Slices are in program order. */
static size_t slice_of(const struct slices *s, size_t instr)
{
    size_t low = 0, high = s->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->items[middle].instr < instr)
            low = middle + 1;
        else
            high = middle;
    }
    return low < s->n && s->items[low].instr == instr ? low : s->n;
}

/* [slice or -1, exposed, hidden, beside, by reason...], nanoseconds */
static tsr_status put_exposed(FILE *out, const struct slices *s)
{
    const struct tsr__view *view = s->html->page->view;
    const struct tsr_detail *d = view->detail;
    const struct tsr_overlap_run run = {d->programs, d->spans, d->iteration_end, d->n_iterations,
                                        d->joined};
    struct tsr_overlap overlap;
    bool any = false;
    TSR_TRY(tsr_overlap_of(&run, view->iteration, &overlap));
    fputs(",\n\"reasons\":[", out);
    for (int r = 0; r < TSR_N_EXPOSURES; r++)
        fprintf(out, "%s\"%s\"", r ? "," : "", tsr_exposure_name(r));
    fputs("],\n\"exposed\":[", out);
    for (size_t i = 0; i < overlap.n; i++) {
        const struct tsr_overlap_item *item = &overlap.items[i];
        size_t slice = item->iteration == view->iteration ? slice_of(s, item->instr) : s->n;
        fprintf(out, "%s[%ld,%.0f,%.0f,%.0f", any ? "," : "", slice < s->n ? (long)slice : -1L,
                item->exposed * 1e9, item->hidden * 1e9, item->beside * 1e9);
        for (int r = 0; r < TSR_N_EXPOSURES && item->exposed > 0; r++)
            fprintf(out, ",%.0f", item->why[r] * 1e9);
        fputc(']', out);
        any = true;
    }
    fprintf(out,
            "],\n\"totals\":{\"step_s\":%.9f,\"compute_s\":%.9f,\"communication_s\":%.9f,"
            "\"exposed_s\":%.9f}",
            overlap.step_s, overlap.compute_s, overlap.comm_s, overlap.exposed_s);
    tsr_overlap_fini(&overlap);
    return TSR_OK;
}

tsr_status tsr__html_put_slices(FILE *out, struct tsr__html *html)
{
    struct slices s = {.html = html};
    tsr_status status;
    TSR_GOTO(done, collect(&s));
    TSR_GOTO(done, join_all(&s));
    TSR_GOTO(done, put_items(out, &s));
    put_kinds(out, &s);
    status = put_exposed(out, &s);
done:
    free(s.items);
    free(s.kinds);
    free(s.parts);
    return status;
}
