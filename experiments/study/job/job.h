/* job.h: one strategy with everything that its names stand for: model, cluster, mesh. */
#ifndef TSR_STUDY_JOB_H
#define TSR_STUDY_JOB_H

#include "experiments/study/config/changes.h"
#include "experiments/study/config/experiment.h"
#include "experiments/study/model/model.h"
#include "sim/cluster/cluster.h"

/* Borrows the experiment, the strategy and its settings, which outlive it; owns model and cluster.
 * Once tsr_job_open() has returned, mesh and world fit each other and the cluster, if there is
 * one. */
struct tsr_job {
    const struct tsr_experiment *experiment;
    const struct tsr_strategy *strategy;
    const struct tsr_settings *settings; /* of the strategy; or own_settings */
    struct tsr_settings *own_settings; /* with the sizes of a trace, without keys that its API does
                                          not read; owned; NULL: none */
    struct tsr_model model;
    struct tsr_cluster cluster; /* name "" without a cluster */
    struct tsr_mesh mesh;
    uint32_t world;
    uint64_t limit_bytes;  /* of the allocator, in place of allocator.limit; 0: as that says */
    uint64_t budget_bytes; /* that may be taken of the card; 0: all that a process sees of it */
    bool executes;         /* it is run: the host is told losses and norms */
    bool is_trial;         /* one of a search: remarks on it would only confuse */
    struct tsr_changes changes; /* against the reference of its study; nothing where it is alone */
};

enum tsr_job_needs { TSR_NEEDS_ALL, TSR_MAY_LACK_CLUSTER };

/* Loads and checks. Errors: TSR_ECONFIG with the place of the key. On failure nothing is to be
 * closed. */
tsr_status tsr_job_open(const struct tsr_experiment *experiment,
                        const struct tsr_strategy *strategy, enum tsr_job_needs needs,
                        struct tsr_job *out) TSR_MUST_USE;
void tsr_job_close(struct tsr_job *job);

/* Checks keys of the step against each other (job_step.c); part of tsr_job_open(). */
tsr_status tsr_job_check_step(const struct tsr_job *job) TSR_MUST_USE;

/* Where a key (an enum tsr_key_id) was given in this strategy, else the strategy itself: for
 * messages. */
const struct tsr_yaml_node *tsr_job_at(const struct tsr_job *job, size_t key);

/* A value that cannot be combined with another setting. */
struct tsr_misfit {
    enum tsr_key_id key;
    const char *allowed;
    bool found;
};

/* Refuses the first value that was found: "KEY: found VALUE WHY; allowed: ALLOWED", where `why` is
 * " beside api: fsdp1"; TSR_OK if none was. */
tsr_status tsr_job_refuse_misfits(const struct tsr_job *job, const struct tsr_misfit *list,
                                  size_t n, const char *why) TSR_MUST_USE;

/* Loads the model that settings name. */
tsr_status tsr_load_model(const struct tsr_experiment *experiment,
                          const struct tsr_strategy *strategy, struct tsr_model *out) TSR_MUST_USE;
/* Some key names or describes a cluster. */
bool tsr_has_cluster(const struct tsr_settings *settings);
/* Loads the cluster that they name or describe into job->cluster; part of tsr_job_open(). */
tsr_status tsr_load_cluster(struct tsr_job *job) TSR_MUST_USE;
/* TSR_ECONFIG: the file of the experiment has no such key, and what may stand there. */
tsr_status tsr_job_lacks(const struct tsr_experiment *experiment, const char *key,
                         const char *allowed);

/* Of a traced model: the variant that the keys mean, whose sizes become the job's (job_traced.c);
 * part of tsr_job_open(). Errors: TSR_ECONFIG with the command that traces what was asked for. */
tsr_status tsr_job_choose_trace(struct tsr_job *job) TSR_MUST_USE;
/* The engine's complaint about how a traced model is wrapped, at the key and with that command. */
tsr_status tsr_job_refuse_wrap(const struct tsr_job *job, tsr_status status);
/* Tokens of a rank and an iteration: what throughput counts. */
uint64_t tsr_job_tokens(const struct tsr_job *job);

/* Refuses what FSDP1 does in PyTorch and not here (TSR_ECONFIG), wherever it was given. */
tsr_status tsr_job_check_fsdp1(const struct tsr_job *job) TSR_MUST_USE;

/* Returns the dialect that is emitted: eager where only the loss is compiled. */
enum tsr_dialect tsr_job_dialect(const struct tsr_settings *settings);

/* What PyTorch does wrong where DDP computes in another dtype than that of its parameters
 * (engine/ddp/README.md), for the end of TSR_DDP_MIXED_FAULT; NULL: it is not asked to. stops: it
 * never trains so. */
const char *tsr_ddp_mixed_fault(const struct tsr_job *job, bool *stops);
#define TSR_DDP_MIXED_FAULT                                                                        \
    "is DDP's own mixed precision, with which PyTorch 2.11 %s; autocast (of a traced model) does " \
    "not"
/* Remarks that are no errors (a sliding window that is not modelled, ...), one line each, at most
 * `n` of them; returns how many. */
size_t tsr_job_notes(const struct tsr_job *job, char (*out)[256], size_t n);

/* "fully_shard per block, reshard null, bf16 / f32": the options of a strategy in words. */
void tsr_strategy_words(const struct tsr_settings *settings, char *out, size_t size);

/* ---- keys that nothing reads (reads.c) ------------------------------------------------------- */

/* Keys of another API (the table of keys says which API reads which), and keys that only mean
 * something beside another one. Given in the strategy itself, such a key is a mistake. One that
 * comes from a stack or from the head of the file, which other strategies share, is a remark. So is
 * one that became idle because a --set or a sweep changed the API, or the other key. */

/* Fails with TSR_ECONFIG, one line, at the first key that the strategy itself gives in vain. A
 * default that says that there is none (none, null, false, 0), or that takes back an inherited
 * value, is no mistake. Part of tsr_job_open(). */
tsr_status tsr_check_reads(const struct tsr_job *job) TSR_MUST_USE;

/* Puts inherited keys that the job's API does not read back to their defaults, in settings of its
 * own: whatever is made of the job, none of it reads them. But for mesh.*, whose product is the
 * number of ranks of every API. Part of tsr_job_open(). */
tsr_status tsr_job_drop_unread(struct tsr_job *job) TSR_MUST_USE;

/* True if the job's model has no use for the value of the key; then *allowed says for which it has.
 */
bool tsr_model_ignores(const struct tsr_job *job, size_t key, const char **allowed);

/* True if train.decay: matrices leaves nothing to decay, since FSDP1's shards have one dimension;
 * and the remark that says so. */
bool tsr_decays_nothing(const struct tsr_job *job);
extern const char tsr_decays_nothing_words[];

/* Tells the listener of keys that strategies inherit in vain, a line for each API and for each key
 * that they would need. `only`: of this strategy; NULL: of all. */
void tsr_tell_unread(const struct tsr_experiment *experiment, const struct tsr_strategy *only);

/* False if a value of the key can change nothing of this job, by its API or by its model: searches
 * do not try it. */
bool tsr_job_reads(const struct tsr_job *job, enum tsr_key_id key);

#endif
