/* replay.h: the event-driven replay of tapes on SimGrid. Private to sim/. */
#ifndef TSR_SIM_REPLAY_H
#define TSR_SIM_REPLAY_H

#include "sim/fold/fold.h"
#include "sim/replay/backend.h"
#include "sim/replay/result.h"
#include "sim/tape/tape.h"

enum { TSR__TEXT_BYTES = 2048 };

/* What the child reports beside the result itself; lies in shared memory. */
struct tsr__verdict {
    int finished; /* the child came to its end */
    int status;   /* enum tsr_status */
    int apart;    /* the slow rank and its twin did not keep step: fold literally */
    char text[TSR__TEXT_BYTES];
};

/* A stream of a player: tasks in the order of the program, linked by task->next; TSR_NO_ID behind
 * the last. unhashed is head or a task before it. */
struct tsr__stream {
    uint32_t head;     /* next task to start */
    uint32_t unhashed; /* first task whose record is not in the hash yet */
    uint32_t open;     /* calls of a group in flight */
    uint32_t last;     /* of the train that is running */
    uint32_t on_wire;  /* collectives that its kernel carries now; a group is one kernel */
    bool busy;         /* the head is running */
    double tail;       /* end of the last finished task */
    double group_tail; /* end of the last finished call of a group */
};

struct tsr__queue {
    uint32_t done;
    double tail;
};

struct tsr__sender; /* traffic of others (replay_traffic.c) */

/* One simulated rank. Invariant: done[at] is set once, together with the end of spans[at], as soon
 * as that end is known, which may be before SimGrid's clock gets there. Tasks below `pc` are
 * issued. */
struct tsr__player {
    const struct tsr__tape *tape;
    const struct tsr__qrank *info;
    uint32_t id;
    uint32_t pc;  /* next task that the host issues */
    bool blocked; /* the host has issued tasks[pc] and waits in it */
    bool dirty;
    double host; /* the host's clock */
    double slow; /* factor on kernel times, noise of the GPU included */
    struct tsr__stream *streams;
    struct tsr__queue *queues;
    uint8_t *done;              /* [task] */
    uint8_t *begun;             /* [task]: on a stream; its span has a start */
    struct tsr_sim_span *spans; /* [task], in the result */
    struct tsr_exec_hash *hash; /* [iteration] */
};

struct tsr__arrival {
    uint32_t player, task;
};

/* A collective, or a SEND and its RECV, that somebody has reached. */
struct tsr__wire {
    struct tsr__wire *next;
    uint32_t group, comm, sequence;
    uint16_t from_i, to_i;
    uint8_t kind;
    uint64_t bytes;
    uint32_t n_arrived, n_wanted, n_left;
    double start;
    struct tsr__coll_choice choice;
    struct tsr__arrival *arrivals;
};

/* The state of a replay; lives in the child, which ends with it, so nothing is freed. Invariants: a
 * player stands in dirty[] at most once (`dirty` of the player says so), hence n_dirty <= n_ranks.
 * n_live counts submitted activities whose end is to come, without BESIDE, of which nobody hears,
 * and without the traffic of others, which may go on when the job is over. A wire is in pending[]
 * until its last member has come, and then only in its activities. After `failed` nothing starts.
 */
struct tsr__replay {
    const struct tsr__quotient *q;
    const struct tsr__tapes *tapes;
    const struct tsr_sim_options *options;
    struct tsr_sim_result *result; /* filled; its arrays exist */
    struct tsr__verdict *verdict;
    struct tsr__backend *backend;
    struct tsr__player *players;
    uint32_t *dirty, n_dirty;
    struct tsr__wire **pending; /* [group class]: not everybody has arrived */
    uint32_t n_iterations;
    uint32_t n_live; /* activities of the job; without any it is over, or stuck */
    struct tsr__sender *senders;
    uint32_t n_senders;
    bool failed;
};

/* Simulates a job once: see simulate.c. *out is NULL on failure. Errors: TSR_ECONFIG and
 * TSR_EUNSUPPORTED for more ranks than can be simulated one by one; TSR_EBACKEND as tsr_sim_run().
 */
tsr_status tsr__simulate(const struct tsr__net *net, struct tsr_sim_result **out) TSR_MUST_USE;

/* A zeroed result with room for everything, in memory that a child shares; `*verdict` lies beside
 * it, and goes with it. Errors: TSR_ENOMEM. */
tsr_status tsr__result_create(const struct tsr__quotient *quotient, const struct tsr__tapes *tapes,
                              const struct tsr_sim_job *job, struct tsr_sim_result **out,
                              struct tsr__verdict **verdict) TSR_MUST_USE;

/* Runs everything; the verdict says how it went. Called in the child. */
void tsr__replay_run(const struct tsr__quotient *q, const struct tsr__tapes *tapes,
                     const struct tsr_sim_job *job, const struct tsr_sim_options *options,
                     struct tsr_sim_result *result, struct tsr__verdict *verdict);

/* ---- between the files of the replay --------------------------------------------------------- */

void tsr__replay_fail(struct tsr__replay *replay, tsr_status status, const char *fmt, ...)
    TSR_PRINTF(3, 4);
void tsr__replay_submit(struct tsr__replay *replay, const struct tsr__activity *activity);
/* Task `at` is over at `end`; starts nothing, but marks the rank for tsr__replay_pump(). */
void tsr__replay_finish(struct tsr__replay *replay, struct tsr__player *player, uint32_t at,
                        double end);
/* A rank has reached a WIRE task at `ready` (replay_wire.c). */
void tsr__wire_arrive(struct tsr__replay *replay, struct tsr__player *player, uint32_t at,
                      double ready);
/* A delay or a flow of `wire` has ended. */
void tsr__wire_progress(struct tsr__replay *replay, struct tsr__wire *wire, uint32_t tag);
/* A copy between host and device. */
void tsr__wire_host_copy(struct tsr__replay *replay, struct tsr__player *player, uint32_t at,
                         double ready, double start_s);
/* Traffic of others: starts it; goes on when a message has ended (replay_traffic.c). False: no
 * memory. */
bool tsr__traffic_start(struct tsr__replay *replay);
bool tsr__traffic_owns(const struct tsr__replay *replay, const void *object);
void tsr__traffic_sent(struct tsr__replay *replay, void *object);
/* Describes what every stream waits for (replay_report.c). */
void tsr__replay_report_deadlock(struct tsr__replay *replay);

#endif
