/* synthetic.h: a made-up FSDP job with times, for tests of the report: programs of the
 * initialisation and three iterations, and the spans that a simple replay gives them.
 *
 * It follows fully_shard in outline only (blocks gathered one ahead, freed, gathered again in
 * backward, reduced); sizes are those of a Llama block. The real engine is tested elsewhere.
 */
#ifndef TSR_TESTS_SYNTHETIC_H
#define TSR_TESTS_SYNTHETIC_H

#include "experiments/study/job/result.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SYNTH_MAX_BLOCKS = 64, SYNTH_ITERATIONS = 4, SYNTH_CHILDREN = 4 };
enum { SYNTH_COMPUTE, SYNTH_COPY_IN, SYNTH_GATHER, SYNTH_REDUCE, SYNTH_STREAMS };

struct synth_options {
    uint32_t n_blocks, world;
    uint64_t tokens;     /* of a step of one GPU */
    double comm_slow;    /* multiplies the time of collectives */
    bool keep_unsharded; /* reshard_after_forward = False */
};

struct synth_tensor {
    uint32_t buffer;
    uint8_t category;
    uint64_t bytes;
};

struct synth {
    struct synth_options options;
    struct tsr_tables tables;
    char *modules[SYNTH_MAX_BLOCKS * (SYNTH_CHILDREN + 1) + 8];
    char *groups[SYNTH_MAX_BLOCKS + 1];
    struct tsr_stream_info streams[SYNTH_STREAMS];
    struct tsr_comm comms[1];
    struct tsr_program programs[SYNTH_ITERATIONS];
    const struct tsr_program *program_list[SYNTH_ITERATIONS];
    struct tsr_sim_span *spans[SYNTH_ITERATIONS];
    size_t span_cap[SYNTH_ITERATIONS];
    double iteration_end[SYNTH_ITERATIONS];
    /* the state of the emission and of the clocks */
    int at; /* index of the iteration */
    uint32_t next_buffer, next_event;
    double host, tail[SYNTH_STREAMS], events[65536];
    struct tsr_origin origin;
    struct synth_tensor full[SYNTH_MAX_BLOCKS + 1], saved[SYNTH_MAX_BLOCKS + 1],
        grads[SYNTH_MAX_BLOCKS + 1];
    struct synth_tensor gathering[SYNTH_MAX_BLOCKS + 1], reducing;
    uint32_t gathered[SYNTH_MAX_BLOCKS + 1], copied_out, reduced; /* events */
    struct tsr_detail detail;
    struct tsr_row row;
    struct tsr_study_info info;
};

static void synth_check(bool ok)
{
    if (!ok) {
        fprintf(stderr, "synthetic job: %s\n", tsr_error_text());
        abort();
    }
}

/* ---- emission ----------------------------------------------------------------------------- */

static void synth_emit(struct synth *s, struct tsr_instr instr, double host_s, double device_s)
{
    struct tsr_program *program = &s->programs[s->at];
    s->host += host_s;
    struct tsr_sim_span span = {s->host, s->host, s->host};
    instr.origin = s->origin;
    if (device_s >= 0) {
        double *tail = &s->tail[instr.stream];
        span.start = *tail > s->host ? *tail : s->host;
        span.end = *tail = span.start + device_s;
    }
    size_t n = program->n_instrs;
    synth_check(tsr_grow(&s->spans[s->at], n, &s->span_cap[s->at], sizeof span));
    s->spans[s->at][n] = span;
    synth_check(tsr_program_append(program, &instr) == TSR_OK);
}

static struct synth_tensor synth_alloc(struct synth *s, enum tsr_category category, double bytes)
{
    struct synth_tensor t = {s->next_buffer++, (uint8_t)category,
                             tsr_round_up((uint64_t)bytes + 1, 512)};
    struct tsr_instr segment = {
        .kind = TSR_SEGMENT_ALLOC, .bytes = t.bytes, .segment = t.buffer, .comm = UINT16_MAX};
    if (s->at == 0) /* the pool: what the initialisation takes; later ones reuse it */
        synth_emit(s, segment, 1e-5, -1);
    struct tsr_instr alloc = {.kind = TSR_ALLOC,
                              .category = t.category,
                              .buffer = t.buffer,
                              .bytes = (uint64_t)bytes,
                              .block_bytes = t.bytes,
                              .comm = UINT16_MAX};
    synth_emit(s, alloc, 5e-7, -1);
    return t;
}

