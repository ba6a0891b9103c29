/* hf_names.h: what a parameter of the engine's models is called in files of Hugging Face, and how
 * its values lie there.
 *
 * Models with Hugging Face's names need no translation. Plain ones do (architecture.h, enum
 * tsr_names); their GPT-2 has [out, in] matrices where the files have Conv1D's [in, out].
 */
#ifndef TSR_EXEC_HF_NAMES_H
#define TSR_EXEC_HF_NAMES_H

#include "engine/program/base.h"

enum tsr_hf_family {
    TSR_HF_LLAMA, /* and Mistral, Qwen2, Qwen3 */
    TSR_HF_GPT2,
    TSR_HF_AS_IS /* names are those of the file */
};

struct tsr_hf_model {
    enum tsr_hf_family family;
    bool tied; /* the head is the embedding: files may have it once or twice */
    /* The rotary kernel turns neighbours (2i, 2i + 1) of heads of this size; the files are made for
     * (i, i + D/2), so that rows of q and k change places. 0: it is as in the files. */
    uint64_t interleaved_head_dim;
};

struct tsr_hf_name {
    char name[256];
    const char *prefix; /* that some files leave out: "transformer."; NULL: none */
    bool transposed;    /* the file has the matrix as [columns, rows] */
    uint64_t head_dim;  /* rows are permuted inside heads: tsr_hf_row(); 0: they are not */
};

/* TSR_ECONFIG: the family has no such parameter. */
tsr_status tsr_hf_name(const struct tsr_hf_model *model, const char *fqn,
                       struct tsr_hf_name *out) TSR_MUST_USE;
/* The row of the file that is a row of the model. */
uint64_t tsr_hf_row(uint64_t head_dim, uint64_t row);
/* The embedding that a tied head is; in the file's names. NULL: none in this family. */
const char *tsr_hf_embedding(enum tsr_hf_family family);
/* Tensors of a file that are no parameters: attention masks, rotary tables. */
bool tsr_hf_is_buffer(const char *name);

#endif
