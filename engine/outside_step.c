/* outside_step.c: what a run does besides its iterations: building the model unsharded, loading a
 * checkpoint, evaluating, saving a checkpoint. All of it is instructions, as PyTorch 2.11 does it
 * (experiments/PHASES.md names the functions that are followed).
 *
 * A full tensor appears at four moments, each on the device: when a model is built before it is
 * sharded, when rank 0 broadcasts a full checkpoint, when shards are gathered into a full state
 * dict, and, without an offload to the host, as long as that state dict lives.
 */
#include "engine.h"

#include <stdlib.h>

/* ---- copies ---------------------------------------------------------------------------------- */

static uint64_t full_bytes(const struct tsr_param *p)
{
    return p->numel * tsr_dtype_bytes(p->dtype);
}

static uint64_t local_bytes(const struct tsr_param *p)
{
    return tsr__param_local_numel(p) * tsr_dtype_bytes(p->dtype);
}

/* The copies of pageable memory, and those that nobody asked to be asynchronous, block. */
static void host_waits(struct tsr_engine *e)
{
    struct tsr_instr read = {.kind = TSR_HOST_READ, .stream = e->stream, .comm = UINT16_MAX};
    tsr__emit(e, &read);
}

static void host_work(struct tsr_engine *e, const char *name, tsr_dtype dtype, uint64_t read,
                      uint64_t written)
{
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)dtype,
                            .name = name,
                            .bytes_read = read,
                            .bytes_written = written};
    struct tsr_instr instr = {.kind = TSR_HOST_OP, .comm = UINT16_MAX, .work = &work};
    tsr__emit(e, &instr);
}

/* `bytes` at `offset` of a storage to the begin of another one. */
static void copy(struct tsr_engine *e, const struct tsr_storage *from, uint64_t offset,
                 const struct tsr_storage *to, uint64_t bytes, tsr_dtype dtype, const char *name)
{
    if (!from || !to || bytes == 0 || !tsr__ok(e))
        return;
    bool on_host = from->space != TSR_SPACE_DEVICE && to->space != TSR_SPACE_DEVICE;
    tsr__operand(e, from, offset, bytes, TSR_READ);
    tsr__operand(e, to, 0, bytes, TSR_WRITE);
    if (on_host) {
        host_work(e, name, dtype, bytes, bytes);
        return;
    }
    tsr__emit_copy(e, dtype, bytes, bytes, name);
    if (from->space == TSR_SPACE_HOST || to->space == TSR_SPACE_HOST)
        host_waits(e);
}

static void fill(struct tsr_engine *e, const struct tsr_storage *s)
{
    if (!s || s->bytes == 0 || !tsr__ok(e))
        return;
    tsr__operand_storage(e, s, TSR_WRITE);
    if (s->space != TSR_SPACE_DEVICE) {
        host_work(e, "fill", TSR_F32, 0, s->bytes);
        return;
    }
    struct tsr_instr instr = {
        .kind = TSR_FILL, .stream = e->stream, .comm = UINT16_MAX, .bytes = s->bytes};
    tsr__emit(e, &instr);
}

/* ---- building the model unsharded ------------------------------------------------------------ */

static bool build_module(void *user, struct tsr_module *m)
{
    struct tsr_engine *e = user;
    for (size_t i = 0; i < m->n_params; i++) {
        struct tsr_param *p = m->params[i].param;
        if (p->meta || p->master)
            continue;
        e->origin.module = m->id;
        p->master = e->config.init == TSR_INIT_DEVICE
                        ? tsr__storage_new(e, full_bytes(p), TSR_CAT_INIT)
                        : tsr__storage_empty(e, full_bytes(p), TSR_CAT_INIT, TSR_SPACE_HOST);
        fill(e, p->master);
    }
    return tsr__ok(e);
}

/* module.to(device) of what was built on the host. */
static void move_to_device(struct tsr_engine *e, struct tsr_param *p, enum tsr_category category)
{
    if (!p->master || p->master->space == TSR_SPACE_DEVICE)
        return;
    struct tsr_storage *device = tsr__storage_new(e, full_bytes(p), category);
    copy(e, p->master, 0, device, full_bytes(p), p->dtype, "h2d_param");
    tsr__storage_release(e, &p->master);
    p->master = device;
}

