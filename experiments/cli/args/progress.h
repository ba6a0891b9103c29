/* progress.h: a progress bar on stderr, only where stderr is a terminal. */
#ifndef TSR_CLI_PROGRESS_H
#define TSR_CLI_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

struct tsr_progress {
    bool on, color;
    size_t total;
};
void tsr_progress_begin(struct tsr_progress *progress, size_t total);
/* `done` of the total; `what` is being worked on. */
void tsr_progress_show(const struct tsr_progress *progress, size_t done, const char *what);
void tsr_progress_end(const struct tsr_progress *progress); /* removes the bar */

/* From now on what a study says goes to stderr. */
void tsr_progress_listen(void);

#endif
