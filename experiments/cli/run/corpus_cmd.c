/* corpus_cmd.c: `tessera corpus PATH --out DIR`: a text as a small corpus of bytes. */
#include <stdio.h>

#include "exec/data/corpus.h"
#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/study/simulate/open.h"
#include "sim/base/text.h"

enum { HELD_OUT_PERCENT = 10, SHUFFLE_SEED = 1 };

static void tell_selection(const struct tsr_corpus *c)
{
    for (size_t i = 0; i < c->n_texts; i++)
        if (c->texts[i].left_out)
            fprintf(stderr, "tessera: left out %s: %.0f %% of it stands in larger files%s%s\n",
                    tsr_show_line(c->texts[i].path).text, 100 * c->texts[i].seen,
                    c->texts[i].like ? ", most in " : "",
                    c->texts[i].like ? tsr_show_line(c->texts[i].like).text : "");
}

static void print_stats(const struct tsr_corpus_stats *s)
{
    printf("train            %llu bytes\n"
           "val              %llu bytes, of whose runs of words %.1f %% stand in train\n"
           "unigram entropy  %.4f nats per byte of val\n"
           "bigram entropy   %.4f\n"
           "own entropy      %.4f (no unigram model does better on val)\n",
           (unsigned long long)s->train_bytes, (unsigned long long)s->val_bytes, 100 * s->seen,
           s->unigram, s->bigram, s->val_entropy);
}

static tsr_status build(const struct tsr_args *args, struct tsr_corpus *corpus)
{
    const struct tsr_corpus_options options = {.out = args->out,
                                               .held_out = HELD_OUT_PERCENT / 100.0,
                                               .shuffle = args->shuffle,
                                               .shuffle_seed = SHUFFLE_SEED};
    struct tsr_corpus_stats stats;
    TSR_TRY(tsr_corpus_add(corpus, args->file));
    TSR_TRY(tsr_corpus_select(corpus));
    TSR_TRY(tsr_prepare_out(options.out));
    tell_selection(corpus);
    TSR_TRY(tsr_corpus_build(corpus, &options, &stats));
    print_stats(&stats);
    return TSR_OK;
}

tsr_status tsr_cmd_corpus(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_corpus corpus = {0};
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    if (!args->out)
        return tsr_fail(TSR_ECONFIG, "corpus: --out: found none; allowed: a folder");
    tsr_status status = build(args, &corpus);
    tsr_corpus_fini(&corpus);
    return status;
}
