/* trace_json.h: values of a trace, each checked, and where it stands said in one line. Private to
 * the readers of traces.
 */
#ifndef TSR_STUDY_TRACE_JSON_H
#define TSR_STUDY_TRACE_JSON_H

#include <jansson.h>

#include "engine/program/base.h"

struct tsr_traced_file;

/* Who reads: for messages, and where memory comes from. */
struct tsr__trace_reader {
    const char *path;
    struct tsr_arena *arena;
    struct tsr_traced_file *trace;
};

/* A value and its place: "modules" 3 -> "modules[3]". */
struct tsr__trace_at {
    const struct tsr__trace_reader *r;
    const json_t *value;
    const char *list; /* "modules", "segments", ... */
    size_t index;
};

enum { TSR__TRACE_HASH = 65 };
/* Writes the identity of a trace, 64 hexadecimal digits: the SHA-256 of everything but "made_by"
 * and "sha256", as canonical JSON. Errors: TSR_ENOMEM. */
tsr_status tsr__trace_hash(const json_t *root, const char *path, char out[TSR__TRACE_HASH]);
/* TSR_ECONFIG: "PATH: LIST[INDEX]: found ...; allowed: ...". */
tsr_status tsr__trace_wrong(const struct tsr__trace_at *at, const json_t *found,
                            const char *allowed);
/* An object with these keys and no others; a key that begins with '?' may be missing. */
tsr_status tsr__trace_keys(const struct tsr__trace_at *at, const char *const *keys);
/* A list of at least `least` and at most `most` values. */
tsr_status tsr__trace_list_of(const struct tsr__trace_at *at, const json_t *list, size_t least,
                              size_t most);
tsr_status tsr__trace_u64(const struct tsr__trace_at *at, const json_t *value, uint64_t least,
                          uint64_t most, uint64_t *out);
tsr_status tsr__trace_u32(const struct tsr__trace_at *at, const json_t *value, uint64_t most,
                          uint32_t *out);
/* In the arena; null where `null_too`: *out is NULL. */
tsr_status tsr__trace_text(const struct tsr__trace_at *at, const json_t *value, bool null_too,
                           const char **out);
tsr_status tsr__trace_bool(const struct tsr__trace_at *at, const json_t *value, bool *out);
/* Up to TSR_TRACED_DIMS sizes. */
tsr_status tsr__trace_shape(const struct tsr__trace_at *at, const json_t *value, int *n_dims,
                            uint64_t *dims);
/* Zeroed memory for n items; NULL: out of memory. */
void *tsr__trace_memory(const struct tsr__trace_reader *r, size_t n, size_t bytes);
/* Bytes of an element by torch's name of its dtype; 0: unknown. */
unsigned tsr__torch_dtype_bytes(const char *name);

/* trace_parts.c: modules, parameters, kernels, segments; into trace->model. */
tsr_status tsr__trace_read_parts(const struct tsr__trace_reader *r, const json_t *root);
/* trace_asked.c: made_by.asked, if it is there. */
tsr_status tsr__trace_read_asked(const struct tsr__trace_reader *r, const json_t *root);
/* trace_variants.c: into trace->variants. */
tsr_status tsr__trace_read_variants(const struct tsr__trace_reader *r, const json_t *root);

#endif