/* The padded shard of a full parameter, where the group keeps shards. */
static void cut_shard(struct tsr_engine *e, struct tsr_fsdp_param *f)
{
    struct tsr_param *p = f->param;
    uint64_t bytes = f->shard_numel * tsr_dtype_bytes(p->dtype);
    struct tsr_storage *shard = tsr__storage_new(e, bytes, TSR_CAT_SHARDED_PARAM);
    fill(e, shard); /* new_zeros() */
    copy(e, p->master, 0, shard, local_bytes(p), p->dtype, "cut_shard");
    if (f->group->offload != TSR_OFFLOAD_NONE) {
        struct tsr_storage *host =
            tsr__storage_empty(e, bytes, TSR_CAT_SHARDED_PARAM, TSR_SPACE_HOST);
        copy(e, shard, 0, host, bytes, p->dtype, "d2h_shard");
        tsr__storage_release(e, &shard);
        shard = host;
    }
    if (f->group->offload == TSR_OFFLOAD_CPU_PINNED) {
        struct tsr_storage *pinned =
            tsr__storage_empty(e, bytes, TSR_CAT_SHARDED_PARAM, TSR_SPACE_PINNED);
        copy(e, shard, 0, pinned, bytes, p->dtype, "pin_shard");
        tsr__storage_release(e, &shard);
        shard = pinned;
    }
    f->sharded = shard;
}

/* One fully_shard() call: its full parameters live until it returns. */
static void shard_group(struct tsr_engine *e, struct tsr_group *g)
{
    e->origin.group = g->id;
    for (size_t i = 0; i < g->n_params; i++)
        move_to_device(e, g->params[i]->param, TSR_CAT_INIT);
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++)
        if (g->params[i]->param->master)
            cut_shard(e, g->params[i]);
    for (size_t i = 0; i < g->n_params; i++)
        tsr__storage_release(e, &g->params[i]->param->master);
    e->origin.group = TSR_NO_ID;
}

/* Outside every group: the module computes with the parameter itself. */
static bool keep_full(void *user, struct tsr_module *m)
{
    struct tsr_engine *e = user;
    for (size_t i = 0; i < m->n_params && tsr__ok(e); i++) {
        struct tsr_param *p = m->params[i].param;
        if (p->meta || p->fsdp || p->value || !p->master)
            continue;
        e->origin.module = m->id;
        move_to_device(e, p, TSR_CAT_SHARDED_PARAM);
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
    for (size_t i = 0; i < e->n_params; i++)
        if (e->params[i]->tp)
            TSR__RAISE(e, TSR_EUNSUPPORTED,
                       "a tensor-parallel model that is built unsharded is not modelled");
    tsr__module_walk(e->root, build_module, e);
    e->origin.module = TSR_NO_ID;
    for (size_t i = 0; i < e->n_states; i++)
        for (size_t k = 0; k < e->states[i]->n_groups; k++)
            shard_group(e, e->states[i]->groups[k]);
    tsr__module_walk(e->root, keep_full, e);
    e->origin.module = TSR_NO_ID;
}

/* ---- state dicts ----------------------------------------------------------------------------- */

/* A tensor of a state dict: a parameter or one of its optimizer states. */
struct item {
    struct tsr_param *p;
    struct tsr_storage *s; /* this rank's part; NULL: a state of an empty one */
    bool state;
    size_t place;    /* in the state dict */
    uint32_t module; /* that owns the parameter: where its instructions come from */
};

struct items {
    struct item *v;
    size_t n, cap;
    uint32_t *owners; /* module of each parameter, by its id; until all items are there */
};

static bool note_owner(void *user, struct tsr_module *m)
{
    struct items *items = user;
    for (size_t i = 0; i < m->n_params; i++)
        if (items->owners[m->params[i].param->id] == TSR_NO_ID)
            items->owners[m->params[i].param->id] = m->id;
    return true;
}

static void add_item(struct tsr_engine *e, struct items *items, struct tsr_param *p,
                     struct tsr_storage *s, bool state)
{
    struct item item = {p, s, state, items->n, items->owners[p->id]};
    if (!TSR_PUSH(items->v, items->n, items->cap, item))
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
}

/* A parameter of which this rank has nothing has no states, but on other ranks it does: it takes
 * part in what they do together. */
static bool has_state(const struct tsr_engine *e, const struct tsr_param *p, int k)
{
    static const int n_states[] = {2, 2, 2, 0, 1, 0}; /* by enum tsr_optimizer */
    bool empty = p->requires_grad && tsr__param_local_numel(p) == 0;
    return p->opt_state[k] || (empty && e->optimizer_ran && k < n_states[e->step.optimizer]);
}

/* The model's part first, then the optimizer's. */
static struct items collect(struct tsr_engine *e, bool states)
{
    struct items items = {0};
    size_t n;
    struct tsr_param *const *all = tsr__params_in_order(e, &n);
    items.owners = malloc((e->n_params + 1) * sizeof *items.owners);
    if (!items.owners) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return items;
    }
    for (size_t i = 0; i < e->n_params; i++)
        items.owners[i] = TSR_NO_ID;
    tsr__module_walk(e->root, note_owner, &items);
    for (size_t i = 0; i < n; i++)
        if (tsr__param_storage(all[i]))
            add_item(e, &items, all[i], tsr__param_storage(all[i]), false);
    for (size_t i = 0; states && i < n; i++)
        for (int k = 0; k < 2; k++)
            if (has_state(e, all[i], k))
                add_item(e, &items, all[i], all[i]->opt_state[k], true);
    free(items.owners);
    items.owners = NULL;
    return items;
}

