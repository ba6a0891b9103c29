/* transitions.c: the tables of legal moves, and the functions that make them. A state keeps
 * PRE_BACKWARD until the final callback, its group becomes POST_BACKWARD earlier. Several forwards
 * before a backward, early stops and lists of which a module never runs make the less obvious rows.
 */
#include "engine/fsdp/transitions.h"

#include "engine/fsdp/fsdp.h"

static const struct tsr_transition state_rows[] = {
    {TSR_IDLE, TSR_FORWARD, TSR_BY_PRE_FORWARD, NULL},
    {TSR_FORWARD, TSR_FORWARD, TSR_BY_PRE_FORWARD, "a list of which a module did not run"},
    {TSR_FORWARD, TSR_IDLE, TSR_BY_POST_FORWARD, NULL},
    {TSR_IDLE, TSR_PRE_BACKWARD, TSR_BY_PRE_BACKWARD, NULL},
    {TSR_PRE_BACKWARD, TSR_PRE_BACKWARD, TSR_BY_PRE_BACKWARD, "another output"},
    {TSR_FORWARD, TSR_PRE_BACKWARD, TSR_BY_PRE_BACKWARD,
     "an earlier forward of an unfinished list"},
    {TSR_PRE_BACKWARD, TSR_IDLE, TSR_BY_FINAL_CALLBACK, NULL},
    {TSR_FORWARD, TSR_IDLE, TSR_BY_FINAL_CALLBACK, "a list of which a module did not run"},
    {TSR_IDLE, TSR_IDLE, TSR_BY_FINAL_CALLBACK, "not part of this backward"},
};

/* The target of a prefetch may be in any state: its own forward may be unfinished, a recomputation
 * runs forwards inside of the backward pass. The prefetch restores the state that it found. */
static const struct tsr_transition group_rows[] = {
    {TSR_IDLE, TSR_FORWARD, TSR_BY_PRE_FORWARD, NULL},
    {TSR_FORWARD, TSR_FORWARD, TSR_BY_PRE_FORWARD, "a list of which a module did not run"},
    {TSR_FORWARD, TSR_IDLE, TSR_BY_POST_FORWARD, NULL},
    {TSR_IDLE, TSR_PRE_BACKWARD, TSR_BY_PRE_BACKWARD, NULL},
    {TSR_FORWARD, TSR_PRE_BACKWARD, TSR_BY_PRE_BACKWARD,
     "an earlier forward of an unfinished list"},
    {TSR_POST_BACKWARD, TSR_PRE_BACKWARD, TSR_BY_PRE_BACKWARD, "an earlier forward (R139)"},
    {TSR_PRE_BACKWARD, TSR_POST_BACKWARD, TSR_BY_POST_BACKWARD, NULL},
    {TSR_FORWARD, TSR_POST_BACKWARD, TSR_BY_POST_BACKWARD, "a list of which a module did not run"},
    {TSR_IDLE, TSR_POST_BACKWARD, TSR_BY_FINAL_CALLBACK, "unused in this backward"},
    {TSR_PRE_BACKWARD, TSR_POST_BACKWARD, TSR_BY_FINAL_CALLBACK, "no input needs a gradient"},
    {TSR_FORWARD, TSR_POST_BACKWARD, TSR_BY_FINAL_CALLBACK, "a list of which a module did not run"},
    {TSR_POST_BACKWARD, TSR_IDLE, TSR_BY_FINAL_CALLBACK, NULL},
    {TSR_IDLE, TSR_FORWARD, TSR_BY_FORWARD_PREFETCH, NULL},
    {TSR_FORWARD, TSR_FORWARD, TSR_BY_FORWARD_PREFETCH, "in its own forward"},
    {TSR_PRE_BACKWARD, TSR_FORWARD, TSR_BY_FORWARD_PREFETCH, "in a recomputation"},
    {TSR_POST_BACKWARD, TSR_FORWARD, TSR_BY_FORWARD_PREFETCH, "in a recomputation"},
    {TSR_IDLE, TSR_PRE_BACKWARD, TSR_BY_BACKWARD_PREFETCH, NULL},
    {TSR_FORWARD, TSR_PRE_BACKWARD, TSR_BY_BACKWARD_PREFETCH, "its list is unfinished"},
    {TSR_PRE_BACKWARD, TSR_PRE_BACKWARD, TSR_BY_BACKWARD_PREFETCH, "it is there already"},
    {TSR_POST_BACKWARD, TSR_PRE_BACKWARD, TSR_BY_BACKWARD_PREFETCH, "an earlier forward (R139)"},
    {TSR_FORWARD, TSR_IDLE, TSR_BY_PREFETCH_END, NULL},
    {TSR_FORWARD, TSR_FORWARD, TSR_BY_PREFETCH_END, NULL},
    {TSR_FORWARD, TSR_PRE_BACKWARD, TSR_BY_PREFETCH_END, NULL},
    {TSR_FORWARD, TSR_POST_BACKWARD, TSR_BY_PREFETCH_END, NULL},
    {TSR_PRE_BACKWARD, TSR_IDLE, TSR_BY_PREFETCH_END, NULL},
    {TSR_PRE_BACKWARD, TSR_FORWARD, TSR_BY_PREFETCH_END, NULL},
    {TSR_PRE_BACKWARD, TSR_PRE_BACKWARD, TSR_BY_PREFETCH_END, NULL},
    {TSR_PRE_BACKWARD, TSR_POST_BACKWARD, TSR_BY_PREFETCH_END, NULL},
};

