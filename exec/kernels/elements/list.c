/* list.c: pairs of tensors are collected into launches: whole words move as they are, all else goes
 * through arithmetic.
 */
#include "exec/kernels/elements/list.h"

/* Whole runs of words at once. The two may be the same place. */
static void move_runs(const struct tsr_pair *p)
{
    const struct tsr_elems *from = &p->from, *to = &p->to;
    for (uint64_t at = 0, run; at < from->n; at += run) {
        run = tsr_elems_run(from, at, tsr_elems_run(to, p->to_at + at, from->n - at));
        memmove(to->data + tsr_elems_place(to, p->to_at + at) * to->item,
                from->data + tsr_elems_place(from, at) * from->item, run * to->item);
    }
}

static void move_on_host(const void *params, uint64_t begin, uint64_t step)
{
    const struct tsr_list *k = (const struct tsr_list *)params;
    for (uint64_t i = begin; i < k->n; i += step)
        move_runs(&k->pairs[i]);
}

static const struct tsr_code code_move = {"move", sizeof(struct tsr_list), move_on_host,
                                          move_on_host};
TSR_CODE(list, tsr_grid_list, struct tsr_list);

uint64_t tsr__word_of(uint64_t bytes, uint64_t most)
{
    while (most > 1 && bytes % most != 0)
        most /= 2;
    return most;
}

uint64_t tsr__word_of_elems(const struct tsr_elems *e, uint64_t most)
{
    most = tsr__word_of((uintptr_t)e->data, most);
    if (e->width == 0)
        return tsr__word_of(e->n * e->item, most);
    return tsr__word_of(e->width * e->item, tsr__word_of(e->pitch * e->item, most));
}

struct tsr_elems tsr__as_words(const struct tsr_elems *e, uint64_t word)
{
    struct tsr_elems words = *e;
    words.n = e->n * e->item / word;
    words.width = e->width * e->item / word;
    words.pitch = e->pitch * e->item / word;
    words.dtype = TSR_U8;
    words.item = (uint8_t)word;
    return words;
}

void tsr__list_begin(struct tsr_lists *l, const struct tsr_kernel_call *call, enum tsr_list_op op)
{
    l->call = call;
    l->wide = tsr__is_wide(call);
    l->words.n = l->elements.n = 0;
    l->words.op = l->elements.op = (uint8_t)op;
}

static tsr_status run_words(struct tsr_lists *l)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->words.n; i++)
        n += l->words.pairs[i].from.n;
    if (n > 0)
        TSR_TRY(tsr__run(l->call, &code_move, &l->words, n));
    l->words.n = 0;
    return TSR_OK;
}

static tsr_status run_elements(struct tsr_lists *l)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->elements.n; i++)
        n += tsr_grid_blocks(l->elements.pairs[i].from.n) * TSR_BLOCK;
    if (n > 0)
        TSR_TRY(tsr__run_as(l->call, &code_list, l->wide, &l->elements, n));
    l->elements.n = 0;
    return TSR_OK;
}

/* Elements of one dtype are copied as words, integers too. */
tsr_status tsr__list_add(struct tsr_lists *l, const struct tsr_elems *from,
                         const struct tsr_elems *to, uint64_t at)
{
    if (l->elements.op != TSR_LIST_CAST || from->dtype != to->dtype) {
        l->elements.pairs[l->elements.n++] = (struct tsr_pair){*from, *to, at};
        l->wide = l->wide || from->dtype == TSR_I64 || to->dtype == TSR_I64;
        return l->elements.n < TSR_LIST ? TSR_OK : run_elements(l);
    }
    uint64_t word = tsr__word_of_elems(from, tsr__word_of(at * to->item, 16));
    uint64_t pieces = tsr__word_of(from->n * from->item, tsr__word_of_elems(to, word));
    l->words.pairs[l->words.n++] = (struct tsr_pair){
        tsr__as_words(from, pieces), tsr__as_words(to, pieces), at * to->item / pieces};
    return l->words.n < TSR_LIST ? TSR_OK : run_words(l);
}

tsr_status tsr__list_end(struct tsr_lists *l)
{
    TSR_TRY(run_words(l));
    return run_elements(l);
}
