/* optimizer_state.c: what a step of the optimizer keeps beside its states: temporaries, and how
 * many steps each parameter has made, as numbers and as the scalars on the device in which
 * PyTorch's fused AdamW keeps them.
 *
 * Foreach and loop keep them in CPU scalars, as every variant does of offloaded parameters: the
 * device has neither memory nor work of those. The host adds 1 to each without an instruction here,
 * and so that time is not simulated.
 */
#include "engine/step/step_impl.h"
#include "engine/step/values.h"

/* ---- steps ----------------------------------------------------------------------------------- */

/* PyTorch counts the steps of each parameter: those in which it had a gradient. A program names how
 * many it has missed since the optimizer's first, so that programs stay the same from step to step.
 */
void tsr__count_steps(struct tsr__step *s)
{
    uint64_t before = s->e->step->optimizer_steps++;
    for (size_t i = 0; i < s->n; i++) {
        struct tsr_param *p = s->params[i];
        if (tsr__param_grad(p) && !p->is_stepped) {
            p->is_stepped = true;
            p->missed_steps = before;
        } else if (!tsr__param_grad(p) && p->is_stepped) {
            p->missed_steps++;
        }
    }
}

/* KERNELS.md: from bit 2 on, in 30 bits. */
uint64_t tsr__missed_bits(const struct tsr__step *s, const struct tsr_param *p)
{
    enum { MOST = (1 << 30) - 1 };
    if (!s->counts || !p->is_stepped)
        return 0;
    if (p->missed_steps > MOST)
        TSR__RAISE(s->e, TSR_EUNSUPPORTED, "%s: it missed more than %d steps of the optimizer",
                   p->fqn, MOST);
    return tsr_min_u64(p->missed_steps, MOST) << 2;
}

static void emit_counters(struct tsr__step *s, uint64_t n)
{
    struct tsr_work work = {.op = TSR_OP_OPTIMIZER,
                            .dtype = TSR_F32,
                            .name = "foreach_add_step",
                            .flops = (double)n,
                            .bytes_read = 4 * n,
                            .bytes_written = 4 * n};
    struct tsr_instr instr = {.kind = TSR_OP,
                              .stream = s->e->stream,
                              .dtype = TSR_F32,
                              .comm = UINT16_MAX,
                              .scalar = 1,
                              .work = &work};
    tsr__emit(s->e, &instr);
}

/* A launch of a kernel over one list takes 110 tensors (MultiTensorApply.cuh); shards of nothing
 * have counters, too. */
void tsr__add_steps(struct tsr__step *s)
{
    enum { LAUNCH = 110 };
    uint64_t n = 0;
    for (size_t i = 0; i < s->n && tsr__ok(s->e); i++) {
        const struct tsr_param *p = s->params[i];
        if (!p->step_count || !tsr__param_grad(p) ||
            (s->dtype != TSR_DTYPE_NONE && s->dtype != p->dtype))
            continue;
        tsr__slot(s->e, TSR__SLOT_TEMP);
        tsr__operand_storage(s->e, p->step_count, TSR_READ_WRITE, TSR_F32);
        tsr__push_arg(s->e, tsr__missed_bits(s, p));
        if (++n < LAUNCH)
            continue;
        emit_counters(s, n);
        n = 0;
    }
    if (n > 0)
        emit_counters(s, n);
}

/* ---- temporaries -----------------------------------------------------------------------------
 */

struct tsr_storage *tsr__step_storage(struct tsr__step *s, const struct tsr_param *p,
                                      enum tsr_category category)
{
    bool is_param = category == TSR_CAT_OPT_TEMP && s->like_grads;
    uint64_t bytes = is_param
                         ? tsr__param_local_numel(p) * tsr_dtype_bytes(p->dtype)
                         : tsr__param_local_numel(p) * tsr_dtype_bytes(tsr__state_dtype(s->e, p));
    return s->host ? tsr__storage_empty(s->e, bytes, category, TSR_SPACE_HOST)
                   : tsr__storage_new(s->e, bytes, category);
}

struct tsr_storage **tsr__make_temps(struct tsr__step *s)
{
    struct tsr_engine *e = s->e;
    if (!e->step->opt_temps)
        e->step->opt_temps = tsr_arena_alloc(&e->arena, (s->n + 1) * sizeof *e->step->opt_temps);
    if (!e->step->opt_temps) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory");
        return NULL;
    }
    for (size_t i = 0; i < s->n && tsr__ok(e); i++)
        if (tsr__takes(s, s->params[i]))
            e->step->opt_temps[i] = tsr__step_storage(s, s->params[i], TSR_CAT_OPT_TEMP);
    return e->step->opt_temps;
}

void tsr__drop_temps(struct tsr__step *s)
{
    for (size_t i = 0; i < s->n && s->e->step->opt_temps; i++)
        tsr__storage_release(s->e, &s->e->step->opt_temps[i]);
}

/* ---- for those who save and load ------------------------------------------------------------- */

uint64_t tsr_param_steps(struct tsr_engine *e, size_t i)
{
    size_t n;
    struct tsr_param *const *params = tsr__params_in_order(e, &n);
    if (i >= n || !params[i]->is_stepped)
        return 0;
    return e->step->optimizer_steps - params[i]->missed_steps;
}

void tsr_set_optimizer_steps(struct tsr_engine *e, uint64_t steps)
{
    e->step->optimizer_steps = steps;
}

void tsr_param_set_steps(struct tsr_engine *e, size_t i, uint64_t steps)
{
    size_t n;
    struct tsr_param *const *params = tsr__params_in_order(e, &n);
    if (i >= n)
        return;
    params[i]->is_stepped = steps > 0;
    params[i]->is_stateless = steps == 0;
    params[i]->missed_steps = e->step->optimizer_steps - steps;
}
