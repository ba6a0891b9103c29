/* test_bounds.c: what no machine can do, the simulated one does not do either. Real models on real
 * cluster files: no kernel below the roofline, no collective and no step below bytes over
 * bandwidth; with a perfect network and host the step is the work of the GPU, exactly. */
#include "tests/physics/physics.h"

#define LLAMA8  "model: llama-3.1-8b\ncluster: dgx-h100-1\nseq: 8192\nclip: true\n"
#define LLAMA16 "model: llama-3.1-8b\ncluster: dgx-h100-2\nseq: 4096\n"
#define GPT2    "model: gpt2-xl\ncluster: dgx-a100-80g\nbatch: 4\nseq: 1024\n"
#define PCIE    "model: qwen2.5-1.5b\ncluster: pcie-4090-8\nseq: 2048\n"

static const char *const studies[] = {
    LLAMA8 "api: ddp\n",
    LLAMA8 "api: replicate\n",
    LLAMA8,
    LLAMA8 "reshard_after_forward: 4\ncheckpoint: full\n",
    LLAMA8 "wrap: root\n",
    LLAMA8 "precision: {param: none, reduce: none}\n",
    LLAMA16,
    LLAMA16 "mesh: {replicate: 2, shard: 8}\nprecision: {reduce: bf16}\n",
    LLAMA16 "api: ddp\nprecision: {param: none, reduce: none}\n",
    GPT2 "accumulation: {steps: 3, mode: no_reduce}\n",
    GPT2 "wrap: block_embed_head\noptimizer: {name: sgd}\n",
    PCIE,
    PCIE "offload: cpu_pinned\n",
    "model: llama-3.1-70b\ncluster: p5en-4\nseq: 4096\ncheckpoint: full\n",
};
enum { N_STUDIES = sizeof studies / sizeof studies[0] };

/* ---- arithmetic and memory --------------------------------------------------------------- */

/* Seconds below which this kernel cannot be on this card. */
static double roofline(const struct tsr_gpu *gpu, const struct tsr_instr *instr)
{
    const struct tsr_work *work = instr->work;
    if (!work || is_host_copy(instr))
        return 0.0;
    bool half = work->dtype == TSR_BF16 || work->dtype == TSR_F16;
    double peak = gpu->peak_flops[half ? TSR_PEAK_BF16 : TSR_PEAK_FP32];
    double arithmetic = work->flops / peak;
    double memory = ((double)work->bytes_read + (double)work->bytes_written) / gpu->memory_bw;
    return arithmetic > memory ? arithmetic : memory;
}

static void no_kernel_is_above_the_roofline(void **state)
{
    double tightest = 0.0;
    (void)state;
    for (size_t s = 0; s < N_STUDIES; s++) {
        struct study study;
        struct tsr_sim_options o = tsr_sim_options_default();
        study_open(&study, studies[s]);
        double step = study_step(&study, &o);
        const struct tsr_gpu *gpu = &study.job.cluster.gpu;
        for (uint32_t r = 0; r < study.result->n_ranks; r++) {
            const struct tsr_program *program = study_program(&study, r);
            const struct tsr_sim_span *spans = study_spans(&study, r);
            double compute = 0.0, bytes = 0.0, flops = 0.0;
            for (size_t i = 0; i < program->n_instrs; i++) {
                const struct tsr_instr *instr = &program->instrs[i];
                double least = roofline(gpu, instr);
                if (!is_kernel(instr) || least <= 0.0)
                    continue;
                assert_at_least(spans[i].end - spans[i].start, least, instr->work->name);
                bytes += (double)instr->work->bytes_read + (double)instr->work->bytes_written;
                if (instr->work->dtype == TSR_BF16)
                    flops += instr->work->flops;
                if (on_compute_stream(program, instr))
                    compute += least;
            }
            assert_at_least(step, compute, "roofline of the compute stream");
            assert_at_least(step, bytes / gpu->memory_bw, "bytes over memory bandwidth");
            assert_at_least(step, flops / gpu->peak_flops[TSR_PEAK_BF16], "FLOP over peak");
            tightest = compute / step > tightest ? compute / step : tightest;
        }
        study_close(&study);
    }
    assert_true(tightest > 0.5); /* the bound means something */
}

/* ---- links ------------------------------------------------------------------------------- */

