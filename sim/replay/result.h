/* result.h: what a simulation says: when each instruction of each simulated rank was issued, began
 * and ended, and the executed hash. Times are seconds from the start.
 *
 * The whole result is one piece of memory, which tsr_sim_result_destroy() gives back.
 */
#ifndef TSR_SIM_RESULT_H
#define TSR_SIM_RESULT_H

#include "engine/program/program.h"

struct tsr_sim_span {
    double issue;      /* the host had issued it */
    double start, end; /* on its stream; for MARK, ALLOC, FREE: = issue */
};

/* One simulated rank, which stands for `weight` ranks of its class. All arrays lie in the result's
 * memory. */
struct tsr_sim_rank {
    uint32_t rank;               /* a global rank of the class */
    uint32_t layout;             /* index of its program class */
    uint32_t weight;             /* ranks that it stands for */
    struct tsr_sim_span **spans; /* [iteration][instruction] */
    uint64_t *exec_hash;         /* [iteration]: executed hash, see program.h */
    /* Bytes that this rank put on the wire, per iteration. */
    uint64_t *sent_intra, *sent_inter;
    /* [collectives and messages of all iterations, in issue order]: when the last member had come;
     * 0: nobody else takes part. */
    double *joined;
};

struct tsr_sim_result {
    uint32_t n_ranks, n_iterations;
    struct tsr_sim_rank *ranks;
    uint32_t world; /* ranks of the job */
    uint32_t
        *class_of; /* [world] index in `ranks` of the simulated rank that stands for each rank */
    double *iteration_end; /* [iteration]: the last rank's host and streams are done */
    uint64_t n_activities; /* SimGrid activities */
    double wall_s;         /* of the child */
};

/* NULL is fine. */
void tsr_sim_result_destroy(struct tsr_sim_result *result);

#endif