static void synth_free(struct synth *s, struct synth_tensor *t)
{
    struct tsr_instr instr = {.kind = TSR_FREE,
                              .category = t->category,
                              .buffer = t->buffer,
                              .block_bytes = t->bytes,
                              .comm = UINT16_MAX};
    if (t->bytes)
        synth_emit(s, instr, 5e-7, -1);
    t->bytes = 0;
}

static void synth_op(struct synth *s, uint16_t stream, enum tsr_op_kind op, const char *name,
                     double seconds)
{
    struct tsr_work work = {.op = (uint8_t)op,
                            .dtype = TSR_BF16,
                            .name = name,
                            .flops = seconds * 6e14,
                            .bytes_read = 1024,
                            .bytes_written = 1024};
    struct tsr_instr instr = {.kind = TSR_OP, .stream = stream, .work = &work, .comm = UINT16_MAX};
    synth_emit(s, instr, 5e-6, seconds);
}

static void synth_collective(struct synth *s, enum tsr_instr_kind kind, uint16_t stream,
                             enum tsr_dtype dtype, double bytes)
{
    struct tsr_instr instr = {.kind = (uint8_t)kind,
                              .dtype = (uint8_t)dtype,
                              .stream = stream,
                              .reduce_op =
                                  kind == TSR_ALL_GATHER ? TSR_REDUCE_NONE : TSR_REDUCE_AVG,
                              .bytes = (uint64_t)bytes};
    synth_emit(s, instr, 3e-5, (2e-5 + bytes / 350e9) * s->options.comm_slow);
}

static uint32_t synth_record(struct synth *s, uint16_t stream)
{
    uint32_t event = s->next_event++;
    synth_check(event < 65536);
    struct tsr_instr instr = {
        .kind = TSR_RECORD, .stream = stream, .event = event, .comm = UINT16_MAX};
    synth_emit(s, instr, 1e-6, 0);
    s->events[event] = s->tail[stream];
    return event;
}

static void synth_wait(struct synth *s, uint16_t stream, uint32_t event)
{
    struct tsr_instr instr = {
        .kind = TSR_WAIT, .stream = stream, .event = event, .comm = UINT16_MAX};
    if (s->events[event] > s->tail[stream])
        s->tail[stream] = s->events[event];
    synth_emit(s, instr, 1e-6, 0);
}

/* ---- the job ------------------------------------------------------------------------------ */

/* Block b has modules 2 + 5 b ...; group b + 1. Group 0 is the root with embedding and head. */
static void synth_at_block(struct synth *s, uint32_t b, int child)
{
    s->origin.module = 2 + b * (SYNTH_CHILDREN + 1) + (uint32_t)child;
    s->origin.group = b + 1;
}

static void synth_at_root(struct synth *s, uint32_t module)
{
    s->origin.module = module;
    s->origin.group = 0;
}

static double synth_params(const struct synth *s, uint32_t group)
{
    (void)s;
    return group ? 218e6 : 1050e6;
}

static void synth_gather(struct synth *s, uint32_t group)
{
    double bytes = synth_params(s, group) * 2;
    uint32_t kept = s->origin.group;
    if (s->full[group].bytes || s->gathering[group].bytes)
        return;
    s->origin.group = group;
    s->gathering[group] = synth_alloc(s, TSR_CAT_ALL_GATHER, bytes);
    if (s->copied_out)
        synth_wait(s, SYNTH_COPY_IN, s->copied_out);
    synth_op(s, SYNTH_COPY_IN, TSR_OP_POINTWISE, "all_gather_copy_in", bytes / 8 / 2e12);
    synth_wait(s, SYNTH_GATHER, synth_record(s, SYNTH_COPY_IN));
    synth_collective(s, TSR_ALL_GATHER, SYNTH_GATHER, TSR_BF16, bytes);
    s->gathered[group] = synth_record(s, SYNTH_GATHER);
    s->origin.group = kept;
}

