/* launch.h: which rank of which job this process is, from the environment that a launcher sets; and
 * a launcher for one host.
 */
#ifndef TSR_EXEC_LAUNCH_H
#define TSR_EXEC_LAUNCH_H

#include "engine/program/base.h"

enum { TSR_LAUNCH_ADDR = 256, TSR_LAUNCH_TOKEN = 129, TSR_LAUNCH_PORT = 29517 };
/* Beyond one host a token has at least so many bytes. */
enum { TSR_LAUNCH_TOKEN_LEAST = 16 };

struct tsr_launch {
    uint32_t rank, size, local_rank;
    const char *source; /* static: "TSR_RANK", "torchrun", "SLURM", "Open MPI", "MPICH",
                           "single" */
    bool pmix; /* ranks meet through the launcher's PMIx: address, port and token mean nothing */
    char addr[TSR_LAUNCH_ADDR]; /* of rank 0 */
    char bind[TSR_LAUNCH_ADDR]; /* where this rank listens; "": at the address that others know */
    uint16_t port;
    int listen_fd; /* rank 0 of our own launcher: a socket that listens on the port; else -1 */
    char token[TSR_LAUNCH_TOKEN]; /* "": none; then all ranks are on this host */
};

/* The value of a variable, or NULL; valid until tsr_launch_read() returns. */
typedef const char *(*tsr_getenv_fn)(void *user, const char *name);

/* Sources, the first that is there: TSR_RANK, TSR_SIZE, TSR_LOCAL_RANK; torchrun (RANK, WORLD_SIZE,
 * LOCAL_RANK, MASTER_ADDR, MASTER_PORT); a SLURM step (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID,
 * SLURM_STEP_NODELIST); Open MPI (OMPI_COMM_WORLD_*); MPICH and others with PMI (PMI_RANK,
 * PMI_SIZE, MPI_LOCALRANKID); a job of one rank.
 *
 * TSR_LAUNCHER = torchrun, slurm, openmpi, mpich or single takes that one and no other. Without it,
 * sources behind the first must say the same rank and size, except behind TSR_RANK and behind
 * torchrun that says who it is (TORCHELASTIC_RUN_ID): these may run inside another launcher.
 *
 * Where ranks meet: through PMIx, if SLURM or Open MPI bring it, this build has it, and TSR_ADDR is
 * not set; at 127.0.0.1, if the source says that all ranks are on this host; else at MASTER_ADDR of
 * torchrun or the first host of SLURM's step. TSR_ADDR and TSR_PORT replace that; without an
 * address, all ranks must be on this host. Rank 0 listens there and nowhere else, unless TSR_BIND
 * says so (0.0.0.0: at every address).
 *
 * TSR_TOKEN is the secret of the job, needed beyond this host: no launcher but ours makes one, and
 * what else they set (job ids, names) others know, too.
 *
 * TSR_ECONFIG: a variable is missing, is no number, is out of range, or contradicts another one; a
 * token is needed. The text has values, but never that of the token. */
tsr_status tsr_launch_read(tsr_getenv_fn get, void *user, struct tsr_launch *out) TSR_MUST_USE;
/* From the environment of the process. */
tsr_status tsr_launch_environment(struct tsr_launch *out) TSR_MUST_USE;

/* The first host of a SLURM list: "gpu[07-09,12],login" -> "gpu07". TSR_ECONFIG: no such list, or
 * the name does not fit. */
tsr_status tsr_launch_first_host(const char *list, char *host, size_t bytes) TSR_MUST_USE;

struct tsr_spawn {
    uint32_t n;
    char *const *argv; /* of the program; ends with NULL */
    double grace_s;    /* after the first failure: time for the others to end by themselves, then
                          again between SIGTERM and SIGKILL */
};
struct tsr_spawned {
    int exit_status;  /* 0; that of the first process that failed; 75 if a signal killed it */
    uint32_t rank;    /* that failed first */
    int forwarded;    /* the last signal that came to us and went on to them; 0: none */
    bool interrupted; /* it ended one of them, which had not begun or was told twice */
    char text[160];   /* "rank 2 was killed by signal 9 (Killed)"; empty: none failed */
};

/* Runs n copies of a program as ranks 0 ... n - 1 of a job on this host, and waits for them.
 * SIGINT, SIGTERM and SIGHUP go on to them. What they write to stderr comes out of ours in whole
 * lines; failures that they tell of ("tessera: rank ...") when all have ended, one line for each
 * kind. Their stdin is empty. They end when this process ends. */
tsr_status tsr_launch_spawn(const struct tsr_spawn *spawn, struct tsr_spawned *out) TSR_MUST_USE;

#endif
