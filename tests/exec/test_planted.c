/* test_planted.c: executors that do something else than the program are found out: each drops,
 * swaps, shortens or changes one thing, and the executed hash is not the program's, or the run
 * fails.
 */
#include "exec/host/host_device.h"
#include "tests/exec/instrs_testing.h"
#include "tests/exec/jobs_testing.h"

enum plant { NOTHING, DROP, SWAP, SHORTEN, STREAM, REDUCTION, EVENT, N_PLANTS };
static const char *const names[] = {"nothing",      "drop",      "swap", "shorten",
                                    "wrong stream", "reduction", "event"};

static bool reduces(const struct tsr_instr *instr)
{
    return instr->kind == TSR_REDUCE_SCATTER || instr->kind == TSR_ALL_REDUCE;
}

static bool is_event(const struct tsr_instr *instr)
{
    return instr->kind == TSR_RECORD || instr->kind == TSR_WAIT || instr->kind == TSR_HOST_WAIT;
}

static bool is_waited_for(const struct list *l, size_t i)
{
    for (size_t k = 0; l->instrs[i].kind == TSR_RECORD && k < l->n; k++)
        if (is_event(&l->instrs[k]) && l->instrs[k].kind != TSR_RECORD &&
            l->instrs[k].event == l->instrs[i].event)
            return true;
    return false;
}

/* What can be done to an instruction such that the streams still come to their ends: an event that
 * nobody records is waited for until the timeout. */
static bool applies(const struct list *l, size_t i, enum plant plant)
{
    const struct tsr_instr *instr = &l->instrs[i];
    bool grouped =
        instr->kind == TSR_GROUP_BEGIN || instr->kind == TSR_SEND || instr->kind == TSR_RECV;
    switch (plant) {
    case DROP:
        return !is_waited_for(l, i);
    case STREAM: /* a group is launched where it ends, on that stream */
        return !is_waited_for(l, i) && !grouped;
    case SHORTEN:
        return instr->n_operands > 0;
    case REDUCTION:
        return reduces(instr);
    case EVENT:
        return is_event(instr) && !is_waited_for(l, i);
    default:
        return true;
    }
}

/* ---- in the list of instructions ------------------------------------------------------------- */

static void plant_in_list(struct list *l, size_t i, enum plant plant)
{
    struct tsr_instr *instr = &l->instrs[i];
    struct tsr_operand *last = &l->operands[i][instr->n_operands ? instr->n_operands - 1 : 0];
    struct tsr_instr next = l->instrs[i + 1 < l->n ? i + 1 : i];
    switch (plant) {
    case DROP:
        memmove(instr, instr + 1, (l->n - i - 1) * sizeof *instr);
        l->n--;
        break;
    case SWAP:
        l->instrs[i + 1 < l->n ? i + 1 : i] = *instr;
        *instr = next;
        break;
    case SHORTEN:
        last->bytes -= 4;
        break;
    case STREAM:
        instr->stream++;
        break;
    case REDUCTION:
        instr->reduce_op = TSR_REDUCE_MAX;
        break;
    case EVENT:
        instr->event = instr->kind == TSR_RECORD ? 77 : 1 + (instr->event == 1);
        break;
    default:
        break;
    }
}

/* True if the run shows it. */
static bool is_noticed(const struct list *l, uint64_t expected)
{
    const struct tsr_exec_config config = {.poison = true};
    struct list_rank r;
    list_open(&r, &config, false, NULL, NULL);
    bool noticed = list_run(&r, l) != TSR_OK || tsr_exec_hash(r.x) != expected;
    list_close(&r);
    return noticed;
}

/* Two instructions of different streams, or of a stream and the host, have no order. */
static bool swap_matters(const struct list *l, size_t i)
{
    const struct tsr_instr *a = &l->instrs[i], *b = a + 1;
    bool a_host = a->kind == TSR_HOST_WAIT || a->kind == TSR_HOST_READ || a->kind == TSR_HOST_OP;
    if (i + 1 >= l->n || !tsr_instr_is_work(a) || !tsr_instr_is_work(b))
        return false;
    bool b_host = b->kind == TSR_HOST_WAIT || b->kind == TSR_HOST_READ || b->kind == TSR_HOST_OP;
    if (b->kind == TSR_GROUP_BEGIN) /* the launch is where the group ends */
        return false;
    return a_host == b_host && (a_host || a->stream == b->stream);
}

