/* outside_step.c: what a run does besides its iterations: loading a checkpoint, evaluating,
 * building a model whole before it is sharded; and what outside_save.c shares. All of it is
 * instructions, as PyTorch 2.11 does it (experiments/guide/memory.md names the functions that are
 * followed).
 */
#include "engine/graph/wrapper.h"
#include "engine/step/step_impl.h"

#include <stdlib.h>

/* ---- copies ---------------------------------------------------------------------------------- */

static uint64_t tsr__full_bytes(const struct tsr_param *p)
{
    return p->numel * tsr_dtype_bytes(p->dtype);
}

uint64_t tsr__local_bytes(const struct tsr_param *p)
{
    return tsr__param_local_numel(p) * tsr_dtype_bytes(p->dtype);
}

uint64_t tsr__item_full_bytes(const struct tsr__item *item)
{
    return item->p->numel * tsr_dtype_bytes(item->dtype);
}

uint64_t tsr__item_local_bytes(const struct tsr__item *item)
{
    return tsr__param_local_numel(item->p) * tsr_dtype_bytes(item->dtype);
}

/* ---- state dicts ----------------------------------------------------------------------------- */

static bool note_owner(void *user, struct tsr_module *m)
{
    struct tsr__items *items = user;
    for (size_t i = 0; i < m->n_params; i++)
        if (items->owners[m->params[i].param->id] == TSR_NO_ID)
            items->owners[m->params[i].param->id] = m->id;
    return true;
}

static void add_item(struct tsr_engine *e, struct tsr__items *items, struct tsr_param *p,
                     struct tsr_storage *s, unsigned what)
{
    bool state = what > 0;
    tsr_dtype dtype = state ? tsr__state_dtype(e, p) : p->dtype;
    struct tsr__item item = {p, s, state, what, dtype, items->n, items->owners[p->id]};
    if (!TSR_PUSH(items->v, items->n, items->cap, item))
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
}

/* A parameter of which this rank has nothing has no states, but on other ranks it does: it takes
 * part in what they do together. Where loading made states of a parameter that never had a
 * gradient, nobody has something to put into them, or wants them. */
static bool has_state(const struct tsr_engine *e, const struct tsr_param *p, int k)
{
    bool empty = tsr__param_local_numel(p) == 0;
    return p->is_stepped && k < tsr__n_opt_states(&e->step->config) && (p->opt_state[k] || empty);
}

/* The model's part first, then the optimizer's. */
struct tsr__items tsr__items_collect(struct tsr_engine *e, bool states)
{
    struct tsr__items items = {0};
    size_t n;
    struct tsr_param *const *all = tsr__params_in_order(e, &n);
    items.owners = malloc((e->tree.n_params + 1) * sizeof *items.owners);
    if (!items.owners) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return items;
    }
    for (size_t i = 0; i < e->tree.n_params; i++)
        items.owners[i] = TSR_NO_ID;
    tsr__module_walk(e->tree.root, note_owner, &items);
    for (size_t i = 0; i < n; i++)
        if (tsr__param_storage(all[i]))
            add_item(e, &items, all[i], tsr__param_storage(all[i]), 0);
    all = tsr__params_to_step(e, &n);
    for (size_t i = 0; states && i < n; i++)
        for (int k = 0; k < 3; k++)
            if (has_state(e, all[i], k))
                add_item(e, &items, all[i], all[i]->opt_state[k], 1 + (unsigned)k);
    free(items.owners);
    items.owners = NULL;
    return items;
}

/* What follows is about this tensor. */
void tsr__item_origin(struct tsr_engine *e, const struct tsr__item *item)
{
    e->origin.module = item->module;
    e->origin.group = item->p->fsdp ? item->p->fsdp->group->id : TSR_NO_ID;
}

enum tsr_category tsr__item_category(const struct tsr__item *item)
{
    return item->state ? TSR_CAT_OPT_STATE : TSR_CAT_SHARDED_PARAM;
}

bool tsr__is_cut(const struct tsr_param *p)
{
    return p->fsdp && p->fsdp->shard_dim >= 0 && p->fsdp->group->shard_size > 1;
}

tsr_status tsr__section_begin(struct tsr_engine *e, enum tsr_phase phase)
{
    if (!e->tree.params_ready)
        return tsr_fail(TSR_EVALUE, "tsr_engine_init_params() comes before a %s",
                        tsr_phase_name(phase));
    tsr__set_phase(e, phase, 0);
    tsr__settle_inputs(e);
    return TSR_OK;
}

