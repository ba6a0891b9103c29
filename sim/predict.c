/* predict.c: what is known of a job without simulating it. The time of one collective: each size is
 * a program of its own, and they are simulated as the iterations of one job. */
#include "sim/predict.h"

#include <stdlib.h>

#include "sim/options.h"
#include "sim/replay/replay.h"

double tsr_bus_factor(uint8_t kind, uint32_t ranks)
{
    double others = (ranks - 1.0) / ranks;
    if (kind == TSR_ALL_REDUCE)
        return 2.0 * others;
    return kind == TSR_BROADCAST ? 1.0 : others;
}

/* World and stride of the group. */
static tsr_status place(const struct tsr_cluster *c, const struct tsr_collective_query *what,
                        uint32_t *world, uint32_t *stride)
{
    uint32_t local = what->nodes ? what->ranks / what->nodes : 0;
    bool whole = local == c->gpus_per_node, single = what->nodes == 1;
    *stride = local == 1 && what->nodes > 1 ? c->gpus_per_node : 1;
    *world = *stride * what->ranks;
    if (what->ranks >= 2 && what->nodes <= c->nodes && local * what->nodes == what->ranks &&
        local <= c->gpus_per_node && (whole || single || local == 1))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: found a collective of %u GPUs on %u nodes, allowed 2 to %u GPUs of one "
                    "node, or one or all %u of each of up to %u nodes",
                    c->path, what->ranks, what->nodes, c->gpus_per_node, c->gpus_per_node,
                    c->nodes);
}

/* One program per size; a call ends when the next one begins. */
struct batch {
    struct tsr_tables tables;
    struct tsr_comm comm;
    struct tsr_program *programs;    /* [n] */
    const struct tsr_program **list; /* [n] */
    const struct tsr_program *const *class;
    uint32_t *class_of;
};

static tsr_status build(struct batch *b, const struct tsr_collective_query *what, uint32_t stride,
                        const uint64_t *bytes, uint32_t n)
{
    static const struct tsr_stream_info stream = {"default", TSR_ROLE_COMPUTE, 0};
    b->comm = (struct tsr_comm){.name = "group", .size = what->ranks, .stride = stride};
    b->comm.separate = true;
    b->tables.n_streams = b->tables.n_comms = 1;
    b->tables.streams = &stream;
    b->tables.comms = &b->comm;
    b->class_of = calloc(b->tables.world, sizeof *b->class_of);
    b->programs = calloc(n, sizeof *b->programs);
    b->list = calloc(n, sizeof *b->list);
    if (!b->class_of || !b->programs || !b->list)
        return tsr_no_memory(NULL);
    for (uint32_t i = 0; i < n; i++) {
        struct tsr_instr instr = {.kind = what->kind, .dtype = TSR_BF16, .bytes = bytes[i]};
        tsr_program_init(&b->programs[i], &b->tables);
        b->list[i] = &b->programs[i];
        TSR_TRY(tsr_program_append(&b->programs[i], &instr));
    }
    b->class = b->list;
    return TSR_OK;
}

static void release(struct batch *b, uint32_t n)
{
    for (uint32_t i = 0; i < n && b->programs; i++)
        tsr_program_fini(&b->programs[i]);
    free(b->programs);
    free(b->list);
    free(b->class_of);
}

tsr_status tsr_predict_collective(const struct tsr_cluster *cluster,
                                  const struct tsr_sim_options *options,
                                  const struct tsr_collective_query *what, const uint64_t *bytes,
                                  uint32_t n, double *seconds)
{
    struct batch b = {0};
    struct tsr_sim_options o = *options;
    struct tsr_sim_result *result = NULL;
    uint32_t stride;
    o.host_scale = 0.0;
    TSR_TRY(place(cluster, what, &b.tables.world, &stride));
    tsr_status status;
    TSR_GOTO(done, build(&b, what, stride, bytes, n));
    struct tsr_sim_job job = {.world = b.tables.world,
                              .n_classes = 1,
                              .n_iterations = n,
                              .class_of = b.class_of,
                              .programs = &b.class};
    TSR_GOTO(done, tsr_sim_run(cluster, &job, &o, &result));
    for (uint32_t i = 0; i < n; i++)
        seconds[i] = result->iteration_end[i] - (i ? result->iteration_end[i - 1] : 0.0);
done:
    tsr_sim_result_destroy(result);
    release(&b, n);
    return status;
}
