/* transitions.c: the tables of legal moves. A state keeps PRE_BACKWARD until the final callback,
 * its group becomes POST_BACKWARD earlier; several forwards before a backward, early stops and
 * lists of which a module never runs make the less obvious rows.
 */
#include "engine/fsdp/transitions.h"

#include "engine/fsdp/fsdp.h"

static const struct tsr_transition state_rows[] = {
    {TSR_IDLE, TSR_FORWARD, "pre-forward"},
    {TSR_FORWARD, TSR_IDLE, "post-forward"},
    {TSR_FORWARD, TSR_FORWARD, "pre-forward again: a list of which a module did not run"},
    {TSR_IDLE, TSR_PRE_BACKWARD, "pre-backward"},
    {TSR_PRE_BACKWARD, TSR_PRE_BACKWARD, "pre-backward of another output"},
    {TSR_FORWARD, TSR_PRE_BACKWARD, "pre-backward of an earlier forward of an unfinished list"},
    {TSR_PRE_BACKWARD, TSR_IDLE, "final callback"},
    {TSR_FORWARD, TSR_IDLE, "final callback: a list of which a module did not run"},
    {TSR_IDLE, TSR_IDLE, "final callback: not part of this backward"},
};

static const struct tsr_transition group_rows[] = {
    {TSR_IDLE, TSR_FORWARD, "pre-forward, or prefetch in forward"},
    {TSR_FORWARD, TSR_IDLE, "post-forward, or end of the prefetch"},
    {TSR_FORWARD, TSR_FORWARD, "pre-forward again, or prefetch in its own forward"},
    {TSR_IDLE, TSR_PRE_BACKWARD, "pre-backward, or prefetch in backward"},
    {TSR_PRE_BACKWARD, TSR_IDLE, "end of the prefetch"},
    {TSR_PRE_BACKWARD, TSR_PRE_BACKWARD, "prefetch of a group that is there already"},
    {TSR_PRE_BACKWARD, TSR_FORWARD, "forward prefetch in a recomputation"},
    {TSR_FORWARD, TSR_PRE_BACKWARD, "end of that prefetch"},
    {TSR_PRE_BACKWARD, TSR_POST_BACKWARD, "post-backward"},
    {TSR_IDLE, TSR_POST_BACKWARD,
     "post-backward from the final callback: unused, or no input grad"},
    {TSR_FORWARD, TSR_POST_BACKWARD, "post-backward of a list of which a module did not run"},
    {TSR_POST_BACKWARD, TSR_PRE_BACKWARD, "pre-backward of an earlier forward (R139), or prefetch"},
    {TSR_POST_BACKWARD, TSR_FORWARD, "forward prefetch in a recomputation"},
    {TSR_FORWARD, TSR_POST_BACKWARD, "end of that prefetch"},
    {TSR_PRE_BACKWARD, TSR_POST_BACKWARD, "end of a prefetch of a reduced group"},
    {TSR_POST_BACKWARD, TSR_IDLE, "final callback"},
};

static const struct tsr_transition sharded_rows[] = {
    {TSR_SHARDED, TSR_UNSHARDED, "copy-out"},
    {TSR_UNSHARDED, TSR_SHARDED, "reshard"},
    {TSR_UNSHARDED, TSR_SHARDED_POST_FORWARD, "reshard after forward to the smaller mesh"},
    {TSR_SHARDED_POST_FORWARD, TSR_UNSHARDED, "copy-out"},
    {TSR_SHARDED_POST_FORWARD, TSR_SHARDED, "reshard"},
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

static bool is_legal(enum tsr_machine machine, unsigned from, unsigned to)
{
    for (size_t i = 0; i < machines[machine].n; i++)
        if (machines[machine].rows[i].from == from && machines[machine].rows[i].to == to)
            return true;
    return false;
}

static void check(struct tsr_engine *e, enum tsr_machine machine, const char *who, unsigned from,
                  unsigned to)
{
    if (tsr__ok(e) && !is_legal(machine, from, to))
        TSR__RAISE(e, TSR_EASSERT, "%s of '%s' cannot move from %s to %s",
                   tsr_machine_name(machine), who, tsr_machine_state_name(machine, from),
                   tsr_machine_state_name(machine, to));
}

void tsr__state_set_training(struct tsr_engine *e, struct tsr_state *s, enum tsr_training_state to)
{
    check(e, TSR_MACHINE_STATE, s->name, s->training, to);
    s->training = to;
}

void tsr__group_set_training(struct tsr_engine *e, struct tsr_group *g, enum tsr_training_state to)
{
    check(e, TSR_MACHINE_GROUP, g->name, g->training, to);
    g->training = to;
}

void tsr__group_set_sharded(struct tsr_engine *e, struct tsr_group *g, enum tsr_sharded_state to)
{
    check(e, TSR_MACHINE_SHARDED, g->name, g->sharded, to);
    g->sharded = to;
}
