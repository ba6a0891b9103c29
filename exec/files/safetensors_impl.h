/* safetensors_impl.h: a safetensors file and its header as a table. Private to exec/. */
#ifndef TSR_EXEC_SAFETENSORS_IMPL_H
#define TSR_EXEC_SAFETENSORS_IMPL_H

#include <stdatomic.h>

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

/* A file that is open. Reading changes nothing but the count: threads may share it. */
struct tsr_safetensors {
    char *path;
    int fd;
    uint64_t bytes, data_at, header_hash;
    struct tsr_st_header header;
    atomic_uint_least64_t bytes_read; /* of data, by tsr_safetensors_read(): tests look at it */
};

/* A type of the format; types of less than a byte exist, so that sizes are in bits. */
struct tsr_st_type {
    const char *name;
    tsr_dtype dtype;
    unsigned bits;
};

/* Reads a header of n bytes in front of data_bytes of data. On failure nothing is left. */
tsr_status tsr__st_parse(const char *path, const char *header, size_t n, uint64_t data_bytes,
                         struct tsr_st_header *out) TSR_MUST_USE;
void tsr__st_header_fini(struct tsr_st_header *h);

/* "<note> xxh64=<16 digits>": what a checksummed file says of a tensor. */
#define TSR_ST_SUM_MARK   "xxh64="
#define TSR_ST_SUM_DIGITS 16

#endif
