/* clip_loop.c: clipping as FSDP1's clip_grad_norm_() does it: a norm for each gradient that this
 * rank has a piece of, one number that all ranks sum, and a product for each gradient, one kernel
 * at a time. The host waits for nothing since "a tensor for zero is reused to avoid a GPU sync";
 * before (torch 2.1) the norm of parameters that are not sharded, 0, was made on the host and
 * copied, which waits for the stream (TSR_CLIP_LOOP_READ).
 */
#include "engine/step/optimizer_impl.h"
#include "engine/step/outside_step.h"

static bool has_piece(const struct tsr_param *p)
{
    return tsr__is_stepped(p) && !tsr__is_offloaded(p);
}

/* A kernel over the gradient of one parameter, with one number beside it. */
static void on_gradient(const struct tsr__step *s, size_t i, const char *name, bool scales,
                        struct tsr_storage *number)
{
    struct tsr__step one = *s;
    one.n = 1;
    one.params = s->params + i;
    tsr__step_count(&one);
    tsr__slot(s->e, scales ? TSR__SLOT_EXTRA : TSR__SLOT_NORMS);
    tsr__operand_storage(s->e, number, scales ? TSR_READ : TSR_WRITE, s->e->step->clip_dtype);
    tsr__foreach_kernel(&one, name, TSR__GRAD, scales ? TSR__GRAD : 0, NULL, scales ? 1 : 2);
}

/* sqrt of the sum of squares of this rank's pieces; 0 if it has none. */
static struct tsr_storage *local_norm(const struct tsr__step *s)
{
    struct tsr_engine *e = s->e;
    struct tsr_storage **each = e->step->clip_norms, *all = NULL;
    size_t n = 0;
    for (size_t i = 0; i < s->n && tsr__ok(e); i++) {
        if (!has_piece(s->params[i]))
            continue;
        each[n] = tsr__storage_new(e, tsr_dtype_bytes(e->step->clip_dtype), TSR_CAT_TEMP);
        on_gradient(s, i, "norm_of_gradient", false, each[n++]);
    }
    if (n > 0)
        all = tsr__stack_norms(e, each, n);
    for (size_t i = 0; i < n; i++)
        tsr__storage_release(e, &each[i]);
    struct tsr_storage *norm =
        tsr__storage_new(e, tsr_dtype_bytes(e->step->clip_dtype), TSR_CAT_TEMP);
    if (n > 0)
        tsr__small_kernel(e, "total_norm", all, norm);
    else if (norm)
        tsr__fill(e, norm);
    tsr__storage_release(e, &all);
    return norm;
}

/* f(value), in new memory. */
static struct tsr_storage *made_of(struct tsr_engine *e, const char *name,
                                   struct tsr_storage *value)
{
    struct tsr_storage *made =
        tsr__storage_new(e, tsr_dtype_bytes(e->step->clip_dtype), TSR_CAT_TEMP);
    tsr__small_kernel(e, name, value, made);
    return made;
}

void tsr__clip_loop(struct tsr_engine *e)
{
    struct tsr__step s = {.e = e};
    s.params = tsr__params_to_step(e, &s.n);
    tsr__clip_begin(e, &s);
    if (!e->step->clip_norms)
        e->step->clip_norms =
            tsr_arena_alloc(&e->arena, (2 * s.n + 1) * sizeof *e->step->clip_norms);
    if (!e->step->clip_norms) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory");
        return;
    }
    struct tsr_storage *own = local_norm(&s);
    if (e->step->config.clip_how == TSR_CLIP_LOOP_READ)
        tsr__host_waits(e);
    struct tsr_storage *power = made_of(e, "power", own);
    if (power)
        tsr__reduce_norms(e, power);
    struct tsr_storage *norm = made_of(e, "root", power);
    tsr__storage_release(e, &power);
    struct tsr_storage *factor = tsr__clip_factor(e, norm);
    tsr__report_value(e, TSR_REPORT_GRAD_NORM, 0, norm, e->step->clip_dtype);
    for (size_t i = 0; i < s.n && tsr__ok(e); i++)
        if (has_piece(s.params[i]))
            on_gradient(&s, i, "mul_clip", true, factor);
    tsr__storage_release(e, &own);
    tsr__storage_release(e, &norm);
    tsr__storage_release(e, &factor);
}
