/* nccl.h: what tests ask of the stand-in of NCCL beside standin.h. Its entry points can be made to
 * fail as all others; "(async)": the n-th look at a communicator's state finds that error.
 *
 * Ranks are threads of one process, or processes of one machine (nccl_shared.h). A call is carried
 * out late, on its stream, when all members have come to theirs. Members are matched as NCCL does
 * it: by the order of calls on a communicator, nothing else. Where they disagree, or one of them is
 * gone, the call hangs, as the real one may, until the communicator is aborted or revoked. Calls of
 * a graph run in the order in which they were captured.
 */
#ifndef TSR_STANDIN_NCCL_H
#define TSR_STANDIN_NCCL_H

#include <nccl.h>

/* The version that the library says it is; 0: that of the header. For each thread. */
void tsr_standin_nccl_version(int version);
/* The next look at a communicator's state finds this error, while ranks run; "(async)" of
 * tsr_standin_fail() is for before. */
void tsr_standin_nccl_break(ncclResult_t error);
/* Communicators and windows that were made and not freed. */
int tsr_standin_nccl_live(void);
/* What a communicator was made with. */
struct tsr_standin_nccl_seen {
    char name[64];
    int ranks, cta_policy, max_ctas, blocking;
};
/* The i-th of those that were ever made, of all ranks; false: there are fewer. */
bool tsr_standin_nccl_seen(int i, struct tsr_standin_nccl_seen *out);

#endif
