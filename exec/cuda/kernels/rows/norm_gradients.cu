/* norm_gradients.cu: all gradients of RMSNorm and LayerNorm (parts.h). Rows come into
 * shared memory some rows ahead, in the bytes that they have; every thread reads only what it asked
 * for itself, and has the same columns in every row, so that their sums stay with it.
 */
#include "exec/cuda/kernels/team.h"

#include "exec/cuda/kernels/rows/parts.h"

/* What a thread needs all the time. */
struct norm_work {
    const struct tsr_norm *k;
    struct tsr_team team;
    struct tsr_norm_places at;
    unsigned turns; /* packs that it has */
};

/* Word `word` of this thread. */
TSR_DEVICE unsigned char *place_of(unsigned word)
{
    return (unsigned char *)tsr_dynamic_shared() + 16 * (word * tsr_threads() + tsr_thread());
}

TSR_DEVICE uint64_t column_of(const struct norm_work *x, unsigned turn)
{
    return ((uint64_t)turn * x->team.size + x->team.lane) * TSR_BLOCK;
}

/* Asks for packs of e from element `first` on: to words from `word` on. */
TSR_DEVICE void ask(const struct norm_work *x, const struct tsr_elems *e, uint64_t first,
                    unsigned word)
{
    unsigned words = tsr_norm_words(e);
    for (unsigned turn = 0; turn < x->turns && words; turn++) {
        const unsigned char *from = e->data + e->item * (first + column_of(x, turn));
        tsr_copy_ahead(place_of(word + turn * words), from);
        if (words > 1)
            tsr_copy_ahead(place_of(word + turn * words + 1), from + 16);
    }
}

TSR_DEVICE void ask_for_row(const struct norm_work *x, uint64_t row, unsigned stage)
{
    uint64_t first = row * x->k->shape.columns;
    unsigned word = x->at.first_stage + stage * x->at.stage;
    ask(x, &x->k->x, first, word);
    ask(x, &x->k->g, first, word + x->at.g);
    ask(x, &x->k->gh, first, word + x->at.gh);
}

/* A pack of e that has come to the words from `word` on. */
TSR_DEVICE void take(const struct tsr_elems *e, unsigned word, unsigned turn, float *out)
{
    struct tsr_fetched_f32 f;
    unsigned words = tsr_norm_words(e);
    f.dtype = e->dtype;
    tsr_get_words(place_of(word + turn * words), f.words);
    if (words > 1)
        tsr_get_words(place_of(word + turn * words + 1), f.words + 4);
    tsr_pack_open_f32(&f, out);
}

/* Sums of columns: eight floats a turn. */
TSR_DEVICE void sums_set(unsigned word, unsigned turn, const float *sum)
{
    uint32_t bits[TSR_BLOCK];
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        bits[i] = tsr_float_bits(sum[i]);
    tsr_put_words(place_of(word + 2 * turn), bits);
    tsr_put_words(place_of(word + 2 * turn + 1), bits + 4);
}

TSR_DEVICE void sums_get(unsigned word, unsigned turn, float *sum)
{
    uint32_t bits[TSR_BLOCK];
    tsr_get_words(place_of(word + 2 * turn), bits);
    tsr_get_words(place_of(word + 2 * turn + 1), bits + 4);
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        sum[i] = tsr_bits_float(bits[i]);
}

/* u = the normalized x, v = g w; g: as it came. of_row: mean and rstd. */
TSR_DEVICE void slopes(const struct norm_work *x, unsigned stage, unsigned turn,
                       const float *of_row, float *g, float *u, float *v)
{
    unsigned word = x->at.first_stage + stage * x->at.stage;
    take(&x->k->x, word, turn, u);
    take(&x->k->g, word + x->at.g, turn, g);
    take(&x->k->w, x->at.w, turn, v);
    for (unsigned i = 0; i < TSR_BLOCK; i++) {
        u[i] = (u[i] - of_row[0]) * of_row[1];
        v[i] *= g[i];
    }
}

/* The sums over the row, of v and of u v, and those over rows. */
TSR_DEVICE void add_row(const struct norm_work *x, unsigned stage, const float *of_row, float *sums)
{
    float g[TSR_BLOCK], u[TSR_BLOCK], v[TSR_BLOCK], sum[TSR_BLOCK];
    for (unsigned turn = 0; turn < x->turns; turn++) {
        slopes(x, stage, turn, of_row, g, u, v);
        for (unsigned i = 0; i < TSR_BLOCK; i++) {
            sums[0] += v[i];
            sums[1] += u[i] * v[i];
        }
        if (x->k->gw.data) {
            sums_get(x->at.sum_w, turn, sum);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                sum[i] += g[i] * u[i];
            sums_set(x->at.sum_w, turn, sum);
        }
        if (x->k->gb.data) {
            sums_get(x->at.sum_b, turn, sum);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                sum[i] += g[i];
            sums_set(x->at.sum_b, turn, sum);
        }
    }
}

