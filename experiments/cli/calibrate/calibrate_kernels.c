/* calibrate_kernels.c: small trainings of two families, in both dialects and two precisions, on one
 * rank of the device: every kernel that a run may meet, as the engine's programs call it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/files/init.h"
#include "experiments/cli/args/progress.h"
#include "experiments/cli/calibrate/calibrate.h"
#include "experiments/study/base/files.h"
#include "experiments/study/job/build.h"

enum { WARM_UP = 1, STEPS = 4, SEED = 7, LAYERS = 1, REPEATS = 4, BLOCK = 65536 };

/* What is varied beside the size. */
struct variant {
    bool gpt2;
    const char *dialect, *param, *reduce, *optimizer;
    uint32_t ranks, chunks; /* ranks 2: what only a sharded job does; chunks: of the loss */
};
static const struct variant variants[] = {{false, "eager", "none", "none", "fused", 1, 1},
                                          {false, "fused", "none", "none", "foreach", 1, 1},
                                          {true, "eager", "none", "none", "loop", 1, 1},
                                          {true, "fused", "none", "none", "fused", 1, 1},
                                          {false, "fused", "bf16", "f32", "fused", 1, 1},
                                          {true, "eager", "bf16", "f32", "fused", 1, 1},
                                          {true, "fused", "bf16", "f32", "fused", 1, 1},
                                          {false, "fused", "bf16", "f32", "fused", 1, 4},
                                          {false, "eager", "none", "none", "fused", 2, 1},
                                          {false, "eager", "bf16", "f32", "fused", 2, 1}};
enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

/* ---- a job ----------------------------------------------------------------------------------- */

struct bench_job {
    struct tsr_experiment experiment;
    struct tsr_job job;
    uint64_t vocab;
    char model[1024]; /* file of the moment */
};

static tsr_status write_model(const struct tsr_calibrate_size *s, bool gpt2, char *path,
                              size_t size)
{
    char text[640];
    if (gpt2)
        snprintf(
            text, sizeof text,
            "{\"model_type\": \"gpt2\", \"n_embd\": %u, \"n_layer\": %d, \"n_head\": %u, "
            "\"n_positions\": %u, \"vocab_size\": %u, \"activation_function\": \"gelu_new\"}\n",
            s->hidden, LAYERS, s->heads, s->seq, s->vocab);
    else
        snprintf(text, sizeof text,
                 "{\"model_type\": \"llama\", \"hidden_size\": %u, \"intermediate_size\": %u, "
                 "\"num_hidden_layers\": %d, \"num_attention_heads\": %u, "
                 "\"num_key_value_heads\": %u, \"vocab_size\": %u, "
                 "\"max_position_embeddings\": %u, \"rms_norm_eps\": 1e-05, \"rope_theta\": "
                 "10000.0, \"tie_word_embeddings\": false, \"hidden_act\": \"silu\"}\n",
                 s->hidden, s->ffn, LAYERS, s->heads, s->kv_heads, s->vocab, s->seq);
    return tsr_temp_file(text, ".json", path, size);
}

static tsr_status load(struct bench_job *j, const struct tsr_calibrate_size *s,
                       const struct variant *v)
{
    char file[1024], texts[9][1100];
    const char *sets[9];
    snprintf(texts[0], sizeof *texts, "model.name=%s", j->model);
    snprintf(texts[1], sizeof *texts, "world=%u", v->ranks);
    snprintf(texts[2], sizeof *texts, "batch=%u", s->batch);
    snprintf(texts[3], sizeof *texts, "seq=%u", s->seq);
    snprintf(texts[4], sizeof *texts, "dialect=%s", v->dialect);
    snprintf(texts[5], sizeof *texts, "precision.param=%s", v->param);
    snprintf(texts[6], sizeof *texts, "precision.reduce=%s", v->reduce);
    snprintf(texts[7], sizeof *texts, "optimizer.variant=%s", v->optimizer);
    snprintf(texts[8], sizeof *texts, "loss.chunks=%u", v->chunks);
    for (size_t i = 0; i < 9; i++)
        sets[i] = texts[i];
    TSR_TRY(tsr_temp_file("optimizer: {name: adamw}\nclip: true\n", ".yaml", file, sizeof file));
    tsr_status status = tsr_experiment_load(file, sets, 9, &j->experiment);
    tsr_file_remove(NULL, file);
    TSR_TRY(status);
    status =
        tsr_job_open(&j->experiment, &j->experiment.strategies[0], TSR_MAY_LACK_CLUSTER, &j->job);
    if (status != TSR_OK)
        tsr_experiment_fini(&j->experiment);
    j->job.executes = true;
    return status;
}