/* What follows is about this tensor. */
static void set_origin(struct tsr_engine *e, const struct item *item)
{
    e->origin.module = item->module;
    e->origin.group = item->p->fsdp ? item->p->fsdp->group->id : TSR_NO_ID;
}

static enum tsr_category category_of(const struct item *item)
{
    return item->state ? TSR_CAT_OPT_STATE : TSR_CAT_SHARDED_PARAM;
}

static bool is_cut(const struct tsr_param *p)
{
    return p->fsdp && p->fsdp->shard_dim >= 0 && p->fsdp->group->shard_size > 1;
}

static tsr_status begin(struct tsr_engine *e, enum tsr_phase phase)
{
    if (!e->params_ready)
        return tsr_fail(TSR_EVALUE, "tsr_engine_init_params() comes before a %s",
                        tsr_phase_name(phase));
    tsr__pinned_settle(e);
    tsr__set_phase(e, phase, 0);
    return TSR_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

static void zero_grad_of(struct tsr_engine *e, struct tsr_param *p)
{
    if (!p->requires_grad || tsr__param_grad(p) || !tsr__param_storage(p))
        return;
    if (!p->fsdp) {
        p->full_grad = tsr__tensor_new(e, p->dtype, p->n_dims, p->shape, TSR_CAT_SHARDED_GRAD);
        fill(e, p->full_grad ? p->full_grad->storage : NULL);
        return;
    }
    uint8_t space = p->fsdp->group->offload == TSR_OFFLOAD_NONE ? TSR_SPACE_DEVICE : TSR_SPACE_HOST;
    p->fsdp->grad = space == TSR_SPACE_DEVICE
                        ? tsr__storage_new(e, local_bytes(p), TSR_CAT_SHARDED_GRAD)
                        : tsr__storage_empty(e, local_bytes(p), TSR_CAT_SHARDED_GRAD, space);
    fill(e, p->fsdp->grad);
}

/* States to load into are made by a step with zero gradients and a learning rate of 0. */
static void init_optimizer_state(struct tsr_engine *e)
{
    size_t n;
    struct tsr_param *const *all = tsr__params_in_order(e, &n);
    if (e->step.optimizer == TSR_OPT_NONE || e->optimizer_ran)
        return;
    for (size_t i = 0; i < n && tsr__ok(e); i++)
        zero_grad_of(e, all[i]);
    tsr__optimizer_step(e);
    e->optimizer_ran = true;
    tsr__zero_grad(e);
}

/* Each rank reads its part of a tensor into pageable memory and copies it into place. */
static void load_shard(struct tsr_engine *e, const struct item *item)
{
    set_origin(e, item);
    uint64_t bytes = local_bytes(item->p);
    if (bytes == 0 || !tsr__ok(e))
        return;
    struct tsr_storage *host = tsr__storage_empty(e, bytes, category_of(item), TSR_SPACE_HOST);
    if (!host)
        return;
    tsr__operand_storage(e, host, TSR_WRITE);
    host_work(e, "read_checkpoint", item->p->dtype, 0, bytes);
    copy(e, host, 0, item->s, bytes, item->p->dtype, "load_shard");
    tsr__storage_release(e, &host);
}

/* The communicator of all ranks; UINT16_MAX for a single one. */
static uint16_t world_comm(struct tsr_engine *e)
{
    if (e->world == 1)
        return UINT16_MAX;
    for (uint16_t i = 0; i < e->n_comms; i++)
        if (e->comms[i].size == e->world && e->comms[i].stride == 1)
            return i;
    return tsr__comm_add(e, "world", e->world, 1, UINT16_MAX);
}

static void broadcast(struct tsr_engine *e, uint16_t comm, struct tsr_storage *s, tsr_dtype dtype)
{
    if (comm == UINT16_MAX || !s || !tsr__ok(e))
        return;
    tsr__operand_storage(e, s, TSR_READ_WRITE);
    struct tsr_instr instr = {.kind = TSR_BROADCAST,
                              .dtype = (uint8_t)dtype,
                              .stream = e->stream,
                              .comm = comm,
                              .bytes = s->bytes};
    tsr__emit(e, &instr);
}

/* Every rank gets the full tensor on the device and keeps its slice. */
static void load_full(struct tsr_engine *e, const struct item *item, uint16_t comm,
                      struct tsr_storage *dict, uint64_t *offset)
{
    set_origin(e, item);
    struct tsr_param *p = item->p;
    uint64_t bytes = full_bytes(p);
    if (bytes == 0 || !tsr__ok(e))
        return;
    struct tsr_storage *full = tsr__storage_new(e, bytes, TSR_CAT_TEMP), *host = NULL;
    if (dict)
        copy(e, dict, *offset, full, bytes, p->dtype, "h2d_full");
    *offset += bytes;
    broadcast(e, comm, full, p->dtype);
    if (item->s && item->s->space != TSR_SPACE_DEVICE) {
        host = tsr__storage_empty(e, bytes, TSR_CAT_TEMP, TSR_SPACE_HOST);
        copy(e, full, 0, host, bytes, p->dtype, "d2h_full");
    }
    copy(e, host ? host : full, 0, item->s, local_bytes(p), p->dtype, "load_slice");
    tsr__storage_release(e, &full);
    tsr__storage_release(e, &host);
}

static void load_from_rank_0(struct tsr_engine *e, const struct items *items)
{
    uint64_t bytes = 0, offset = 0;
    struct tsr_storage *dict = NULL;
    for (size_t i = 0; i < items->n; i++)
        bytes += full_bytes(items->v[i].p);
    if (e->config.rank == 0 && items->n) {
        dict = tsr__storage_empty(e, bytes, category_of(items->v), TSR_SPACE_HOST);
        if (dict)
            tsr__operand_storage(e, dict, TSR_WRITE);
        host_work(e, "read_checkpoint", items->v[0].p->dtype, 0, bytes);
    }
    uint16_t comm = world_comm(e);
    for (size_t i = 0; i < items->n && tsr__ok(e); i++)
        load_full(e, &items->v[i], comm, dict, &offset);
    tsr__storage_release(e, &dict);
}

static tsr_status check_full(const struct tsr_engine *e, const char *what)
{
    for (size_t i = 0; i < e->n_params; i++)
        if (e->params[i]->tp)
            return tsr_fail(TSR_EUNSUPPORTED, "%s of a tensor-parallel model is not modelled",
                            what);
    return TSR_OK;
}

tsr_status tsr_load_run(struct tsr_engine *e, enum tsr_load how, bool optimizer)
{
    if (how == TSR_LOAD_FULL_RANK0)
        TSR_TRY(check_full(e, "a full state dict"));
    TSR_TRY(begin(e, TSR_PHASE_LOAD));
    TSR_TRY(tsr_state_dict(e, e->root));
    if (optimizer)
        init_optimizer_state(e);
    struct items items = collect(e, optimizer);
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
    TSR_TRY(begin(e, TSR_PHASE_EVAL));
    tsr__make_inputs(e, 1);
    e->grad_enabled = false;
    struct tsr_tensor *out = tsr_call(e, e->root, e->inputs[0]);
    struct tsr_tensor *loss =
        e->model.loss_mse ? tsr_op_mean_square(e, out) : tsr_op_cross_entropy(e, out, e->labels[0]);
    tsr_release(e, out);
    tsr_release(e, loss);
    e->grad_enabled = true;
    tsr_release(e, e->inputs[0]);
    tsr_release(e, e->labels[0]);
    e->inputs[0] = e->labels[0] = NULL;
    return e->status;
}

/* ---- saving shards --------------------------------------------------------------------------- */

/* Smallest first; of equal ones the first stays first. */
static int by_bytes(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    uint64_t m = local_bytes(x->p), n = local_bytes(y->p);
    if (m != n)
        return m < n ? -1 : 1;
    return x->place < y->place ? -1 : 1;
}

/* Copies ahead of the writing, into pinned memory, until so many bytes are under way. */
enum { COPY_AHEAD_BYTES = 10000000 };

struct stager {
    struct tsr_engine *e;
    const struct items *items;
    struct tsr_storage **staged; /* [items.n] */
    size_t next, oldest;
    uint64_t in_flight;
};

static void stage_ahead(struct stager *s)
{
    struct tsr_engine *e = s->e;
    for (; s->next < s->items->n && s->in_flight < COPY_AHEAD_BYTES; s->next++) {
        const struct item *item = &s->items->v[s->next];
        uint64_t bytes = local_bytes(item->p);
        bool device = item->s && item->s->space == TSR_SPACE_DEVICE;
        set_origin(e, item);
        if (bytes && (device || item->s->bytes != bytes)) { /* .to("cpu"), or a copy unpadded */
            s->staged[s->next] = tsr__storage_empty(e, bytes, category_of(item),
                                                    device ? TSR_SPACE_PINNED : TSR_SPACE_HOST);
            copy(e, item->s, 0, s->staged[s->next], bytes, item->p->dtype, "save_shard");
        }
        s->in_flight += bytes;
    }
}

static void write_staged(struct stager *s, size_t i)
{
    const struct item *item = &s->items->v[i];
    uint64_t bytes = local_bytes(item->p);
    set_origin(s->e, item);
    if (bytes && tsr__ok(s->e)) {
        tsr__operand(s->e, s->staged[i] ? s->staged[i] : item->s, 0, bytes, TSR_READ);
        host_work(s->e, "write_checkpoint", item->p->dtype, bytes, 0);
    }
    tsr__storage_release(s->e, &s->staged[i]);
}

static void save_shards(struct tsr_engine *e, struct items *items)
{
    struct stager s = {.e = e, .items = items};
    s.staged = calloc(items->n + 1, sizeof(struct tsr_storage *));
    if (!s.staged) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return;
    }
    if (items->n)
        qsort(items->v, items->n, sizeof *items->v, by_bytes);
    stage_ahead(&s);
    while (s.next < items->n) {
        size_t first = s.oldest;
        if (s.in_flight >= COPY_AHEAD_BYTES)
            host_waits(e);
        for (; s.oldest < s.next && s.in_flight >= COPY_AHEAD_BYTES; s.oldest++)
            s.in_flight -= local_bytes(items->v[s.oldest].p);
        stage_ahead(&s);
        for (size_t i = first; i < s.oldest; i++)
            write_staged(&s, i);
    }
    if (s.oldest < items->n)
        host_waits(e);
    for (size_t i = s.oldest; i < items->n; i++)
        write_staged(&s, i);
    free(s.staged);
}

