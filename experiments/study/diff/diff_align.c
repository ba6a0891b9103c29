/* diff_align.c: aligns two runs by place: first their phases, then, inside of a phase, the units
 * (blocks, and modules outside of them) in which memory changes. Longest common subsequences, so
 * that what one run does more does not shift the rest.
 */
#include "experiments/study/diff/diff_parts.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = 1 << 24 }; /* of a table; beyond that the middle part is left unaligned */

/* ---- sections -------------------------------------------------------------------------------- */

static bool same_phase(const struct tsr_diff_point *a, const struct tsr_diff_point *b)
{
    return a->micro == b->micro && !strcmp(a->phase, b->phase);
}

/* Recordings do not tell what the root did from what no module did: both are one unit here. */
static bool same_unit(const struct tsr_diff_point *a, const struct tsr_diff_point *b)
{
    size_t n = tsr_diff_unit_length(a);
    if (*a->module == '(' && *b->module == '(')
        return true;
    return n == tsr_diff_unit_length(b) && !strncmp(a->module, b->module, n);
}

static tsr_status cut(const struct tsr_diff_run *run, struct tsr_diff_section **out, size_t *n)
{
    size_t cap = 0;
    for (size_t i = 1; i < run->n;) {
        struct tsr_diff_section section = {i, i + 1};
        while (section.end < run->n && same_phase(&run->points[i], &run->points[section.end]) &&
               same_unit(&run->points[i], &run->points[section.end]))
            section.end++;
        if (!TSR_PUSH(*out, *n, cap, section))
            return tsr_no_memory("sections of a run");
        i = section.end;
    }
    return TSR_OK;
}

/* ---- longest common subsequence -------------------------------------------------------------- */

struct side {
    const struct tsr_diff_run *run;
    const struct tsr_diff_section *sections;
    size_t n_sections;
    size_t *phases; /* first section of each phase; [n_phases] is the end */
    size_t n_phases;
};

struct aligner {
    struct side side[2];
    struct tsr_diff_alignment *out;
    size_t cap;
};

typedef bool (*same_fn)(const struct aligner *al, size_t a, size_t b);
typedef tsr_status (*take_fn)(struct aligner *al, size_t a, size_t b);

/* Half-open ranges of both sides. */
struct range {
    size_t a, a_end, b, b_end;
};

static tsr_status take_apart(struct aligner *al, const struct range *r, take_fn take)
{
    for (size_t a = r->a; a < r->a_end; a++)
        TSR_TRY(take(al, a, SIZE_MAX));
    for (size_t b = r->b; b < r->b_end; b++)
        TSR_TRY(take(al, SIZE_MAX, b));
    return TSR_OK;
}

/* length[i * (m + 1) + k]: of the longest common subsequence of what begins at i and k. */
static tsr_status walk_table(struct aligner *al, const struct range *r, same_fn same, take_fn take,
                             const uint32_t *length)
{
    size_t n = r->a_end - r->a, m = r->b_end - r->b, i = 0, k = 0;
    while (i < n && k < m) {
        if (same(al, r->a + i, r->b + k))
            TSR_TRY(take(al, r->a + i++, r->b + k++));
        else if (length[(i + 1) * (m + 1) + k] >= length[i * (m + 1) + k + 1])
            TSR_TRY(take(al, r->a + i++, SIZE_MAX));
        else
            TSR_TRY(take(al, SIZE_MAX, r->b + k++));
    }
    struct range rest = {r->a + i, r->a_end, r->b + k, r->b_end};
    return take_apart(al, &rest, take);
}

static tsr_status align_middle(struct aligner *al, const struct range *r, same_fn same,
                               take_fn take)
{
    size_t n = r->a_end - r->a, m = r->b_end - r->b;
    if (n == 0 || m == 0 || n + 1 > MAX_CELLS / (m + 1))
        return take_apart(al, r, take);
    uint32_t *length = calloc((n + 1) * (m + 1), sizeof *length);
    if (!length)
        return tsr_no_memory("the alignment of two runs");
    for (size_t i = n; i-- > 0;) {
        for (size_t k = m; k-- > 0;) {
            uint32_t down = length[(i + 1) * (m + 1) + k], right = length[i * (m + 1) + k + 1];
            length[i * (m + 1) + k] = same(al, r->a + i, r->b + k)
                                          ? length[(i + 1) * (m + 1) + k + 1] + 1
                                          : (down > right ? down : right);
        }
    }
    tsr_status status = walk_table(al, r, same, take, length);
    free(length);
    return status;
}

