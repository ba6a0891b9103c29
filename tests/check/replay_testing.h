/* replay_testing.h: a recorded family (study/families.h) on the host: all ranks as threads of this
 * process, rank 0 perhaps with another sequence than the recorded one; and what is left of it: all
 * memory that is still allocated at the end, parameters, gradients and states of the optimizer.
 *
 * A block is filled with NaN on its stream when it is allocated, and again when it is freed, right
 * before the next work of the stream that it was allocated on, as if an allocator had given it to
 * that work. Until then it stays allocated. So a free that comes too early shows, whatever
 * addresses the recorded program hands out. (The executor's own poison is the first of the two, and
 * writes megabytes of scratch.)
 */
#ifndef TSR_REPLAY_TESTING_H
#define TSR_REPLAY_TESTING_H

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/files/init.h"
#include "exec/host/host_device.h"
#include "exec/kernels/grid/grid_initial.h"
#include "tests/check/study/families.h"

enum { REPLAY_WORDS = 16 /* tokens that every family's model knows */, REPLAY_TEXT = 256 };

struct replay;

struct replay_rank {
    struct replay *run;
    const struct sequence *s;
    struct tsr_world *world;
    struct tsr_executor *x;
    pthread_t thread;
    struct tsr_instr *alive,
        *held; /* ALLOCs: of what lives; of what is freed and not yet given up */
    size_t n_alive, cap_alive, n_held, cap_held;
    /* what is left */
    uint64_t values;                /* a hash */
    size_t n_bytes, n_words, n_nan; /* words: of parameters */
    tsr_status status;
    char text[REPLAY_TEXT];
};

struct replay {
    const struct recorded *r;
    const struct sequence *first; /* of rank 0 */
    uint32_t jitter_us;           /* 0: one task after the other */
    uint64_t seed;
    struct replay_rank ranks[FAMILY_RANKS];
};

/* ---- the source ------------------------------------------------------------------------------ */

static tsr_status replay_init(void *user, const struct tsr_piece *piece, void *out)
{
    (void)user;
    return tsr_init_piece(1, piece, 1, out);
}

/* Ranks that cut tensors between them see the same batch. */
static uint32_t replay_data_rank(const struct sequence *s)
{
    for (uint16_t i = 0; i < s->tables->n_comms; i++)
        if (!strcmp(s->tables->comms[i].name, "tp"))
            return s->rank / s->tables->comms[i].size;
    return s->rank;
}

static tsr_status replay_batch(void *user, uint32_t iteration, uint32_t micro,
                               enum tsr_batch_part part, bool eval, tsr_dtype dtype, void *out,
                               uint64_t bytes)
{
    const struct replay_rank *r = user;
    const uint32_t key[2] = {iteration, micro};
    int64_t *tokens = out;
    if (dtype != TSR_I64 || bytes % sizeof *tokens || eval)
        return tsr_fail(TSR_EDEFECT, "a batch that no family has");
    for (uint32_t i = 0; i < bytes / sizeof *tokens; i++) {
        uint32_t words[4];
        tsr_philox((const uint32_t[4]){i, replay_data_rank(r->s), part}, key, words);
        tokens[i] = words[0] % (r->run->r->words ? r->run->r->words : REPLAY_WORDS);
    }
    return TSR_OK;
}

/* What the hook of a family does: half of everything. */
static tsr_status replay_hook(const struct tsr_kernel_call *call)
{
    for (uint32_t i = 0; i < call->n_views; i++) {
        float *v = call->views[i].data;
        if (call->views[i].dtype != TSR_F32)
            return tsr_fail(TSR_EDEFECT, "a hook of no f32");
        for (uint64_t k = 0; k < call->views[i].bytes / sizeof *v; k++)
            v[k] *= 0.5F;
    }
    return TSR_OK;
}

static const struct tsr_user_kernel replay_kernels[] = {{"hook", replay_hook}};
enum { N_REPLAY_KERNELS = sizeof replay_kernels / sizeof *replay_kernels };

/* Has the host all that the family asks of it? If not: *why, borrowed. */
static inline bool replay_can(const struct recorded *r, const char **why)
{
    for (uint32_t rank = 0; rank < r->world; rank++)
        for (size_t i = 0; i < r->sequences[rank].n; i++)
            if (tsr_exec_supports(NULL, &r->sequences[rank].v[i], replay_kernels,
                                  N_REPLAY_KERNELS)) {
                *why = tsr_error_text();
                return false;
            }
    return true;
}

/* ---- freed memory ---------------------------------------------------------------------------- */

