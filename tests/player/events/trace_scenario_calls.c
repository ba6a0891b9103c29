/* trace_scenario_calls.c: the calls that a recorded scenario makes between steps. */
#include <stdlib.h>
#include <string.h>

#include "tests/player/events/trace.h"

struct call {
    struct tsr_engine *e;
    struct tsr_module *module;
    const struct tsr_yaml_node *args;
    struct tsr_trace_lists *seen; /* may be NULL */
};

static bool value_of(const struct call *c)
{
    return tsr_bool_or(c->args, "value", false);
}

static bool recurse_of(const struct call *c)
{
    return tsr_bool_or(c->args, "recurse", true);
}

static tsr_status call_sync(const struct call *c)
{
    if (tsr_ddp_set_sync(c->e, value_of(c)) == TSR_OK)
        return TSR_OK;
    return tsr_set_requires_gradient_sync(c->e, c->module, value_of(c), recurse_of(c));
}

static tsr_status call_all_reduce(const struct call *c)
{
    return tsr_set_requires_all_reduce(c->e, c->module, value_of(c), recurse_of(c));
}

static tsr_status call_reshard_after_forward(const struct call *c)
{
    const struct tsr_yaml_node *value = tsr_node_get(c->args, "value");
    bool flag;
    if (tsr_node_is_null(value) || !tsr_node_bool(value, &flag))
        return tsr_fail(TSR_EVALUE, "reshard_after_forward should be a bool, got %s",
                        tsr_node_show(value));
    return tsr_set_reshard_after_forward(c->e, c->module, flag, recurse_of(c));
}

static tsr_status call_reshard_after_backward(const struct call *c)
{
    return tsr_set_reshard_after_backward(c->e, c->module, value_of(c), recurse_of(c));
}

static tsr_status call_last_backward(const struct call *c)
{
    return tsr_set_is_last_backward(c->e, c->module, value_of(c));
}

typedef tsr_status (*list_fn)(struct tsr_engine *, struct tsr_module *, struct tsr_module *const *,
                              size_t);

static tsr_status with_modules(const struct call *c, list_fn fn)
{
    const struct tsr_yaml_node *list = tsr_node_get(c->args, "modules");
    size_t n = list && list->kind == TSR_NODE_SEQ ? list->n : 0;
    struct tsr_module **modules = calloc(n + 1, sizeof(*modules));
    if (!modules)
        return tsr_no_memory(NULL);
    tsr_status status;
    for (size_t i = 0; i < n; i++) {
        const struct tsr_yaml_node *name = list->items[i];
        modules[i] = tsr_module_find(c->e, name->text);
        if (!modules[i])
            TSR_GOTO(done, tsr_node_error(name, "modules: found %s; allowed: the name of a module",
                                          name->text));
    }
    TSR_GOTO(done, fn(c->e, c->module, modules, n));

done:
    free(modules);
    return status;
}

static tsr_status share(struct tsr_engine *e, struct tsr_module *m, struct tsr_module *const *list,
                        size_t n)
{
    (void)m;
    return tsr_share_comm_ctx(e, list, n);
}

static tsr_status call_forward_prefetch(const struct call *c)
{
    return with_modules(c, tsr_set_forward_prefetch);
}

static tsr_status call_backward_prefetch(const struct call *c)
{
    return with_modules(c, tsr_set_backward_prefetch);
}

static tsr_status call_share(const struct call *c)
{
    return with_modules(c, share);
}

static tsr_status call_unshard(const struct call *c)
{
    return tsr_unshard(c->e, c->module, tsr_bool_or(c->args, "async", false));
}

static tsr_status call_wait_handle(const struct call *c)
{
    return tsr_wait_unshard_handle(c->e, c->module);
}

static tsr_status call_reshard(const struct call *c)
{
    return tsr_reshard(c->e, c->module);
}

/* Methods that set one group only; with recurse the driver calls them on every wrapped module. */
static tsr_status each_wrapped(const struct call *c, const struct tsr_module *m,
                               tsr_status (*fn)(const struct call *))
{
    struct call one = *c;
    one.module = (struct tsr_module *)(uintptr_t)m;
    if (!tsr_bool_or(c->args, "recurse", false))
        return fn(&one);
    if (tsr_module_is_wrapped(m))
        TSR_TRY(fn(&one));
    for (size_t i = 0; i < tsr_module_n_children(m); i++)
        TSR_TRY(each_wrapped(c, tsr_module_child(m, i), fn));
    return TSR_OK;
}

static tsr_status set_factor(const struct call *c)
{
    double factor = 0;
    tsr_node_double(tsr_node_get(c->args, "value"), &factor);
    return tsr_set_gradient_divide_factor(c->e, c->module, factor);
}

static tsr_status set_force(const struct call *c)
{
    return tsr_set_force_sum(c->e, c->module, value_of(c));
}

static tsr_status set_unshard_in_backward(const struct call *c)
{
    return tsr_set_unshard_in_backward(c->e, c->module, value_of(c));
}

