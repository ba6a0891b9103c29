/* bench_memory.c: how long it takes to know the memory of Llama-3.1-8B: of one step, and of 500
 * configurations from nothing (model, wrapping, initialisation, two iterations, their replay).
 * Nothing is simulated.
 */
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/program/executor.h"
#include "engine/program/memory.h"
#include "engine/tessera.h"

static const double step_target_s = 0.03, sweep_target_s = 30.0;

enum { N_LAYERS = 32, N_CONFIGS = 500, N_ITERATIONS = 2 };

struct config {
    uint32_t world;
    uint64_t batch, seq;
    bool reshard, checkpoint, bf16_reduce;
    unsigned prefetch; /* blocks ahead; 0: implicit */
};

struct measured {
    double set_up, emit[N_ITERATIONS], replay; /* seconds; replay: of the last iteration */
    uint64_t peak, n_instrs;                   /* of the last iteration */
};

/* ---- one configuration ----------------------------------------------------------------------- */

static tsr_status prefetch(struct tsr_engine *e, struct tsr_module *const *layers, unsigned n)
{
    for (unsigned i = 0; n && i < N_LAYERS; i++) {
        unsigned ahead = i + n < N_LAYERS ? n : N_LAYERS - 1 - i;
        TSR_TRY(tsr_set_forward_prefetch(e, layers[i], layers + i + 1, ahead));
    }
    return TSR_OK;
}

static tsr_status wrap(struct tsr_engine *e, const struct config *c)
{
    const struct tsr_wrap_options options = {
        .reshard = c->reshard ? TSR_RESHARD_TRUE : TSR_RESHARD_FALSE,
        .mp = {.param = TSR_BF16, .reduce = c->bf16_reduce ? TSR_BF16 : TSR_F32},
    };
    struct tsr_module *layers[N_LAYERS], *root = tsr_module_root(e);
    char fqn[32];
    for (int i = 0; i < N_LAYERS; i++) {
        (void)snprintf(fqn, sizeof fqn, "model.layers.%d", i);
        layers[i] = tsr_module_find(e, fqn);
        if (c->checkpoint)
            TSR_TRY(tsr_checkpoint(e, layers[i], false, true));
        TSR_TRY(tsr_fully_shard(e, &layers[i], 1, &options));
    }
    TSR_TRY(tsr_fully_shard(e, &root, 1, &options));
    return prefetch(e, layers, c->prefetch);
}

static tsr_status set_up(struct tsr_engine *e, const struct config *c)
{
    const struct tsr_llama_config model = {.hidden_size = 4096,
                                           .intermediate_size = 14336,
                                           .n_layers = N_LAYERS,
                                           .n_heads = 32,
                                           .n_kv_heads = 8,
                                           .head_dim = 128,
                                           .vocab_size = 128256,
                                           .max_positions = 8192};
    const struct tsr_step_config step = {.batch = c->batch, .seq = c->seq, .n_micro = 1};
    TSR_TRY(tsr_model_llama(e, &model));
    TSR_TRY(wrap(e, c));
    TSR_TRY(tsr_step_configure(e, &step));
    return tsr_engine_init_params(e);
}

static tsr_status replay(struct tsr_memory *memory, const struct tsr_program *program,
                         struct measured *m)
{
    struct tsr_memory_peak peak;
    double start = bench_now();
    TSR_TRY(tsr_memory_replay(memory, program, NULL, NULL, &peak));
    m->replay = bench_now() - start;
    m->peak = peak.allocated;
    m->n_instrs = program->n_instrs;
    return TSR_OK;
}

/* The programs of the initialisation and of each iteration, each replayed. */
static tsr_status run(struct tsr_engine *e, struct tsr_program *program, struct tsr_memory *memory,
                      const struct config *c, struct measured *m)
{
    double start = bench_now();
    TSR_TRY(set_up(e, c));
    TSR_TRY(replay(memory, program, m));
    m->set_up = bench_now() - start;
    for (uint32_t i = 0; i < N_ITERATIONS; i++) {
        tsr_program_fini(program);
        tsr_program_init(program, tsr_engine_tables(e));
        start = bench_now();
        TSR_TRY(tsr_step_run(e, i));
        m->emit[i] = bench_now() - start;
        TSR_TRY(replay(memory, program, m));
    }
    return TSR_OK;
}