static void synth_unshard(struct synth *s, uint32_t group)
{
    double bytes = synth_params(s, group) * 2;
    if (s->full[group].bytes)
        return;
    synth_gather(s, group);
    synth_wait(s, SYNTH_COMPUTE, s->gathered[group]);
    s->full[group] = synth_alloc(s, TSR_CAT_UNSHARDED_PARAM, bytes);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_SPLIT_COPY, "split_with_sizes_copy", bytes * 2 / 2.5e12);
    s->copied_out = synth_record(s, SYNTH_COMPUTE);
    synth_free(s, &s->gathering[group]);
}

static void synth_block(struct synth *s, uint32_t b, double scale)
{
    double gemm = 2.0 * (double)s->options.tokens / 6e14 * scale;
    synth_at_block(s, b, 1);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_NORM, "rms_norm", 6e-5 * scale);
    synth_at_block(s, b, 2);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_GEMM, "mm", gemm * 25e6);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_POINTWISE, "rope", 8e-5 * scale);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_ATTENTION, "sdpa", gemm * 30e6);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_GEMM, "mm", gemm * 17e6);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_POINTWISE, "add", 7e-5 * scale);
    synth_at_block(s, b, 3);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_NORM, "rms_norm", 6e-5 * scale);
    synth_at_block(s, b, 4);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_GEMM, "mm", gemm * 117e6);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_POINTWISE, "silu_mul", 2e-4 * scale);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_GEMM, "mm", gemm * 59e6);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_POINTWISE, "add", 7e-5 * scale);
}

static void synth_reduce(struct synth *s, uint32_t group)
{
    double bytes = synth_params(s, group) * 4;
    if (s->reducing.bytes) /* one reduction's input at a time */
        synth_wait(s, SYNTH_COMPUTE, s->reduced);
    synth_free(s, &s->reducing);
    struct synth_tensor input = synth_alloc(s, TSR_CAT_REDUCE_SCATTER, bytes);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_CHUNK_CAT, "chunk_cat", bytes * 1.5 / 2.5e12);
    synth_free(s, &s->grads[group]);
    synth_wait(s, SYNTH_REDUCE, synth_record(s, SYNTH_COMPUTE));
    synth_collective(s, TSR_REDUCE_SCATTER, SYNTH_REDUCE, TSR_F32, bytes);
    s->reduced = synth_record(s, SYNTH_REDUCE);
    s->reducing = input;
}

static void synth_forward(struct synth *s)
{
    s->origin.phase = TSR_PHASE_FORWARD;
    synth_at_root(s, 1);
    synth_unshard(s, 0);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_EMBEDDING, "embedding", 5e-5);
    for (uint32_t b = 0; b < s->options.n_blocks; b++) {
        synth_at_block(s, b, 0);
        synth_unshard(s, b + 1);
        s->saved[b + 1] =
            synth_alloc(s, TSR_CAT_ACTIVATION, (double)s->options.tokens * 4096 * 2 * 14);
        synth_block(s, b, 1);
        synth_at_block(s, b, 0);
        if (!s->options.keep_unsharded && b + 1 < s->options.n_blocks)
            synth_free(s, &s->full[b + 1]);
    }
    s->origin.phase = TSR_PHASE_LOSS;
    synth_at_root(s, s->tables.n_modules - 1);
    s->saved[0] = synth_alloc(s, TSR_CAT_ACTIVATION, (double)s->options.tokens * 128256 * 2);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_GEMM, "mm", 2.0 * (double)s->options.tokens * 525e6 / 6e14);
    struct synth_tensor logits =
        synth_alloc(s, TSR_CAT_TEMP, (double)s->options.tokens * 128256 * 4);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_LOSS, "cross_entropy", 5e-3);
    synth_free(s, &logits);
}