/* gx = rstd (v - mean(v) - u mean(u v)) + gh. */
TSR_DEVICE void store_row(const struct norm_work *x, uint64_t row, unsigned stage,
                          const float *of_row, const float *means)
{
    float g[TSR_BLOCK], u[TSR_BLOCK], v[TSR_BLOCK];
    unsigned word = x->at.first_stage + stage * x->at.stage;
    for (unsigned turn = 0; turn < x->turns; turn++) {
        slopes(x, stage, turn, of_row, g, u, v);
        for (unsigned i = 0; i < TSR_BLOCK; i++)
            v[i] = of_row[1] * (v[i] - means[0] - u[i] * means[1]);
        if (x->k->gh.data) {
            take(&x->k->gh, word + x->at.gh, turn, g);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                v[i] += g[i];
        }
        tsr_pack_store_f32(&x->k->gx, row * x->k->shape.columns + column_of(x, turn),
                           TSR_WHOLE_PACK, v);
    }
}

/* Row `row` has come when all but the last stages - 1 groups have. */
TSR_DEVICE void wait_for_row(unsigned stages)
{
    if (stages == 4)
        tsr_copies_wait(3);
    else if (stages == 3)
        tsr_copies_wait(2);
    else
        tsr_copies_wait(1);
}

TSR_DEVICE void load_of_row(const struct tsr_norm *k, uint64_t row, uint64_t end, float *of_row)
{
    of_row[0] = row < end && k->centered ? ((const float *)(const void *)k->mean.data)[row] : 0;
    of_row[1] = row < end ? ((const float *)(const void *)k->rstd.data)[row] : 0;
}

/* A team has every teams-th row from begin + its number on. */
TSR_DEVICE void all_rows(const struct norm_work *x, uint64_t begin, uint64_t end)
{
    unsigned teams = x->team.teams, stages = x->at.stages, stage = 0;
    uint64_t row = begin + x->team.number;
    float columns = (float)x->k->shape.columns, next[2], of_row[2];
    for (unsigned i = 0; i + 1 < stages; i++) {
        if (row + (uint64_t)i * teams < end)
            ask_for_row(x, row + (uint64_t)i * teams, i);
        tsr_copies_mark();
    }
    load_of_row(x->k, row, end, next);
    for (; begin < end; begin += teams, row += teams) {
        uint64_t later = row + (uint64_t)(stages - 1) * teams;
        unsigned free_stage = stage == 0 ? stages - 1 : stage - 1;
        if (later < end)
            ask_for_row(x, later, free_stage);
        tsr_copies_mark();
        of_row[0] = next[0];
        of_row[1] = next[1];
        load_of_row(x->k, row + teams, end, next);
        wait_for_row(stages);
        float sums[2] = {0, 0};
        if (row < end)
            add_row(x, stage, of_row, sums);
        sums[0] = x->k->centered ? tsr_team_sum_f32(&x->team, sums[0]) / columns : 0;
        sums[1] = tsr_team_sum_f32(&x->team, sums[1]) / columns;
        if (row < end)
            store_row(x, row, stage, of_row, sums);
        stage = stage + 1 < stages ? stage + 1 : 0;
    }
}

/* The sums of all teams, in their order. */
TSR_DEVICE void store_sums(const struct norm_work *x, unsigned word, float *parts)
{
    uint64_t columns = x->k->shape.columns, packs = columns / TSR_BLOCK;
    unsigned threads = tsr_threads(), size = x->team.size;
    const float *all = (const float *)tsr_dynamic_shared();
    for (uint64_t pack = tsr_thread(); pack < packs && parts; pack += threads) {
        uint64_t turn = pack / size, lane = pack % size;
        for (unsigned half = 0; half < 2; half++) {
            float sum[4] = {0};
            for (unsigned team = 0; team < x->team.teams; team++)
                for (unsigned i = 0; i < 4; i++)
                    sum[i] +=
                        all[4 * ((word + 2 * turn + half) * threads + team * size + lane) + i];
            for (unsigned i = 0; i < 4; i++)
                parts[tsr_block_x() * columns + pack * TSR_BLOCK + 4 * half + i] = sum[i];
        }
    }
}

TSR_BLOCK_KERNEL(tsr_cuda_norm_gradients, struct tsr_norm_gradients)
{
    struct norm_work x;
    const float zero[TSR_BLOCK] = {0};
    uint64_t begin = tsr_block_x() * k.chunk, end = begin + k.chunk;
    end = end < k.norm.shape.rows ? end : k.norm.shape.rows;
    x.k = &k.norm;
    x.team = tsr_team_of(k.norm.shape.columns, true);
    x.at = tsr_norm_places_of(&k.norm, tsr_threads());
    x.at.stages = k.stages;
    x.turns = tsr_turns_to(&x.team, 0, k.norm.shape.columns);
    ask(&x, &k.norm.w, 0, x.at.w); /* of the first row's group */
    for (unsigned turn = 0; turn < x.turns; turn++) {
        if (k.norm.gw.data)
            sums_set(x.at.sum_w, turn, zero);
        if (k.norm.gb.data)
            sums_set(x.at.sum_b, turn, zero);
    }
    all_rows(&x, begin, end);
    tsr_sync();
    store_sums(&x, x.at.sum_w, k.scaled);
    store_sums(&x, x.at.sum_b, k.plain);
}
