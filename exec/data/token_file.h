/* token_file.h: files of tokens as llm.c writes them, read window by window and written
 * atomically.
 *
 * A file is 256 int32 (1024 bytes: magic, version, number of tokens, then zeros that nobody reads)
 * and the tokens, all little-endian: magic 20240520 version 1 has uint16 (GPT-2), magic 20240801
 * version 7 has uint32 (Llama-3). The number is an int32, so a file has at most 2^31 - 1 tokens.
 *
 * A file is read, not mapped: one that is cut short while it is open is an error, where a mapping
 * would end the process.
 */
#ifndef TSR_EXEC_TOKEN_FILE_H
#define TSR_EXEC_TOKEN_FILE_H

#include "engine/program/base.h"

enum tsr_token_kind { TSR_TOKENS_GPT2, TSR_TOKENS_LLAMA3 };
enum { TSR_TOKEN_HEADER_BYTES = 1024 };

struct tsr_token_file {
    char *path;        /* NULL: none is open */
    uint64_t n_tokens; /* at least 1 */
    enum tsr_token_kind kind;
    unsigned token_bytes; /* 2 or 4 */
    int fd;
};

/* Opens `path` and checks the header against the size of the file. `sequential`: what will be read
 * next follows what was read (advice to the system only).
 * Errors: TSR_EIO (cannot be read), TSR_ECONFIG (is no such file: the text says which field, what
 * it is, and what is allowed), TSR_ENOMEM; *out is zero then. */
tsr_status tsr_token_file_open(const char *path, bool sequential,
                               struct tsr_token_file *out) TSR_MUST_USE;
void tsr_token_file_close(struct tsr_token_file *file); /* also of zeros */

/* out[n] = tokens first ... first + n - 1, which must exist. Errors: TSR_ECONFIG when one is not
 * below n_vocab; TSR_EIO when the file has become shorter, or cannot be read. May be called from
 * several threads. */
tsr_status tsr_token_file_read(const struct tsr_token_file *file, uint64_t first, uint64_t n,
                               uint64_t n_vocab, int64_t *out) TSR_MUST_USE;

/* ---- writing --------------------------------------------------------------------------------- */

struct tsr_token_writer;

/* Begins `path` under a temporary name beside it. Errors: TSR_EIO, TSR_ENOMEM. */
tsr_status tsr_token_writer_open(const char *path, enum tsr_token_kind kind,
                                 struct tsr_token_writer **out) TSR_MUST_USE;
/* Appends n tokens. Errors: TSR_EIO; TSR_EVALUE for a token that the type cannot hold, or more
 * tokens than a file can have. The writer stays open. */
tsr_status tsr_token_writer_add(struct tsr_token_writer *writer, const uint32_t *tokens,
                                size_t n) TSR_MUST_USE;
/* Gives the file its name when all of it is on the disk. Destroys the writer, whatever it returns:
 * on an error `path` is what it was before. TSR_EVALUE: no tokens were added. */
tsr_status tsr_token_writer_commit(struct tsr_token_writer *writer) TSR_MUST_USE;
/* Gives up: removes what was written, destroys the writer. NULL is allowed. */
void tsr_token_writer_abort(struct tsr_token_writer *writer);

#endif
