/* test_tp_steps.c: steps of a tensor-parallel Llama: how often its ranks meet, how many bytes they
 * exchange, and that a rank does its share of the work; the two-level all-gather's messages.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/layout/tensor_parallel.h"
#include "tests/engine/recording_testing.h"

enum { D = 64, F = 128, H = 8, K = 4, HD = 8, V = 256, L = 3, SEQ = 32 };

static void open_as(struct recording *r, uint32_t dp, uint32_t tp, bool sequence, uint32_t rank,
                    uint32_t batch, enum tsr_dialect dialect)
{
    struct tsr_engine_config c = {
        .mesh = {.n_dims = tp > 1 ? 2 : 1, .shape = {dp, tp}}, .dialect = dialect, .rank = rank};
    snprintf(c.mesh.name[0], sizeof c.mesh.name[0], "shard");
    snprintf(c.mesh.name[1], sizeof c.mesh.name[1], "tp");
    const struct tsr_llama_config model = {.hidden_size = D,
                                           .intermediate_size = F,
                                           .n_layers = L,
                                           .n_heads = H,
                                           .n_kv_heads = K,
                                           .head_dim = HD,
                                           .vocab_size = V,
                                           .max_positions = 64};
    recording_begin(r, c);
    ok(tsr_model_llama(r->e, &model));
    if (tp > 1)
        ok(tsr_tensor_parallel_model(r->e, "tp", sequence));
    for (int i = 0; i < L; i++) {
        char name[32];
        snprintf(name, sizeof name, "model.layers.%d", i);
        struct tsr_module *layer = tsr_module_find(r->e, name);
        ok(tsr_fully_shard(r->e, &layer, 1, NULL));
    }
    struct tsr_module *root = tsr_module_root(r->e);
    ok(tsr_fully_shard(r->e, &root, 1, NULL));
    ok(tsr_step_configure(r->e,
                          &(struct tsr_step_config){.batch = batch, .seq = SEQ, .n_micro = 1}));
}

static void open_rig(struct recording *r, uint32_t dp, uint32_t tp, bool sequence, uint32_t rank)
{
    open_as(r, dp, tp, sequence, rank, 1, TSR_DIALECT_EAGER);
}

static void run(struct recording *r)
{
    ok(tsr_engine_init_params(r->e));
    r->recorder.into = &r->step;
    ok(tsr_step_run(r->e, 0));
}

static int count(const struct recording *r, int kind, const char *comm, int phase, uint64_t *bytes)
{
    int n = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++) {
        const struct tsr_instr *in = &r->step.instrs[i];
        if (in->kind != kind || in->comm == UINT16_MAX || in->origin.phase != phase ||
            strcmp(r->step.tables->comms[in->comm].name, comm) != 0)
            continue;
        n++;
        if (bytes)
            *bytes += in->bytes;
    }
    return n;
}

static double model_flops(const struct recording *r)
{
    double flops = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++)
        if (r->step.instrs[i].work)
            flops += r->step.instrs[i].work->model_flops;
    return flops;
}

/* Sequence parallel: each of the 2 L regions gathers and scatters once a pass, the embedding
 * scatters, the head gathers; the loss sums three numbers per token. */
static void sequence_parallel(void **state)
{
    (void)state;
    struct recording r;
    uint64_t bytes = 0;
    open_rig(&r, 2, 4, true, 0);
    run(&r);
    assert_int_equal(count(&r, TSR_ALL_GATHER, "tp", TSR_PHASE_FORWARD, &bytes), 2 * L + 1);
    assert_int_equal(bytes, (2 * L + 1) * 4 * SEQ * D);
    assert_int_equal(count(&r, TSR_REDUCE_SCATTER, "tp", TSR_PHASE_FORWARD, NULL), 2 * L + 1);
    assert_int_equal(count(&r, TSR_ALL_GATHER, "tp", TSR_PHASE_BACKWARD, NULL), 2 * L + 1);
    assert_int_equal(count(&r, TSR_REDUCE_SCATTER, "tp", TSR_PHASE_BACKWARD, NULL), 2 * L + 1);
    bytes = 0;
    assert_int_equal(count(&r, TSR_ALL_REDUCE, "tp", TSR_PHASE_LOSS, &bytes), 3);
    assert_int_equal(bytes, 3 * 4 * SEQ);
    /* norm weights saw a part of the tokens: their gradients are summed */
    bytes = 0;
    assert_int_equal(count(&r, TSR_ALL_REDUCE, "tp", TSR_PHASE_BACKWARD, &bytes), 2 * L + 1);
    assert_int_equal(bytes, (2 * L + 1) * 4 * D);
    recording_end(&r);
}

