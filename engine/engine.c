/* engine.c: life of an engine, rank classes, and the tables that describe what was wrapped. */
#include "engine/compile/compile.h"
#include "engine/create.h"
#include "engine/fsdp1/fsdp1.h"
#include "engine/inspect.h"
#include "engine/models/model_parts.h"
#include "engine/ops/ops_common.h"
#include "engine/step/step_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------ */
static void on_segment(void *user, enum tsr_segment_action action, uint32_t segment,
                       uint64_t address, uint64_t bytes, uint16_t stream)
{
    struct tsr_engine *e = user;
    bool alloc = action == TSR_SEG_ALLOC || action == TSR_SEG_MAP;
    struct tsr_instr instr = {.kind = alloc ? TSR_SEGMENT_ALLOC : TSR_SEGMENT_FREE,
                              .stream = stream,
                              .comm = UINT16_MAX,
                              .segment = segment,
                              .address = address,
                              .bytes = bytes,
                              .block_bytes = bytes};
    tsr__emit(e, &instr);
}

/* cudaFree() and cuMemUnmap() come after everything that was launched before them. */
static void on_release(void *user)
{
    tsr__host_wait_all(user);
}

static tsr_status check_mesh(const struct tsr_mesh *mesh, uint32_t rank, uint32_t *world)
{
    uint64_t n = 1;
    if (mesh->n_dims < 1 || mesh->n_dims > TSR_MAX_MESH)
        return tsr_fail(TSR_EVALUE, "a mesh has 1 to %d dimensions, not %d", TSR_MAX_MESH,
                        mesh->n_dims);
    for (int i = 0; i < mesh->n_dims; i++) {
        n *= mesh->shape[i];
        if (n == 0 || n > UINT32_MAX / 2)
            return tsr_fail(TSR_EVALUE, "mesh dimension %d has size %u", i, mesh->shape[i]);
    }
    if (rank >= n)
        return tsr_fail(TSR_EVALUE, "rank %u does not exist in a mesh of %llu", rank,
                        (unsigned long long)n);
    *world = (uint32_t)n;
    return TSR_OK;
}

/* The engine and what its folders keep, in one piece of memory. The pointers of the engine lead to
 * the rest; wrappers that a job may do without make their own in the arena. */
struct whole {
    struct tsr_engine engine; /* first: what is freed */
    struct tsr_tp_use tp;
    struct tsr_model_info model;
    struct tsr_op_state ops;
    struct tsr_wrapped fsdp;
    struct tsr_step_state step;
};

static struct tsr_engine *new_engine(void)
{
    struct whole *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    struct tsr_engine *e = &w->engine;
    e->tp = &w->tp;
    e->model = &w->model;
    e->ops = &w->ops;
    e->fsdp = &w->fsdp;
    e->step = &w->step;
    return e;
}

tsr_status tsr_engine_create(const struct tsr_engine_config *config, struct tsr_engine **out)
{
    *out = NULL;
    if (!config->executor)
        return tsr_fail(TSR_EVALUE, "an engine needs an executor");
    uint32_t world = 0;
    TSR_TRY(tsr__check_fp8(config));
    TSR_TRY(check_mesh(&config->mesh, config->rank, &world));
    struct tsr_engine *e = new_engine();
    if (!e)
        return tsr_no_memory(NULL);
    e->config = *config;
    e->world = world;
    if (config->trace) {
        e->emit.trace = *config->trace;
        e->emit.has_trace = true;
    }
    tsr_arena_init(&e->arena);
    e->emit.tables.world = world;
    e->emit.tables.rank = config->rank;
    e->origin = (struct tsr_origin){.module = TSR_NO_ID, .group = TSR_NO_ID};
    e->grad_enabled = true;
    e->shape.n_micro = e->step->config.n_micro = 1;
    tsr__model_numbers(e, 0, 0);
    tsr__compile_begin(e);
    tsr__stream_add(e, "default", TSR_ROLE_COMPUTE, 0);
    tsr_status status = e->status;
    if (status == TSR_OK)
        status =
            tsr_allocator_create(&config->allocator, on_segment, on_release, e, &e->emit.allocator);
    if (status != TSR_OK) {
        tsr_engine_destroy(e);
        return status;
    }
    *out = e;
    return TSR_OK;
}

/* Tensors, nodes, modules and names live in the arena; only growing arrays are on the heap. */
void tsr_engine_destroy(struct tsr_engine *e)
{
    if (!e)
        return;
    tsr__save_drop(e);
    TSR__EACH_WRAPPER (e, w, fini)
        w->ops->fini(w);
    tsr__autograd_fini(&e->autograd);
    tsr__emitter_fini(e);
    tsr__tree_fini(&e->tree);
    tsr_arena_fini(&e->arena);
    free(e);
}

const struct tsr_tables *tsr_engine_tables(const struct tsr_engine *e)
{
    return &e->emit.tables;
}

bool tsr_engine_oom(const struct tsr_engine *e, struct tsr_oom *out)
{
    if (e->emit.is_oom)
        *out = e->emit.oom;
    return e->emit.is_oom;
}

struct tsr_allocator_stats tsr_engine_memory(const struct tsr_engine *e)
{
    return tsr_allocator_stats(e->emit.allocator);
}

/* ---- rank classes ---------------------------------------------------------------------------- */
uint32_t tsr_shard_world(const struct tsr_engine *e)
{
    struct tsr_submesh mesh;
    if (tsr__submesh(e, NULL, 0, &mesh) != TSR_OK || mesh.n_dims == 0)
        return 1;
    return mesh.size[mesh.n_dims - 1];
}