static void instructions__each_kind_planted__is_noticed(void **state)
{
    struct list original, l;
    bool covered[TSR_N_INSTR_KINDS] = {false};
    unsigned n = 0;
    (void)state;
    list_all_kinds(&original);
    uint64_t expected = list_expected(&original);
    assert_false(is_noticed(&original, expected));
    for (size_t i = 0; i < original.n; i++) {
        for (enum plant plant = DROP; plant < N_PLANTS; plant++) {
            if (!tsr_instr_is_work(&original.instrs[i]) || !applies(&original, i, plant) ||
                (plant == SWAP && !swap_matters(&original, i)))
                continue;
            list_all_kinds(&l);
            plant_in_list(&l, i, plant);
            if (!is_noticed(&l, expected))
                fail_msg("%s of instruction %zu (%s) is not noticed", names[plant], i,
                         tsr_instr_kind_name(original.instrs[i].kind));
            covered[original.instrs[i].kind] = true;
            n++;
        }
    }
    for (int kind = 0; kind < TSR_N_INSTR_KINDS; kind++) {
        const struct tsr_instr instr = {.kind = (uint8_t)kind};
        bool refused = kind == TSR_CUSTOM_COLLECTIVE || kind == TSR_COMM_CREATE;
        if (tsr_instr_is_work(&instr) && !refused && !covered[kind])
            fail_msg("no %s was planted", tsr_instr_kind_name(kind));
    }
    assert_true(n > 80);
}

/* ---- in the device --------------------------------------------------------------------------- */

/* Stands before a device and does one task otherwise. */
struct planted_device {
    struct tsr_device base;
    struct tsr_device *inner;
    enum plant plant;
    uint32_t at, n; /* which task; so many have come */
    struct tsr_queued *held;
    uint16_t held_stream;
    bool done;
};

static struct planted_device *of(struct tsr_device *device)
{
    return (struct planted_device *)device;
}

static tsr_status pass_map(struct tsr_device *d, uint64_t address, uint64_t bytes)
{
    return of(d)->inner->ops->map(of(d)->inner, address, bytes);
}
static tsr_status pass_unmap(struct tsr_device *d, uint64_t address, uint64_t bytes)
{
    return of(d)->inner->ops->unmap(of(d)->inner, address, bytes);
}
static void *pass_at(struct tsr_device *d, uint64_t address)
{
    return of(d)->inner->ops->at(of(d)->inner, address);
}
static void *pass_pin(struct tsr_device *d, uint64_t bytes)
{
    return of(d)->inner->ops->pin(of(d)->inner, bytes);
}
static void pass_unpin(struct tsr_device *d, void *memory)
{
    of(d)->inner->ops->unpin(of(d)->inner, memory);
}
static tsr_status pass_event(struct tsr_device *d, uint32_t event)
{
    return of(d)->inner->ops->wait_event(of(d)->inner, event);
}
static tsr_status pass_stream(struct tsr_device *d, uint16_t stream)
{
    return of(d)->inner->ops->wait_stream(of(d)->inner, stream);
}
static tsr_status pass_drain(struct tsr_device *d)
{
    return of(d)->inner->ops->drain(of(d)->inner);
}
static double pass_now(struct tsr_device *d)
{
    return of(d)->inner->ops->now(of(d)->inner);
}
static void pass_abort(struct tsr_device *d, tsr_status status, const char *why)
{
    of(d)->inner->ops->abort(of(d)->inner, status, why);
}
static void pass_destroy(struct tsr_device *d)
{
    of(d)->inner->ops->destroy(of(d)->inner);
    free(of(d)->held);
}

/* The task is a copy: what it points to may be changed. */
static void change(struct tsr_task *task, enum plant plant)
{
    struct tsr_view *views = (struct tsr_view *)task->call.views;
    if (plant == EVENT)
        task->event += task->kind == TSR_TASK_RECORD ? 77 : UINT32_MAX; /* an earlier one */
    if (plant == REDUCTION)
        task->collectives[0].reduce_op = TSR_REDUCE_MAX;
    if (plant != SHORTEN)
        return;
    views[task->call.n_views - 1].bytes -= 4;
    for (size_t i = 0; i < task->n_collectives; i++)
        task->collectives[i].bytes -= 4;
    for (size_t i = 0; i < task->n_messages; i++)
        task->messages[i].bytes -= 4;
}

static tsr_status submit_planted(struct planted_device *d, uint16_t stream,
                                 const struct tsr_task *task)
{
    struct tsr_queued *copy = tsr_queued_new(task);
    tsr_status status = TSR_OK;
    assert_non_null(copy);
    d->done = true;
    if (d->plant == SWAP) {
        d->held = copy;
        d->held_stream = stream;
        return TSR_OK;
    }
    change(&copy->task, d->plant);
    if (d->plant != DROP)
        status =
            d->inner->ops->submit(d->inner, (uint16_t)(stream + (d->plant == STREAM)), &copy->task);
    free(copy);
    return status;
}

