/* page.h: reports for people, laid out for a terminal.
 *
 * A subcommand prints its report to page.out between begin and end. What then reaches stdout has no
 * line of more than tsr_page_columns() columns: the cells of a Markdown table continue in the next
 * row, commands in a line after a backslash, other lines after a blank. A word that is longer stays
 * whole. With --wide, and in the formats for programs, the report goes to stdout as it is.
 *
 * The report is what a reader needs first and fits on one screen. What explains it goes to
 * page.notes, a line for each note: --notes prints them below the report, without it the last line
 * of the report names the option. The formats for programs have no notes.
 */
#ifndef TSR_CLI_PAGE_H
#define TSR_CLI_PAGE_H

#include <stdio.h>

#include "experiments/cli/args/args.h"

struct tsr_page {
    FILE *out;
    FILE *notes;
    char *text; /* what was printed to `out`; NULL: `out` is stdout */
    size_t size;
    char *notes_text; /* what was printed to `notes` */
    size_t notes_size;
    bool for_people, wide, shows_notes;
};

/* `args` NULL: of a subcommand that has neither --wide nor formats. Errors: TSR_ENOMEM. What began
 * also ends. */
tsr_status tsr_page_begin(const struct tsr_args *args, struct tsr_page *page) TSR_MUST_USE;
/* Lays out what was printed and flushes stdout; prints nothing if `status`, that of the report, is
 * a failure, and returns it. Errors: TSR_EIO, TSR_ENOMEM. */
tsr_status tsr_page_end(struct tsr_page *page, tsr_status status) TSR_MUST_USE;

/* The help of a subcommand, laid out so. Errors: as tsr_page_end(). */
tsr_status tsr_usage_show(const struct tsr_usage *usage) TSR_MUST_USE;

/* Returns the columns of a line: COLUMNS of the environment, else those of the terminal that stdout
 * is, both within 60 to 120; else 100. */
size_t tsr_page_columns(void);

/* "wide" if --wide is given and the format is "md", else the format: of reports whose tables have
 * columns of which some are only shown where there is room. */
const char *tsr_page_format(const struct tsr_args *args);
/* Returns the format for a report that also has tables for few columns: that of tsr_page_format(),
 * but "narrow" instead of "md" where a line has less than 96 columns. */
const char *tsr_page_format_narrow(const struct tsr_args *args);

#endif
