/* stack.c: reads stacks, and puts them below the keys of an experiment. */
#include "experiments/study/config/stack.h"

#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/paths.h"

static const char *const own_keys[] = {"title", "source", NULL};

/* What belongs to a run, not to its software. Below `mesh` and `model` keys also exclude each
 * other, so that one of a stack could not be taken back. */
static const enum tsr_key_id not_here[] = {TSR_K_STACK,
                                           TSR_K_MODEL_NAME,
                                           TSR_K_MODEL_TREE,
                                           TSR_K_MODEL_TRACE,
                                           TSR_K_MODEL_VARIANT,
                                           TSR_K_MODEL_BLOCKS,
                                           TSR_K_MODEL_LAYERS,
                                           TSR_K_MODEL_POSITIONS,
                                           TSR_K_MODEL_WEIGHTS,
                                           TSR_K_CLUSTER_NAME,
                                           TSR_K_CLUSTER_NODES,
                                           TSR_K_CLUSTER_GPUS,
                                           TSR_K_CLUSTER_GPU,
                                           TSR_K_CLUSTER_NVLINK,
                                           TSR_K_CLUSTER_NICS,
                                           TSR_K_CLUSTER_NIC_GBIT,
                                           TSR_K_CLUSTER_OVERSUBSCRIPTION,
                                           TSR_K_CLUSTER_LEAF_NODES,
                                           TSR_K_NODES,
                                           TSR_K_GPU,
                                           TSR_K_GPUS_PER_NODE,
                                           TSR_K_WORLD,
                                           TSR_K_MESH_SHAPE,
                                           TSR_K_MESH_REPLICATE,
                                           TSR_K_MESH_SHARD,
                                           TSR_K_DESCRIPTION};

static tsr_status check_keys(const struct tsr_settings *settings)
{
    for (size_t i = 0; i < sizeof not_here / sizeof *not_here; i++) {
        const struct tsr_yaml_node *at = tsr_setting_at(settings, not_here[i]);
        if (at)
            return tsr_node_error(at,
                                  "found %s in a stack; allowed: keys that say how training is "
                                  "written, not what is trained, or on what",
                                  tsr_keys[not_here[i]].name);
    }
    return TSR_OK;
}

static tsr_status read_keys(struct tsr_stack *stack)
{
    const struct tsr_yaml_node *root = stack->doc.root, *title;
    if (root->kind != TSR_NODE_MAP)
        return tsr_node_error(root, "found %s; allowed: a mapping of keys, title and source",
                              tsr_node_show(root));
    for (size_t i = 0; own_keys[i]; i++) {
        const struct tsr_yaml_node *text = tsr_node_get(root, own_keys[i]);
        if (text && text->kind != TSR_NODE_SCALAR)
            return tsr_node_error(text, "%s: found %s; allowed: a text", own_keys[i],
                                  tsr_node_show(text));
    }
    title = tsr_node_get(root, "title");
    stack->title = title ? title->text : NULL;
    tsr_settings_default(&stack->defaults);
    stack->settings = stack->defaults;
    TSR_TRY(tsr_settings_apply(&stack->doc.arena, root, "", own_keys, &stack->settings));
    return check_keys(&stack->settings);
}

tsr_status tsr_stack_open(const char *name, const struct tsr_yaml_node *at, const char *experiment,
                          struct tsr_stack *out)
{
    char path[TSR_FILE_BYTES];
    TSR_TRY(tsr_find_stack(name, at, experiment, path));
    TSR_TRY(tsr_doc_load(path, &out->doc));
    char *whole = realpath(path, NULL);
    out->path = tsr_arena_strdup(&out->doc.arena, whole ? whole : path);
    out->name = tsr_arena_strdup(&out->doc.arena, name);
    free(whole);
    tsr_status status = out->name && out->path ? read_keys(out) : tsr_no_memory(NULL);
    if (status != TSR_OK)
        tsr_doc_fini(&out->doc);
    return status;
}

void tsr_stack_close(struct tsr_stack *stack)
{
    tsr_doc_fini(&stack->doc);
}

/* ---- those of an experiment ---------------------------------------------------------------- */

const struct tsr_stack *tsr_stacks_of(const struct tsr_stacks *stacks,
                                      const struct tsr_settings *settings)
{
    for (size_t i = 0; settings->stack && i < stacks->n; i++)
        if (!strcmp(stacks->items[i]->name, settings->stack) ||
            !strcmp(stacks->items[i]->path, settings->stack))
            return stacks->items[i];
    return NULL;
}

static tsr_status find(struct tsr_stacks *stacks, const char *experiment,
                       const struct tsr_settings *settings, const struct tsr_stack **out)
{
    *out = tsr_stacks_of(stacks, settings);
    if (*out)
        return TSR_OK;
    struct tsr_stack *stack = malloc(sizeof *stack);
    if (!stack)
        return tsr_no_memory(NULL);
    tsr_status status =
        tsr_stack_open(settings->stack, tsr_setting_at(settings, TSR_K_STACK), experiment, stack);
    if (status != TSR_OK) {
        free(stack);
        return status;
    }
    if (!TSR_PUSH(stacks->items, stacks->n, stacks->cap, stack)) {
        tsr_stack_close(stack);
        free(stack);
        return tsr_no_memory(NULL);
    }
    *out = stack;
    return TSR_OK;
}

tsr_status tsr_stacks_apply(struct tsr_stacks *stacks, const char *experiment,
                            struct tsr_settings *settings)
{
    const struct tsr_stack *stack = NULL;
    for (size_t i = 0; i < stacks->n; i++)
        tsr_settings_take_back(settings, &stacks->items[i]->settings, &stacks->items[i]->defaults);
    if (!settings->stack)
        return TSR_OK;
    TSR_TRY(find(stacks, experiment, settings, &stack));
    tsr_settings_fill(settings, &stack->settings);
    return TSR_OK;
}

void tsr_stacks_fini(struct tsr_stacks *stacks)
{
    for (size_t i = 0; i < stacks->n; i++) {
        tsr_stack_close(stacks->items[i]);
        free(stacks->items[i]);
    }
    free(stacks->items);
    *stacks = (struct tsr_stacks){.n = 0};
}