static void synth_backward(struct synth *s)
{
    s->origin.phase = TSR_PHASE_BACKWARD;
    synth_at_root(s, s->tables.n_modules - 1);
    s->grads[0] = synth_alloc(s, TSR_CAT_UNSHARDED_GRAD, synth_params(s, 0) * 2);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_GEMM, "mm", 4.0 * (double)s->options.tokens * 525e6 / 6e14);
    synth_free(s, &s->saved[0]);
    for (uint32_t b = s->options.n_blocks; b-- > 0;) {
        synth_at_block(s, b, 0);
        synth_unshard(s, b + 1);
        if (b > 0)
            synth_gather(s, b); /* the next one of backward, ahead */
        s->grads[b + 1] = synth_alloc(s, TSR_CAT_UNSHARDED_GRAD, synth_params(s, b + 1) * 2);
        struct synth_tensor scratch =
            synth_alloc(s, TSR_CAT_TEMP, (double)s->options.tokens * 14336 * 2);
        synth_block(s, b, 2);
        synth_free(s, &scratch);
        synth_free(s, &s->saved[b + 1]);
        synth_at_block(s, b, 0);
        synth_free(s, &s->full[b + 1]);
        synth_reduce(s, b + 1);
    }
    synth_at_root(s, 1);
    synth_op(s, SYNTH_COMPUTE, TSR_OP_EMBEDDING_BWD, "embedding_dense_backward", 4e-4);
    synth_free(s, &s->full[0]);
    synth_reduce(s, 0);
    synth_wait(s, SYNTH_COMPUTE, s->reduced);
    synth_free(s, &s->reducing);
}

static void synth_iteration(struct synth *s)
{
    double params = 218e6 * s->options.n_blocks + 1050e6, shard = params / s->options.world;
    s->origin.iteration = (uint16_t)(s->at ? s->at - 1 : 0);
    s->programs[s->at].iteration = s->at - 1;
    if (s->at == 0) {
        s->origin.phase = TSR_PHASE_INIT;
        synth_at_root(s, 0);
        (void)synth_alloc(s, TSR_CAT_SHARDED_PARAM, shard * 4);
        (void)synth_alloc(s, TSR_CAT_SHARDED_GRAD, shard * 4);
        (void)synth_alloc(s, TSR_CAT_OPT_STATE, shard * 8);
        struct synth_tensor pool = synth_alloc(s, TSR_CAT_INIT, 45e9);
        synth_free(s, &pool);
    } else {
        synth_forward(s);
        synth_backward(s);
        s->origin.phase = TSR_PHASE_OPTIMIZER;
        synth_at_root(s, 0);
        struct synth_tensor temp = synth_alloc(s, TSR_CAT_OPT_TEMP, shard * 4);
        for (int i = 0; i < 8; i++)
            synth_op(s, SYNTH_COMPUTE, TSR_OP_OPTIMIZER, "adamw_foreach", shard * 28 / 8 / 2.8e12);
        synth_free(s, &temp);
    }
    for (int t = 0; t < SYNTH_STREAMS; t++)
        s->host = s->tail[t] > s->host ? s->tail[t] : s->host;
    s->iteration_end[s->at] = s->host;
}

static char *synth_text(const char *prefix, uint32_t n, const char *suffix)
{
    char text[128];
    (void)snprintf(text, sizeof text, "%s%u%s", prefix, (unsigned)n, suffix);
    char *copy = malloc(strlen(text) + 1);
    synth_check(copy != NULL);
    return strcpy(copy, text);
}

static void synth_names(struct synth *s)
{
    static const char *const children[] = {"", ".input_layernorm", ".self_attn",
                                           ".post_attention_layernorm", ".mlp"};
    uint32_t n = 0;
    s->modules[n++] = calloc(1, 1);
    s->modules[n++] = strcpy(malloc(32), "model.embed_tokens");
    s->groups[0] = calloc(1, 1);
    for (uint32_t b = 0; b < s->options.n_blocks; b++) {
        for (int c = 0; c <= SYNTH_CHILDREN; c++)
            s->modules[n++] = synth_text("model.layers.", b, children[c]);
        s->groups[b + 1] = synth_text("model.layers.", b, "");
    }
    s->modules[n++] = strcpy(malloc(16), "lm_head");
    s->streams[SYNTH_COMPUTE] = (struct tsr_stream_info){"default", TSR_ROLE_COMPUTE, 0};
    s->streams[SYNTH_COPY_IN] = (struct tsr_stream_info){"copy_in", TSR_ROLE_COPY_IN, -1};
    s->streams[SYNTH_GATHER] = (struct tsr_stream_info){"all_gather", TSR_ROLE_ALL_GATHER, -1};
    s->streams[SYNTH_REDUCE] =
        (struct tsr_stream_info){"reduce_scatter", TSR_ROLE_REDUCE_SCATTER, -1};
    s->comms[0] =
        (struct tsr_comm){.name = "shard", .size = s->options.world, .stride = 1, .separate = true};
    s->tables = (struct tsr_tables){.world = s->options.world,
                                    .n_modules = n,
                                    .n_groups = s->options.n_blocks + 1,
                                    .n_streams = SYNTH_STREAMS,
                                    .n_comms = 1,
                                    .modules = (const char *const *)s->modules,
                                    .groups = (const char *const *)s->groups,
                                    .streams = s->streams,
                                    .comms = s->comms};
}

