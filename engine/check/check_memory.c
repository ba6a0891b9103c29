/* check_memory.c: spans of memory and who accessed them last, and the hash map from ids to indices
 * by which the checker finds buffers and regions.
 *
 * A segment of the device is a sorted list of spans, whatever buffers live in it: so a new owner of
 * an address meets the traces of the one before. Spans are split where an operand begins or ends,
 * and joined again when something writes all of them.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/check/check_impl.h"

/* ---- readers --------------------------------------------------------------------------------- */

static bool reader_push(struct tsr__check_rank *r, struct tsr__span *span, struct tsr__stamp stamp)
{
    uint32_t i = r->free_reader;
    if (i != TSR__NONE) {
        r->free_reader = r->readers[i].next;
    } else {
        struct tsr__reader blank = {.next = TSR__NONE};
        i = (uint32_t)r->n_readers;
        if (!TSR_PUSH(r->readers, r->n_readers, r->cap_readers, blank))
            return false;
    }
    r->readers[i] = (struct tsr__reader){stamp, span->reads};
    span->reads = i;
    return true;
}

static void reader_drop(struct tsr__check_rank *r, uint32_t *link)
{
    uint32_t i = *link;
    *link = r->readers[i].next;
    r->readers[i].next = r->free_reader;
    r->free_reader = i;
}

static void readers_clear(struct tsr__check_rank *r, struct tsr__span *span)
{
    while (span->reads != TSR__NONE)
        reader_drop(r, &span->reads);
}

static bool readers_copy(struct tsr__check_rank *r, const struct tsr__span *from,
                         struct tsr__span *to)
{
    to->reads = TSR__NONE;
    for (uint32_t i = from->reads; i != TSR__NONE; i = r->readers[i].next)
        if (!reader_push(r, to, r->readers[i].stamp))
            return false;
    return true;
}

/* ---- regions and spans ----------------------------------------------------------------------- */

uint32_t tsr__region_new(struct tsr__check_rank *r)
{
    struct tsr__region blank = {0};
    if (r->n_free_regions > 0)
        return r->free_regions[--r->n_free_regions];
    if (!TSR_PUSH(r->regions, r->n_regions, r->cap_regions, blank))
        return TSR__NONE;
    return (uint32_t)(r->n_regions - 1);
}

void tsr__region_drop(struct tsr__check_rank *r, uint32_t region)
{
    tsr__spans_remove(r, region, 0, r->regions[region].n);
    if (!TSR_PUSH(r->free_regions, r->n_free_regions, r->cap_free_regions, region))
        tsr__check_no_memory(r);
}

void tsr__spans_remove(struct tsr__check_rank *r, uint32_t region, size_t first, size_t n)
{
    struct tsr__region *g = &r->regions[region];
    for (size_t i = first; i < first + n; i++)
        readers_clear(r, &g->spans[i]);
    memmove(g->spans + first, g->spans + first + n, (g->n - first - n) * sizeof *g->spans);
    g->n -= n;
}

