/* test_volume.c: how many collectives a step has, and how many bytes they put on the wire, against
 * the closed forms of a ring (section 7.3 of the semantics; W ranks share S padded elements each).
 */
#include "tests/physics/physics.h"

struct volume {
    uint32_t gathers, scatters, all_reduces;
    double bytes; /* that a member of the rings sends */
};

static struct volume volume_of(const struct study *study)
{
    const struct tsr_program *program = study->programs[0][study->steady];
    struct volume v = {0};
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        if (!is_collective(instr) || instr->origin.phase == TSR_PHASE_CLIP)
            continue;
        double n = program->tables->comms[instr->comm].size;
        double part = (n - 1.0) / n * (double)instr->bytes;
        v.gathers += instr->kind == TSR_ALL_GATHER;
        v.scatters += instr->kind == TSR_REDUCE_SCATTER;
        v.all_reduces += instr->kind == TSR_ALL_REDUCE;
        v.bytes += instr->kind == TSR_ALL_REDUCE ? 2.0 * part : part;
    }
    return v;
}

/* Elements of the groups on one rank: the root's, and all. */
static void elements(const struct study *study, double *root, double *all)
{
    struct tsr_engine *engine = study->emission.classes[0].engine;
    *root = *all = 0.0;
    for (size_t i = 0; i < tsr_n_groups(engine); i++) {
        double n = (double)tsr_group_info(engine, i).shard_numel;
        *root += i ? 0.0 : n;
        *all += n;
    }
}

#define LLAMA "model: llama-3.1-8b\ncluster: dgx-h100-2\nseq: 4096\n"

/* What the simulator says that the ranks sent is what the rings send, whatever the links. */
static void check(const char *text, uint32_t gathers, uint32_t scatters, uint32_t all_reduces,
                  double shard_gathers, double root_gathers, double reduced)
{
    struct study study;
    struct tsr_sim_options o = ideal_options();
    double root, all;
    o.algorithm = TSR_ALGO_RING;
    o.protocol = TSR_PROTO_SIMPLE;
    study_open(&study, text);
    elements(&study, &root, &all);
    struct volume v = volume_of(&study);
    assert_int_equal(v.gathers, gathers);
    assert_int_equal(v.scatters, scatters);
    assert_int_equal(v.all_reduces, all_reduces);
    double expected =
        shard_gathers * 2.0 * (all - root) + root_gathers * 2.0 * root + reduced * all;
    assert_near(v.bytes, expected, 1e-12, text);
    study_simulate(&study, &o);
    uint64_t sent = 0;
    for (uint32_t r = 0; r < study.result->n_ranks; r++)
        sent += study.result->ranks[r].weight * (study.result->ranks[r].sent_intra[study.steady] +
                                                 study.result->ranks[r].sent_inter[study.steady]);
    assert_near((double)sent, v.bytes * study.sim.world, 1e-6, "sent");
    study_close(&study);
}

/* Coefficients are (W-1) for what is gathered over W ranks, and so on. */
static void collectives_and_bytes(void **state)
{
    const double w = 15.0, s = 7.0, e_r = 4.0;
    (void)state;
    /* The default gathers the root once; true gathers it again. */
    check(LLAMA, 33 + 32, 33, 0, 2 * w, w, w * e_r);
    check(LLAMA "reshard_after_forward: true\n", 33 + 33, 33, 0, 2 * w, 2 * w, w * e_r);
    check(LLAMA "reshard_after_forward: false\n", 33, 33, 0, w, w, w * e_r);
    check(LLAMA "precision: {reduce: bf16}\n", 33 + 32, 33, 0, 2 * w, w, w * 2.0);
    check(LLAMA "checkpoint: full\n", 33 + 32, 33, 0, 2 * w, w, w * e_r);
    check(LLAMA "forward_prefetch: 2\nbackward_prefetch: 2\n", 33 + 32, 33, 0, 2 * w, w, w * e_r);
    check(LLAMA "wrap: root\n", 1, 1, 0, 0, w, w * e_r);
    /* An int: backward gathers 4 ranks' parts of 1/4 each. */
    const double four = 3.0 / 4.0 * 16.0;
    check(LLAMA "reshard_after_forward: 4\n", 33 + 33, 33, 0, w + four, w + four, w * e_r);
    /* Replicas: 2 (R-1)/R of the shard. */
    check(LLAMA "mesh: {replicate: 2, shard: 8}\n", 33 + 32, 33, 33, 2 * s, s,
          s * e_r + 2.0 / 2.0 * e_r);
    /* Micro-batches repeat everything, or only the gathers. */
    check(LLAMA "accumulation: {steps: 2}\n", 2 * 65, 2 * 33, 0, 4 * w, 2 * w, 2 * w * e_r);
    check(LLAMA "accumulation: {steps: 2, mode: no_reduce}\n", 2 * 65, 33, 0, 4 * w, 2 * w,
          w * e_r);
    /* A whole copy everywhere: 2 (R-1)/R of everything. */
    check(LLAMA "api: replicate\n", 0, 0, 33, 0, 0, 2.0 * 15.0 / 16.0 * e_r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_and_bytes),
    };
    return cmocka_run_group_tests_name("volume", tests, NULL, NULL);
}