/* Sequences stand behind one another in the shards of a batch: chunks are put together before a
 * reduce-scatter and, if there are several, behind an all-gather. The fused dialect cuts tokens. */
static void chunks_are_put_together(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct recording r;
        int copies = 0;
        open_as(&r, 2, 4, true, 0, i == 1 ? 2 : 1, i == 2 ? TSR_DIALECT_FUSED : TSR_DIALECT_EAGER);
        run(&r);
        for (size_t k = 0; k < r.step.n_instrs; k++)
            copies +=
                r.step.instrs[k].kind == TSR_COPY && !strcmp(r.step.instrs[k].work->name, "clone");
        assert_int_equal(copies, i == 2 ? 0 : (i + 1) * 2 * (2 * L + 1));
        recording_end(&r);
    }
}

/* loss.py of PyTorch's tensor parallelism composes the loss: of the size of the logits exist what
 * it shifts, exponentials and log-probabilities; in backward zeros, exponentials, their sum and the
 * gradient, which the log-softmax passes on. Kernels of the fused dialect make only results. */
static void loss_of_cut_vocabulary(void **state)
{
    const uint64_t logits = 4 * SEQ * V / 4;
    (void)state;
    for (int fused = 0; fused < 2; fused++) {
        struct recording r;
        int forward = 0, backward = 0;
        uint64_t moved = 0;
        open_as(&r, 2, 4, true, 0, 1, fused ? TSR_DIALECT_FUSED : TSR_DIALECT_EAGER);
        run(&r);
        for (size_t i = 0; i < r.step.n_instrs; i++) {
            const struct tsr_instr *in = &r.step.instrs[i];
            bool alloc = in->kind == TSR_ALLOC && in->bytes == logits;
            forward += alloc && in->origin.phase == TSR_PHASE_LOSS;
            backward +=
                alloc && in->origin.phase == TSR_PHASE_BACKWARD && in->origin.module == TSR_NO_ID;
            if (in->work && !strcmp(in->work->name, "nll_backward_tp"))
                moved = in->work->bytes_written;
        }
        assert_int_equal(forward, fused ? 1 : 3);
        assert_int_equal(backward, fused ? 1 : 4);
        assert_int_equal(moved, (fused ? 1 : 4) * logits);
        recording_end(&r);
    }
}

static void checkpoint(const struct recording *r, bool selective)
{
    for (int i = 0; i < L; i++) {
        char name[32];
        snprintf(name, sizeof name, "model.layers.%d", i);
        struct tsr_module *layer = tsr_module_find(r->e, name);
        ok(selective ? tsr_checkpoint_selective(r->e, layer)
                     : tsr_checkpoint(r->e, layer, false, true));
    }
}

/* Recomputation of a block gathers before both its regions; the first one's result it scatters
 * again, unless selective checkpointing kept it. The second one's nobody needs. */
static void scattered_results_are_kept(void **state)
{
    (void)state;
    for (int selective = 0; selective < 2; selective++) {
        struct recording r;
        open_rig(&r, 2, 4, true, 0);
        checkpoint(&r, selective);
        run(&r);
        assert_int_equal(count(&r, TSR_ALL_GATHER, "tp", TSR_PHASE_BACKWARD, NULL), 4 * L + 1);
        assert_int_equal(count(&r, TSR_REDUCE_SCATTER, "tp", TSR_PHASE_BACKWARD, NULL),
                         (selective ? 2 : 3) * L + 1);
        recording_end(&r);
    }
}