/* The first span that ends behind `at`. */
static size_t find_span(const struct tsr__region *g, uint64_t at)
{
    size_t low = 0, high = g->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (g->spans[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool insert_at(struct tsr__region *g, size_t i, struct tsr__span span)
{
    if (!TSR_PUSH(g->spans, g->n, g->cap, span))
        return false;
    memmove(g->spans + i + 1, g->spans + i, (g->n - 1 - i) * sizeof span);
    g->spans[i] = span;
    return true;
}

bool tsr__span_add(struct tsr__check_rank *r, uint32_t region, uint64_t begin, uint64_t end)
{
    struct tsr__region *g = &r->regions[region];
    struct tsr__span span = {
        .begin = begin, .end = end, .reads = TSR__NONE, .owner = TSR__NONE, .written = false};
    return insert_at(g, find_span(g, begin), span);
}

/* Makes `at` a border. */
static bool split(struct tsr__check_rank *r, uint32_t region, uint64_t at)
{
    struct tsr__region *g = &r->regions[region];
    size_t i = find_span(g, at);
    if (i == g->n || g->spans[i].begin >= at)
        return true;
    struct tsr__span front = g->spans[i];
    if (!readers_copy(r, &g->spans[i], &front))
        return false;
    front.end = at;
    g->spans[i].begin = at;
    return insert_at(g, i, front);
}

bool tsr__spans(struct tsr__check_rank *r, uint32_t region, uint64_t begin, uint64_t end,
                size_t *first, size_t *n)
{
    const struct tsr__region *g = &r->regions[region];
    size_t i = find_span(g, begin);
    *first = i;
    *n = 1;
    if (i < g->n && g->spans[i].begin == begin && g->spans[i].end == end)
        return true; /* nearly always */
    if (!split(r, region, begin) || !split(r, region, end))
        return false;
    *first = find_span(g, begin);
    for (i = *first; i < g->n && g->spans[i].begin < end;)
        i++;
    *n = i - *first;
    return true;
}

void tsr__span_stamps(const struct tsr__check_rank *r, const struct tsr__span *span,
                      void (*fn)(void *user, const struct tsr__stamp *stamp), void *user)
{
    if (span->write.epoch)
        fn(user, &span->write);
    for (uint32_t i = span->reads; i != TSR__NONE; i = r->readers[i].next)
        fn(user, &r->readers[i].stamp);
}

/* ---- accesses -------------------------------------------------------------------------------- */

struct access {
    struct tsr__check_rank *r;
    const struct tsr__buffer *b;
    struct tsr__stamp stamp;
    bool writes;
    uint64_t begin, end; /* in the region */
};

static uint64_t pair_key(const struct access *a, const struct tsr__stamp *before, uint64_t salt)
{
    uint64_t key = tsr_hash_u64(salt, tsr__note_key(a->r, before->note));
    key = tsr_hash_u64(key, tsr__note_key(a->r, a->stamp.note));
    return tsr_hash_u64(key, a->b->category);
}

/* An earlier access and this one are unordered. */
static void conflict(const struct access *a, const struct tsr__stamp *before, bool before_writes)
{
    struct tsr__check_rank *r = a->r;
    char first[TSR__TEXT], second[TSR__TEXT], buffer[TSR__TEXT], old[TSR__TEXT];
    bool same = before->buffer == a->b->id;
    uint32_t notes[] = {before->note, a->stamp.note};
    uint64_t from = a->begin - a->b->address, to = a->end - a->b->address;
    tsr__short(r, before->note, first, sizeof first);
    tsr__short(r, a->stamp.note, second, sizeof second);
    tsr__buffer_text(r, a->b->id, buffer, sizeof buffer);
    const char *does = a->writes ? "writes" : "reads";
    const char *did = before_writes ? "writes" : "reads";
    bool one_launch = before->lane == a->stamp.lane;
    if (same)
        tsr__find(r, TSR_CHECK_RACE, pair_key(a, before, before_writes * 2U + a->writes), notes, 2,
                  "%s %s what %s %s, bytes %llu to %llu of %s: nothing orders %s on %s before %s "
                  "on %s%s",
                  second, does, first, did, (unsigned long long)from, (unsigned long long)to,
                  buffer, first, tsr__lane_name(r, before->lane), second,
                  tsr__lane_name(r, a->stamp.lane), one_launch ? " (they are one launch)" : "");
    else
        tsr__find(r, TSR_CHECK_REUSE, pair_key(a, before, 7), notes, 2,
                  "%s %s bytes %llu to %llu of %s, which lies where %s %s %s: nothing orders %s on "
                  "%s before %s on %s",
                  second, does, (unsigned long long)from, (unsigned long long)to, buffer, first,
                  did, tsr__buffer_text(r, before->buffer, old, sizeof old), first,
                  tsr__lane_name(r, before->lane), second, tsr__lane_name(r, a->stamp.lane));
}

static void unwritten(const struct access *a)
{
    char text[TSR__TEXT], buffer[TSR__TEXT];
    uint32_t notes[] = {a->b->note, a->stamp.note};
    uint64_t key = tsr_hash_u64(tsr__note_key(a->r, a->stamp.note), a->b->category);
    tsr__find(a->r, TSR_CHECK_UNWRITTEN, key, notes, 2,
              "%s reads bytes %llu to %llu of %s, which nothing has written",
              tsr__short(a->r, a->stamp.note, text, sizeof text),
              (unsigned long long)(a->begin - a->b->address),
              (unsigned long long)(a->end - a->b->address),
              tsr__buffer_text(a->r, a->b->id, buffer, sizeof buffer));
}

static void against_write(struct access *a, const struct tsr__span *span)
{
    const struct tsr__stamp *w = &span->write;
    if (w->epoch == 0 || tsr__is_before(a->r, w, a->stamp.lane))
        return;
    conflict(a, w, true);
}

static void read_span(struct access *a, struct tsr__span *span)
{
    struct tsr__check_rank *r = a->r;
    if (!span->written) {
        unwritten(a);
        span->written = true; /* said once */
    }
    against_write(a, span);
    /* A read that comes before this one says nothing more. */
    for (uint32_t *link = &span->reads; *link != TSR__NONE;) {
        if (tsr__is_before(r, &r->readers[*link].stamp, a->stamp.lane))
            reader_drop(r, link);
        else
            link = &r->readers[*link].next;
    }
    if (!reader_push(r, span, a->stamp))
        tsr__check_no_memory(r);
}

static void write_span(struct access *a, struct tsr__span *span)
{
    struct tsr__check_rank *r = a->r;
    against_write(a, span);
    for (uint32_t i = span->reads; i != TSR__NONE; i = r->readers[i].next)
        if (!tsr__is_before(r, &r->readers[i].stamp, a->stamp.lane))
            conflict(a, &r->readers[i].stamp, false);
    readers_clear(r, span);
    span->write = a->stamp;
    span->written = true;
}

/* Of one owner and one write: one span again. */
static void coalesce(struct tsr__check_rank *r, uint32_t region, size_t first, size_t n)
{
    struct tsr__region *g = &r->regions[region];
    size_t kept = first;
    for (size_t i = first + 1; i < first + n; i++) {
        if (g->spans[kept].end == g->spans[i].begin && g->spans[kept].owner == g->spans[i].owner)
            g->spans[kept].end = g->spans[i].end;
        else
            g->spans[++kept] = g->spans[i];
    }
    size_t gone = first + n - 1 - kept;
    memmove(g->spans + kept + 1, g->spans + first + n, (g->n - first - n) * sizeof *g->spans);
    g->n -= gone;
}

void tsr__access(struct tsr__check_rank *r, const struct tsr__buffer *b, uint64_t begin,
                 uint64_t end, uint8_t access, uint32_t lane)
{
    struct access a = {.r = r,
                       .b = b,
                       .stamp = {tsr__clock(r, lane)[lane], r->now, b->id, lane},
                       .writes = access == TSR_WRITE};
    size_t first, n;
    if (!tsr__spans(r, b->region, b->address + begin, b->address + end, &first, &n)) {
        tsr__check_no_memory(r);
        return;
    }
    for (size_t i = first; i < first + n; i++) {
        struct tsr__span *span = &r->regions[b->region].spans[i];
        a.begin = span->begin;
        a.end = span->end;
        if (a.writes)
            write_span(&a, span);
        else
            read_span(&a, span);
    }
    if (a.writes && n > 1)
        coalesce(r, b->region, first, n);
}