/* ---- saving a full state dict ---------------------------------------------------------------- */

/* This rank's part on the device, as long as the longest rank's: what an all-gather takes. */
static struct tsr_storage *gather_input(struct tsr_engine *e, const struct item *item)
{
    struct tsr_param *p = item->p;
    struct tsr_storage *in = item->s;
    uint64_t bytes = local_bytes(p), padded = p->fsdp->shard_numel * tsr_dtype_bytes(p->dtype);
    if (in)
        tsr__storage_retain(in);
    if (in && in->space != TSR_SPACE_DEVICE) {
        struct tsr_storage *device = tsr__storage_new(e, bytes, TSR_CAT_ALL_GATHER_INPUT);
        copy(e, in, 0, device, bytes, p->dtype, "h2d_shard");
        tsr__storage_release(e, &in);
        in = device;
    }
    if (in && bytes == padded)
        return in;
    struct tsr_storage *pad = tsr__storage_new(e, padded, TSR_CAT_ALL_GATHER_INPUT);
    fill(e, pad);
    copy(e, in, 0, pad, bytes, p->dtype, "pad_shard");
    tsr__storage_release(e, &in);
    return pad;
}

static void emit_gather(struct tsr_engine *e, const struct tsr_group *g, struct tsr_storage *in,
                        struct tsr_storage *out, tsr_dtype dtype)
{
    if (!in || !out || !tsr__ok(e))
        return;
    tsr__operand(e, in, 0, out->bytes / g->shard_size, TSR_READ);
    tsr__operand_storage(e, out, TSR_WRITE);
    struct tsr_instr instr = {.kind = TSR_ALL_GATHER,
                              .dtype = (uint8_t)dtype,
                              .stream = e->stream,
                              .comm = g->shard_comm,
                              .bytes = out->bytes};
    tsr__emit(e, &instr);
}

