/* tenants.h: several jobs on one cluster at a time: `jobs` of an experiment file, `tessera jobs`.
 */
#ifndef TSR_STUDY_TENANTS_H
#define TSR_STUDY_TENANTS_H

#include "engine/program/base.h"

struct tsr_study;
struct tsr_job;
struct tsr_yaml_node;

enum { TSR_MAX_TENANTS = 16 };

/* One job: a strategy on nodes of its own. */
struct tsr_tenant {
    const char *name;         /* of the strategy; belongs to the study */
    uint32_t world;           /* GPUs */
    uint32_t *nodes, n_nodes; /* of the cluster, in the order of the job's; owned */
    double alone_s, shared_s; /* mean step, seconds */
    double slowdown;          /* of the step: shared over alone; 0: not known */
    /* Of its own. */
    const struct tsr_job *job;
    const struct tsr_yaml_node *at; /* of the list */
    uint64_t iterations;            /* to emit */
};

struct tsr_tenants {
    struct tsr_tenant items[TSR_MAX_TENANTS];
    size_t n;
};

/* Reads `jobs: [{strategy: NAME, nodes: [N, ...]}]`; a job without nodes gets the first free ones.
 * Errors: TSR_ECONFIG with the place: an unknown strategy, nodes that are not there, taken twice,
 * or too few or too many for the strategy's world, strategies of different clusters. */
tsr_status tsr_tenants_read(const struct tsr_study *study, struct tsr_tenants *out) TSR_MUST_USE;
void tsr_tenants_fini(struct tsr_tenants *tenants);
/* Simulates each job alone in its place, then all of them together until the first one is through,
 * and fills in the steps. Faults, traffic and noise are those of the top of the file. */
tsr_status tsr_tenants_simulate(const struct tsr_study *study,
                                struct tsr_tenants *tenants) TSR_MUST_USE;

#endif