static tsr_status call_factor(const struct call *c)
{
    return each_wrapped(c, c->module, set_factor);
}

static tsr_status call_force(const struct call *c)
{
    return each_wrapped(c, c->module, set_force);
}

static tsr_status call_unshard_in_backward(const struct call *c)
{
    return each_wrapped(c, c->module, set_unshard_in_backward);
}

static tsr_status call_async(const struct call *c)
{
    return tsr_set_unshard_async_op(c->e, c->module, value_of(c));
}

static tsr_status call_hook(const struct call *c)
{
    return tsr_set_all_reduce_hook(c->e, c->module, NULL, NULL,
                                   tsr_bool_or(c->args, "stream", false));
}

static tsr_status call_post_optim(const struct call *c)
{
    return tsr_set_post_optim_event(c->e, c->module);
}

static tsr_status call_state_dict(const struct call *c)
{
    return tsr_state_dict(c->e, c->module);
}

static tsr_status call_forward(const struct call *c)
{
    TSR_TRY(tsr_step_begin(c->e, 0));
    return tsr_step_forward(c->e, 0, c->module, false);
}

static tsr_status call_deepcopy(const struct call *c)
{
    return tsr_deepcopy(c->e, c->module);
}

static tsr_status call_register(const struct call *c)
{
    return tsr_register_forward_method(c->e, c->module, tsr_text_or(c->args, "name", ""));
}

static tsr_status call_max_inputs(const struct call *c)
{
    int64_t k = 0;
    const struct tsr_yaml_node *value = tsr_node_get(c->args, "value");
    if (!tsr_node_i64(value, &k))
        return tsr_node_error(value ? value : c->args, "value: found %s; allowed: an integer",
                              tsr_node_show(value));
    return tsr_set_reduce_scatter_max_input_buffers(c->e, c->module, k, recurse_of(c));
}

static tsr_status call_unused_params(const struct call *c)
{
    return tsr_set_reduce_scatter_unused_params(c->e, c->module, value_of(c), recurse_of(c));
}

static tsr_status call_manual_finalization(const struct call *c)
{
    return tsr_set_manual_backward_finalization(c->e, c->module, value_of(c));
}

static tsr_status call_finalize_backward(const struct call *c)
{
    return tsr_finalize_backward(c->e, c->module);
}

static tsr_status call_reset(const struct call *c)
{
    return tsr_reset_iter_state(c->e, c->module);
}

/* A hook of a scenario computes nothing: that it ran is an event. */
static void on_grad(struct tsr_engine *e, struct tsr_param *param, void *seen)
{
    const struct tsr_event event = {
        .name = "grad_hook",
        .n_fields = 1,
        .fields = {{.key = "param",
                    .type = TSR_FIELD_STRING,
                    .s = tsr_param_info(param, tsr_module_root(e)).fqn}}};
    if (seen)
        tsr_trace_event(seen, &event);
}

static tsr_status call_grad_hook(const struct call *c)
{
    return tsr_register_post_accumulate_grad_hook(c->e, tsr_text_or(c->args, "param", "**"),
                                                  on_grad, c->seen);
}

static int bytes_and_scale(void *user, uint64_t numel, struct tsr_gather_input out[4])
{
    (void)user;
    out[0] = (struct tsr_gather_input){numel, TSR_U8};
    out[1] = (struct tsr_gather_input){1, TSR_F32};
    return 2;
}

/* What travels is a byte per element and a scale per rank, as of a tensor subclass with eight-bit
 * data. The second one has its gathered inputs freed as soon as they are read. */
static const struct tsr_gather_extension eight_bit[2] = {
    {.pre = bytes_and_scale, .post = "dequantize"},
    {.pre = bytes_and_scale, .post = "dequantize", .free_after_post = true}};

static tsr_status call_gather_extension(const struct call *c)
{
    return tsr_set_gather_extension(c->e, tsr_text_or(c->args, "param", "**"),
                                    &eight_bit[tsr_bool_or(c->args, "free", false)]);
}

/* A comm object that does nothing is enough: the next call refuses it. */
static const struct tsr_custom_comm any_comm = {.name = "custom"};

static tsr_status call_custom_all_gather(const struct call *c)
{
    TSR_TRY(tsr_set_custom_all_gather(c->e, c->module, &any_comm));
    return tsr_set_allocate_from_process_group(c->e, c->module, true);
}

static tsr_status call_custom_reduce_scatter(const struct call *c)
{
    TSR_TRY(tsr_set_custom_reduce_scatter(c->e, c->module, &any_comm));
    return tsr_set_allocate_from_process_group(c->e, c->module, true);
}

