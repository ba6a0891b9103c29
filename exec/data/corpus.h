/* corpus.h: a small text, as bytes, for training runs that need nothing but this machine.
 *
 * Tokens are the bytes of the text (a vocabulary of 256) in files of GPT-2's format: train.bin and
 * val.bin. The entropies that come with them tell what a loss means: a model that has learned how
 * often each byte occurs reaches the unigram figure, one that looks one byte back the bigram
 * figure; what is better has learned more. On the shuffled text nothing can be learned but
 * frequencies.
 *
 * How the text is put together: files in the order of their paths; a file of which more than a
 * quarter stands in larger ones is left out, since a held-out text that occurs in the training text
 * tests memory only. "Stands in" counts shingles: runs of 8 words, words being what white space
 * separates.
 */
#ifndef TSR_EXEC_CORPUS_H
#define TSR_EXEC_CORPUS_H

#include "engine/program/base.h"

enum { TSR_CORPUS_VOCAB = 256, TSR_CORPUS_SHINGLE = 8, TSR_CORPUS_PIECE_BYTES = 2048 };

struct tsr_corpus_text {
    char *path; /* no symbolic links in it */
    uint64_t bytes;
    uint8_t *data;
    uint64_t content; /* hash */
    bool left_out;
    double seen;      /* share of its shingles that stand in texts that are kept */
    const char *like; /* the kept text with most of them; NULL: there is none */
};

struct tsr_corpus {
    size_t n_texts, cap;
    struct tsr_corpus_text *texts; /* sorted by path after tsr_corpus_select() */
    size_t n_duplicates;           /* files that were passed over */
};

/* Adds a text file, or all regular files of a folder and of the folders in it. Symbolic links to
 * files are resolved; a file that is already there, or has the same content as one that is, is
 * passed over. Errors: TSR_EIO, TSR_ENOMEM. The corpus stays valid. */
tsr_status tsr_corpus_add(struct tsr_corpus *corpus, const char *path) TSR_MUST_USE;
/* Sorts the texts by path and decides which are left out. */
tsr_status tsr_corpus_select(struct tsr_corpus *corpus) TSR_MUST_USE;
void tsr_corpus_fini(struct tsr_corpus *corpus);

struct tsr_corpus_options {
    const char *out;       /* a folder; made if it is not there */
    double held_out;       /* share of the text: more than 0, less than 1 */
    bool shuffle;          /* permute the bytes within train.bin, and within val.bin */
    uint64_t shuffle_seed; /* of the permutation */
};

/* Of the files as written. Entropies are in nats per byte. */
struct tsr_corpus_stats {
    uint64_t train_bytes, val_bytes;
    double val_entropy; /* of the bytes of val.bin themselves: no unigram model does better there */
    double unigram, bigram; /* cross entropy of val.bin under models fitted to train.bin, add-one */
    double seen; /* share of the held-out shingles that stand in the training text, unshuffled */
};

/* Writes train.bin and val.bin of the texts that are not left out. Every piece of about 2 KiB (to
 * the next end of a line) is held out or trained on as a whole; held-out pieces are spread evenly.
 * Errors: TSR_ECONFIG (a fraction out of range, too little text), TSR_EIO, TSR_ENOMEM. */
tsr_status tsr_corpus_build(const struct tsr_corpus *corpus,
                            const struct tsr_corpus_options *options,
                            struct tsr_corpus_stats *out) TSR_MUST_USE;

/* ---- shingles -------------------------------------------------------------------------------- */

/* Sets of hashed runs of words, to see how much of one text stands in another. */

/* Hashes, sorted, none twice. */
struct tsr_shingles {
    size_t n;
    uint64_t *hashes;
};

/* The runs of n_words words of a text; a text with fewer words is one run. */
tsr_status tsr_shingles_of(const uint8_t *text, uint64_t bytes, unsigned n_words,
                           struct tsr_shingles *out) TSR_MUST_USE;
void tsr_shingles_fini(struct tsr_shingles *shingles);
bool tsr_shingles_have(const struct tsr_shingles *shingles, uint64_t hash);

#endif
