/* torch_blocks.c: writes Python that replaces blocks by checkpointed or compiled ones. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/code/runs.h"
#include "experiments/study/code/torch_parts.h"
#include "experiments/study/model/trace_file.h"

/* ---- checkpointing --------------------------------------------------------------------------- */

void tsr__code_put_selective(struct tsr_code_text *to)
{
    static const char text[] =
        "def keep_every_second_product():\n"
        "    \"\"\"Kept of a block: attention, what was reduced, and its products 1, 3, 5, "
        "...\"\"\"\n"
        "    aten = torch.ops.aten\n"
        "    products = (aten.mm.default, aten.addmm.default)\n"
        "    kept = (\n"
        "        aten._scaled_dot_product_cudnn_attention.default,\n"
        "        aten._scaled_dot_product_efficient_attention.default,\n"
        "        aten._scaled_dot_product_flash_attention.default,\n"
        "        torch.ops._c10d_functional.reduce_scatter_tensor.default,\n"
        "    )\n"
        "    count = Counter()\n"
        "\n"
        "    def policy(ctx, op, *args, **kwargs):\n"
        "        if op in products:\n"
        "            count[ctx.is_recompute] += 1\n"
        "        if op in kept or (op in products and count[ctx.is_recompute] % 2):\n"
        "            return CheckpointPolicy.MUST_SAVE\n"
        "        return CheckpointPolicy.PREFER_RECOMPUTE\n"
        "\n"
        "    return create_selective_checkpoint_contexts(policy)\n"
        "\n"
        "\n";
    tsr_code_add_bytes(to, text, sizeof text - 1);
}

/* ", early_stop=False" */
static const char *checkpoint_options(const struct tsr_settings *s)
{
    if (s->ckpt_every == TSR_CKPT_SELECTIVE_OP)
        return ", context_fn=keep_every_second_product";
    return s->ckpt_early_stop ? "" : ", early_stop=False";
}

static void replace_child(struct tsr_code_text *to, const char *fqn, const char *around,
                          const char *options)
{
    const char *dot = strrchr(fqn, '.');
    struct tsr_code_text owner = {.s = NULL}, child = {.s = NULL}, name = {.s = NULL};
    tsr_code_add_owner(&owner, "model", fqn);
    tsr_code_add_module(&child, "model", fqn);
    tsr_code_add_literal(&name, dot ? dot + 1 : fqn);
    tsr_code_statement(to, 4, "%s.register_module(%s, %s(%s%s))", tsr_code_str(&owner),
                       tsr_code_str(&name), around, tsr_code_str(&child), options);
    to->failed |= owner.failed || child.failed || name.failed;
    tsr_code_text_fini(&owner);
    tsr_code_text_fini(&child);
    tsr_code_text_fini(&name);
}

/* The list that a module is a numbered child of: length of its name, and the number; false: none.
 */
static bool child_of(const struct tsr_module *module, size_t *length, uint64_t *index)
{
    const char *fqn = tsr_module_fqn(module), *dot = strrchr(fqn, '.');
    if (!dot || !dot[1] || strlen(dot) > 9 || strspn(dot + 1, "0123456789") != strlen(dot + 1))
        return false;
    *length = (size_t)(dot - fqn);
    *index = strtoull(dot + 1, NULL, 10);
    return true;
}

/* How many of modules[n] are children of the same list as the first. */
static size_t siblings(struct tsr_module *const *modules, size_t n)
{
    size_t length, other, k = 0;
    uint64_t index;
    if (!child_of(modules[0], &length, &index))
        return 1;
    while (k < n && child_of(modules[k], &other, &index) && other == length &&
           !strncmp(tsr_module_fqn(modules[0]), tsr_module_fqn(modules[k]), length))
        k++;
    return k;
}

/* "range(0, 32, 2)", or where their distances differ "(1, 3, 6)". */
static void add_numbers(struct tsr_code_text *to, struct tsr_module *const *modules, size_t n,
                        size_t of)
{
    size_t length;
    uint64_t first, second, at;
    (void)child_of(modules[0], &length, &first);
    (void)child_of(modules[1], &length, &second);
    uint64_t step = second - first, next = first;
    bool even = second > first;
    for (size_t i = 0; i < n; i++, next += step)
        even = even && child_of(modules[i], &length, &at) && at == next;
    if (even) {
        tsr_code_add(to, "range(%" PRIu64 ", %" PRIu64, first,
                     tsr_code_range_end(next - step, step, of));
        tsr_code_add(to, step > 1 ? ", %" PRIu64 ")" : ")", step);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        (void)child_of(modules[i], &length, &at);
        tsr_code_add(to, "%s%" PRIu64, i ? ", " : "(", at);
    }
    tsr_code_add(to, ")");
}

