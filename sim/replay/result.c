/* result.c: one shared anonymous mapping holds the whole result, so that the child writes it in
 * place and nothing is packed or copied. */
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "sim/replay/replay.h"

struct block {
    struct tsr_sim_result result; /* first: the caller's pointer */
    struct tsr__verdict verdict;
    size_t bytes;
};

/* Hands out aligned pieces of the mapping; with base NULL it only measures. */
struct cutter {
    char *base;
    size_t at;
};

static void *cut(struct cutter *c, size_t n, size_t item_bytes)
{
    size_t at = c->at;
    c->at = (size_t)tsr_round_up(at + n * item_bytes, 16);
    return c->base ? c->base + at : NULL;
}

static void cut_rank(struct cutter *c, const struct tsr__qrank *info, const struct tsr__tape *tape,
                     const struct tsr_sim_job *job, struct tsr_sim_rank *rank)
{
    const struct tsr_program *const *programs = job->programs[info->layout];
    struct tsr_sim_rank made = {.rank = info->rank, .layout = info->layout, .weight = info->weight};
    made.spans = cut(c, job->n_iterations + 1u, sizeof(struct tsr_sim_span *));
    made.exec_hash = cut(c, job->n_iterations, sizeof *made.exec_hash);
    made.sent_intra = cut(c, job->n_iterations, sizeof *made.sent_intra);
    made.sent_inter = cut(c, job->n_iterations, sizeof *made.sent_inter);
    made.joined = cut(c, tape->n_wires, sizeof *made.joined);
    /* The spans of successive iterations touch: replay.c indexes them by task. */
    struct tsr_sim_span *spans = cut(c, tape->n_tasks, sizeof *spans);
    if (!c->base)
        return;
    made.spans[0] = spans;
    for (uint32_t i = 1; i < job->n_iterations; i++)
        made.spans[i] = made.spans[i - 1] + programs[i - 1]->n_instrs;
    *rank = made;
}

static struct block *cut_all(struct cutter *c, const struct tsr__quotient *q,
                             const struct tsr__tapes *tapes, const struct tsr_sim_job *job)
{
    struct block *block = cut(c, 1, sizeof *block);
    struct tsr_sim_rank *ranks = cut(c, q->n_ranks, sizeof *ranks);
    double *ends = cut(c, job->n_iterations, sizeof *ends);
    uint32_t *class_of = cut(c, q->world, sizeof *class_of);
    for (uint32_t i = 0; i < q->n_ranks; i++)
        cut_rank(c, &q->ranks[i], &tapes->items[q->ranks[i].layout], job, ranks ? &ranks[i] : NULL);
    if (!block)
        return NULL;
    memcpy(class_of, q->class_of, q->world * sizeof *class_of);
    block->result = (struct tsr_sim_result){.n_ranks = q->n_ranks,
                                            .n_iterations = job->n_iterations,
                                            .ranks = ranks,
                                            .world = q->world,
                                            .class_of = class_of,
                                            .iteration_end = ends};
    return block;
}

tsr_status tsr__result_create(const struct tsr__quotient *q, const struct tsr__tapes *tapes,
                              const struct tsr_sim_job *job, struct tsr_sim_result **out,
                              struct tsr__verdict **verdict)
{
    struct cutter c = {0};
    cut_all(&c, q, tapes, job);
    size_t bytes = c.at;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *out = NULL;
    *verdict = NULL;
    if (base == MAP_FAILED)
        return tsr_fail(TSR_ENOMEM, "out of memory: %zu bytes for the result of a simulation",
                        bytes);
    c = (struct cutter){.base = base};
    struct block *block = cut_all(&c, q, tapes, job);
    block->bytes = bytes;
    *out = &block->result;
    *verdict = &block->verdict;
    return TSR_OK;
}

void tsr_sim_result_destroy(struct tsr_sim_result *result)
{
    if (!result)
        return;
    struct block *block = (struct block *)result;
    munmap(block, block->bytes);
}