tsr_status tsr__check_full(const struct tsr_engine *e)
{
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (e->tree.params[i]->tp)
            return tsr_fail(TSR_EUNSUPPORTED,
                            "a full state dict of a tensor-parallel model is not modelled");
    return TSR_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

static void zero_grad_of(struct tsr_engine *e, struct tsr_param *p)
{
    if (!p->requires_grad || tsr__param_grad(p) || !tsr__param_storage(p))
        return;
    if (!p->fsdp) {
        p->full_grad = tsr__tensor_new(e, p->dtype, p->n_dims, p->shape, TSR_CAT_SHARDED_GRAD);
        tsr__fill(e, p->full_grad ? p->full_grad->storage : NULL);
        return;
    }
    uint8_t space = p->fsdp->group->offload == TSR_OFFLOAD_NONE ? TSR_SPACE_DEVICE : TSR_SPACE_HOST;
    p->fsdp->grad = space == TSR_SPACE_DEVICE
                        ? tsr__storage_new(e, tsr__local_bytes(p), TSR_CAT_SHARDED_GRAD)
                        : tsr__storage_empty(e, tsr__local_bytes(p), TSR_CAT_SHARDED_GRAD, space);
    p->fsdp->kept_grad = false;
    tsr__fill(e, p->fsdp->grad);
}

/* States to load into are made by a step with zero gradients and a learning rate of 0. */
static void init_optimizer_state(struct tsr_engine *e)
{
    size_t n;
    struct tsr_param *const *all = tsr__params_in_order(e, &n);
    if (e->step->config.optimizer == TSR_OPT_NONE || e->step->optimizer_ran)
        return;
    for (size_t i = 0; i < n && tsr__ok(e); i++)
        zero_grad_of(e, all[i]);
    tsr__optimizer_init(e);
    e->step->optimizer_ran = true;
    tsr__zero_grad(e);
}

/* Each rank reads its part of a tensor into pageable memory and copies it into place. */
static void load_shard(struct tsr_engine *e, const struct tsr__item *item)
{
    tsr__item_origin(e, item);
    uint64_t bytes = tsr__item_local_bytes(item);
    if (bytes == 0 || !tsr__ok(e))
        return;
    struct tsr_storage *host =
        tsr__storage_empty(e, bytes, tsr__item_category(item), TSR_SPACE_HOST);
    if (!host)
        return;
    tsr__operand_storage(e, host, TSR_WRITE, item->dtype);
    tsr__piece_args(e, item->p, item->what, tsr__param_hash(item->p));
    tsr__host_work(e, "read_checkpoint", item->dtype, 0, bytes);
    tsr__transfer(e, host, 0, item->s, bytes, item->dtype, "load_shard");
    tsr__storage_release(e, &host);
}

/* The communicator of all ranks; UINT16_MAX for a single one. */
static uint16_t world_comm(struct tsr_engine *e)
{
    if (e->world == 1)
        return UINT16_MAX;
    for (uint16_t i = 0; i < e->emit.n_comms; i++)
        if (e->emit.comms[i].size == e->world && e->emit.comms[i].stride == 1)
            return i;
    return tsr__comm_add(e, "world", e->world, 1, UINT16_MAX);
}

static void broadcast(struct tsr_engine *e, uint16_t comm, struct tsr_storage *s, tsr_dtype dtype)
{
    if (comm == UINT16_MAX || !s || !tsr__ok(e))
        return;
    tsr__operand_storage(e, s, TSR_READ_WRITE, dtype);
    struct tsr_instr instr = {.kind = TSR_BROADCAST,
                              .dtype = (uint8_t)dtype,
                              .stream = e->stream,
                              .comm = comm,
                              .bytes = s->bytes};
    tsr__emit(e, &instr);
}

/* Every rank gets the full tensor on the device and keeps its slice. */
static void load_full(struct tsr_engine *e, const struct tsr__item *item, uint16_t comm,
                      struct tsr_storage *dict, uint64_t *offset)
{
    tsr__item_origin(e, item);
    uint64_t bytes = tsr__item_full_bytes(item);
    if (bytes == 0 || !tsr__ok(e))
        return;
    struct tsr_storage *full = tsr__storage_new(e, bytes, TSR_CAT_TEMP), *host = NULL;
    if (dict)
        tsr__transfer(e, dict, *offset, full, bytes, item->dtype, "h2d_full");
    *offset += bytes;
    broadcast(e, comm, full, item->dtype);
    if (item->s && item->s->space != TSR_SPACE_DEVICE) {
        host = tsr__storage_empty(e, bytes, TSR_CAT_TEMP, TSR_SPACE_HOST);
        tsr__transfer(e, full, 0, host, bytes, item->dtype, "d2h_full");
    }
    tsr__transfer(e, host ? host : full, 0, item->s, tsr__item_local_bytes(item), item->dtype,
                  "load_slice");
    tsr__storage_release(e, &full);
    tsr__storage_release(e, &host);
}

static void load_from_rank_0(struct tsr_engine *e, const struct tsr__items *items)
{
    uint64_t bytes = 0, offset = 0;
    struct tsr_storage *dict = NULL;
    for (size_t i = 0; i < items->n; i++)
        bytes += tsr__item_full_bytes(&items->v[i]);
    if (e->config.rank == 0 && items->n) {
        dict = tsr__storage_empty(e, bytes, tsr__item_category(items->v), TSR_SPACE_HOST);
        if (dict)
            tsr__operand_storage(e, dict, TSR_WRITE, TSR_DTYPE_NONE);
        tsr__host_work(e, "read_full_checkpoint", items->v[0].dtype, 0, bytes);
    }
    uint16_t comm = world_comm(e);
    for (size_t i = 0; i < items->n && tsr__ok(e); i++)
        load_full(e, &items->v[i], comm, dict, &offset);
    tsr__storage_release(e, &dict);
}

tsr_status tsr_load_run(struct tsr_engine *e, enum tsr_load how, bool optimizer)
{
    if (how == TSR_LOAD_FULL_RANK0)
        TSR_TRY(tsr__check_full(e));
    TSR_TRY(tsr__section_begin(e, TSR_PHASE_LOAD));
    TSR__EACH_WRAPPER (e, w, state_dict)
        TSR_TRY(w->ops->state_dict(e, w));
    if (optimizer)
        init_optimizer_state(e);
    struct tsr__items items = tsr__items_collect(e, optimizer);
    tsr__values_changed(e);
    tsr__save_guard(e);
    if (how == TSR_LOAD_FULL_RANK0)
        load_from_rank_0(e, &items);
    for (size_t i = 0; how == TSR_LOAD_SHARDED && i < items.n && tsr__ok(e); i++)
        load_shard(e, &items.v[i]);
    free(items.v);
    return e->status;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

tsr_status tsr_eval_run(struct tsr_engine *e)
{
    TSR_TRY(tsr__section_begin(e, TSR_PHASE_EVAL));
    tsr__make_inputs(e, 1);
    e->grad_enabled = false;
    struct tsr_tensor *loss = tsr__forward_loss(e, NULL, 0);
    tsr_release(e, loss);
    tsr__deliver_reports(e);
    e->grad_enabled = true;
    e->ops->head_labels = NULL;
    tsr_release(e, e->step->inputs[0]);
    tsr_release(e, e->step->labels[0]);
    e->step->inputs[0] = e->step->labels[0] = NULL;
    return e->status;
}

/* ---- a model that is built whole ------------------------------------------------------------- */

/* A model that is built whole, on the device or in host memory, and then sharded
 * call by call: full tensors and shards are there at once. */

/* A parameter that no group cuts is built for good. */
static struct tsr_storage *build_param(struct tsr_engine *e, const struct tsr_param *p)
{
    uint64_t bytes = tsr__full_bytes(p);
    if (e->config.init != TSR_INIT_DEVICE)
        return tsr__storage_empty(e, bytes, TSR_CAT_INIT, TSR_SPACE_HOST);
    return tsr__storage_new(e, bytes, p->wrapper ? TSR_CAT_INIT : TSR_CAT_SHARDED_PARAM);
}

static bool build_module(void *user, struct tsr_module *m)
{
    struct tsr_engine *e = user;
    for (size_t i = 0; i < m->n_params; i++) {
        struct tsr_param *p = m->params[i].param;
        if (p->meta || p->master)
            continue;
        e->origin.module = m->id;
        p->master = build_param(e, p);
        tsr__fill(e, p->master);
    }
    return tsr__ok(e);
}

/* Outside every group: the module computes with the parameter itself. */
static bool keep_full(void *user, struct tsr_module *m)
{
    struct tsr_engine *e = user;
    for (size_t i = 0; i < m->n_params && tsr__ok(e); i++) {
        struct tsr_param *p = m->params[i].param;
        if (p->meta || p->wrapper || p->value || !p->master)
            continue;
        e->origin.module = m->id;
        tsr__param_to_device(e, p, TSR_CAT_SHARDED_PARAM);
        p->value = tsr__tensor_view(e, p->master, p->dtype, p->n_dims, p->shape);
        if (!p->value)
            continue;
        p->value->param = p;
        p->value->requires_grad = p->requires_grad;
    }
    return tsr__ok(e);
}

void tsr__init_unsharded(struct tsr_engine *e)
{
    if (e->config.init == TSR_INIT_META)
        return;
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (e->tree.params[i]->tp)
            TSR__RAISE(e, TSR_EUNSUPPORTED,
                       "a tensor-parallel model that is built unsharded is not modelled");
    tsr__module_walk(e->tree.root, build_module, e);
    e->origin.module = TSR_NO_ID;
    TSR__EACH_WRAPPER (e, w, shard_built_model)
        w->ops->shard_built_model(e, w);
    tsr__module_walk(e->tree.root, keep_full, e);
    e->origin.module = TSR_NO_ID;
}