/* The full tensor, in the dtype that it is kept in; a new reference. */
static struct tsr_storage *gather_full(struct tsr_engine *e, const struct item *item)
{
    struct tsr_param *p = item->p;
    if (!is_cut(p)) {
        tsr__storage_retain(item->s);
        return item->s;
    }
    const struct tsr_group *g = p->fsdp->group;
    uint64_t padded = p->fsdp->shard_numel * tsr_dtype_bytes(p->dtype);
    struct tsr_storage *in = gather_input(e, item);
    struct tsr_storage *out = tsr__storage_new(e, padded * g->shard_size, TSR_CAT_ALL_GATHER);
    emit_gather(e, g, in, out, p->dtype);
    tsr__storage_release(e, &in);
    if (p->fsdp->shard_dim == 0 || !out)
        return out;
    struct tsr_storage *cat = tsr__storage_new(e, out->bytes, TSR_CAT_ALL_GATHER);
    copy(e, out, 0, cat, out->bytes, p->dtype, "cat_shards");
    tsr__storage_release(e, &out);
    return cat;
}

/* A tensor of the full state dict as rank 0 keeps it: on the host, or where it was gathered. */
static struct tsr_storage *keep_tensor(struct tsr_engine *e, const struct item *item, bool device)
{
    set_origin(e, item);
    struct tsr_storage *full = gather_full(e, item), *host = NULL;
    if (device || !full || !tsr__ok(e))
        return full;
    if (e->config.rank == 0 && full->space == TSR_SPACE_DEVICE) {
        host = tsr__storage_empty(e, full_bytes(item->p), category_of(item), TSR_SPACE_HOST);
        copy(e, full, 0, host, full_bytes(item->p), item->p->dtype, "d2h_full");
    }
    if (e->config.rank == 0 && !host)
        return full; /* it is on the host */
    tsr__storage_release(e, &full);
    return host;
}