static tsr_status submit(struct tsr_device *device, uint16_t stream, const struct tsr_task *task)
{
    struct planted_device *d = of(device);
    if (task->kind != TSR_TASK_POISON && d->n++ == d->at && d->plant != NOTHING)
        return submit_planted(d, stream, task);
    TSR_TRY(d->inner->ops->submit(d->inner, stream, task));
    if (!d->held || d->held_stream != stream)
        return TSR_OK;
    tsr_status status = d->inner->ops->submit(d->inner, stream, &d->held->task);
    free(d->held);
    d->held = NULL;
    return status;
}

static const struct tsr_device_ops planted_ops = {.name = "planted",
                                                  .kernel = test_kernel_of,
                                                  .fill = TEST_FILL,
                                                  .pin = pass_pin,
                                                  .unpin = pass_unpin,
                                                  .map = pass_map,
                                                  .unmap = pass_unmap,
                                                  .at = pass_at,
                                                  .submit = submit,
                                                  .wait_event = pass_event,
                                                  .wait_stream = pass_stream,
                                                  .drain = pass_drain,
                                                  .now = pass_now,
                                                  .abort = pass_abort,
                                                  .destroy = pass_destroy};

static struct tsr_device *wrap(void *user, struct tsr_device *device)
{
    struct planted_device *d = user;
    d->base.ops = &planted_ops;
    d->inner = device;
    return &d->base;
}

/* The instruction whose task is the n-th. SEND and RECV go with their GROUP_END. */
static size_t instr_of_task(const struct list *l, uint32_t n)
{
    for (size_t i = 0; i < l->n; i++) {
        int kind = l->instrs[i].kind;
        bool on_host = kind == TSR_HOST_WAIT || kind == TSR_HOST_READ || kind == TSR_HOST_OP;
        bool grouped = kind == TSR_GROUP_BEGIN || kind == TSR_SEND || kind == TSR_RECV;
        if (tsr_instr_is_work(&l->instrs[i]) && !on_host && !grouped && n-- == 0)
            return i;
    }
    return l->n;
}

/* The next instruction of the stream is put before it. */
static bool swap_comes_to_an_end(const struct list *l, size_t i)
{
    return !is_waited_for(l, i);
}

static bool device_applies(const struct list *l, size_t i, enum plant plant)
{
    if (plant == SHORTEN && l->instrs[i].kind == TSR_GROUP_END)
        return true; /* its messages have operands */
    if (plant == EVENT && l->instrs[i].kind == TSR_WAIT && l->instrs[i].event == 1)
        return false; /* there is no earlier event */
    if (plant == SWAP)
        return swap_comes_to_an_end(l, i);
    return applies(l, i, plant);
}

static void tasks__each_planted_in_the_device__is_noticed(void **state)
{
    const struct tsr_exec_config config = {.poison = true};
    struct list l;
    unsigned n = 0;
    (void)state;
    list_all_kinds(&l);
    uint64_t expected = list_expected(&l);
    for (uint32_t at = 0; instr_of_task(&l, at) < l.n; at++) {
        for (enum plant plant = NOTHING; plant < N_PLANTS; plant++) {
            size_t i = instr_of_task(&l, at);
            struct planted_device planted = {.plant = plant, .at = at};
            struct list_rank r;
            if (!device_applies(&l, i, plant))
                continue;
            list_open(&r, &config, false, wrap, &planted);
            bool noticed = list_run(&r, &l) != TSR_OK || tsr_exec_hash(r.x) != expected;
            assert_int_equal(planted.done, plant != NOTHING);
            if (noticed != (plant != NOTHING))
                fail_msg("%s of task %u (%s): %s", names[plant], at,
                         tsr_instr_kind_name(l.instrs[i].kind),
                         noticed ? "noticed" : "not noticed");
            list_close(&r);
            n++;
        }
    }
    assert_true(n > 80);
}

/* ---- in a job -------------------------------------------------------------------------------- */

/* Stands before the executor of every rank and changes the k-th instruction of a kind. */
struct forger {
    struct tsr_executor base;
    struct tsr_executor *inner;
    const struct job_rank *rank;
    uint32_t seen;
};
static struct {
    int kind;
    enum plant plant;
    uint32_t k;
    struct forger forgers[JOB_RANKS];
} forgery;