/* Without: an all-reduce per region and pass, of whole activations. */
static void plain(void **state)
{
    (void)state;
    struct recording r;
    uint64_t bytes = 0;
    open_rig(&r, 2, 4, false, 0);
    run(&r);
    assert_int_equal(count(&r, TSR_ALL_REDUCE, "tp", TSR_PHASE_FORWARD, &bytes), 2 * L + 1);
    assert_int_equal(bytes, (2 * L + 1) * 4 * SEQ * D);
    assert_int_equal(count(&r, TSR_ALL_REDUCE, "tp", TSR_PHASE_BACKWARD, NULL), 2 * L + 1);
    assert_int_equal(count(&r, TSR_ALL_GATHER, "tp", TSR_PHASE_FORWARD, NULL), 0);
    recording_end(&r);
}

static void work_is_divided(void **state)
{
    (void)state;
    struct recording whole, part;
    open_rig(&whole, 2, 1, false, 0);
    run(&whole);
    for (int sequence = 0; sequence < 2; sequence++) {
        open_rig(&part, 2, 4, sequence, 5);
        run(&part);
        assert_true(fabs(model_flops(&whole) / model_flops(&part) - 4) < 1e-12);
        uint64_t all = 0, cut = 0;
        count(&whole, TSR_ALL_GATHER, "shard", TSR_PHASE_FORWARD, &all);
        count(&part, TSR_ALL_GATHER, "shard", TSR_PHASE_FORWARD, &cut);
        /* everything but the norms is cut by 4 */
        assert_int_equal(4 * (cut - 4 * D * (2 * L + 1)), all - 4 * D * (2 * L + 1));
        recording_end(&part);
    }
    recording_end(&whole);
}

static void refused(void **state)
{
    (void)state;
    struct recording r;
    open_rig(&r, 2, 1, false, 0);
    assert_int_equal(tsr_tensor_parallel_model(r.e, "tp", true), TSR_EVALUE);
    recording_end(&r);
    struct tsr_engine_config c = {.mesh = {.n_dims = 2, .shape = {2, 3}, .name = {"shard", "tp"}},
                                  .executor = &r.recorder.base};
    ok(tsr_engine_create(&c, &r.e));
    const struct tsr_llama_config model = {.hidden_size = D,
                                           .intermediate_size = F,
                                           .n_layers = 1,
                                           .n_heads = H,
                                           .n_kv_heads = K,
                                           .head_dim = HD,
                                           .vocab_size = V};
    ok(tsr_model_llama(r.e, &model));
    assert_int_equal(tsr_tensor_parallel_model(r.e, "tp", true), TSR_EVALUE);
    assert_non_null(strstr(tsr_error_text(), "does not divide 8 attention heads"));
    tsr_engine_destroy(r.e);
}

/* Every piece reaches every rank: over the messages of all ranks of a group of 8 in nodes of 4. */
static void two_level_tiles(void **state)
{
    (void)state;
    enum { N = 8, LOCAL = 4 };
    bool have[N][N] = {{false}};
    for (uint32_t rank = 0; rank < N; rank++) {
        struct recording r;
        open_rig(&r, N, 1, false, rank);
        ok(tsr_use_two_level_gather(r.e, LOCAL));
        run(&r);
        have[rank][rank] = true;
        size_t first = 0;
        while (r.step.instrs[first].kind != TSR_GROUP_BEGIN)
            first++;
        int groups = 0;
        uint64_t piece = 0;
        for (size_t i = first; groups < 2; i++) {
            const struct tsr_instr *in = &r.step.instrs[i];
            groups += in->kind == TSR_GROUP_END;
            if (in->kind != TSR_RECV)
                continue;
            piece = in->bytes;
            uint64_t from = in->operands[0].offset / piece;
            assert_false(have[rank][from]); /* nothing comes twice */
            have[rank][from] = true;
            assert_true(in->peer / LOCAL == rank / LOCAL || in->peer % LOCAL == rank % LOCAL);
        }
        assert_true(piece > 0);
        assert_int_equal(count(&r, TSR_ALL_GATHER, "shard", TSR_PHASE_FORWARD, NULL), 0);
        recording_end(&r);
    }
    for (int a = 0; a < N; a++)
        for (int b = 0; b < N; b++)
            assert_true(have[a][b]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequence_parallel),
        cmocka_unit_test(chunks_are_put_together),
        cmocka_unit_test(loss_of_cut_vocabulary),
        cmocka_unit_test(plain),
        cmocka_unit_test(scattered_results_are_kept),
        cmocka_unit_test(work_is_divided),
        cmocka_unit_test(refused),
        cmocka_unit_test(two_level_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
