/* interrupt.h: what an interrupted program takes along: its unfinished files and its child
 * processes. On SIGHUP, SIGINT and SIGTERM the children are ended first, then the files are
 * removed, then the program ends by that signal; but only in a program that asked for it: signals
 * belong to the program that a library is part of.
 *
 * Any thread may call. The lists belong to the process that fills them: after a fork() the child
 * starts with none. They are bounded; what is beyond the bound is left behind by an interruption.
 */
#ifndef TSR_STUDY_INTERRUPT_H
#define TSR_STUDY_INTERRUPT_H

#include <stdbool.h>
#include <sys/types.h>

struct tsr_folder;

/* The three signals do that from the first file or child on, in this process and in those that it
 * forks. What is ignored (nohup) or handled by others stays so. To be called before there are
 * threads. */
void tsr_interrupt_handle(void);

/* tsr_file_create() of a file that is to be removed (`in` NULL: its name is a path). Folder and
 * name are borrowed until tsr_interrupt_keep(). Errors: -1 and errno. */
int tsr_interrupt_create(const struct tsr_folder *in, const char *name);
/* A file that somebody else makes, by its path. Also borrowed. */
void tsr_interrupt_remove(const char *path);
/* It has its name, or is gone; does nothing if it is not known. `name`: the same pointer. */
void tsr_interrupt_keep(const char *name);

/* From now on (false: no more) the first of the three signals in this process is only recorded, for
 * work that has results to show; a second one ends the process. */
void tsr_interrupt_ask(bool wanted);
/* Returns the recorded signal, 0 if none has come. */
int tsr_interrupt_asked(void);

/* Sets the line that this process writes to stderr when a signal ends it: what is complete on disk.
 * It is copied, and cut after 511 bytes; "": no line. */
void tsr_interrupt_tell(const char *line);

/* fork() of a child that is to end with this process. */
pid_t tsr_interrupt_fork(void);
/* It was waited for. */
void tsr_interrupt_reaped(pid_t pid);

#endif