static tsr_status forge(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct forger *f = (struct forger *)x;
    struct tsr_operand operands[64];
    struct tsr_instr changed = *instr;
    bool mine = f->rank->n_programs == 2 && instr->kind == forgery.kind;
    if (!mine || f->seen++ != forgery.k)
        return f->inner->ops->submit(f->inner, instr);
    if (forgery.plant == DROP)
        return TSR_OK;
    if (forgery.plant == STREAM)
        changed.stream = 9;
    if (forgery.plant == SHORTEN) {
        assert_true(instr->n_operands > 0 && instr->n_operands <= 64);
        memcpy(operands, instr->operands, instr->n_operands * sizeof *operands);
        operands[instr->n_operands - 1].bytes -= 4;
        changed.operands = operands;
    }
    return f->inner->ops->submit(f->inner, &changed);
}

static tsr_status forger_drain(struct tsr_executor *x)
{
    struct forger *f = (struct forger *)x;
    return f->inner->ops->drain(f->inner);
}

static tsr_status forger_exchange(struct tsr_executor *x, const struct tsr_comm *comm,
                                  const void *in, void *out, size_t bytes)
{
    struct forger *f = (struct forger *)x;
    return f->inner->ops->exchange(f->inner, comm, in, out, bytes);
}

static const struct tsr_executor_ops forger_ops = {.size = sizeof forger_ops,
                                                   .version = TSR_EXECUTOR_VERSION,
                                                   .name = "forger",
                                                   .submit = forge,
                                                   .drain = forger_drain,
                                                   .exchange = forger_exchange};

static struct tsr_executor *insert_forger(struct job_rank *rank, struct tsr_executor *executor)
{
    struct forger *f = &forgery.forgers[rank->rank];
    *f = (struct forger){.base = {.ops = &forger_ops}, .inner = executor, .rank = rank};
    return &f->base;
}

static bool job_is_noticed(const struct tsr_job *job, const uint64_t expected[JOB_RANKS])
{
    const struct job_config config = {.n_steps = 1, .hooks = {.executor = insert_forger}};
    struct job_rank *ranks;
    bool noticed = true;
    job_run(job, &config, &ranks);
    for (uint32_t r = 0; r < job->world; r++) {
        bool there = forgery.forgers[r].seen > forgery.k;
        if (forgery.plant != NOTHING && ranks[r].status == TSR_OK && !there)
            fail_msg("there is no such %s", tsr_instr_kind_name(forgery.kind));
        noticed = noticed && (ranks[r].status != TSR_OK || ranks[r].executed[1] != expected[r]);
    }
    job_close(ranks);
    return noticed;
}

static void job__each_kind_planted__is_noticed_on_every_rank(void **state)
{
    static const int kinds[] = {TSR_OP,         TSR_COPY, TSR_ALL_GATHER, TSR_REDUCE_SCATTER,
                                TSR_ALL_REDUCE, TSR_FILL, TSR_WAIT};
    static const enum plant plants[] = {DROP, SHORTEN, STREAM};
    uint64_t expected[JOB_RANKS];
    struct strategies s;
    struct tsr_job job;
    (void)state;
    strategies_open(&s);
    strategies_job(&s, "hsdp", &job);
    for (uint32_t r = 0; r < job.world; r++) {
        struct tsr_emission emission;
        job_ok(tsr_emit_rank(&job, r, 1, &emission));
        expected[r] = tsr_program_expected_exec_hash(emission.classes[0].programs[1]);
        tsr_emission_fini(&emission);
    }
    forgery.plant = NOTHING;
    assert_false(job_is_noticed(&job, expected));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (size_t k = 0; k < sizeof plants / sizeof *plants; k++) {
            forgery.kind = kinds[i];
            forgery.plant = plants[k];
            forgery.k = kinds[i] == TSR_FILL ? 0 : 1;
            if (kinds[i] == TSR_WAIT && plants[k] == SHORTEN)
                continue;
            if (!job_is_noticed(&job, expected))
                fail_msg("%s of a %s is not noticed", names[plants[k]],
                         tsr_instr_kind_name(kinds[i]));
        }
    tsr_job_close(&job);
    strategies_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instructions__each_kind_planted__is_noticed),
        cmocka_unit_test(tasks__each_planted_in_the_device__is_noticed),
        cmocka_unit_test(job__each_kind_planted__is_noticed_on_every_rank),
    };
    return cmocka_run_group_tests_name("planted", tests, NULL, NULL);
}
