/* check_leaks.c: buffers that stay. After an iteration that did the same work as the one before,
 * there is a leak if an owner has more buffers that nothing used in it than there were after that
 * one.
 */
#include <stdlib.h>

#include "engine/check/check_impl.h"

static int by_owner(const void *a, const void *b)
{
    const struct tsr__alive *x = a, *y = b;
    if (x->owner != y->owner)
        return x->owner < y->owner ? -1 : 1;
    return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

static uint64_t owner_of(const struct tsr__check_rank *r, const struct tsr__buffer *b)
{
    const struct tsr_origin *o = &r->notes[b->note].origin;
    uint64_t hash = tsr_hash_u64(b->category, b->bytes);
    hash = tsr_hash_u64(hash, o->module);
    hash = tsr_hash_u64(hash, o->group);
    return tsr_hash_u64(hash, b->space);
}

static bool collect_alive(const struct tsr__check_rank *r, struct tsr__alive **out, size_t *n)
{
    *n = 0;
    *out = malloc((r->ids.n + 1) * sizeof **out);
    for (size_t i = 0; *out && i < r->ids.n_slots; i++) {
        if (r->ids.keys[i] == TSR__NONE)
            continue;
        const struct tsr__buffer *b = &r->buffers[r->ids.values[i]];
        if (b->is_dropped)
            continue;
        (*out)[(*n)++] = (struct tsr__alive){owner_of(r, b), b->id, b->last_use < r->iterations};
    }
    if (*out)
        qsort(*out, *n, sizeof **out, by_owner);
    return *out != NULL;
}

static void report_leak(struct tsr__check_rank *r, uint32_t id, size_t more)
{
    char buffer[TSR__TEXT], text[TSR__TEXT];
    const struct tsr__buffer *b = tsr__buffer_find(r, id);
    tsr__find(r, TSR_CHECK_LEAK, tsr_hash_u64(tsr__note_key(r, b->note), b->category), &b->note, 1,
              "%zu more like %s stay alive unused than in the iteration before, which did the same "
              "work; one is that of %s",
              more, tsr__buffer_text(r, id, buffer, sizeof buffer),
              tsr__short(r, b->note, text, sizeof text));
}

/* How many buffers of one owner there are from v[from] on; *idle: how many of them are. */
static size_t count_owner(const struct tsr__alive *v, size_t n, size_t from, size_t *idle)
{
    size_t k = from;
    *idle = 0;
    for (; k < n && v[k].owner == v[from].owner; k++)
        *idle += v[k].idle;
    return k - from;
}

static void compare_alive(struct tsr__check_rank *r, const struct tsr__alive *now, size_t n)
{
    size_t k = 0, idle;
    for (size_t i = 0; i < n;) {
        size_t had = 0, has = count_owner(now, n, i, &idle);
        while (k < r->n_alive && r->alive[k].owner < now[i].owner)
            k++;
        if (k < r->n_alive && r->alive[k].owner == now[i].owner)
            count_owner(r->alive, r->n_alive, k, &had);
        for (size_t of = i; of < i + has && idle > had; of++)
            if (now[of].idle) {
                report_leak(r, now[of].buffer, idle - had);
                break;
            }
        i += has;
    }
}

void tsr__iteration_end(struct tsr__check_rank *r)
{
    struct tsr__alive *now;
    size_t n;
    if (!collect_alive(r, &now, &n)) {
        tsr__check_no_memory(r);
        return;
    }
    if (r->has_alive && r->work_hash == r->last_work_hash)
        compare_alive(r, now, n);
    free(r->alive);
    r->alive = now;
    r->n_alive = n;
    r->has_alive = true;
    r->last_work_hash = r->work_hash;
}
