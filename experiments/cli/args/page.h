/* page.h: reports for people, laid out for a terminal.
 *
 * A subcommand prints its report to page.out between begin and end. What then reaches stdout has no
 * line of more than TSR_PAGE_COLUMNS columns: the cells of a Markdown table continue in the next
 * row, commands in a line after a backslash, other lines after a blank. A word that is longer stays
 * whole. With --wide, and in the formats for programs, the report goes to stdout as it is.
 */
#ifndef TSR_CLI_PAGE_H
#define TSR_CLI_PAGE_H

#include <stdio.h>

#include "experiments/cli/args/args.h"

enum { TSR_PAGE_COLUMNS = 100 };

struct tsr_page {
    FILE *out;
    char *text; /* what was printed to `out`; NULL: `out` is stdout */
    size_t size;
};

/* `args` NULL: of a subcommand that has neither --wide nor formats. Errors: TSR_ENOMEM. What began
 * also ends. */
tsr_status tsr_page_begin(const struct tsr_args *args, struct tsr_page *page) TSR_MUST_USE;
/* Lays out what was printed and flushes stdout; prints nothing if `status`, that of the report, is
 * a failure, and returns it. Errors: TSR_EIO, TSR_ENOMEM. */
tsr_status tsr_page_end(struct tsr_page *page, tsr_status status) TSR_MUST_USE;

/* The help of a subcommand, laid out so. Errors: as tsr_page_end(). */
tsr_status tsr_usage_show(const struct tsr_usage *usage) TSR_MUST_USE;

/* "wide" if --wide is given and the format is "md", else the format: of reports whose tables have
 * columns of which some are only shown where there is room. */
const char *tsr_page_format(const struct tsr_args *args);

#endif
