/* corpus_build.c: a corpus as two files of tokens, and what its frequencies say about the loss. */
#include "exec/data/corpus.h"
#include "exec/data/data.h"
#include "exec/data/token_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/folder.h"

struct part {
    uint64_t n;
    uint8_t *data;
};

/* ---- dividing -------------------------------------------------------------------------------- */

static void append(struct part *part, const uint8_t *data, uint64_t n)
{
    memcpy(part->data + part->n, data, (size_t)n);
    part->n += n;
}

/* Where the piece that begins at `begin` ends: behind a line, if one ends soon. What would be left
 * for less than half a piece belongs to the last. */
static uint64_t piece_end(const struct part *all, uint64_t begin)
{
    uint64_t half = TSR_CORPUS_PIECE_BYTES / 2;
    if (all->n - begin < TSR_CORPUS_PIECE_BYTES + half)
        return all->n;
    uint64_t end = begin + TSR_CORPUS_PIECE_BYTES;
    const uint8_t *newline = memchr(all->data + end, '\n', (size_t)half);
    end = newline ? (uint64_t)(newline - all->data) + 1 : end;
    return all->n - end < half ? all->n : end;
}

/* A piece is held out when half of it is owed, so that any stretch of the text has its share. */
static void divide(const struct part *all, double held_out, struct part *train, struct part *val)
{
    double owed = 0;
    for (uint64_t begin = 0, end; begin < all->n; begin = end) {
        end = piece_end(all, begin);
        double bytes = (double)(end - begin);
        owed += held_out * bytes;
        bool hold = owed >= bytes / 2;
        if (hold)
            owed -= bytes;
        append(hold ? val : train, all->data + begin, end - begin);
    }
}

static tsr_status share_seen(const struct part *train, const struct part *val, double *out)
{
    struct tsr_shingles known = {0, NULL}, held = {0, NULL};
    size_t seen = 0;
    tsr_status status;
    TSR_GOTO(end, tsr_shingles_of(train->data, train->n, TSR_CORPUS_SHINGLE, &known));
    TSR_GOTO(end, tsr_shingles_of(val->data, val->n, TSR_CORPUS_SHINGLE, &held));
    for (size_t i = 0; i < held.n; i++)
        seen += tsr_shingles_have(&known, held.hashes[i]);
    *out = held.n ? (double)seen / (double)held.n : 0;
end:
    tsr_shingles_fini(&known);
    tsr_shingles_fini(&held);
    return status;
}

/* A permutation of the bytes keeps how often each occurs, and nothing else. */
static void shuffle(struct part *part, uint8_t *room, uint64_t seed, uint64_t which)
{
    struct tsr_permutation permutation;
    tsr_permutation_init(&permutation, part->n, seed, which);
    memcpy(room, part->data, (size_t)part->n);
    for (uint64_t i = 0; i < part->n; i++)
        part->data[i] = room[tsr_permutation_at(&permutation, i)];
}

/* ---- entropies ------------------------------------------------------------------------------- */

struct counts {
    uint64_t one[TSR_CORPUS_VOCAB], two[TSR_CORPUS_VOCAB][TSR_CORPUS_VOCAB];
    uint64_t followed[TSR_CORPUS_VOCAB]; /* how often a byte is the first of two */
};

static void count(const struct part *part, struct counts *out)
{
    for (uint64_t i = 0; i < part->n; i++) {
        out->one[part->data[i]]++;
        if (i == 0)
            continue;
        out->two[part->data[i - 1]][part->data[i]]++;
        out->followed[part->data[i - 1]]++;
    }
}

/* Minus the log of the probability, every count being one more than it was. */
static double cost(uint64_t hits, uint64_t of)
{
    return log((double)(of + TSR_CORPUS_VOCAB)) - log((double)(hits + 1));
}

static void entropies(const struct part *train, const struct counts *known, const struct part *val,
                      struct tsr_corpus_stats *out)
{
    uint64_t own[TSR_CORPUS_VOCAB] = {0};
    double unigram = 0, bigram = 0, entropy = 0, n = (double)val->n;
    for (uint64_t i = 0; i < val->n; i++) {
        uint8_t byte = val->data[i];
        own[byte]++;
        unigram += cost(known->one[byte], train->n);
        if (i == 0)
            continue;
        uint8_t before = val->data[i - 1];
        bigram += cost(known->two[before][byte], known->followed[before]);
    }
    for (int byte = 0; byte < TSR_CORPUS_VOCAB; byte++)
        if (own[byte] > 0)
            entropy -= (double)own[byte] / n * log((double)own[byte] / n);
    out->val_entropy = entropy;
    out->unigram = unigram / n;
    out->bigram = bigram / (n - 1);
}