/* ---- what the report gets ----------------------------------------------------------------- */

static void synth_describe(struct synth *s, const char *strategy)
{
    const uint32_t steady = SYNTH_ITERATIONS - 1;
    struct tsr_row *row = &s->row;
    (void)snprintf(row->strategy, sizeof row->strategy, "%s", strategy);
    (void)snprintf(row->summary, sizeof row->summary, "made up for a test");
    row->world = s->options.world;
    row->tokens_per_rank = s->options.tokens;
    row->usable_bytes = UINT64_C(85045870592);
    row->n_iterations = SYNTH_ITERATIONS;
    row->steady.step_s = s->iteration_end[steady] - s->iteration_end[steady - 1];
    row->first.step_s = s->iteration_end[1] - s->iteration_end[0];
    double params = 218e6 * s->options.n_blocks + 1050e6;
    row->mfu = 6.0 * params * (double)s->options.tokens / row->steady.step_s / 989e12;
    struct tsr_memory *memory = NULL;
    struct tsr_memory_peak peak = {0};
    synth_check(tsr_memory_create(&memory) == TSR_OK);
    for (int i = 0; i < SYNTH_ITERATIONS; i++)
        synth_check(tsr_memory_replay(memory, &s->programs[i], NULL, NULL, &peak) == TSR_OK);
    tsr_memory_destroy(memory);
    row->peak_allocated = peak.allocated;
    row->peak_reserved = peak.reserved > peak.allocated ? peak.reserved : peak.allocated;
    memcpy(row->peak_by_category, peak.by_category, sizeof peak.by_category);
    (void)snprintf(row->peak_module, sizeof row->peak_module, "%s",
                   s->tables.modules[peak.origin.module]);
    (void)snprintf(row->peak_phase, sizeof row->peak_phase, "%s",
                   tsr_phase_name(peak.origin.phase));
    row->fits = row->peak_reserved <= row->usable_bytes;
    s->info = (struct tsr_study_info){.title = "Made-up comparison",
                                      .model_name = "Llama-3.1-8B",
                                      .cluster_name = "dgx-h100-1",
                                      .device_file = "experiments/clusters/gpu-h100-sxm5-80g.json",
                                      .config_path = "experiments/made-up.yaml",
                                      .resolved_yaml = "model: made-up\n",
                                      .gpu_name = "H100",
                                      .world = s->options.world};
    s->detail = (struct tsr_detail){.row = row,
                                    .programs = s->program_list,
                                    .spans = s->spans,
                                    .iteration_end = s->iteration_end,
                                    .n_iterations = SYNTH_ITERATIONS,
                                    .steady = steady};
}

static struct synth *synth_create(const char *strategy, const struct synth_options *options)
{
    struct synth *s = calloc(1, sizeof *s);
    synth_check(s && options->n_blocks <= SYNTH_MAX_BLOCKS);
    s->options = *options;
    synth_names(s);
    for (s->at = 0; s->at < SYNTH_ITERATIONS; s->at++) {
        tsr_program_init(&s->programs[s->at], &s->tables);
        s->program_list[s->at] = &s->programs[s->at];
        synth_iteration(s);
    }
    synth_describe(s, strategy);
    return s;
}

static void synth_destroy(struct synth *s)
{
    for (int i = 0; i < SYNTH_ITERATIONS; i++) {
        tsr_program_fini(&s->programs[i]);
        free(s->spans[i]);
    }
    for (uint32_t i = 0; i < s->tables.n_modules; i++)
        free(s->modules[i]);
    for (uint32_t i = 0; i < s->tables.n_groups; i++)
        free(s->groups[i]);
    free(s);
}

#endif
