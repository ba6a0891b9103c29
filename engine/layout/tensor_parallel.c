/* tensor_parallel.c: parameters as DTensors, and the placements of FSDP over them (section 2.8). */
#include "engine/layout/layout.h"

#include <string.h>

struct tsr_tensor_parallel {
    const char *device_type;
    uint64_t shape[TSR_MAX_DIMS]; /* global */
    int n, mesh_dim[TSR_MAX_MESH];
    struct tsr_placement place[TSR_MAX_MESH];
};

bool tsr_tp_kind_parse(const char *name, enum tsr_tp_kind *out)
{
    static const char *const names[] = {"colwise", "rowwise", "sequence"};
    for (int i = 0; name && i < 3; i++)
        if (!strcmp(names[i], name)) {
            *out = (enum tsr_tp_kind)i;
            return true;
        }
    return false;
}

/* ---- meshes ---------------------------------------------------------------------------------- */

static int find_dim(const struct tsr_mesh *mesh, const char *name)
{
    for (int i = 0; name && *name && i < mesh->n_dims; i++)
        if (!strcmp(mesh->name[i], name))
            return i;
    return -1;
}

static struct tsr_mesh_dim mesh_dim(const struct tsr_mesh *mesh, int dim)
{
    struct tsr_mesh_dim out = {mesh->shape[dim], 1};
    for (int i = dim + 1; i < mesh->n_dims; i++)
        out.stride *= mesh->shape[i];
    return out;
}

static void add_dim(const struct tsr_mesh *mesh, int dim, struct tsr_submesh *out)
{
    struct tsr_mesh_dim d = mesh_dim(mesh, dim);
    out->dim[out->n_dims] = dim;
    out->size[out->n_dims] = d.size;
    out->stride[out->n_dims++] = d.stride;
}

tsr_status tsr__submesh(const struct tsr_engine *e, const char *const *names, int n,
                        struct tsr_submesh *out)
{
    const struct tsr_mesh *mesh = &e->config.mesh;
    *out = (struct tsr_submesh){0};
    for (int i = 0; n == 0 && i < mesh->n_dims; i++)
        if (!(e->tp->mesh_dims >> i & 1))
            add_dim(mesh, i, out);
    for (int i = 0; i < n; i++) {
        int dim = find_dim(mesh, names[i]);
        if (dim < 0 || out->n_dims == TSR_MAX_MESH)
            return tsr_fail(TSR_EVALUE, "the mesh has no dimension '%s' to wrap with", names[i]);
        for (int k = 0; k < out->n_dims; k++)
            if (out->dim[k] == dim)
                return tsr_fail(TSR_EVALUE, "mesh dimension '%s' is named twice", names[i]);
        if (e->tp->mesh_dims >> dim & 1)
            return tsr_fail(TSR_EVALUE, "mesh dimension '%s' is used by tensor parallelism",
                            names[i]);
        add_dim(mesh, dim, out);
    }
    return TSR_OK;
}

tsr_status tsr__submesh_add_flattened(const struct tsr_engine *e, const char *const *names, int n,
                                      struct tsr_submesh *out)
{
    struct tsr_submesh part;
    if (n == 0)
        return TSR_OK;
    TSR_TRY(tsr__submesh(e, names, n, &part));
    uint32_t size = part.size[0];
    for (int i = 1; i < n; i++) {
        if (part.stride[i - 1] != part.stride[i] * part.size[i])
            return tsr_fail(TSR_EUNSUPPORTED,
                            "mesh dimensions '%s' and '%s' cannot be flattened: they are not "
                            "neighbours in the mesh, in this order",
                            names[i - 1], names[i]);
        size *= part.size[i];
    }
    out->dim[out->n_dims] = n == 1 ? part.dim[0] : -1;
    out->size[out->n_dims] = size;
    out->stride[out->n_dims++] = part.stride[n - 1];
    return TSR_OK;
}

/* ---- styles ---------------------------------------------------------------------------------- */

