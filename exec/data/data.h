/* data.h: which tokens a step is trained on.
 *
 * A sample is a window of T + 1 tokens of one file: the first T are the input, the last T the
 * labels. Windows begin every T tokens, and never reach over the end of a file (what is left there
 * is not used). The samples of all files, in the order given, are one index space of N samples.
 *
 * [Note: position] Training reads positions 0, 1, 2, ... without an end. Position p is in epoch
 * p / N and is sample P(p mod N), where P is the permutation of that epoch (below), or the
 * identity in sequential order. So the state of the data is one integer: the position of the next
 * step's first sample. Resuming is exact, at any number of ranks, and a batch may reach over the
 * end of an epoch.
 *
 * [Note: split] The global batch of a step is G = world * n_micro * micro_batch consecutive
 * positions. The sample at offset j of it belongs to
 *     rank        j / (n_micro * micro_batch)
 *     micro-batch j / micro_batch mod n_micro
 *     row         j mod micro_batch
 * How the batch is split never changes which samples it has, nor their order. Ranks here are those
 * of data parallelism: ranks that share a batch (tensor parallelism) pass the same rank.
 */
#ifndef TSR_EXEC_DATA_H
#define TSR_EXEC_DATA_H

#include <stdint.h>

#include "engine/program/base.h"
#include "exec/base/source.h"

struct tsr_data_config {
    const char *const *files; /* of tokens; all of one kind */
    size_t n_files;
    uint64_t seq;     /* T >= 1, tokens */
    uint64_t n_vocab; /* ids must be below it; checked when they are served */
    uint64_t seed;
    bool sequential; /* the order of the files instead of a permutation */
};

/* One split of the data (training, evaluation). Its files stay open. Nothing in it changes
 * after opening: several threads may read it at once. */
struct tsr_data;

/* Copies what it needs of the configuration. Errors: those of tsr_token_file_open(); TSR_ECONFIG
 * for no files, T = 0, files of different kinds, or no window of T + 1 tokens in any of them. */
tsr_status tsr_data_open(const struct tsr_data_config *config, struct tsr_data **out) TSR_MUST_USE;
void tsr_data_close(struct tsr_data *data); /* NULL is allowed */

uint64_t tsr_data_samples(const struct tsr_data *data); /* N, at least 1 */
/* Changes when positions mean something else: T, the order, the seed, names (without folders) and
 * sizes of the files. For a checkpoint, so that a resumed run reads on in the same data. */
uint64_t tsr_data_hash(const struct tsr_data *data);
/* Which sample stands at a position: 0 ... N - 1. */
uint64_t tsr_data_index(const struct tsr_data *data, uint64_t position);

/* One sample: inputs[T], labels[T]; either may be NULL. Errors: TSR_ECONFIG for a token that is not
 * in the vocabulary. */
tsr_status tsr_data_sample(const struct tsr_data *data, uint64_t position, int64_t *inputs,
                           int64_t *labels) TSR_MUST_USE;

struct tsr_batch_split {
    uint32_t rank, world;          /* of data parallelism */
    uint32_t n_micro, micro_batch; /* all at least 1 */
};

/* G of [Note: split]. */
uint64_t tsr_global_batch(const struct tsr_batch_split *split);

/* A micro-batch of a rank: inputs[micro_batch][T], labels[micro_batch][T]; either may be NULL.
 * `position` is that of the first sample of the global batch (step * G in a run whose G never
 * changed). Errors: as tsr_data_sample(). */
tsr_status tsr_data_batch(const struct tsr_data *data, uint64_t position,
                          const struct tsr_batch_split *split, uint32_t micro, int64_t *inputs,
                          int64_t *labels) TSR_MUST_USE;

/* tsr_data_batch() in the terms of struct tsr_source: one part, as a range of bytes. Errors:
 * TSR_EDEFECT when dtype or bytes are not those of micro_batch * T i64 tokens. */
tsr_status tsr_data_part(const struct tsr_data *data, uint64_t position,
                         const struct tsr_batch_split *split, uint32_t micro,
                         enum tsr_batch_part part, tsr_dtype dtype, void *out,
                         uint64_t bytes) TSR_MUST_USE;

/* ---- permutation ----------------------------------------------------------------------------- */

/* A pseudo-random order of 0 ... n-1 of which any element is computed by itself.
 *
 * A Feistel network of 8 rounds permutes 0 ... 4^h - 1, with h the least, from 3 on, for which this
 * holds n numbers; a result that is not below n is put in again until one is (cycle walking), which
 * takes fewer than 4 turns on average (for n > 16). Nothing is stored, so the place in the order is
 * one integer, and every rank can compute every other's part. Not cryptographic. */

enum { TSR_PERMUTATION_ROUNDS = 8 };

struct tsr_permutation {
    uint64_t n;
    uint32_t half_bits; /* h, 3 to 32 */
    uint64_t keys[TSR_PERMUTATION_ROUNDS];
};

/* The order of `epoch` under `seed`. n is at least 1. */
void tsr_permutation_init(struct tsr_permutation *out, uint64_t n, uint64_t seed, uint64_t epoch);
/* What stands at place i < n: a number below n, another one for each i. */
uint64_t tsr_permutation_at(const struct tsr_permutation *permutation, uint64_t i);

#endif
