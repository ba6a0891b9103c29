/* diff_attribute.c: what the changes of a real snapshot are. A snapshot has sizes and stacks, no
 * categories, and where autograd's thread allocates not even stacks; but a predicted step makes the
 * same changes in the same order. So both are aligned by size, and a snapshot's change is what its
 * partner is.
 */
#include "experiments/study/diff/diff_parts.h"

#include <stdlib.h>
#include <string.h>

/* Cells of a table: its sequences are cut into windows of so many items, and of what a window gives
 * only the first half is kept, as behind it the next window sees further. */
enum { WINDOW = 2048 };

struct window {
    const int64_t *a, *b;
    size_t n, m; /* of this window */
    uint16_t *length;
};

static void fill(const struct window *w)
{
    size_t row = w->m + 1;
    memset(w->length, 0, (w->n + 1) * row * sizeof *w->length);
    for (size_t i = w->n; i-- > 0;) {
        for (size_t k = w->m; k-- > 0;) {
            uint16_t down = w->length[(i + 1) * row + k], right = w->length[i * row + k + 1];
            w->length[i * row + k] = w->a[i] == w->b[k]
                                         ? (uint16_t)(w->length[(i + 1) * row + k + 1] + 1)
                                         : (down > right ? down : right);
        }
    }
}

/* Walks until one side has passed its end; *i, *k: where. */
static void walk(const struct window *w, size_t end_a, size_t end_b, size_t base_b, size_t *match,
                 size_t *i, size_t *k)
{
    size_t row = w->m + 1;
    *i = *k = 0;
    while (*i < end_a && *k < end_b) {
        if (w->a[*i] == w->b[*k]) {
            match[(*i)++] = base_b + (*k)++;
        } else if (w->length[(*i + 1) * row + *k] >= w->length[*i * row + *k + 1]) {
            ++*i;
        } else {
            ++*k;
        }
    }
}

tsr_status tsr_diff_match(const int64_t *a, size_t n, const int64_t *b, size_t m, size_t *match)
{
    size_t at_a = 0, at_b = 0, i, k;
    for (i = 0; i < n; i++)
        match[i] = SIZE_MAX;
    uint16_t *length = malloc((size_t)(WINDOW + 1) * (WINDOW + 1) * sizeof *length);
    if (!length)
        return tsr_no_memory("the alignment of two runs");
    while (at_a < n && at_b < m) {
        if (a[at_a] == b[at_b]) { /* most are alike, and need no table */
            match[at_a++] = at_b++;
            continue;
        }
        struct window w = {a + at_a, b + at_b, n - at_a, m - at_b, length};
        bool last = w.n <= WINDOW && w.m <= WINDOW;
        w.n = w.n < WINDOW ? w.n : WINDOW;
        w.m = w.m < WINDOW ? w.m : WINDOW;
        fill(&w);
        walk(&w, last ? w.n : (w.n + 1) / 2, last ? w.m : (w.m + 1) / 2, at_b, match + at_a, &i,
             &k);
        at_a += i;
        at_b += k;
        if (last)
            break;
    }
    free(length);
    return TSR_OK;
}

/* ---- changes of the step --------------------------------------------------------------------- */

static int64_t *changes_of(const struct tsr_diff_run *run)
{
    int64_t *out = malloc((run->n + 1) * sizeof *out);
    for (size_t i = 1; out && i < run->n; i++)
        out[i - 1] = (int64_t)(run->points[i].total - run->points[i - 1].total);
    return out;
}

/* The one category that points[i] changed; TSR_DIFF_UNKNOWN: not one alone. */
static uint8_t category_at(const struct tsr_diff_run *run, size_t i)
{
    const uint64_t *now = run->points[i].by_category, *before = run->points[i - 1].by_category;
    uint8_t found = TSR_DIFF_UNKNOWN;
    for (uint8_t c = 0; c < TSR_DIFF_CATEGORIES; c++) {
        if (now[c] == before[c])
            continue;
        if (found != TSR_DIFF_UNKNOWN)
            return TSR_DIFF_UNKNOWN;
        found = c;
    }
    return found;
}

