/* report_annotations.c: the labels that PyTorch's profiler would show for the work of fully_shard
 * ("FSDP::all_gather (layers.3)"), from the origin of the instructions (R256).
 */
#include "experiments/study/snapshot/report_annotations.h"
#include "experiments/study/report/report_text.h"

#include <stdio.h>

static const char *group_name(const struct tsr_tables *tables, uint32_t group)
{
    return group < tables->n_groups ? tables->groups[group] : "";
}

/* PyTorch leaves the brackets away where the name is empty: at the root. */
static void put_label(const char *what, const char *group, char *out, size_t size)
{
    if (*group)
        (void)snprintf(out, size, "FSDP::%s (%s)", what, group);
    else
        (void)snprintf(out, size, "FSDP::%s", what);
}

bool tsr__hook_label(const struct tsr_tables *tables, const struct tsr_instr *instr, char *out,
                     size_t size)
{
    static const char *const names[TSR_N_HOOKS] = {
        [TSR_HOOK_PRE_FORWARD] = "pre_forward",
        [TSR_HOOK_POST_FORWARD] = "post_forward",
        [TSR_HOOK_PRE_BACKWARD] = "pre_backward",
        [TSR_HOOK_POST_BACKWARD] = "post_backward",
        [TSR_HOOK_FINAL_CALLBACK] = "root_post_backward_callback",
    };
    const char *name = names[instr->origin.hook];
    if (!name)
        return false;
    put_label(name, group_name(tables, instr->origin.group), out, size);
    return true;
}

enum tsr__action tsr__action_of(const struct tsr_instr *instr)
{
    bool grouped = instr->origin.group != TSR_NO_ID;
    bool reduces = instr->origin.hook == TSR_HOOK_POST_BACKWARD ||
                   instr->origin.hook == TSR_HOOK_FINAL_CALLBACK;
    if (!grouped)
        return TSR__ACTION_NONE;
    if (instr->kind == TSR_OP && instr->work && instr->work->op == TSR_OP_SPLIT_COPY)
        return TSR__ACTION_COPY_OUT;
    if (instr->kind == TSR_REDUCE_SCATTER || instr->kind == TSR_ALL_REDUCE ||
        (instr->kind == TSR_OP && instr->work && instr->work->op == TSR_OP_CHUNK_CAT))
        return TSR__ACTION_REDUCE;
    if (instr->kind == TSR_ALL_GATHER || (instr->kind == TSR_COPY && !reduces))
        return TSR__ACTION_ALL_GATHER;
    return TSR__ACTION_NONE;
}

void tsr__action_label(const struct tsr_tables *tables, const struct tsr_instr *instr,
                       uint32_t hook_group, char *out, size_t size)
{
    static const char *const names[] = {
        [TSR__ACTION_NONE] = "",
        [TSR__ACTION_ALL_GATHER] = "all_gather",
        [TSR__ACTION_COPY_OUT] = "all_gather_copy_out",
        [TSR__ACTION_REDUCE] = "post_backward_reduce",
    };
    enum tsr__action action = tsr__action_of(instr);
    const char *group = group_name(tables, instr->origin.group);
    bool ahead = action == TSR__ACTION_ALL_GATHER && instr->origin.group != hook_group;
    if (ahead && instr->origin.hook == TSR_HOOK_PRE_FORWARD)
        (void)snprintf(out, size, "FSDP::forward_prefetch for %s", group);
    else if (ahead && instr->origin.hook == TSR_HOOK_PRE_BACKWARD)
        (void)snprintf(out, size, "FSDP::backward_prefetch for %s", group);
    else
        put_label(names[action], group, out, size);
}