/* A parameter of its own for this place: replacing one place breaks the tie. */
static struct tsr_param *own_param(struct tsr_engine *e, struct tsr_module *m, size_t place)
{
    struct tsr_param *p = m->params[place].param, *copy;
    struct tsr_module *other = NULL;
    const char *other_name = NULL;
    for (size_t i = 0; i < e->tree.n_modules && !other; i++)
        for (size_t k = 0; k < e->tree.modules[i]->n_params && !other; k++)
            if (e->tree.modules[i]->params[k].param == p &&
                (e->tree.modules[i] != m || k != place)) {
                other = e->tree.modules[i];
                other_name = other->params[k].name;
            }
    if (!other)
        return p;
    copy = tsr_arena_alloc(&e->arena, sizeof *copy);
    if (!copy)
        return NULL;
    *copy = *p;
    copy->id = (uint32_t)e->tree.n_params;
    copy->name = m->params[place].name;
    copy->fqn =
        *m->fqn ? tsr_arena_printf(&e->arena, "%s.%s", m->fqn, copy->name) : (char *)copy->name;
    p->fqn = *other->fqn ? tsr_arena_printf(&e->arena, "%s.%s", other->fqn, other_name)
                         : tsr_arena_strdup(&e->arena, other_name);
    if (!copy->fqn || !p->fqn ||
        !TSR_PUSH(e->tree.params, e->tree.n_params, e->tree.cap_params, copy))
        return NULL;
    m->params[place].param = copy;
    return copy;
}

/* The parameter as tensor parallelism alone lays it out. */
static struct tsr_dtensor tp_layout(const struct tsr_engine *e, const struct tsr_param *p)
{
    const struct tsr_tensor_parallel *tp = p->tp;
    struct tsr_dtensor t = {.n_dims = p->n_dims, .n_mesh = tp->n};
    memcpy(t.shape, tp->shape, sizeof tp->shape);
    for (int i = 0; i < tp->n; i++) {
        t.mesh[i] = mesh_dim(&e->config.mesh, tp->mesh_dim[i]);
        t.place[i] = tp->place[i];
    }
    return t;
}

bool tsr__tp_is_sharded(const struct tsr_param *p)
{
    bool sharded = false;
    for (int i = 0; p->tp && i < p->tp->n; i++)
        sharded |= p->tp->place[i].kind != TSR_PLACE_REPLICATE;
    return sharded;
}

/* This rank's part becomes the parameter's shape. */
static void cut_local(const struct tsr_engine *e, struct tsr_param *p)
{
    struct tsr_dtensor t = tp_layout(e, p);
    uint64_t local[TSR_DT_MAX_DIMS];
    tsr_dtensor_local_shape(&t, e->config.rank, local);
    p->numel = 1;
    for (int i = 0; i < p->n_dims; i++) {
        p->shape[i] = local[i];
        p->numel *= local[i];
    }
}

static tsr_status distribute(struct tsr_engine *e, struct tsr_module *m, size_t place, int dim,
                             const char *device_type, struct tsr_placement placement)
{
    struct tsr_param *p = own_param(e, m, place);
    if (p && !p->tp) {
        p->tp = tsr_arena_alloc(&e->arena, sizeof *p->tp);
        if (p->tp)
            memcpy(p->tp->shape, p->shape, sizeof p->tp->shape);
    }
    if (!p || !p->tp)
        return tsr_no_memory(NULL);
    if (placement.kind == TSR_PLACE_SHARD && placement.dim >= p->n_dims)
        return tsr_fail(TSR_EVALUE, "%s has %d dimensions and cannot be sharded on dim %d", p->fqn,
                        p->n_dims, placement.dim);
    p->tp->device_type = device_type;
    p->tp->mesh_dim[p->tp->n] = dim;
    p->tp->place[p->tp->n++] = placement;
    cut_local(e, p);
    return TSR_OK;
}