/* Bytes that a member of a ring sends. */
static double ring_bytes(const struct tsr_program *program, const struct tsr_instr *instr)
{
    double n = program->tables->comms[instr->comm].size;
    double times = instr->kind == TSR_ALL_REDUCE ? 2.0 : 1.0;
    return times * (n - 1.0) / n * (double)instr->bytes;
}

/* Members that a communicator has on the node of rank 0. */
static uint32_t members_on_node(const struct tsr_comm *comm, uint32_t gpus_per_node)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < comm->size; i++)
        n += tsr_comm_member(comm, 0, i) < gpus_per_node;
    return n;
}

/* Seconds that a collective needs on the slowest of its links, alone: a ring leaves a node through
 * as many adapters as it has members there. */
static double wire_bound(const struct study *study, const struct tsr_program *program,
                         const struct tsr_instr *instr)
{
    const struct tsr_cluster *c = &study->job.cluster;
    const struct tsr_comm *comm = &program->tables->comms[instr->comm];
    double bytes = ring_bytes(program, instr);
    uint32_t inside = members_on_node(comm, c->gpus_per_node);
    double share = inside < comm->size ? (inside - 1.0) / inside : 1.0;
    double seconds = bytes * share / c->intra_bw;
    double port = c->nic_bw * c->nics_per_node / c->gpus_per_node;
    if (port < c->nic_bw && inside == 1)
        port = c->nic_bw; /* one member, one adapter */
    double between = inside < comm->size ? bytes / inside / port : 0.0;
    return between > seconds ? between : seconds;
}

static void no_byte_is_faster_than_its_link(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_STUDIES; s++) {
        struct study study;
        struct tsr_sim_options o = ideal_options();
        o.algorithm = TSR_ALGO_RING; /* a switch that reduces sends less */
        study_open(&study, studies[s]);
        double step = study_step(&study, &o);
        const struct tsr_cluster *c = &study.job.cluster;
        for (uint32_t r = 0; r < study.result->n_ranks; r++) {
            const struct tsr_program *program = study_program(&study, r);
            const struct tsr_sim_span *spans = study_spans(&study, r);
            const struct tsr_sim_rank *rank = &study.result->ranks[r];
            for (size_t i = 0; i < program->n_instrs; i++)
                if (is_collective(&program->instrs[i]))
                    assert_at_least(spans[i].end - spans[i].start,
                                    wire_bound(&study, program, &program->instrs[i]),
                                    tsr_instr_kind_name(program->instrs[i].kind));
            assert_at_least(step, (double)rank->sent_intra[study.steady] / c->intra_bw, "port");
            if (c->nic_bw > 0.0)
                assert_at_least(step,
                                (double)rank->sent_inter[study.steady] * c->gpus_per_node /
                                    (c->nic_bw * c->nics_per_node),
                                "adapter");
        }
        study_close(&study);
    }
}

/* ---- the perfect machine ------------------------------------------------------------------ */

/* Kernels share the GPU and none of them waits for anything but another: whatever the streams do,
 * the GPU is busy all the time. */
static void a_perfect_network_leaves_the_work_of_the_gpu(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_STUDIES; s++) {
        struct study study;
        struct tsr_sim_options o = ideal_options();
        double all = 0.0, compute = 0.0;
        o.infinite_bandwidth = true;
        study_open(&study, studies[s]);
        study_uncalibrated(&study);
        double step = study_step(&study, &o);
        const struct tsr_program *program = study_program(&study, 0);
        for (size_t i = 0; i < program->n_instrs; i++) {
            const struct tsr_instr *instr = &program->instrs[i];
            if (!is_kernel(instr) || !instr->work || is_host_copy(instr))
                continue;
            struct tsr__cost cost;
            study_ok(tsr__cost_kernel(&study.job.cluster.gpu, &study.job.settings->sim.kernels,
                                      instr->work, &cost));
            all += cost.body_s;
            compute += on_compute_stream(program, instr) ? cost.body_s : 0.0;
        }
        assert_near(step, all, 1e-9, "all kernels of the GPU");
        bool is_ddp = study.job.settings->api == TSR_API_DDP;
        if (is_ddp && !study.job.settings->param) /* nothing beside the compute stream */
            assert_near(step, compute, 1e-9, "the compute stream");
        assert_at_least(step, compute, "the compute stream");
        study_close(&study);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_kernel_is_above_the_roofline),
        cmocka_unit_test(no_byte_is_faster_than_its_link),
        cmocka_unit_test(a_perfect_network_leaves_the_work_of_the_gpu),
    };
    return cmocka_run_group_tests_name("bounds", tests, NULL, NULL);
}