/* torch.save(): tensors of a device come over one by one. */
static void write_tensor(struct tsr_engine *e, const struct item *item, struct tsr_storage *s)
{
    set_origin(e, item);
    uint64_t bytes = full_bytes(item->p);
    struct tsr_storage *host = NULL;
    if (bytes == 0 || !s || !tsr__ok(e))
        return;
    if (s->space == TSR_SPACE_DEVICE) {
        host = tsr__storage_empty(e, bytes, category_of(item), TSR_SPACE_HOST);
        copy(e, s, 0, host, bytes, item->p->dtype, "d2h_full");
    }
    if (tsr__ok(e)) {
        tsr__operand(e, host ? host : s, 0, bytes, TSR_READ);
        host_work(e, "write_checkpoint", item->p->dtype, bytes, 0);
    }
    tsr__storage_release(e, &host);
}

static void save_full(struct tsr_engine *e, const struct items *items, bool device)
{
    struct tsr_storage **dict = calloc(items->n + 1, sizeof(struct tsr_storage *));
    if (!dict) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return;
    }
    for (size_t i = 0; i < items->n && tsr__ok(e); i++)
        dict[i] = keep_tensor(e, &items->v[i], device);
    for (size_t i = 0; i < items->n && e->config.rank == 0; i++)
        write_tensor(e, &items->v[i], dict[i]);
    for (size_t i = 0; i < items->n; i++)
        tsr__storage_release(e, &dict[i]);
    free(dict);
}

tsr_status tsr_save_run(struct tsr_engine *e, enum tsr_save how)
{
    if (how != TSR_SAVE_SHARDED)
        TSR_TRY(check_full(e, "a full state dict"));
    TSR_TRY(begin(e, TSR_PHASE_SAVE));
    TSR_TRY(tsr_state_dict(e, e->root));
    struct items items = collect(e, true);
    if (how == TSR_SAVE_SHARDED)
        save_shards(e, &items);
    else
        save_full(e, &items, how == TSR_SAVE_FULL_DEVICE);
    free(items.v);
    return e->status;
}