static tsr_status apply_style(struct tsr_engine *e, struct tsr_module *m, enum tsr_tp_kind kind,
                              int dim, const char *device_type)
{
    static const char *const names[] = {"ColwiseParallel", "RowwiseParallel"};
    bool linear = !strcmp(m->type_name, "Linear"), embedding = !strcmp(m->type_name, "Embedding");
    if (kind != TSR_TP_SEQUENCE && !linear && !embedding)
        return tsr_fail(TSR_ENOTIMPL,
                        "%s currently only supports Linear and Embedding; '%s' is a %s",
                        names[kind], m->fqn, m->type_name);
    for (size_t i = 0; i < m->n_params; i++) {
        bool weight = m->params[i].param->n_dims == 2, row = kind == TSR_TP_ROWWISE;
        struct tsr_placement placement = tsr_replicate_placement();
        if (kind != TSR_TP_SEQUENCE && weight)
            placement = tsr_shard_placement(row == linear, 1);
        else if (kind == TSR_TP_COLWISE)
            placement = tsr_shard_placement(0, 1);
        TSR_TRY(distribute(e, m, i, dim, device_type, placement));
    }
    return TSR_OK;
}

static tsr_status check_options(const struct tsr_engine *e, const struct tsr_tp_options *o,
                                int *dim)
{
    *dim = find_dim(&e->config.mesh, o->mesh_dim);
    if (*dim < 0)
        return tsr_fail(TSR_EVALUE, "the mesh has no dimension '%s' for tensor parallelism",
                        o->mesh_dim ? o->mesh_dim : "");
    if (e->tp->mesh_dims >> *dim & 1)
        return tsr_fail(TSR_EVALUE, "mesh dimension '%s' has tensor parallelism already",
                        o->mesh_dim);
    if (!e->tree.root || e->tree.n_wrapped > 0)
        return tsr_fail(TSR_EVALUE, "tensor parallelism comes after the model and before wrapping");
    return TSR_OK;
}

tsr_status tsr_tensor_parallel(struct tsr_engine *e, const struct tsr_tp_options *o)
{
    int dim;
    TSR_TRY(check_options(e, o, &dim));
    const char *device = tsr_arena_strdup(&e->arena, o->device_type ? o->device_type : "cuda");
    if (!device)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < e->tree.n_modules; i++) {
        const struct tsr_tp_style *style = NULL;
        for (size_t k = 0; k < o->n_styles; k++)
            if (tsr_glob(o->styles[k].pattern, e->tree.modules[i]->fqn))
                style = &o->styles[k];
        if (style)
            TSR_TRY(apply_style(e, e->tree.modules[i], style->kind, dim, device));
    }
    e->tp->mesh_dims |= 1u << dim;
    return TSR_OK;
}

/* ---- FSDP over it ---------------------------------------------------------------------------- */

tsr_status tsr__check_dtensor_param(const struct tsr_param *p, bool hsdp)
{
    if (!p->tp)
        return TSR_OK;
    if (strcmp(p->tp->device_type, "cuda") != 0)
        return tsr_fail(TSR_EVALUE,
                        "Requires DTensor to have mesh of the same type as the FSDP mesh but got "
                        "%s for DTensor %s and cuda for FSDP",
                        p->tp->device_type, p->fqn);
    if (p->tp->n > 2)
        return tsr_fail(TSR_ENOTIMPL,
                        "FSDP supports up to 2 dimensions of tensor or expert parallelism, but %s "
                        "has %d",
                        p->fqn, p->tp->n);
    int n = p->tp->n + (hsdp ? 2 : 1);
    if (n < 2 || n > 4)
        return tsr_fail(TSR_EASSERT, "Expects a combined mesh of 2 to 4 dimensions for %s, got %d",
                        p->fqn, n);
    return TSR_OK;
}

struct even {
    const struct tsr_param *p;
    int dim;
    uint32_t world;
};

