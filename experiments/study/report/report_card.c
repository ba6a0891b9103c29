/* report_card.c: the tables about memory below the comparison. */
#include "experiments/study/report/report_cells.h"
#include "experiments/study/report/report_text.h"

/* ---- against the card --------------------------------------------------------------------- */

enum { CARD_COLUMNS = 10 };
static const struct tsr__table_column card_columns[CARD_COLUMNS] = {
    {"memory, GiB", true}, {"reserved", false},  {"context", false}, {"libraries", false},
    {"NCCL", false},       {"known sum", false}, {"usable", false},  {"fits", true},
    {"host", false},       {"pinned", false},
};

static void walk_card(struct tsr__table *table, const struct tsr_row *rows, size_t n)
{
    tsr__cell cells[CARD_COLUMNS];
    for (size_t i = 0; i < n; i++) {
        const struct tsr_row *r = &rows[i];
        const int64_t outside[] = {r->context_bytes, r->library_bytes, r->nccl_bytes};
        int64_t sum = (int64_t)r->most_reserved;
        if (r->failure[0])
            continue;
        tsr__cell_name(cells[0], r->strategy, "");
        tsr__cell_gib(cells[1], sum);
        for (int k = 0; k < 3; k++) {
            tsr__cell_gib(cells[2 + k], outside[k]);
            sum += outside[k] > 0 ? outside[k] : 0;
        }
        tsr__cell_gib(cells[5], sum);
        tsr__cell_gib(cells[6], r->usable_bytes ? (int64_t)r->usable_bytes : -1);
        (void)snprintf(cells[7], TSR__CELL_BYTES, "%s", tsr__fits_text(r->fits));
        tsr__cell_gib(cells[8], (int64_t)r->host_bytes);
        tsr__cell_gib(cells[9], (int64_t)r->pinned_bytes);
        tsr__table_row(table, (const tsr__cell *)cells);
    }
}

void tsr__put_card(FILE *out, const struct tsr_row *rows, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || !rows[i].failure[0];
    if (!any)
        return;
    tsr__put_table(out, card_columns, CARD_COLUMNS, walk_card, rows, n);
    fputc('\n', out);
}

/* ---- by section --------------------------------------------------------------------------- */

enum { SECTION_COLUMNS = 8 };
static const struct tsr__table_column section_columns[SECTION_COLUMNS] = {
    {"peak by phase, GiB", true}, {"phase", true},   {"allocated", false},
    {"reserved", false},          {"host", false},   {"pinned", false},
    {"adds, ms", false},          {"made by", true},
};

static void put_section(struct tsr__table *table, const char *strategy, const char *name,
                        const struct tsr_section_peak *s)
{
    tsr__cell cells[SECTION_COLUMNS];
    const uint64_t bytes[] = {s->allocated, s->reserved, s->host, s->pinned};
    char by[2 * TSR__CELL_BYTES];
    tsr__cell_name(cells[0], strategy, "");
    (void)snprintf(cells[1], TSR__CELL_BYTES, "%s", name);
    for (int k = 0; k < 4; k++)
        tsr__cell_gib(cells[2 + k], (int64_t)bytes[k]);
    (void)snprintf(cells[6], TSR__CELL_BYTES, "%.1f", 1e3 * (s->added_s > 0 ? s->added_s : 0.0));
    (void)snprintf(by, sizeof by, "%s, %s", s->phase, s->module);
    tsr__cell_name(cells[7], by, "");
    tsr__table_row(table, (const tsr__cell *)cells);
}

static void walk_sections(struct tsr__table *table, const struct tsr_row *rows, size_t n)
{
    static const char *const names[TSR_N_SECTIONS] = {TSR_SECTION_WORDS};
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < TSR_N_SECTIONS; k++)
            if (!rows[i].failure[0] && (rows[i].show_sections >> k & 1))
                put_section(table, rows[i].strategy, names[k], &rows[i].sections[k]);
}

void tsr__put_sections(FILE *out, const struct tsr_row *rows, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || (!rows[i].failure[0] && rows[i].show_sections);
    if (!any)
        return;
    tsr__put_table(out, section_columns, SECTION_COLUMNS, walk_sections, rows, n);
    fputc('\n', out);
}
