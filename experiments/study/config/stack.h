/* stack.h: training stacks: the defaults that torchtitan, transformers, llm-foundry, ... bring.
 *
 * A stack is a file stacks/NAME.yaml: keys of an experiment with the values that this software
 * gives them, a `title`, and a `source` that says who says so. An experiment names it (`stack:
 * NAME`): its keys then take the place of the defaults of the table (keys.def), below everything
 * that the experiment, a strategy, a sweep or --set gives. So the predictions of published runs
 * (validate/) and those of an experiment rest on the same file.
 */
#ifndef TSR_STUDY_STACK_H
#define TSR_STUDY_STACK_H

#include "experiments/study/config/settings.h"

struct tsr_stack {
    struct tsr_doc doc;           /* owns what follows */
    const char *name;             /* as the experiment names it */
    const char *path;             /* of the file, from the root */
    const char *title;            /* in words; NULL: the file has none */
    struct tsr_settings defaults; /* of the table of keys */
    struct tsr_settings settings; /* these, and what the file gives: `from` is set there */
};

/* Finds and reads the stack `name`; `at` is where it was named, and `experiment` the file that
 * names of folders are looked up from (paths.h). Errors: TSR_ECONFIG (no such stack, with the
 * nearest name and all that there are; a key that no stack has), TSR_ENOMEM. On failure *out needs
 * no tsr_stack_close(). */
tsr_status tsr_stack_open(const char *name, const struct tsr_yaml_node *at, const char *experiment,
                          struct tsr_stack *out) TSR_MUST_USE;
void tsr_stack_close(struct tsr_stack *stack);

/* Stacks that an experiment has read, each once. They live as long as the settings that they
 * filled. */
struct tsr_stacks {
    size_t n, cap;
    struct tsr_stack **items;
};

/* Makes the stack that `settings` name the one that they rest on: what another stack gave goes back
 * to the table's defaults, what nobody gave is filled in. Errors: as tsr_stack_open(). */
tsr_status tsr_stacks_apply(struct tsr_stacks *stacks, const char *experiment,
                            struct tsr_settings *settings) TSR_MUST_USE;
/* The one that `settings` name, by name or by its whole path; NULL: none. */
const struct tsr_stack *tsr_stacks_of(const struct tsr_stacks *stacks,
                                      const struct tsr_settings *settings);
void tsr_stacks_fini(struct tsr_stacks *stacks);

#endif
