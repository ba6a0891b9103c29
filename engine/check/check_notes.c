/* check_notes.c: forgets instructions that no finding can name any more, so that a long run can be
 * checked as it goes.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/check/check_impl.h"

enum { MANY = 1 << 20 };

/* Calls fn for every place that holds the number of a note. */
static void each_note(struct tsr__check_rank *r, void (*fn)(void *user, uint32_t *note), void *user)
{
    for (size_t i = 0; i < r->n_regions; i++)
        for (size_t k = 0; k < r->regions[i].n; k++) {
            struct tsr__span *span = &r->regions[i].spans[k];
            if (span->write.epoch)
                fn(user, &span->write.note);
            for (uint32_t reader = span->reads; reader != TSR__NONE;
                 reader = r->readers[reader].next)
                fn(user, &r->readers[reader].stamp.note);
        }
    for (size_t i = 0; i < r->ids.n_slots; i++)
        if (r->ids.keys[i] != TSR__NONE)
            fn(user, &r->buffers[r->ids.values[i]].note);
    for (size_t i = 0; i < r->n_freed && i < TSR__N_FREED; i++)
        fn(user, &r->freed[i].note);
    for (size_t i = 0; i < r->n_pending; i++) {
        fn(user, &r->pending[i].use.note);
        fn(user, &r->pending[i].free_note);
    }
    for (size_t i = 0; i < r->n_calls; i++)
        fn(user, &r->calls[i].note);
    fn(user, &r->launch_note);
}

static void mark_kept(void *user, uint32_t *note)
{
    uint32_t *to = user;
    to[*note] = 1;
}

static void renumber(void *user, uint32_t *note)
{
    const uint32_t *to = user;
    *note = to[*note];
}

void tsr__notes_forget(struct tsr__check_rank *r)
{
    if (r->n_notes < MANY || r->n_notes < 2 * r->n_kept_notes)
        return;
    uint32_t *to = calloc(r->n_notes, sizeof *to);
    size_t n = 0;
    if (!to)
        return; /* another time */
    each_note(r, mark_kept, to);
    for (size_t i = 0; i < r->n_notes; i++) {
        if (!to[i])
            continue;
        to[i] = (uint32_t)n;
        r->notes[n++] = r->notes[i];
    }
    each_note(r, renumber, to);
    free(to);
    r->n_notes = r->n_kept_notes = n;
}