static tsr_status check_even(void *user, const struct tsr_holder *part)
{
    const struct even *want = user;
    if (part->local_size % want->world == 0)
        return TSR_OK;
    return tsr_fail(TSR_ENOTIMPL,
                    "FSDP does not support uneven sharding on dim %d: %s has %llu elements there "
                    "on some ranks of tensor parallelism (world size: %u)",
                    want->dim, want->p->fqn, (unsigned long long)part->local_size, want->world);
}

/* The own rank was checked already; with uneven tensor parallelism others may differ. */
tsr_status tsr__check_dtensor_dim(const struct tsr_engine *e, const struct tsr_param *p,
                                  uint32_t world, int dim)
{
    if (!p->tp || dim <= 0)
        return TSR_OK;
    struct tsr_dtensor t = tp_layout(e, p);
    struct even want = {p, dim, world};
    return tsr_dtensor_holders(&t, dim, 0, t.shape[dim], check_even, &want);
}

static void push_dim(struct tsr_param_dtensor *out, int dim, struct tsr_mesh_dim mesh,
                     struct tsr_placement place)
{
    struct tsr_dtensor *t = &out->layout;
    out->mesh_dim[t->n_mesh] = dim;
    t->mesh[t->n_mesh] = mesh;
    t->place[t->n_mesh++] = place;
}

static uint32_t split_factor(const struct tsr_engine *e, const struct tsr_param *p, int dim)
{
    uint32_t split = 1;
    for (int i = 0; p->tp && i < p->tp->n; i++)
        if (p->tp->place[i].kind == TSR_PLACE_SHARD && p->tp->place[i].dim == dim)
            split *= e->config.mesh.shape[p->tp->mesh_dim[i]];
    return split;
}

static void add_cut(const struct tsr_engine *e, const struct tsr_param *p,
                    struct tsr_param_dtensor *out)
{
    const struct tsr_param_cut *cut = p->cut;
    for (int i = 0; i < cut->n; i++) {
        const struct tsr_cut_dim *d = &cut->dims[i];
        push_dim(out, d->mesh_dim, d->ranks,
                 d->shards ? tsr_shard_placement(cut->shard_dim, split_factor(e, p, cut->shard_dim))
                           : tsr_replicate_placement());
    }
    out->n_fsdp = out->layout.n_mesh;
    out->fsdp_dim = cut->shard_dim > 0 ? cut->shard_dim : 0;
}

tsr_status tsr__param_dtensor(const struct tsr_engine *e, const struct tsr_param *p,
                              struct tsr_param_dtensor *out)
{
    *out = (struct tsr_param_dtensor){.fsdp_dim = -1};
    out->fqn = p->fqn;
    out->dtype = p->dtype;
    out->layout.n_dims = p->n_dims;
    memcpy(out->layout.shape, p->tp ? p->tp->shape : p->shape, sizeof p->shape);
    if (p->cut) {
        out->group = p->cut->group;
        add_cut(e, p, out);
    }
    for (int k = 0; p->tp && k < p->tp->n; k++)
        push_dim(out, p->tp->mesh_dim[k], mesh_dim(&e->config.mesh, p->tp->mesh_dim[k]),
                 p->tp->place[k]);
    out->n_tp = p->tp ? p->tp->n : 0;
    return tsr_dtensor_check(&out->layout);
}

tsr_status tsr_param_dtensor(struct tsr_engine *e, size_t i, struct tsr_param_dtensor *out)
{
    size_t n;
    struct tsr_param *const *params = tsr__params_in_order(e, &n);
    if (i >= n)
        return tsr_fail(TSR_EINDEX, "parameter %zu of %zu", i, n);
    return tsr__param_dtensor(e, params[i], out);
}

void tsr_param_dtensor_local_shape(const struct tsr_param_dtensor *p, uint64_t rank,
                                   uint64_t *shape)
{
    tsr_dtensor_local_shape(&p->layout, rank, shape);
    if (p->fsdp_dim >= 0 && tsr_dtensor_local_numel(&p->layout, rank) == 0)
        shape[p->fsdp_dim] = 0;
}