/* What is common at both ends needs no table. */
static tsr_status align_range(struct aligner *al, struct range r, same_fn same, take_fn take)
{
    size_t tail = 0;
    while (r.a < r.a_end && r.b < r.b_end && same(al, r.a, r.b))
        TSR_TRY(take(al, r.a++, r.b++));
    while (r.a < r.a_end - tail && r.b < r.b_end - tail &&
           same(al, r.a_end - 1 - tail, r.b_end - 1 - tail))
        tail++;
    struct range middle = {r.a, r.a_end - tail, r.b, r.b_end - tail};
    TSR_TRY(align_middle(al, &middle, same, take));
    for (size_t i = tail; i > 0; i--)
        TSR_TRY(take(al, r.a_end - i, r.b_end - i));
    return TSR_OK;
}

/* ---- sections inside of phases --------------------------------------------------------------- */

static const struct tsr_diff_point *first_point(const struct side *side, size_t section)
{
    return &side->run->points[side->sections[section].first];
}

static bool same_section(const struct aligner *al, size_t a, size_t b)
{
    return same_unit(first_point(&al->side[0], a), first_point(&al->side[1], b));
}

static tsr_status take_section(struct aligner *al, size_t a, size_t b)
{
    struct tsr_diff_pair pair = {a, b};
    if (TSR_PUSH(al->out->pairs, al->out->n, al->cap, pair))
        return TSR_OK;
    return tsr_no_memory("the alignment of two runs");
}

static bool same_phases(const struct aligner *al, size_t a, size_t b)
{
    return same_phase(first_point(&al->side[0], al->side[0].phases[a]),
                      first_point(&al->side[1], al->side[1].phases[b]));
}

static tsr_status take_phase(struct aligner *al, size_t a, size_t b)
{
    const size_t *x = al->side[0].phases, *y = al->side[1].phases;
    struct range r = {0, 0, 0, 0};
    if (a != SIZE_MAX) {
        r.a = x[a];
        r.a_end = x[a + 1];
    }
    if (b != SIZE_MAX) {
        r.b = y[b];
        r.b_end = y[b + 1];
    }
    return align_range(al, r, same_section, take_section);
}

static tsr_status find_phases(struct side *side)
{
    size_t cap = 0;
    for (size_t i = 0; i < side->n_sections; i++) {
        if (i && same_phase(first_point(side, i - 1), first_point(side, i)))
            continue;
        if (!TSR_PUSH(side->phases, side->n_phases, cap, i))
            return tsr_no_memory("the phases of a run");
    }
    size_t n = side->n_phases;
    if (!TSR_PUSH(side->phases, n, cap, side->n_sections))
        return tsr_no_memory("the phases of a run");
    return TSR_OK;
}

tsr_status tsr_diff_align(const struct tsr_diff_run *a, const struct tsr_diff_run *b,
                          struct tsr_diff_alignment *out)
{
    struct aligner al = {.out = out};
    const struct tsr_diff_run *runs[2] = {a, b};
    tsr_status status = TSR_OK;
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < 2; i++) {
        TSR_GOTO(done, cut(runs[i], &out->sections[i], &out->n_sections[i]));
        al.side[i] = (struct side){
            .run = runs[i], .sections = out->sections[i], .n_sections = out->n_sections[i]};
        TSR_GOTO(done, find_phases(&al.side[i]));
    }
    struct range all = {0, al.side[0].n_phases, 0, al.side[1].n_phases};
    status = align_range(&al, all, same_phases, take_phase);
done:
    free(al.side[0].phases);
    free(al.side[1].phases);
    if (status != TSR_OK)
        tsr_diff_alignment_fini(out);
    return status;
}

void tsr_diff_alignment_fini(struct tsr_diff_alignment *alignment)
{
    free(alignment->sections[0]);
    free(alignment->sections[1]);
    free(alignment->pairs);
    memset(alignment, 0, sizeof(*alignment));
}