static uint64_t signature_of(const struct tsr_engine *e, uint32_t rank)
{
    uint64_t hash = TSR_HASH_INIT;
    TSR__EACH_WRAPPER (e, w, hash_rank)
        hash = w->ops->hash_rank(e, w, rank, hash);
    return hash;
}

/* Programs differ between ranks only where local shapes do (optimizer, host copies). */
tsr_status tsr_engine_rank_classes(struct tsr_engine *e, uint32_t *class_of,
                                   uint32_t *representative, uint32_t *n_classes)
{
    struct tsr_submesh mesh;
    TSR_TRY(tsr__submesh(e, NULL, 0, &mesh));
    int last = mesh.n_dims - 1; /* shapes repeat after one shard group of the engine's mesh */
    uint32_t shard = last < 0 ? 1 : mesh.size[last] * mesh.stride[last];
    uint64_t *signature = malloc(shard * sizeof *signature);
    if (!signature)
        return tsr_no_memory(NULL);
    *n_classes = 0;
    for (uint32_t r = 0; r < shard; r++) {
        signature[r] = signature_of(e, r);
        uint32_t c = 0;
        while (c < *n_classes && signature[representative[c]] != signature[r])
            c++;
        if (c == *n_classes)
            representative[(*n_classes)++] = r;
        class_of[r] = c;
    }
    for (uint32_t r = shard; r < e->world; r++)
        class_of[r] = class_of[r % shard];
    free(signature);
    return TSR_OK;
}

/* ---- groups and layouts ---------------------------------------------------------------------- */
struct state_list {
    size_t n, want;
    struct tsr_state *found;
};

static bool pick_state(void *user, struct tsr_module *m)
{
    struct state_list *list = user;
    if (!m->state || m->state->modules[0] != m)
        return true;
    if (list->n++ == list->want)
        list->found = m->state;
    return true;
}

size_t tsr_n_groups(struct tsr_engine *e)
{
    struct state_list list = {.want = SIZE_MAX};
    if (e->tree.root)
        tsr__module_walk(e->tree.root, pick_state, &list);
    return list.n;
}

struct tsr_group_info tsr_group_info(struct tsr_engine *e, size_t i)
{
    struct state_list list = {.want = i};
    tsr__module_walk(e->tree.root, pick_state, &list);
    struct tsr_state *s = list.found;
    struct tsr_group *g = tsr__first_group(s);
    struct tsr_group_info info = {.name = s->name,
                                  .api = s->flat           ? "fsdp1"
                                         : s->is_replicate ? "replicate"
                                                           : "fully_shard",
                                  .n_modules = s->n_modules,
                                  .n_params = s->flat ? s->flat->n
                                              : g     ? g->n_params
                                                      : 0};
    const char **modules = tsr_arena_alloc(&e->arena, (s->n_modules + 1) * sizeof *modules);
    const char **params = tsr_arena_alloc(&e->arena, (info.n_params + 1) * sizeof *params);
    if (!modules || !params)
        return (struct tsr_group_info){.name = "", .api = ""};
    for (size_t k = 0; k < s->n_modules; k++)
        modules[k] = s->modules[k]->fqn;
    for (size_t k = 0; k < info.n_params; k++)
        params[k] = s->flat ? s->flat->params[k]->fqn : g->params[k]->param->fqn;
    info.modules = modules;
    info.params = params;
    info.shard_numel = g ? g->shard_numel : 0;
    info.all_gather_numel = g && !g->is_replicate ? g->shard_numel * g->shard_size : 0;
    return info;
}

size_t tsr_n_param_layouts(struct tsr_engine *e)
{
    size_t n;
    (void)tsr__params_in_order(e, &n);
    return n;
}

struct tsr_param_layout tsr_param_layout(struct tsr_engine *e, size_t i)
{
    size_t n;
    struct tsr_param *p = tsr__params_in_order(e, &n)[i];
    struct tsr_fsdp_param *f = p->fsdp;
    struct tsr_param_layout out = {.fqn = p->fqn,
                                   .n_dims = p->n_dims,
                                   .shard_dim = -1,
                                   .dtype = p->dtype,
                                   .requires_grad = p->requires_grad};
    memcpy(out.shape, p->shape, sizeof out.shape);
    memcpy(out.padded, p->shape, sizeof out.padded);
    out.is_untied = !f && p->untied_from;
    if (!f)
        return out;
    out.group = f->group->name;
    out.shard_dim = f->shard_dim;
    memcpy(out.padded, f->padded, sizeof out.padded);
    out.param_dtype = f->param_dtype;
    out.reduce_dtype = f->reduce_dtype;
    out.has_dtypes = f->group->lazy_done;
    out.n_aliases = f->n_aliases;
    out.aliases = (const char *const *)f->aliases;
    return out;
}

void tsr_param_local_shape(struct tsr_engine *e, size_t i, uint32_t shard_rank,
                           uint64_t out[TSR_MAX_DIMS])
{
    size_t n;
    struct tsr_param *p = tsr__params_in_order(e, &n)[i];
    memcpy(out, p->shape, sizeof p->shape);
    if (p->fsdp && p->fsdp->shard_dim >= 0) {
        int d = p->fsdp->shard_dim;
        out[d] = tsr__chunk(p->shape[d], p->fsdp->group->shard_size, shard_rank).count;
    }
}