static const struct {
    const char *name;
    tsr_status (*fn)(const struct call *);
    const char *args[3]; /* NULL-terminated */
} functions[] = {{"set_requires_gradient_sync", call_sync, {"value", "recurse"}},
                 {"set_requires_all_reduce", call_all_reduce, {"value", "recurse"}},
                 {"set_reshard_after_forward", call_reshard_after_forward, {"value", "recurse"}},
                 {"set_reshard_after_backward", call_reshard_after_backward, {"value", "recurse"}},
                 {"set_is_last_backward", call_last_backward, {"value"}},
                 {"set_modules_to_forward_prefetch", call_forward_prefetch, {"modules"}},
                 {"set_modules_to_backward_prefetch", call_backward_prefetch, {"modules"}},
                 {"share_comm_ctx", call_share, {"modules"}},
                 {"unshard", call_unshard, {"async"}},
                 {"wait_unshard_handle", call_wait_handle, {NULL}},
                 {"reshard", call_reshard, {NULL}},
                 {"set_gradient_divide_factor", call_factor, {"value", "recurse"}},
                 {"set_force_sum_reduction_for_comms", call_force, {"value", "recurse"}},
                 {"set_unshard_in_backward", call_unshard_in_backward, {"value", "recurse"}},
                 {"set_unshard_async_op", call_async, {"value"}},
                 {"set_all_reduce_hook", call_hook, {"stream"}},
                 {"set_post_optim_event", call_post_optim, {NULL}},
                 {"state_dict", call_state_dict, {NULL}},
                 {"set_custom_all_gather_then_pg_alloc", call_custom_all_gather, {NULL}},
                 {"set_custom_reduce_scatter_then_pg_alloc", call_custom_reduce_scatter, {NULL}},
                 {"forward", call_forward, {NULL}},
                 {"deepcopy", call_deepcopy, {NULL}},
                 {"register_fsdp_forward_method", call_register, {"name"}},
                 {"set_reduce_scatter_max_input_buffers", call_max_inputs, {"value", "recurse"}},
                 {"set_reduce_scatter_unused_params", call_unused_params, {"value", "recurse"}},
                 {"set_manual_backward_finalization", call_manual_finalization, {"value"}},
                 {"finalize_backward", call_finalize_backward, {NULL}},
                 {"reset_iter_state", call_reset, {NULL}},
                 {"register_post_accumulate_grad_hook", call_grad_hook, {"param"}},
                 {"set_all_gather_extension", call_gather_extension, {"param", "free"}}};

/* Of a call that no function is made for: an error. */
static tsr_status find(const struct tsr_yaml_node *call, size_t *out)
{
    const char *fn = tsr_text_or(call, "fn", "");
    for (*out = 0; *out < sizeof functions / sizeof *functions; ++*out)
        if (!strcmp(functions[*out].name, fn))
            return TSR_OK;
    return tsr_node_error(call, "fn: found %s; allowed: a call of tests/golden/README.md", fn);
}

/* `value` of set_reshard_after_forward: what is no bool is an error of the engine. That of
 * set_reduce_scatter_max_input_buffers is looked at by its call. */
static bool fits(const char *fn, const struct tsr_yaml_node *arg)
{
    double number;
    bool flag;
    if (!strcmp(arg->key, "modules"))
        return arg->kind == TSR_NODE_SEQ;
    if (!strcmp(arg->key, "name") || !strcmp(arg->key, "param"))
        return arg->kind == TSR_NODE_SCALAR;
    if (!strcmp(arg->key, "value") && !strcmp(fn, "set_gradient_divide_factor"))
        return tsr_node_double(arg, &number);
    if (!strcmp(arg->key, "value") && (!strcmp(fn, "set_reshard_after_forward") ||
                                       !strcmp(fn, "set_reduce_scatter_max_input_buffers")))
        return true;
    return tsr_node_bool(arg, &flag);
}

tsr_status tsr_scenario_check_call(const struct tsr_yaml_node *call)
{
    const struct tsr_yaml_node *args = tsr_node_get(call, "args");
    size_t f;
    TSR_TRY(find(call, &f));
    for (size_t i = 0; args && i < args->n; i++) {
        const struct tsr_yaml_node *arg = args->items[i];
        bool known = false;
        for (size_t k = 0; functions[f].args[k]; k++)
            known = known || !strcmp(functions[f].args[k], arg->key);
        if (!known)
            return tsr_unknown_key(arg, functions[f].name, functions[f].args);
        if (!fits(functions[f].name, arg))
            return tsr_node_error(arg, "%s: %s: found %s; allowed: what tests/golden/README.md has",
                                  functions[f].name, arg->key, tsr_node_show(arg));
    }
    return TSR_OK;
}

tsr_status tsr_scenario_call(struct tsr_engine *e, const struct tsr_yaml_node *call,
                             struct tsr_trace_lists *seen)
{
    struct call c = {e, tsr_module_find(e, tsr_text_or(call, "module", "")),
                     tsr_node_get(call, "args"), seen};
    size_t f;
    if (!c.module)
        return tsr_node_error(call, "module: found %s; allowed: the name of a module",
                              tsr_text_or(call, "module", ""));
    TSR_TRY(find(call, &f));
    return functions[f].fn(&c);
}
