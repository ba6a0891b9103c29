/* list.h: what kernels of elements share: functions of elements whose operands are made elsewhere,
 * and lists of tensors: pairs are collected, and what is collected runs as one piece of code
 * (grid_copy.h) when the list is full or at an end.
 */
#ifndef TSR_EXEC_LIST_H
#define TSR_EXEC_LIST_H

#include "exec/kernels/call/call.h"
#include "exec/kernels/grid/grid_copy.h"

/* Runs `e` in f64 if `wide` (elementwise.c). */
tsr_status tsr__run_elementwise(const struct tsr_kernel_call *call, const struct tsr_elementwise *e,
                                bool wide) TSR_MUST_USE;

/* Two launches: of pairs whose elements are moved as they are, and of others. */
struct tsr_lists {
    const struct tsr_kernel_call *call;
    bool wide; /* arithmetic in f64 */
    struct tsr_list words, elements;
};

/* Nothing is collected yet. */
void tsr__list_begin(struct tsr_lists *l, const struct tsr_kernel_call *call, enum tsr_list_op op);
/* Elements of `to` from `at` on become those of `from`, or what else `op` makes of them. */
tsr_status tsr__list_add(struct tsr_lists *l, const struct tsr_elems *from,
                         const struct tsr_elems *to, uint64_t at) TSR_MUST_USE;
/* Runs what is left. */
tsr_status tsr__list_end(struct tsr_lists *l) TSR_MUST_USE;

/* The largest word, in bytes, that whole numbers of make up `bytes`; at most `most`. */
uint64_t tsr__word_of(uint64_t bytes, uint64_t most);
/* The same elements as words of `word` bytes. */
struct tsr_elems tsr__as_words(const struct tsr_elems *e, uint64_t word);
/* The largest word of which e consists, at most `most` (a power of 2). */
uint64_t tsr__word_of_elems(const struct tsr_elems *e, uint64_t most);

#endif
