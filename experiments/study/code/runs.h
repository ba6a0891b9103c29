/* runs.h: calls on module after module, said as a person would: in a loop where names count up.
 *
 *     shard(model.norm)                                  a run of one
 *     for block in model.layers.children():              all children, each with the same calls
 *         shard(block.attention)
 *         shard(block)
 *     for i in range(1, 32, 2):                          some of them
 */
#ifndef TSR_STUDY_CODE_RUNS_H
#define TSR_STUDY_CODE_RUNS_H

#include "experiments/study/code/text.h"
#include "experiments/study/job/build.h"

/* A call, and what stands behind its modules: "", ", reshard_after_forward=4". */
struct tsr_code_call {
    struct tsr_modules modules; /* borrowed; several go in as a list */
    const char *more;
};

/* Calls [begin, begin + body * repeats), which are those of the children first, first + step, ...
 * of a list of modules. A single call: repeats 1. */
struct tsr_code_run {
    size_t begin, body, repeats;
    char list[512]; /* FQN of the list */
    uint64_t first, step;
    size_t children; /* of the list; fewer than its numbers if a module stands in it twice */
    bool whole;      /* it is all of them */
};

/* The longest run that begins with call `i` < n. */
struct tsr_code_run tsr_code_run_at(struct tsr_engine *engine, const struct tsr_code_call *calls,
                                    size_t n, size_t i);

/* Returns the end of a Python range whose last number is `last`: the number of children where that
 * says the same, since a reader takes it for "to the end of the list". */
uint64_t tsr_code_range_end(uint64_t last, uint64_t step, uint64_t children);

/* The modules of a call as an argument, "block.attention" where it stands in the loop of `run`
 * (NULL: in none), whose variable is `block`. */
void tsr_code_add_modules(struct tsr_code_text *to, const struct tsr_code_run *run,
                          const struct tsr_code_call *call);
/* Writes all calls of the function `name`. */
void tsr_code_calls(struct tsr_code_text *to, int indent, struct tsr_engine *engine,
                    const char *name, const struct tsr_code_call *calls, size_t n);
/* "[*model.layers.children(), model.norm]": the first module of each call as one list. */
void tsr_code_add_list(struct tsr_code_text *to, struct tsr_engine *engine,
                       const struct tsr_code_call *calls, size_t n);

#endif
