/* owner.h: whose memory a buffer is, in words: the module that allocated it, and repeated blocks as
 * one ("model.layers.*").
 */
#ifndef TSR_STUDY_OWNER_H
#define TSR_STUDY_OWNER_H

#include "engine/program/program.h"

/* FQN of the module that an instruction belongs to, else the name of its group; the root is
 * "(root)". What no module did is named after its phase: "(loss)", "(optimizer)". `buffer` holds
 * such a name and is used only then. */
const char *tsr_owner_of(const struct tsr_tables *tables, const struct tsr_origin *origin,
                         char buffer[32]);

/* "model.layers.3.mlp.up_proj" -> "model.layers.*.mlp.up_proj": numbers in a path are stars. */
void tsr_owner_pattern(const char *fqn, char *out, size_t size);
/* The same, cut behind the first number: "model.layers.*"; other names as they are. */
void tsr_owner_block_pattern(const char *fqn, char *out, size_t size);
/* Bytes of `fqn` that name its block: "model.layers.3" of "model.layers.3.mlp"; 0: in no block. */
size_t tsr_owner_block_length(const char *fqn);

/* The work that an allocation was made for: the first work after it that uses the buffer, else the
 * first one at all; n_instrs if there is none. */
size_t tsr_work_of_alloc(const struct tsr_program *program, size_t alloc);
/* "mm", "log_softmax", "all_gather". */
const char *tsr_work_name(const struct tsr_instr *instr);

#endif
