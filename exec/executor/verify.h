/* verify.h: proves the declared operands of what runs: an instruction touches what it declares, as
 * it declares it, and nothing else.
 *
 * While nothing runs, all memory of the program is poisoned; the real contents of every buffer lie
 * in a copy beside it. An instruction gets the real contents of what it declares as read, and runs
 * twice, over two different poisons. So it is seen when it
 *   - writes what it does not declare, or what it declares as read,
 *   - reads what it does not declare: what it writes differs between the two runs,
 *   - leaves something unwritten that it declares as written and not as read; operands without a
 *     dtype (scratch, bytes) may be left alone.
 * Of workspaces, which are large and hold nothing between instructions, only both ends are looked
 * at. Work that writes nothing runs once. Needs a device that runs tasks inside submit().
 */
#ifndef TSR_EXEC_VERIFY_H
#define TSR_EXEC_VERIFY_H

#include "exec/kernels/call/kernel.h"

struct tsr_verify;

tsr_status tsr_verify_create(struct tsr_verify **out) TSR_MUST_USE;
void tsr_verify_destroy(struct tsr_verify *v); /* NULL is fine */

/* A buffer begins to live in [data, data + bytes): its memory is poisoned; what it holds until it
 * is written are NaN patterns. */
tsr_status tsr_verify_add(struct tsr_verify *v, uint32_t buffer, bool is_workspace, void *data,
                          uint64_t bytes) TSR_MUST_USE;
void tsr_verify_remove(struct tsr_verify *v, uint32_t buffer);
/* What the program knows to be in a buffer; NULL if there is none. */
void *tsr_verify_contents(const struct tsr_verify *v, uint32_t buffer);

/* Who runs, for messages: its number, itself, names of modules (NULL: none). */
struct tsr_verify_who {
    uint64_t number;
    const struct tsr_instr *instr;
    const struct tsr_tables *tables;
};

/* Before the first run. The views and `who` are borrowed until tsr_verify_leave(). *twice: the work
 * must run again, after tsr_verify_again(). */
tsr_status tsr_verify_enter(struct tsr_verify *v, const struct tsr_verify_who *who,
                            const struct tsr_view *views, uint32_t n, bool *twice) TSR_MUST_USE;
/* Between the two runs. TSR_EDEFECT: one line that names instruction, buffer and bytes. */
tsr_status tsr_verify_again(struct tsr_verify *v) TSR_MUST_USE;
/* After the last run; what was written is kept. Errors as above. */
tsr_status tsr_verify_leave(struct tsr_verify *v) TSR_MUST_USE;

#endif
