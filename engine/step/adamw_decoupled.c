/* adamw_decoupled.c: composer's DecoupledAdamW, a Python loop over parameters that launches eight
 * unfused kernels for each. Weight decay is left out: composer launches nothing for a decay of 0,
 * which its benchmarks have.
 *
 * Since June 2023 composer keeps the step number of each parameter in a tensor on the device. A
 * step adds 1 to all of them, then reads each parameter's (`.item()`): the host, which had run
 * ahead, waits for the device before every parameter. Earlier releases keep it in a Python integer.
 */
#include "engine/step/step_impl.h"

/* Emits state['step'] += 1. */
static void count_step(struct tsr__step *s, struct tsr_param *p)
{
    struct tsr_engine *e = s->e;
    if (!p->step_count || !tsr__ok(e))
        return;
    tsr__operand_storage(e, p->step_count, TSR_READ_WRITE, TSR_F32);
    struct tsr_work work = {.op = TSR_OP_OPTIMIZER,
                            .dtype = TSR_F32,
                            .name = "add_step",
                            .bytes_read = 4,
                            .bytes_written = 4};
    tsr__emit_op(e, &work);
}

/* state_steps[i].item() */
static void read_step(struct tsr__step *s, struct tsr_param *p)
{
    struct tsr_engine *e = s->e;
    if (!p->step_count || !tsr__ok(e))
        return;
    tsr__operand_storage(e, p->step_count, TSR_READ, TSR_F32);
    struct tsr_instr read = {.kind = TSR_HOST_READ, .stream = e->stream, .comm = UINT16_MAX};
    tsr__emit(e, &read);
}

/* (exp_avg_sq.sqrt() / c).add_(eps), which the caller owns */
static struct tsr_storage *denominator(struct tsr__step *one)
{
    struct tsr_engine *e = one->e;
    tsr_dtype dtype = tsr__state_dtype(e, one->params[0]);
    struct tsr_storage *root = tsr__storage_new(e, one->state_bytes, TSR_CAT_OPT_TEMP);
    tsr__foreach_kernel(one, "sqrt", TSR__STATE1 | TSR__TEMP_NEW, 0, &root, 1);
    struct tsr_storage *quotient = tsr__storage_new(e, one->state_bytes, TSR_CAT_OPT_TEMP);
    tsr__slot(e, TSR__SLOT_EXTRA);
    tsr__operand_storage(e, root, TSR_READ, dtype);
    tsr__foreach_kernel(one, "div_root", 0, 0, &quotient, 1);
    tsr__storage_release(e, &root);
    tsr__foreach_kernel(one, "add_root_eps", TSR__TEMP_READ, 0, &quotient, 1);
    return quotient;
}

/* *denom: the variable of the loop, which keeps the last parameter's until the next one's is there.
 */
static void update(struct tsr__step *one, struct tsr_storage **denom)
{
    tsr__step_count(one);
    tsr__foreach_kernel(one, "mul_exp_avg", TSR__STATE0, TSR__STATE0, NULL, 1);
    tsr__foreach_kernel(one, "add_exp_avg", TSR__GRAD | TSR__STATE0, TSR__STATE0, NULL, 2);
    tsr__foreach_kernel(one, "mul_exp_avg_sq", TSR__STATE1, TSR__STATE1, NULL, 1);
    tsr__foreach_kernel(one, "addcmul_exp_avg_sq", TSR__GRAD | TSR__STATE1, TSR__STATE1, NULL, 3);
    struct tsr_storage *next = denominator(one);
    tsr__storage_release(one->e, denom);
    *denom = next;
    tsr__foreach_kernel(one, "addcdiv", TSR__STATE0 | TSR__PARAM | TSR__TEMP_READ | TSR__TEMP_KEPT,
                        TSR__PARAM, denom, 3);
}

void tsr__adamw_decoupled(struct tsr__step *s)
{
    struct tsr__step one = *s;
    struct tsr_storage *denom = NULL;
    one.n = 1;
    for (size_t i = 0; i < s->n; i++) {
        if (tsr__param_grad(s->params[i]) && tsr__is_offloaded(s->params[i]))
            TSR__RAISE(s->e, TSR_EUNSUPPORTED, "DecoupledAdamW of offloaded parameters");
        if (tsr__param_grad(s->params[i]))
            count_step(s, s->params[i]);
    }
    for (size_t i = 0; i < s->n && tsr__ok(s->e); i++) {
        one.params = s->params + i;
        if (!tsr__param_grad(s->params[i]))
            continue;
        read_step(s, s->params[i]);
        if (tsr__is_stepped(s->params[i]))
            update(&one, &denom);
        else /* an empty shard's takes the variable, not memory */
            tsr__storage_release(s->e, &denom);
    }
    tsr__storage_release(s->e, &denom);
}
