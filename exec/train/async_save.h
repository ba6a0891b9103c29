/* async_save.h: a thread that writes a checkpoint while training goes on: it makes copies of what
 * is saved, so the next step may change everything as soon as they are made, or is lent some.
 * Private to this folder.
 */
#ifndef TSR_ASYNC_SAVE_H
#define TSR_ASYNC_SAVE_H

#include "exec/base/source.h"

struct tsr_async_save;

/* Writes a piece; called by the thread, one after the other. */
typedef tsr_status (*tsr_async_put_fn)(void *user, const struct tsr_piece *piece, const void *data);
/* After the last piece, by the thread: what takes long and needs no other rank. */
typedef tsr_status (*tsr_async_end_fn)(void *user);

/* Errors: TSR_ENOMEM, TSR_EBACKEND without a thread. */
tsr_status tsr_async_save_start(tsr_async_put_fn put, tsr_async_end_fn end, void *user,
                                struct tsr_async_save **out) TSR_MUST_USE;
/* Copies `bytes` and returns, from any thread. Where copies would take more than half of the
 * memory that the machine had free at the start, it waits for earlier ones to be written. */
tsr_status tsr_async_save_add(struct tsr_async_save *s, const struct tsr_piece *piece,
                              const void *data, uint64_t bytes) TSR_MUST_USE;
/* The same without a copy: `data` stays as it is until the thread has ended. */
tsr_status tsr_async_save_lend(struct tsr_async_save *s, const struct tsr_piece *piece,
                               const void *data) TSR_MUST_USE;
/* There are no more pieces. */
void tsr_async_save_close(struct tsr_async_save *s);
/* Everything is written, or something has failed. */
bool tsr_async_save_is_done(struct tsr_async_save *s);
/* Waits for the end; the first failure, with its text. */
tsr_status tsr_async_save_wait(struct tsr_async_save *s) TSR_MUST_USE;
/* Closes it and waits, if need be. NULL is fine. */
void tsr_async_save_destroy(struct tsr_async_save *s);

#endif