static tsr_status open_job(const struct tsr_calibrate_size *s, const struct variant *v,
                           struct bench_job *out)
{
    *out = (struct bench_job){.vocab = s->vocab};
    TSR_TRY(write_model(s, v->gpt2, out->model, sizeof out->model));
    tsr_status status = load(out, s, v);
    tsr_file_remove(NULL, out->model);
    return status;
}

static void close_job(struct bench_job *j)
{
    tsr_job_close(&j->job);
    tsr_experiment_fini(&j->experiment);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Random numbers, as products of zeros would heat nothing; one block of them again and again. */
static tsr_status init(void *user, const struct tsr_piece *piece, void *out)
{
    struct tsr_piece block = {
        .dtype = piece->dtype, .n_dims = 1, .init = piece->init, .constant = piece->constant};
    uint64_t n = 1, item = tsr_dtype_bytes((tsr_dtype)piece->dtype);
    (void)user;
    for (int d = 0; d < piece->n_dims; d++)
        n *= piece->size[d];
    block.shape[0] = block.size[0] = tsr_min_u64(n, BLOCK);
    if (n == 0)
        return TSR_OK;
    TSR_TRY(tsr_init_piece(SEED, &block, 1, out));
    for (uint64_t at = BLOCK; at < n; at += BLOCK)
        memcpy((char *)out + at * item, out, tsr_min_u64(n - at, BLOCK) * item);
    return TSR_OK;
}

static tsr_status batch(void *user, uint32_t iteration, uint32_t micro, enum tsr_batch_part part,
                        bool eval, tsr_dtype dtype, void *out, uint64_t bytes)
{
    const struct bench_job *j = user;
    int64_t *tokens = out;
    (void)eval;
    (void)dtype; /* models that take tokens */
    for (uint64_t i = 0; i < bytes / sizeof *tokens; i++)
        tokens[i] = (int64_t)((i * 31 + iteration * 7 + micro + part) % j->vocab);
    return TSR_OK;
}

static tsr_status report(void *user, uint32_t iteration, uint32_t micro, enum tsr_report what,
                         bool eval, double value)
{
    (void)user;
    (void)iteration;
    (void)micro;
    (void)what;
    (void)eval;
    (void)value;
    return TSR_OK;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

/* What ran, by number of instruction: the recorder sees all of them. */
struct bench_run {
    struct tsr_program program;
    struct tsr_recorder recorder;
    struct tsr_executor *executor;
    struct tsr_engine *engine;
    size_t timed; /* first instruction behind the warm-up */
};

static tsr_status run_steps(struct bench_run *b, const struct bench_job *j,
                            const struct tsr_calibrate_rank *r)
{
    const struct tsr_run_settings *t = &j->job.settings->run;
    double values[TSR_N_SCALARS] = {[TSR_SCALAR_LR] = t->lr,
                                    [TSR_SCALAR_BETA1] = t->beta1,
                                    [TSR_SCALAR_BETA2] = t->beta2,
                                    [TSR_SCALAR_EPS] = t->eps,
                                    [TSR_SCALAR_WEIGHT_DECAY] = t->weight_decay,
                                    [TSR_SCALAR_MAX_NORM] = t->max_norm};
    TSR_TRY(tsr_build(&j->job, r->rank, b->executor, &b->engine));
    tsr_exec_set_tables(b->executor, tsr_engine_tables(b->engine));
    for (uint32_t i = 0; i <= WARM_UP + STEPS; i++) {
        values[TSR_SCALAR_STEP] = i ? i : 1;
        for (int k = 0; k < TSR_N_SCALARS; k++)
            tsr_exec_set_scalar(b->executor, (enum tsr_scalar)k, values[k]);
        TSR_TRY(i == 0 ? tsr_engine_init_params(b->engine) : tsr_step_run(b->engine, i - 1));
        TSR_TRY(b->executor->ops->drain(b->executor));
        if (i == WARM_UP)
            b->timed = b->program.n_instrs;
    }
    return TSR_OK;
}

static tsr_status take_kernels(struct bench_run *b, struct tsr_calibrate_rank *r)
{
    struct tsr_exec_span *spans = NULL;
    size_t n = 0;
    tsr_status status = tsr_exec_take_spans(b->executor, &spans, &n);
    for (size_t i = 0; i < n && status == TSR_OK; i++) {
        if (spans[i].number < b->timed || spans[i].number >= b->program.n_instrs)
            continue;
        const struct tsr_instr *instr = &b->program.instrs[spans[i].number];
        if (instr->kind != TSR_OP || !instr->work)
            continue;
        r->seconds += (spans[i].end - spans[i].begin) / STEPS;
        if (r->times)
            status = tsr_times_kernel(r->times, instr->work, spans[i].end - spans[i].begin);
    }
    free(spans);
    return status;
}

static tsr_status take_host(struct bench_run *b, struct tsr_calibrate_rank *r)
{
    size_t n;
    const double *issues = tsr_exec_issue_times(b->executor, &n);
    for (size_t i = b->timed; r->times && i + 1 < n && i < b->program.n_instrs; i++)
        TSR_TRY(tsr_times_host(r->times, &b->program.instrs[i], issues[i + 1] - issues[i]));
    return TSR_OK;
}

static tsr_status run_rank(struct tsr_calibrate_rank *r)
{
    const struct bench_job *j = r->job;
    const struct tsr_source source = {
        .user = (void *)j, .init = init, .batch = batch, .report = report};
    struct bench_run b = {0};
    tsr_status status;
    tsr_program_init(&b.program, NULL);
    tsr_recorder_init(&b.recorder, &b.program);
    TSR_GOTO(done, r->device->rank(r, &source, &b.recorder.base, &b.executor));
    TSR_GOTO(done, run_steps(&b, j, r));
    TSR_GOTO(done, take_kernels(&b, r));
    TSR_GOTO(done, take_host(&b, r));

done:
    if (b.executor) /* its streams use the engine's names */
        b.executor->ops->destroy(b.executor);
    tsr_program_fini(&b.program);
    tsr_engine_destroy(b.engine);
    return status;
}

/* ---- all ------------------------------------------------------------------------------------- */

static tsr_status run_one(const struct tsr_calibrated *device, const struct tsr_calibrate_size *s,
                          const struct variant *v, struct tsr_times *times)
{
    struct bench_job j;
    TSR_TRY(open_job(s, v, &j));
    tsr_status status = tsr_calibrate_group(device, &j, v->ranks, true, run_rank, times, NULL);
    close_job(&j);
    return status;
}

static tsr_status least_of(const struct tsr_calibrated *device, const struct bench_job *j,
                           uint32_t ranks, double *least)
{
    double seconds;
    TSR_TRY(tsr_calibrate_group(device, j, ranks, false, run_rank, NULL, &seconds));
    if (*least == 0 || seconds < *least)
        *least = seconds;
    return TSR_OK;
}

/* As many ranks as there are cores, each in a world of its own, beside one alone: by what kernels
 * take longer then, cores share memory, or are shared themselves. The least of some repetitions:
 * what else the machine does is no property of it. */
static tsr_status time_cores(const struct tsr_calibrated *device, struct tsr_times *times)
{
    struct bench_job j;
    double alone = 0, together = 0;
    TSR_TRY(open_job(&device->sizes[device->n_sizes / 2], &variants[0], &j));
    tsr_status status = TSR_OK;
    for (int i = 0; i < REPEATS; i++) {
        TSR_GOTO(done, least_of(device, &j, 1, &alone));
        TSR_GOTO(done, least_of(device, &j, device->cores, &together));
    }
    double effective = together > 0 ? device->cores * alone / together : device->cores;
    times->effective_cores = effective < 1               ? 1
                             : effective > device->cores ? device->cores
                                                         : effective;

done:
    close_job(&j);
    return status;
}

/* Parameters with their gradients and states, and activations of two layers, about; an allocator
 * takes more. */
static bool fits(const struct tsr_calibrated *device, const struct tsr_calibrate_size *s,
                 uint32_t ranks)
{
    double share = (double)device->memory / (device->shared ? ranks : 1);
    double h = s->hidden, v = s->vocab, tokens = (double)s->batch * s->seq;
    double params = 2 * v * h + LAYERS * (4 * h * h + 3 * h * s->ffn);
    double activations = tokens * (12 * v + LAYERS * 4 * (16 * h + 8 * (double)s->ffn));
    return 2 * (18 * params + activations) < share;
}

static tsr_status run_if(const struct tsr_calibrated *device, const struct tsr_calibrate_size *s,
                         const struct variant *v, struct tsr_times *times)
{
    bool is_f32 = !strcmp(v->param, "none");
    bool runs = fits(device, s, v->ranks) && v->ranks <= device->ranks && !(is_f32 && s->only_bf16);
    return runs ? run_one(device, s, v, times) : TSR_OK;
}

tsr_status tsr_calibrate_kernels(const struct tsr_calibrated *device, struct tsr_times *times)
{
    struct tsr_progress progress;
    size_t n = N_VARIANTS * device->n_sizes;
    tsr_status status = TSR_OK;
    tsr_progress_begin(&progress, n);
    for (size_t i = 0; i < n; i++) {
        const struct tsr_calibrate_size *size = &device->sizes[i / N_VARIANTS];
        tsr_progress_show(&progress, i, "kernels");
        TSR_GOTO(done, run_if(device, size, &variants[i % N_VARIANTS], times));
    }
    if (device->cores)
        TSR_GOTO(done, time_cores(device, times));

done:
    tsr_progress_end(&progress);
    return status;
}