/* `kept` is what lives as long as the snapshot's run. */
static tsr_status take_place(const struct tsr_diff_point *known, struct tsr_diff_run *snapshot,
                             struct tsr_diff_point *point)
{
    point->phase = tsr_arena_strdup(&snapshot->arena, known->phase);
    point->module = tsr_arena_strdup(&snapshot->arena, known->module);
    point->hook = tsr_arena_strdup(&snapshot->arena, known->hook);
    point->operation = tsr_arena_strdup(&snapshot->arena, known->operation);
    point->micro = known->micro;
    bool kept = point->phase && point->module && point->hook && point->operation;
    return kept ? TSR_OK : tsr_no_memory("places of a run");
}

/* What has no partner happened where the change before it did; its stack stays. */
static tsr_status take_changes(const struct tsr_diff_run *known, const size_t *match,
                               struct tsr_diff_run *snapshot)
{
    const struct tsr_diff_point *last = NULL;
    for (size_t i = 1; i < snapshot->n; i++) {
        struct tsr_diff_point *point = &snapshot->points[i];
        struct tsr_diff_block *block = &snapshot->blocks[snapshot->of_point[i]];
        bool comes = point->total > snapshot->points[i - 1].total;
        if (match[i - 1] == SIZE_MAX) {
            point->phase = last ? last->phase : point->phase;
            point->module = last ? last->module : point->module;
            point->micro = last ? last->micro : point->micro;
            continue;
        }
        size_t partner = match[i - 1] + 1;
        TSR_TRY(take_place(&known->points[partner], snapshot, point));
        last = point;
        snapshot->found++;
        if (comes && category_at(known, partner) != TSR_DIFF_UNKNOWN) {
            block->category = category_at(known, partner);
            block->owner = point->module;
        }
    }
    return TSR_OK;
}

/* ---- what lives at the start ----------------------------------------------------------------- */

struct sized {
    uint64_t bytes;
    size_t at;
};

static int by_size(const void *a, const void *b)
{
    const struct sized *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static struct sized *sort_start(const struct tsr_diff_run *run)
{
    struct sized *out = malloc((run->n_start + 1) * sizeof *out);
    for (size_t i = 0; out && i < run->n_start; i++)
        out[i] = (struct sized){run->blocks[i].bytes, i};
    if (out && run->n_start)
        qsort(out, run->n_start, sizeof *out, by_size);
    return out;
}

/* The next two of equal size, *i of a and *k of b (both by size): false at an end. */
static bool next_equal(const struct sized *a, size_t n, const struct sized *b, size_t m, size_t *i,
                       size_t *k)
{
    while (*i < n && *k < m && a[*i].bytes != b[*k].bytes)
        ++*(a[*i].bytes < b[*k].bytes ? i : k);
    return *i < n && *k < m;
}

/* Blocks of equal size are paired in the order in which they were allocated. */
static tsr_status take_start(const struct tsr_diff_run *known, struct tsr_diff_run *snapshot)
{
    struct sized *a = sort_start(known), *b = sort_start(snapshot);
    tsr_status status = a && b ? TSR_OK : tsr_no_memory("blocks of two runs");
    size_t i = 0, k = 0;
    while (status == TSR_OK && next_equal(a, known->n_start, b, snapshot->n_start, &i, &k)) {
        const struct tsr_diff_block *from = &known->blocks[a[i++].at];
        struct tsr_diff_block *to = &snapshot->blocks[b[k++].at];
        to->category = from->category;
        to->owner = tsr_arena_strdup(&snapshot->arena, from->owner);
        if (!to->owner)
            status = tsr_no_memory("blocks of two runs");
    }
    free(a);
    free(b);
    return status;
}

/* ---- levels ---------------------------------------------------------------------------------- */

static void count_levels(struct tsr_diff_run *run)
{
    struct tsr_diff_point *points = run->points;
    memset(points[0].by_category, 0, sizeof points[0].by_category);
    for (size_t i = 0; i < run->n_start; i++)
        points[0].by_category[run->blocks[i].category] += run->blocks[i].bytes;
    for (size_t i = 1; i < run->n; i++) {
        uint8_t category = run->blocks[run->of_point[i]].category;
        memcpy(points[i].by_category, points[i - 1].by_category, sizeof points[i].by_category);
        points[i].by_category[category] += points[i].total - points[i - 1].total;
    }
}

tsr_status tsr_diff_count_blocks(struct tsr_diff_run *run)
{
    bool *lives = calloc(run->n_blocks + 1, sizeof *lives);
    if (!lives)
        return tsr_no_memory("blocks of a run");
    count_levels(run);
    tsr_diff_find_peak(run);
    for (size_t i = 0; i < run->n_start; i++)
        lives[i] = true;
    for (size_t i = 1; i <= run->peak; i++)
        lives[run->of_point[i]] = run->points[i].total > run->points[i - 1].total;
    run->n_owners = 0;
    run->has_owners = true;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < run->n_blocks && status == TSR_OK; i++)
        if (lives[i])
            status = tsr_diff_add_owner(run, run->blocks[i].category, run->blocks[i].owner,
                                        run->blocks[i].bytes);
    free(lives);
    return status;
}

