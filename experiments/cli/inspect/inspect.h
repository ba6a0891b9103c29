/* inspect.h: facts as JSON objects, and their rendering as text: one source for both formats. */
#ifndef TSR_CLI_INSPECT_H
#define TSR_CLI_INSPECT_H

#include <jansson.h>
#include <stdio.h>

#include "experiments/study/job/job.h"
#include "experiments/study/report/report_text.h"

/* Layout of a strategy, and the module tree of its model ("modules"). */
tsr_status tsr_inspect_layout(const struct tsr_job *job, json_t **out) TSR_MUST_USE;

/* `tp`: tensor-parallel ranks, of which the tree is one's. */
void tsr_print_modules(FILE *out, const json_t *modules, uint64_t tp);
void tsr_print_layout(FILE *out, const json_t *layout);

/* Switches, links and places of a cluster, as part of its facts ("network"); NULL: out of memory.
 * The drawing takes the facts of the whole cluster. */
json_t *tsr_inspect_topology(const struct tsr_cluster *cluster);
void tsr_print_topology(FILE *out, const json_t *cluster);

/* "8,030,261,248" */
const char *tsr_group_digits(uint64_t value, char out[32]);

#endif