static tsr_status replay_submit(struct replay_rank *r, const struct tsr_instr *v)
{
    return r->x->ops->submit(r->x, v);
}

static tsr_status replay_give_up(struct replay_rank *r, size_t i)
{
    struct tsr_instr v = r->held[i];
    v.kind = TSR_FREE;
    r->held[i] = r->held[--r->n_held];
    return replay_submit(r, &v);
}

/* Scratch of matrix products: megabytes that nobody reads. */
static bool replay_is_scratch(const struct tsr_instr *alloc)
{
    return alloc->category == TSR_CAT_WORKSPACE;
}

/* All of a block, in the order of its stream. */
static tsr_status replay_poison(struct replay_rank *r, const struct tsr_instr *alloc)
{
    const struct tsr_operand all = {.buffer = alloc->buffer,
                                    .access = TSR_WRITE,
                                    .dtype = TSR_F32,
                                    .bytes = alloc->block_bytes};
    const struct tsr_instr fill = {.kind = TSR_FILL,
                                   .stream = alloc->stream,
                                   .comm = UINT16_MAX,
                                   .n_operands = 1,
                                   .operands = &all,
                                   .bytes = all.bytes,
                                   .factor = NAN,
                                   .origin = alloc->origin};
    return replay_is_scratch(alloc) ? TSR_OK : replay_submit(r, &fill);
}

/* Before `stream` works: what was freed there may be this work's. */
static tsr_status replay_overwrite(struct replay_rank *r, uint16_t stream)
{
    for (size_t i = r->n_held; i-- > 0;) {
        if (r->held[i].stream != stream)
            continue;
        TSR_TRY(replay_poison(r, &r->held[i]));
        TSR_TRY(replay_give_up(r, i));
    }
    return TSR_OK;
}

/* Another owner, or the device, gets [address, address + bytes). */
static tsr_status replay_clear(struct replay_rank *r, uint64_t address, uint64_t bytes)
{
    for (size_t i = r->n_held; i-- > 0;) {
        const struct tsr_instr *h = &r->held[i];
        if (h->address < address + bytes && address < h->address + h->block_bytes)
            TSR_TRY(replay_give_up(r, i));
    }
    return TSR_OK;
}

static tsr_status replay_alloc(struct replay_rank *r, const struct tsr_instr *v)
{
    if (v->kind == TSR_ALLOC)
        TSR_TRY(replay_clear(r, v->address, v->block_bytes));
    if (!TSR_PUSH(r->alive, r->n_alive, r->cap_alive, *v))
        return tsr_fail(TSR_ENOMEM, "out of memory: what lives");
    TSR_TRY(replay_submit(r, v));
    return v->kind == TSR_ALLOC ? replay_poison(r, v) : TSR_OK;
}