static const struct tsr_transition sharded_rows[] = {
    {TSR_SHARDED, TSR_UNSHARDED, TSR_BY_COPY_OUT, NULL},
    {TSR_SHARDED_POST_FORWARD, TSR_UNSHARDED, TSR_BY_COPY_OUT, NULL},
    {TSR_UNSHARDED, TSR_SHARDED, TSR_BY_RESHARD, NULL},
    {TSR_UNSHARDED, TSR_SHARDED_POST_FORWARD, TSR_BY_RESHARD, "after forward, to the smaller mesh"},
    {TSR_SHARDED_POST_FORWARD, TSR_SHARDED, TSR_BY_RESHARD, NULL},
    {TSR_UNSHARDED, TSR_SHARDED, TSR_BY_STATE_DICT, NULL},
    {TSR_SHARDED_POST_FORWARD, TSR_SHARDED, TSR_BY_STATE_DICT, NULL},
    {TSR_UNSHARDED, TSR_SHARDED, TSR_BY_RESET, NULL},
    {TSR_SHARDED_POST_FORWARD, TSR_SHARDED, TSR_BY_RESET, NULL},
};

static const struct {
    const char *name;
    const struct tsr_transition *rows;
    size_t n;
    unsigned n_states;
} machines[TSR_N_MACHINES] = {
    [TSR_MACHINE_STATE] = {"training_of_state", state_rows, sizeof state_rows / sizeof *state_rows,
                           TSR_POST_BACKWARD},
    [TSR_MACHINE_GROUP] = {"training_of_group", group_rows, sizeof group_rows / sizeof *group_rows,
                           TSR_N_TRAINING},
    [TSR_MACHINE_SHARDED] = {"sharded_state", sharded_rows,
                             sizeof sharded_rows / sizeof *sharded_rows, TSR_N_SHARDED}};

const struct tsr_transition *tsr_transitions(enum tsr_machine machine, size_t *n)
{
    *n = machines[machine].n;
    return machines[machine].rows;
}

const char *tsr_machine_name(enum tsr_machine machine)
{
    return machines[machine].name;
}

const char *tsr_machine_state_name(enum tsr_machine machine, unsigned state)
{
    static const char *const training[] = {"IDLE", "FORWARD", "PRE_BACKWARD", "POST_BACKWARD"};
    static const char *const sharded[] = {"SHARDED", "SHARDED_POST_FORWARD", "UNSHARDED"};
    if (state >= machines[machine].n_states)
        return NULL;
    return machine == TSR_MACHINE_SHARDED ? sharded[state] : training[state];
}

const char *tsr_cause_name(enum tsr_cause cause)
{
    static const char *const names[TSR_N_CAUSES] = {[TSR_BY_PRE_FORWARD] = "pre-forward",
                                                    [TSR_BY_POST_FORWARD] = "post-forward",
                                                    [TSR_BY_PRE_BACKWARD] = "pre-backward",
                                                    [TSR_BY_POST_BACKWARD] = "post-backward",
                                                    [TSR_BY_FINAL_CALLBACK] = "final callback",
                                                    [TSR_BY_FORWARD_PREFETCH] = "forward prefetch",
                                                    [TSR_BY_BACKWARD_PREFETCH] =
                                                        "backward prefetch",
                                                    [TSR_BY_PREFETCH_END] = "end of the prefetch",
                                                    [TSR_BY_COPY_OUT] = "copy-out",
                                                    [TSR_BY_RESHARD] = "reshard",
                                                    [TSR_BY_STATE_DICT] = "state_dict",
                                                    [TSR_BY_RESET] = "reset_iter_state"};
    return names[cause];
}

static bool is_legal(enum tsr_machine machine, unsigned from, unsigned to, enum tsr_cause cause)
{
    const struct tsr_transition *rows = machines[machine].rows;
    for (size_t i = 0; i < machines[machine].n; i++)
        if (rows[i].from == from && rows[i].to == to && rows[i].cause == cause)
            return true;
    return false;
}

static void check(struct tsr_engine *e, enum tsr_machine machine, const char *name, unsigned from,
                  unsigned to, enum tsr_cause cause)
{
    if (tsr__ok(e) && !is_legal(machine, from, to, cause))
        TSR__RAISE(e, TSR_EASSERT, "%s of '%s' cannot move from %s to %s by %s",
                   tsr_machine_name(machine), name, tsr_machine_state_name(machine, from),
                   tsr_machine_state_name(machine, to), tsr_cause_name(cause));
}

void tsr__state_set_training(struct tsr_engine *e, struct tsr_state *s, enum tsr_training_state to,
                             enum tsr_cause cause)
{
    check(e, TSR_MACHINE_STATE, s->name, s->training, to, cause);
    s->training = to;
}

void tsr__group_set_training(struct tsr_engine *e, struct tsr_group *g, enum tsr_training_state to,
                             enum tsr_cause cause)
{
    check(e, TSR_MACHINE_GROUP, g->name, g->training, to, cause);
    g->training = to;
}

void tsr__group_set_sharded(struct tsr_engine *e, struct tsr_group *g, enum tsr_sharded_state to,
                            enum tsr_cause cause)
{
    check(e, TSR_MACHINE_SHARDED, g->name, g->sharded, to, cause);
    g->sharded = to;
}