/* Returns the module that `fqn` is a child of; NULL when out of memory. */
static const struct tsr_module *find_owner(struct tsr_engine *engine, const char *fqn)
{
    const char *dot = strrchr(fqn, '.');
    char *name = strndup(fqn, dot ? (size_t)(dot - fqn) : 0);
    const struct tsr_module *owner = name ? tsr_module_find(engine, name) : NULL;
    free(name);
    return owner;
}

/* Children of one list: all of them, or some. */
static void replace_children(const struct tsr_code_job *c, struct tsr_module *const *modules,
                             size_t n, const char *around, const char *options,
                             struct tsr_code_text *to)
{
    struct tsr_code_text list = {.s = NULL}, numbers = {.s = NULL};
    const struct tsr_module *owner = find_owner(c->engine, tsr_module_fqn(modules[0]));
    size_t of = owner ? tsr_module_n_children(owner) : 0;
    tsr_code_add_owner(&list, "model", tsr_module_fqn(modules[0]));
    tsr_code_statement(to, 4, "blocks = %s", tsr_code_str(&list));
    if (n == of) {
        tsr_code_add(to, "    for name, block in blocks.named_children():\n");
        tsr_code_statement(to, 8, "blocks.register_module(name, %s(block%s))", around, options);
    } else {
        add_numbers(&numbers, modules, n, of);
        tsr_code_statement(to, 4, "for i in %s:", tsr_code_str(&numbers));
        tsr_code_add(to, "        block = blocks.get_submodule(str(i))\n");
        tsr_code_statement(to, 8, "blocks.register_module(str(i), %s(block%s))", around, options);
    }
    to->failed |= list.failed || numbers.failed;
    tsr_code_text_fini(&list);
    tsr_code_text_fini(&numbers);
}

/* Writes "OWNER.register_module(ATTRIBUTE, MODULE)" for a place of a module beside its first one.
 */
static void put_place(struct tsr_code_text *to, const char *owner, const char *attribute,
                      const char *fqn)
{
    struct tsr_code_text at = {.s = NULL}, child = {.s = NULL}, name = {.s = NULL};
    tsr_code_add_module(&at, "model", owner);
    tsr_code_add_module(&child, "model", fqn);
    tsr_code_add_literal(&name, attribute);
    tsr_code_statement(to, 4, "%s.register_module(%s, %s)", tsr_code_str(&at), tsr_code_str(&name),
                       tsr_code_str(&child));
    to->failed |= at.failed || child.failed || name.failed;
    tsr_code_text_fini(&at);
    tsr_code_text_fini(&child);
    tsr_code_text_fini(&name);
}

/* Returns whether a name is that of a child of a module. */
static bool is_place(const char *fqn, const char *owner, const char *attribute)
{
    size_t n = strlen(owner);
    const char *rest = n ? fqn + n + 1 : fqn;
    return !strncmp(fqn, owner, n) && (!n || fqn[n] == '.') && !strcmp(rest, attribute);
}

/* A module that a traced model has in several places is replaced under its first name; the other
 * places get what stands there then. */
static void put_other_places(const struct tsr_code_job *c, const char *fqn,
                             struct tsr_code_text *to)
{
    const struct tsr_traced_model *m = c->job->model.trace ? &c->job->model.trace->model : NULL;
    for (size_t i = 0; m && i < m->n_modules; i++)
        for (size_t k = 0; k < m->modules[i].n_children; k++) {
            const struct tsr_traced_place *place = &m->modules[i].children[k];
            if (!strcmp(m->modules[place->index].name, fqn) &&
                !is_place(fqn, m->modules[i].name, place->name))
                put_place(to, m->modules[i].name, place->name, fqn);
        }
}

void tsr__code_put_replaced(const struct tsr_code_job *c, const struct tsr_modules *modules,
                            const char *around, const char *options, struct tsr_code_text *to)
{
    for (size_t i = 0, n; i < modules->n; i += n) {
        n = siblings(&modules->items[i], modules->n - i);
        if (n > 1)
            replace_children(c, &modules->items[i], n, around, options, to);
        else
            replace_child(to, tsr_module_fqn(modules->items[i]), around, options);
        for (size_t k = 0; k < n; k++)
            put_other_places(c, tsr_module_fqn(modules->items[i + k]), to);
    }
}

tsr_status tsr__code_put_compiled(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    struct tsr_modules blocks;
    if (!tsr_settings_compile(c->settings, TSR_COMPILE_MODEL))
        return TSR_OK;
    TSR_TRY(tsr_find_blocks(c->job, c->engine, &blocks));
    tsr__code_put_replaced(c, &blocks, "torch.compile", "", to);
    free(blocks.items);
    return TSR_OK;
}

void tsr__code_put_checkpointed(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    tsr__code_put_replaced(c, &c->wrapping.checkpointed, "checkpoint_wrapper",
                           checkpoint_options(c->settings), to);
}