static tsr_status replay_free(struct replay_rank *r, const struct tsr_instr *v)
{
    size_t i = 0;
    while (i < r->n_alive && r->alive[i].buffer != v->buffer)
        i++;
    if (i == r->n_alive)
        return tsr_fail(TSR_EDEFECT, "buffer %u is freed and does not live", v->buffer);
    struct tsr_instr alloc = r->alive[i];
    memmove(r->alive + i, r->alive + i + 1, (r->n_alive - i - 1) * sizeof alloc);
    r->n_alive--;
    if (v->kind == TSR_HOST_FREE)
        return replay_submit(r, v);
    if (!TSR_PUSH(r->held, r->n_held, r->cap_held, alloc))
        return tsr_fail(TSR_ENOMEM, "out of memory: what is freed");
    return TSR_OK;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static void replay_scalars(struct replay_rank *r, uint32_t iteration)
{
    const double values[TSR_N_SCALARS] = {[TSR_SCALAR_LR] = 0.01,
                                          [TSR_SCALAR_BETA1] = 0.9,
                                          [TSR_SCALAR_BETA2] = 0.99,
                                          [TSR_SCALAR_EPS] = 1e-8,
                                          [TSR_SCALAR_WEIGHT_DECAY] = 0.1,
                                          [TSR_SCALAR_MOMENTUM] = 0.9,
                                          [TSR_SCALAR_STEP] = iteration + 1,
                                          [TSR_SCALAR_MAX_NORM] = 0.1};
    for (int i = 0; i < TSR_N_SCALARS; i++)
        tsr_exec_set_scalar(r->x, (enum tsr_scalar)i, values[i]);
}

static tsr_status replay_instr(struct replay_rank *r, const struct tsr_instr *v)
{
    switch (v->kind) {
    case TSR_MARK:
        if (v->mark == TSR_MARK_ITERATION)
            replay_scalars(r, v->value);
        return TSR_OK;
    case TSR_ALLOC:
    case TSR_HOST_ALLOC:
        return replay_alloc(r, v);
    case TSR_FREE:
    case TSR_HOST_FREE:
        return replay_free(r, v);
    case TSR_SEGMENT_FREE:
        TSR_TRY(replay_clear(r, v->address, v->bytes));
        break;
    case TSR_SEGMENT_ALLOC:
    case TSR_PIN:
    case TSR_RECORD:
    case TSR_WAIT:
    case TSR_HOST_WAIT:
    case TSR_HOST_READ:
    case TSR_HOST_OP:
        break;
    default:
        TSR_TRY(replay_overwrite(r, v->stream));
    }
    return replay_submit(r, v);
}

/* All that was asked for and lives at the end: parameters, states of the optimizer, ... */
static void replay_look(struct replay_rank *r)
{
    for (size_t i = 0; i < r->n_alive; i++) {
        const struct tsr_instr *a = &r->alive[i];
        if (replay_is_scratch(a))
            continue;
        const char *data = tsr_exec_peek(r->x, a->buffer);
        r->values = tsr_hash_bytes(r->values, data, a->bytes);
        r->n_bytes += a->bytes;
        for (uint64_t k = 0; a->category == TSR_CAT_SHARDED_PARAM && k + 4 <= a->bytes; k += 4) {
            float word;
            memcpy(&word, data + k, sizeof word);
            r->n_words++;
            r->n_nan += isnan(word) != 0;
        }
    }
}

static tsr_status replay_program(struct replay_rank *r)
{
    const struct replay *run = r->run;
    const struct tsr_source source = {.user = r, .init = replay_init, .batch = replay_batch};
    const struct tsr_host_rank_config config = {.world = r->world,
                                                .source = &source,
                                                .n_kernels = N_REPLAY_KERNELS,
                                                .kernels = replay_kernels,
                                                .jitter_us = run->jitter_us,
                                                .jitter_seed = run->seed + 97 * r->s->rank,
                                                .serial = run->jitter_us == 0};
    TSR_TRY(tsr_host_rank_create(&config, &r->x));
    tsr_exec_set_tables(r->x, r->s->tables);
    replay_scalars(r, 0);
    for (size_t i = 0; i < r->s->n; i++)
        TSR_TRY(replay_instr(r, &r->s->v[i]));
    TSR_TRY(r->x->ops->drain(r->x));
    replay_look(r);
    return TSR_OK;
}

static void *replay_rank_main(void *user)
{
    struct replay_rank *r = user;
    r->status = replay_program(r);
    if (r->status != TSR_OK) {
        snprintf(r->text, sizeof r->text, "%s", tsr_error_text());
        r->world->ops->abort(r->world, r->status, r->text);
    }
    if (r->x)
        r->x->ops->destroy(r->x);
    free(r->alive);
    free(r->held);
    return NULL;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

/* `run` and what it points to stay until replay_join(). */
static inline void replay_start(struct replay *run)
{
    struct tsr_world *worlds[FAMILY_RANKS];
    if (tsr_world_threads(run->r->world, 60, worlds) != TSR_OK)
        abort();
    for (uint32_t i = 0; i < run->r->world; i++) {
        struct replay_rank *r = &run->ranks[i];
        *r = (struct replay_rank){.run = run, .world = worlds[i], .s = &run->r->sequences[i]};
        if (i == 0)
            r->s = run->first;
        if (pthread_create(&r->thread, NULL, replay_rank_main, r) != 0)
            abort();
    }
}

static inline void replay_join(struct replay *run)
{
    for (uint32_t i = 0; i < run->r->world; i++)
        pthread_join(run->ranks[i].thread, NULL);
    for (uint32_t i = 0; i < run->r->world; i++)
        run->ranks[i].world->ops->destroy(run->ranks[i].world);
}

/* Did the runs leave the same, bit for bit? If not: where, and what is different. */
static inline bool replay_same(const struct replay *a, const struct replay *b, char *why,
                               size_t size)
{
    for (uint32_t i = 0; i < a->r->world; i++) {
        const struct replay_rank *x = &a->ranks[i], *y = &b->ranks[i];
        if (x->status != TSR_OK || y->status != TSR_OK) {
            snprintf(why, size, "rank %u: %s", i, x->status != TSR_OK ? x->text : y->text);
            return false;
        }
        if (x->values == y->values && x->n_bytes == y->n_bytes)
            continue;
        snprintf(why, size, "rank %u: other values, %zu parameters are NaN", i,
                 x->n_nan > y->n_nan ? x->n_nan : y->n_nan);
        return false;
    }
    return true;
}

#endif
