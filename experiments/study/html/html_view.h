/* html_view.h: the parts of a strategy's view.json (html_view.c). */
#ifndef TSR_STUDY_HTML_VIEW_H
#define TSR_STUDY_HTML_VIEW_H

#include "experiments/study/detail/report_detail.h"
#include "experiments/study/html/html_pack.h"

/* Times are whole multiples of this many seconds from the start of the step. */
#define TSR__HTML_QUANTUM 1e-7

/* What the parts share: one iteration, and the texts that numbers stand for. Borrows the page. */
struct tsr__html {
    const struct tsr__page *page;
    struct tsr__words owners, ops; /* modules, and what is done */
};

static inline int64_t tsr__html_time(const struct tsr__html *html, double time)
{
    double quanta = (time - html->page->view->start) / TSR__HTML_QUANTUM;
    return (int64_t)(quanta < 0 ? quanta - 0.5 : quanta + 0.5);
}

/* "slices": what each stream and the host do, and the table of kinds that slices refer to;
 * "exposed": exposed seconds of collectives by reason. Each begins with its key. Errors:
 * TSR_ENOMEM, those of tsr_overlap_of(). */
tsr_status tsr__html_put_slices(FILE *out, struct tsr__html *html) TSR_MUST_USE;

/* "memory": every allocation and release of the step, what is alive at its start, what the
 * allocator holds, what is in use, and the peak. Errors: TSR_ENOMEM, those of a replay. */
tsr_status tsr__html_put_memory(FILE *out, struct tsr__html *html) TSR_MUST_USE;

#endif
