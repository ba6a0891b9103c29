/* nccl_shared.h: the stand-in of NCCL between processes of one machine.
 *
 * The members of an id sign a roll that lies in shared memory. When all have signed they know
 * whether they are threads of one process, who meet in its own memory (nccl.c, nccl_work.c), or
 * processes. These meet here: bytes go through shared memory in pieces, and a member waits for
 * another by looking at how far that one is. There are no locks: a process that is killed leaves
 * none behind, and whoever waits for it does so until the communicator is aborted, as with the
 * real one. The memory has no name: the kernel takes it back with the last process.
 */
#ifndef TSR_STANDIN_NCCL_SHARED_H
#define TSR_STANDIN_NCCL_SHARED_H

#include "tests/standin/nccl_impl.h"

/* Of one id, as this process sees it; kept until the process ends. */
struct nccl_roll;
struct nccl_shared;

/* Makes an id and its memory; false: the system gives none. */
bool tsr__nccl_roll_make(ncclUniqueId *id);
/* The roll of an id; NULL: the process that made it is gone, or it is no id. */
struct nccl_roll *tsr__nccl_roll_of(const ncclUniqueId *id);
uint64_t tsr__nccl_roll_key(const struct nccl_roll *roll);
/* Signs as `rank` of `n`; false: another member said another number. */
bool tsr__nccl_roll_sign(struct nccl_roll *roll, int n, int rank);
enum nccl_members { NCCL_INCOMPLETE, NCCL_THREADS, NCCL_PROCESSES };
enum nccl_members tsr__nccl_roll_members(const struct nccl_roll *roll);
/* Where the processes of the roll meet; NULL: they are too many, or no memory. */
struct nccl_shared *tsr__nccl_shared_of(struct nccl_roll *roll);

/* True when all members have split; *out is then of those with this member's color, *n of them,
 * who have *rank in it. Asked again until then. */
bool tsr__nccl_shared_split(ncclComm_t comm, int color, int key, struct nccl_shared **out, int *n,
                            int *rank);
/* What follows is false if the communicator has ended. Members that disagree wait for that. */
bool tsr__nccl_shared_window(ncclComm_t comm, size_t bytes);
bool tsr__nccl_shared_run(ncclComm_t comm, const struct nccl_post *post);
bool tsr__nccl_shared_mail(ncclComm_t comm, const struct nccl_mail *mail);
/* Who waits looks whether the communicator has ended. */
void tsr__nccl_shared_wake(struct nccl_shared *hub);

#endif