static tsr_status measure(const struct part *train, const struct part *val,
                          struct tsr_corpus_stats *out)
{
    struct counts *counts = calloc(1, sizeof *counts);
    if (!counts)
        return tsr_no_memory("a corpus");
    count(train, counts);
    entropies(train, counts, val, out);
    free(counts);
    out->train_bytes = train->n;
    out->val_bytes = val->n;
    return TSR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static tsr_status add_bytes(struct tsr_token_writer *writer, const struct part *part)
{
    uint32_t tokens[4096];
    for (uint64_t i = 0; i < part->n;) {
        size_t n = 0;
        while (n < sizeof tokens / sizeof *tokens && i < part->n)
            tokens[n++] = part->data[i++];
        TSR_TRY(tsr_token_writer_add(writer, tokens, n));
    }
    return TSR_OK;
}

static tsr_status write_part(const char *folder, const char *name, const struct part *part)
{
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = malloc(n);
    if (!path)
        return tsr_no_memory("a corpus");
    (void)snprintf(path, n, "%s/%s", folder, name);
    struct tsr_token_writer *writer;
    tsr_status status = tsr_token_writer_open(path, TSR_TOKENS_GPT2, &writer);
    free(path);
    TSR_TRY(status);
    status = add_bytes(writer, part);
    if (status == TSR_OK)
        return tsr_token_writer_commit(writer);
    tsr_token_writer_abort(writer);
    return status;
}

static tsr_status write_parts(const char *folder, const struct part *train, const struct part *val)
{
    TSR_TRY(tsr_make_folder(folder));
    TSR_TRY(write_part(folder, "train.bin", train));
    return write_part(folder, "val.bin", val);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static tsr_status build(const struct tsr_corpus *corpus, const struct tsr_corpus_options *options,
                        struct part parts[3], struct tsr_corpus_stats *out)
{
    struct part *all = &parts[0], *train = &parts[1], *val = &parts[2];
    for (size_t i = 0; i < corpus->n_texts; i++)
        if (!corpus->texts[i].left_out)
            append(all, corpus->texts[i].data, corpus->texts[i].bytes);
    divide(all, options->held_out, train, val);
    if (train->n < 2 || val->n < 2)
        return tsr_fail(TSR_ECONFIG,
                        "corpus: %" PRIu64 " bytes in pieces of about %d cannot be divided, %g of "
                        "them held out; allowed: more text, or another fraction",
                        all->n, TSR_CORPUS_PIECE_BYTES, options->held_out);
    TSR_TRY(share_seen(train, val, &out->seen));
    if (options->shuffle) {
        shuffle(train, all->data, options->shuffle_seed, 0);
        shuffle(val, all->data, options->shuffle_seed, 1);
    }
    TSR_TRY(measure(train, val, out));
    return write_parts(options->out, train, val);
}

tsr_status tsr_corpus_build(const struct tsr_corpus *corpus,
                            const struct tsr_corpus_options *options, struct tsr_corpus_stats *out)
{
    *out = (struct tsr_corpus_stats){0};
    if (!(options->held_out > 0 && options->held_out < 1))
        return tsr_fail(TSR_ECONFIG,
                        "corpus: held-out fraction is %g; allowed: more than 0, less than 1",
                        options->held_out);
    uint64_t bytes = 0;
    for (size_t i = 0; i < corpus->n_texts; i++)
        bytes += corpus->texts[i].left_out ? 0 : corpus->texts[i].bytes;
    struct part parts[3] = {{0, NULL}, {0, NULL}, {0, NULL}};
    bool room = true;
    for (int i = 0; i < 3; i++) {
        parts[i].data = malloc((size_t)bytes + 1);
        room = room && parts[i].data;
    }
    tsr_status status = room ? build(corpus, options, parts, out) : tsr_no_memory("a corpus");
    for (int i = 0; i < 3; i++)
        free(parts[i].data);
    return status;
}
