/* listener.h: what a study says while it works: remarks, and how far it is. The library prints
 * nothing; whoever wants to show it listens. There is one listener for the process.
 */
#ifndef TSR_STUDY_LISTENER_H
#define TSR_STUDY_LISTENER_H

#include <stddef.h>

#include "engine/program/base.h"

/* Work goes on in child processes: a note of theirs is called in the child, with the descriptors
 * that it inherited. Either function may be NULL. */
struct tsr_listener {
    void *user;
    /* A remark that is no error, one line without its end: "strategy fsdp: no two successive ...".
     */
    void (*note)(void *user, const char *text);
    /* `done` of `total` items are through, `what` is being worked on; NULL: the work is over. */
    void (*progress)(void *user, size_t done, size_t total, const char *what);
};

/* From now on `listener` is told; it is copied. NULL: no listener, as when a process begins. */
void tsr_listen(const struct tsr_listener *listener);

/* For the library: says something to the listener, if there is one. */
void tsr_tell(const char *format, ...) TSR_PRINTF(1, 2);
/* Passes the text to the listener unless tsr_tell_once() has passed it before: strategies that
 * share a file share a remark. */
void tsr_tell_once(const char *format, ...) TSR_PRINTF(1, 2);
void tsr_tell_progress(size_t done, size_t total, const char *what);

#endif