static tsr_status measure(const struct config *c, struct measured *m)
{
    struct tsr_program program;
    struct tsr_recorder recorder;
    struct tsr_memory *memory = NULL;
    struct tsr_engine *e = NULL;
    tsr_program_init(&program, NULL);
    tsr_recorder_init(&recorder, &program);
    const struct tsr_engine_config config = {
        .mesh = {.n_dims = 1, .shape = {c->world}, .name = {"shard"}}, .executor = &recorder.base};
    tsr_status status = tsr_engine_create(&config, &e);
    if (status == TSR_OK)
        status = tsr_memory_create(&memory);
    if (status == TSR_OK) {
        program.tables = tsr_engine_tables(e);
        status = run(e, &program, memory, c, m);
    }
    tsr_memory_destroy(memory);
    tsr_program_fini(&program);
    tsr_engine_destroy(e);
    if (status != TSR_OK)
        fprintf(stderr, "bench: %s\n", tsr_error_text());
    return status;
}

/* ---- figures --------------------------------------------------------------------------------- */

static int bench_step(void)
{
    const struct config c = {.world = 8, .batch = 1, .seq = 8192, .reshard = true};
    struct measured best = {.replay = 0};
    double best_s = 0.0;
    for (int i = 0; i < 7; i++) {
        struct measured m;
        if (measure(&c, &m) != TSR_OK)
            return 1;
        double s = m.emit[N_ITERATIONS - 1] + m.replay;
        if (i == 0 || s < best_s) {
            best = m;
            best_s = s;
        }
    }
    printf("memory of a Llama-3.1-8B step, 8 ranks: %llu instructions, peak %.2f GiB\n"
           "  emission %.2f ms, replay %.2f ms, together %.2f ms (%.2f of target); before it: "
           "set-up %.2f ms, first step %.2f ms\n",
           (unsigned long long)best.n_instrs, (double)best.peak / (1 << 30),
           1e3 * best.emit[N_ITERATIONS - 1], 1e3 * best.replay, 1e3 * best_s,
           best_s / step_target_s, 1e3 * best.set_up, 1e3 * best.emit[0]);
    return 0;
}

/* 500 different ones: world, batch and length, what is kept, what is recomputed, what is fetched
 * ahead. */
static struct config nth_config(unsigned i)
{
    static const uint32_t worlds[] = {8, 16, 64, 256, 1024};
    static const uint64_t lengths[] = {1024, 2048, 4096, 8192};
    struct config c = {.world = worlds[i % 5], .seq = lengths[i / 5 % 4]};
    c.reshard = i / 20 % 2 == 0;
    c.checkpoint = i / 40 % 2 == 1;
    c.prefetch = i / 80 % 3;
    c.bf16_reduce = i / 240 % 2 == 1;
    c.batch = 1 + i / 480;
    return c;
}

static int bench_sweep(void)
{
    uint64_t least = UINT64_MAX, most = 0;
    double start = bench_now();
    for (unsigned i = 0; i < N_CONFIGS; i++) {
        struct config c = nth_config(i);
        struct measured m;
        if (measure(&c, &m) != TSR_OK)
            return 1;
        least = m.peak < least ? m.peak : least;
        most = m.peak > most ? m.peak : most;
    }
    double wall = bench_now() - start;
    printf("memory of %d configurations of Llama-3.1-8B: %.2f s (%.2f of target), %.1f ms each; "
           "peaks from %.1f to %.1f GiB\n",
           N_CONFIGS, wall, wall / sweep_target_s, 1e3 * wall / N_CONFIGS,
           (double)least / (1 << 30), (double)most / (1 << 30));
    return 0;
}

int bench_memory(void)
{
    return bench_step() | bench_sweep();
}
