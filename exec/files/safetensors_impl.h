/* safetensors_impl.h: the header of a safetensors file as a table. Private to exec/. */
#ifndef TSR_SAFETENSORS_IMPL_H
#define TSR_SAFETENSORS_IMPL_H

#include "exec/files/safetensors.h"

enum { TSR_ST_MAX_HEADER = 100000000 };

struct tsr_st_pair {
    const char *key, *value;
};

struct tsr_st_header {
    struct tsr_arena text;
    size_t n, n_metadata;
    struct tsr_st_tensor *tensors; /* by name */
    struct tsr_st_pair *metadata;  /* by key */
};

/* A type of the format; types of less than a byte exist, so that sizes are in bits. */
struct tsr_st_type {
    const char *name;
    tsr_dtype dtype;
    unsigned bits;
};
/* NULL: unknown. */
const struct tsr_st_type *tsr__st_type(const char *name);

/* Reads a header of n bytes in front of data_bytes of data. On failure nothing is left. */
tsr_status tsr__st_parse(const char *path, const char *header, size_t n, uint64_t data_bytes,
                         struct tsr_st_header *out) TSR_MUST_USE;
void tsr__st_header_fini(struct tsr_st_header *h);

/* "<note> xxh64=<16 digits>": what a checksummed file says of a tensor. */
#define TSR_ST_SUM_MARK   "xxh64="
#define TSR_ST_SUM_DIGITS 16

#endif
