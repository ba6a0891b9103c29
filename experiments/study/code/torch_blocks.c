/* torch_blocks.c: blocks that are checkpointed or compiled, and parameters in two places, as
 * Python.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/code/runs.h"
#include "experiments/study/code/torch_parts.h"

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
    size_t n = dot ? (size_t)(dot - fqn) : 0;
    char parent[1024];
    struct tsr_code_text owner = {.s = NULL}, child = {.s = NULL}, name = {.s = NULL};
    snprintf(parent, sizeof parent, "%.*s", (int)n, fqn);
    tsr_code_add_module(&owner, "model", parent);
    tsr_code_add_module(&child, "model", fqn);
    tsr_code_add_literal(&name, dot ? dot + 1 : fqn);
    tsr_code_statement(to, 4, "%s.register_module(%s, %s(%s%s))", tsr_code_str(&owner),
                       tsr_code_str(&name), around, tsr_code_str(&child), options);
    to->failed |= owner.failed || child.failed || name.failed;
    tsr_code_text_fini(&owner);
    tsr_code_text_fini(&child);
    tsr_code_text_fini(&name);
}

/* Modules that are replaced by a wrapper around them, `around(module, options)`. */
void tsr__code_put_replaced(const struct tsr_code_job *c, const struct tsr_modules *modules,
                            const char *around, const char *options, struct tsr_code_text *to)
{
    struct tsr_code_call *calls = calloc(modules->n + 1, sizeof *calls);
    to->failed |= !calls;
    for (size_t i = 0; calls && i < modules->n; i++)
        calls[i] = (struct tsr_code_call){{&modules->items[i], 1}, ""};
    for (size_t i = 0; calls && i < modules->n;) {
        struct tsr_code_run run = tsr_code_run_at(c->engine, calls, modules->n, i);
        const char *fqn = tsr_module_fqn(modules->items[i]), *dot = strrchr(fqn, '.');
        bool children =
            run.repeats > 1 && run.body == 1 && dot && strlen(run.list) == (size_t)(dot - fqn);
        if (!children) {
            replace_child(to, fqn, around, options);
            i++;
            continue;
        }
        struct tsr_code_text list = {.s = NULL};
        tsr_code_add_module(&list, "model", run.list);
        tsr_code_statement(to, 4, "blocks = %s", tsr_code_str(&list));
        if (run.whole) {
            tsr_code_add(to, "    for name, block in blocks.named_children():\n");
            tsr_code_statement(to, 8, "blocks.register_module(name, %s(block%s))", around, options);
        } else {
            tsr_code_add(to, "    for i in range(%" PRIu64 ", %" PRIu64, run.first,
                         run.first + (run.repeats - 1) * run.step + 1);
            tsr_code_add(to, run.step > 1 ? ", %" PRIu64 "):\n" : "):\n", run.step);
            tsr_code_add(to, "        block = blocks.get_submodule(str(i))\n");
            tsr_code_statement(to, 8, "blocks.register_module(str(i), %s(block%s))", around,
                               options);
        }
        to->failed |= list.failed;
        tsr_code_text_fini(&list);
        i += run.repeats;
    }
    free(calls);
}

tsr_status tsr__code_put_compiled(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    struct tsr_modules blocks;
    if (c->settings->dialect != TSR_DIALECT_COMPILE)
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

/* ---- ties ------------------------------------------------------------------------------------ */

/* "model.lm_head.weight": a module's name, and the parameter's behind its last dot. */
static void add_param(struct tsr_code_text *to, const char *fqn)
{
    const char *dot = strrchr(fqn, '.');
    char owner[1024];
    snprintf(owner, sizeof owner, "%.*s", dot ? (int)(dot - fqn) : 0, fqn);
    tsr_code_add_module(to, "model", owner);
    tsr_code_add(to, ".%s", dot ? dot + 1 : fqn);
}

void tsr__code_put_tie(struct tsr_code_text *to, const char *alias, const char *first)
{
    struct tsr_code_text a = {.s = NULL}, b = {.s = NULL};
    add_param(&a, alias);
    add_param(&b, first);
    tsr_code_statement(to, 4, "%s = %s", tsr_code_str(&a), tsr_code_str(&b));
    to->failed |= a.failed || b.failed;
    tsr_code_text_fini(&a);
    tsr_code_text_fini(&b);
}
