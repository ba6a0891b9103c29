/* safetensors.h: files in the safetensors format, read and written.
 *
 * A file is an 8-byte length, a JSON header (name -> dtype, shape, place of the data) padded with
 * spaces, and the data, row-major, without holes. A reader takes nothing on trust: each rule of
 * the format that a file breaks is one line that names file, tensor and field (TSR_ECONFIG). Data
 * are read by byte ranges and never mapped, since a mapped file that shrinks or a disk that fails
 * ends the process instead of giving an error.
 */
#ifndef TSR_EXEC_SAFETENSORS_H
#define TSR_EXEC_SAFETENSORS_H

#include "sim/base/disk.h"

enum { TSR_ST_MAX_DIMS = 8 };

struct tsr_st_tensor {
    const char *name;
    const char *type; /* as in the file: "BF16" */
    tsr_dtype dtype;  /* NONE: a type that nothing here computes with (BOOL, I32, F8_E4M3 ...) */
    int n_dims;
    uint64_t shape[TSR_ST_MAX_DIMS];
    uint64_t offset, bytes; /* in the data part */
};

/* ---- reading --------------------------------------------------------------------------------- */

struct tsr_safetensors;

/* TSR_EIO: cannot be read. TSR_ECONFIG: not a safetensors file. */
tsr_status tsr_safetensors_open(const char *path, struct tsr_safetensors **out) TSR_MUST_USE;
/* One that this program wrote into a folder: no symbolic link (sim/base/folder.h). */
tsr_status tsr_safetensors_open_in(const struct tsr_folder *in, const char *name,
                                   struct tsr_safetensors **out) TSR_MUST_USE;
void tsr_safetensors_close(struct tsr_safetensors *file); /* NULL is fine */

const char *tsr_safetensors_path(const struct tsr_safetensors *file);
uint64_t tsr_safetensors_bytes(const struct tsr_safetensors *file); /* of the file */
size_t tsr_safetensors_count(const struct tsr_safetensors *file);
const struct tsr_st_tensor *tsr_safetensors_tensor(const struct tsr_safetensors *file,
                                                   size_t i); /* in order of names */
const struct tsr_st_tensor *tsr_safetensors_find(const struct tsr_safetensors *file,
                                                 const char *name); /* NULL: none */
/* Value of a key of __metadata__; NULL: none. */
const char *tsr_safetensors_metadata(const struct tsr_safetensors *file, const char *key);

/* [offset, offset + bytes) of a tensor of this file. From any thread. TSR_EVALUE: out of range;
 * TSR_EIO: the file cannot be read, or is shorter than it was. */
tsr_status tsr_safetensors_read(struct tsr_safetensors *file, const struct tsr_st_tensor *tensor,
                                uint64_t offset, void *out, uint64_t bytes) TSR_MUST_USE;

/* XXH64 of the header, its length included. */
uint64_t tsr_safetensors_header_hash(const struct tsr_safetensors *file);
/* Reads a whole tensor and compares it with the checksum that a writer put into __metadata__
 * (tsr_safetensors_writer_options). TSR_EIO: another one; TSR_ECONFIG: the file has none. Not
 * counted as read. */
tsr_status tsr_safetensors_verify(struct tsr_safetensors *file,
                                  const struct tsr_st_tensor *tensor) TSR_MUST_USE;

/* ---- writing --------------------------------------------------------------------------------- */

/* Tensors are declared first, and lie in the file as the reference writer sorts them: by type,
 * then by name. Their data may come in any order and from any thread; the header is written last,
 * so that a file is not valid before it is complete. */
struct tsr_safetensors_writer;

struct tsr_st_writer_options {
    const struct tsr_disk *disk; /* NULL: the real one */
    /* __metadata__ gets an entry per tensor: its note (if any), and "xxh64=" with 16 hexadecimal
     * digits of its data. The header's hash is then one of the whole file. */
    bool checksums;
    const struct tsr_folder *in; /* where the file is made, borrowed; NULL: its name is a path */
};

/* options may be NULL. */
tsr_status tsr_safetensors_create(const char *name, const struct tsr_st_writer_options *options,
                                  struct tsr_safetensors_writer **out) TSR_MUST_USE;
/* TSR_EVALUE: a dtype or number of dimensions that is not possible, or more than 2^60 bytes. */
tsr_status tsr_safetensors_declare(struct tsr_safetensors_writer *w, const char *name,
                                   tsr_dtype dtype, int n_dims, const uint64_t *shape,
                                   const char *note) TSR_MUST_USE;
tsr_status tsr_safetensors_add_metadata(struct tsr_safetensors_writer *w, const char *key,
                                        const char *value) TSR_MUST_USE;
/* Ends the declarations and creates the file. TSR_EVALUE: a name twice. */
tsr_status tsr_safetensors_begin(struct tsr_safetensors_writer *w) TSR_MUST_USE;
/* All data of a tensor; `bytes` is checked. Empty tensors need not be put. */
tsr_status tsr_safetensors_put(struct tsr_safetensors_writer *w, const char *name, const void *data,
                               uint64_t bytes) TSR_MUST_USE;
/* TSR_EVALUE: a tensor was not put. Then header and data are on the disk, and the file closed. */
tsr_status tsr_safetensors_finish(struct tsr_safetensors_writer *w) TSR_MUST_USE;
/* Of a finished file. */
uint64_t tsr_safetensors_written_bytes(const struct tsr_safetensors_writer *w);
uint64_t tsr_safetensors_written_hash(const struct tsr_safetensors_writer *w); /* of the header */
/* Removes a file that is not finished. NULL is fine. */
void tsr_safetensors_destroy(struct tsr_safetensors_writer *w);

/* The format's name of a dtype: "F32"; NULL for NONE. */
const char *tsr_safetensors_type(tsr_dtype dtype);

#endif