/* ---- what happens in another order ----------------------------------------------------------- */

/* Allocations that have no partner, by size; `match` is by the snapshot's changes. */
static struct sized *sort_left(const struct tsr_diff_run *run, const bool *has, size_t *n)
{
    struct sized *out = malloc((run->n + 1) * sizeof *out);
    *n = 0;
    for (size_t i = 1; out && i < run->n; i++)
        if (!has[i] && run->points[i].total > run->points[i - 1].total)
            out[(*n)++] = (struct sized){run->points[i].total - run->points[i - 1].total, i};
    if (out && *n)
        qsort(out, *n, sizeof *out, by_size);
    return out;
}

/* Inputs before the gradients are dropped, or behind: it is the same allocation, elsewhere. */
static tsr_status take_left(const struct tsr_diff_run *known, const struct sized *a, size_t n,
                            struct tsr_diff_run *snapshot, const struct sized *b, size_t m)
{
    for (size_t i = 0, k = 0; next_equal(a, n, b, m, &i, &k);) {
        struct tsr_diff_block *block = &snapshot->blocks[snapshot->of_point[b[k++].at]];
        size_t partner = a[i++].at;
        if (block->category != TSR_DIFF_UNKNOWN)
            continue;
        block->category = category_at(known, partner);
        block->owner = tsr_arena_strdup(&snapshot->arena, known->points[partner].module);
        if (!block->owner)
            return tsr_no_memory("blocks of two runs");
    }
    return TSR_OK;
}

static tsr_status take_moved(const struct tsr_diff_run *known, const size_t *match,
                             struct tsr_diff_run *snapshot)
{
    bool *has[2] = {calloc(known->n + 1, sizeof(bool)), calloc(snapshot->n + 1, sizeof(bool))};
    struct sized *left[2] = {NULL, NULL};
    size_t n[2] = {0, 0};
    for (size_t i = 1; has[0] && has[1] && i < snapshot->n; i++) {
        if (match[i - 1] != SIZE_MAX)
            has[0][match[i - 1] + 1] = has[1][i] = true;
    }
    if (has[0] && has[1]) {
        left[0] = sort_left(known, has[0], &n[0]);
        left[1] = sort_left(snapshot, has[1], &n[1]);
    }
    tsr_status status = left[0] && left[1] ? TSR_OK : tsr_no_memory("changes of two runs");
    if (status == TSR_OK)
        status = take_left(known, left[0], n[0], snapshot, left[1], n[1]);
    for (int side = 0; side < 2; side++) {
        free(has[side]);
        free(left[side]);
    }
    return status;
}

tsr_status tsr_diff_attribute(const struct tsr_diff_run *known, struct tsr_diff_run *snapshot)
{
    if (!snapshot->of_point || known->of_point)
        return TSR_OK;
    int64_t *a = changes_of(snapshot), *b = changes_of(known);
    size_t *match = malloc((snapshot->n + 1) * sizeof *match);
    tsr_status status = a && b && match ? TSR_OK : tsr_no_memory("changes of two runs");
    if (status == TSR_OK)
        status = tsr_diff_match(a, snapshot->n - 1, b, known->n - 1, match);
    if (status == TSR_OK)
        status = take_changes(known, match, snapshot);
    if (status == TSR_OK)
        status = take_start(known, snapshot);
    if (status == TSR_OK)
        status = take_moved(known, match, snapshot);
    if (status == TSR_OK)
        status = tsr_diff_count_blocks(snapshot);
    free(a);
    free(b);
    free(match);
    return status;
}
