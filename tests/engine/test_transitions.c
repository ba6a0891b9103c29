/* test_transitions.c: a move of a state machine is refused when it is made by another cause than
 * the tables of engine/fsdp/transitions.c give, though its two states are those of a legal move.
 * One planted cause for each place in the engine that makes a move.
 */
#include "engine/fsdp/fsdp.h"
#include "engine/graph/engine.h"
#include "tests/rules/rules_order.h"

struct plant {
    enum tsr_machine machine;
    unsigned from, to;
    enum tsr_cause right, wrong;
};

static const struct plant plants[] = {
    {TSR_MACHINE_STATE, TSR_IDLE, TSR_FORWARD, TSR_BY_PRE_FORWARD, TSR_BY_POST_FORWARD},
    {TSR_MACHINE_STATE, TSR_FORWARD, TSR_IDLE, TSR_BY_POST_FORWARD, TSR_BY_PRE_FORWARD},
    {TSR_MACHINE_STATE, TSR_IDLE, TSR_PRE_BACKWARD, TSR_BY_PRE_BACKWARD, TSR_BY_PRE_FORWARD},
    {TSR_MACHINE_STATE, TSR_PRE_BACKWARD, TSR_IDLE, TSR_BY_FINAL_CALLBACK, TSR_BY_POST_FORWARD},
    {TSR_MACHINE_GROUP, TSR_IDLE, TSR_FORWARD, TSR_BY_PRE_FORWARD, TSR_BY_BACKWARD_PREFETCH},
    {TSR_MACHINE_GROUP, TSR_FORWARD, TSR_IDLE, TSR_BY_POST_FORWARD, TSR_BY_FINAL_CALLBACK},
    {TSR_MACHINE_GROUP, TSR_IDLE, TSR_PRE_BACKWARD, TSR_BY_PRE_BACKWARD, TSR_BY_PRE_FORWARD},
    {TSR_MACHINE_GROUP, TSR_PRE_BACKWARD, TSR_POST_BACKWARD, TSR_BY_POST_BACKWARD,
     TSR_BY_PRE_BACKWARD},
    {TSR_MACHINE_GROUP, TSR_IDLE, TSR_POST_BACKWARD, TSR_BY_FINAL_CALLBACK, TSR_BY_POST_BACKWARD},
    {TSR_MACHINE_GROUP, TSR_POST_BACKWARD, TSR_IDLE, TSR_BY_FINAL_CALLBACK, TSR_BY_POST_FORWARD},
    {TSR_MACHINE_GROUP, TSR_IDLE, TSR_FORWARD, TSR_BY_FORWARD_PREFETCH, TSR_BY_PREFETCH_END},
    {TSR_MACHINE_GROUP, TSR_IDLE, TSR_PRE_BACKWARD, TSR_BY_BACKWARD_PREFETCH,
     TSR_BY_FORWARD_PREFETCH},
    {TSR_MACHINE_GROUP, TSR_PRE_BACKWARD, TSR_IDLE, TSR_BY_PREFETCH_END, TSR_BY_FINAL_CALLBACK},
    {TSR_MACHINE_SHARDED, TSR_SHARDED, TSR_UNSHARDED, TSR_BY_COPY_OUT, TSR_BY_RESHARD},
    {TSR_MACHINE_SHARDED, TSR_UNSHARDED, TSR_SHARDED, TSR_BY_RESHARD, TSR_BY_COPY_OUT},
    {TSR_MACHINE_SHARDED, TSR_UNSHARDED, TSR_SHARDED_POST_FORWARD, TSR_BY_RESHARD,
     TSR_BY_STATE_DICT},
    {TSR_MACHINE_SHARDED, TSR_UNSHARDED, TSR_SHARDED, TSR_BY_STATE_DICT, TSR_BY_PRE_BACKWARD},
    {TSR_MACHINE_SHARDED, TSR_UNSHARDED, TSR_SHARDED, TSR_BY_RESET, TSR_BY_FINAL_CALLBACK},
};

/* Makes the move in a new engine, and returns the engine's status. */
static tsr_status move(const struct plant *p, enum tsr_cause cause)
{
    struct rig r;
    rig_open(&r, (struct rig_setup){.shards = 2});
    rig_wrap(&r, NULL, NULL);
    rig_start(&r);
    struct tsr_state *s = rig_module(&r, "layers.1")->state;
    struct tsr_group *g = s->groups[0];
    if (p->machine == TSR_MACHINE_STATE) {
        s->training = (enum tsr_training_state)p->from;
        tsr__state_set_training(r.e, s, (enum tsr_training_state)p->to, cause);
    } else if (p->machine == TSR_MACHINE_GROUP) {
        g->training = (enum tsr_training_state)p->from;
        tsr__group_set_training(r.e, g, (enum tsr_training_state)p->to, cause);
    } else {
        g->sharded = (enum tsr_sharded_state)p->from;
        tsr__group_set_sharded(r.e, g, (enum tsr_sharded_state)p->to, cause);
    }
    tsr_status status = r.e->status;
    rig_close(&r);
    return status;
}

static void moves__right_cause__made(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof plants / sizeof *plants; i++)
        assert_int_equal(move(&plants[i], plants[i].right), TSR_OK);
}

static void moves__planted_cause__refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) {
        const struct plant *p = &plants[i];
        char words[96];
        assert_int_equal(move(p, p->wrong), TSR_EASSERT);
        snprintf(words, sizeof words, "from %s to %s by %s",
                 tsr_machine_state_name(p->machine, p->from),
                 tsr_machine_state_name(p->machine, p->to), tsr_cause_name(p->wrong));
        if (!strstr(tsr_error_text(), words))
            fail_msg("plant %zu: %s", i, tsr_error_text());
    }
}

/* No cause of a machine is without a plant, so that a new calling place brings one. */
static void moves__every_cause_of_the_tables__has_a_plant(void **state)
{
    (void)state;
    for (int m = 0; m < TSR_N_MACHINES; m++) {
        size_t n, k;
        const struct tsr_transition *rows = tsr_transitions((enum tsr_machine)m, &n);
        for (size_t i = 0; i < n; i++) {
            for (k = 0; k < sizeof plants / sizeof *plants; k++)
                if ((int)plants[k].machine == m && plants[k].right == rows[i].cause)
                    break;
            if (k == sizeof plants / sizeof *plants)
                fail_msg("no plant of %s in %s", tsr_cause_name(rows[i].cause),
                         tsr_machine_name((enum tsr_machine)m));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves__right_cause__made),
        cmocka_unit_test(moves__planted_cause__refused_by_name),
        cmocka_unit_test(moves__every_cause_of_the_tables__has_a_plant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
