/* snapshot_places.c: reads stacks and annotations. There are two kinds of stacks: those of Python,
 * by the files and functions of PyTorch 2.11, and those that `compare` writes, whose frames are
 * named after what they say (report_frames.c).
 */
#include "experiments/study/diff/snapshot_places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FRAMES = 200 };

/* ---- stacks of Python ------------------------------------------------------------------------ */

/* What a function of PyTorch allocates: the first rule that fits any frame of the stack. "": any
 * function of the file. torch/distributed/fsdp/_fully_shard: _fsdp_param.py, _fsdp_collectives.py,
 * _fsdp_param_group.py; torch/optim. */
static const struct {
    const char *file, *function;
    uint8_t category;
} allocators[] = {
    {"_fsdp_param.py", "init_all_gather_outputs", TSR_CAT_UNSHARDED_PARAM},
    {"_fsdp_param.py", "alloc_all_gather_outputs", TSR_CAT_UNSHARDED_PARAM},
    {"_fsdp_param.py", "init_unsharded_param", TSR_CAT_UNSHARDED_PARAM},
    {"_fsdp_param.py", "to_accumulated_grad_if_needed", TSR_CAT_UNSHARDED_ACC_GRAD},
    {"_fsdp_param.py", "to_sharded_post_forward", TSR_CAT_POST_FORWARD_SHARD},
    {"_fsdp_collectives.py", "_get_param_all_gather_inputs", TSR_CAT_ALL_GATHER_INPUT},
    {"_fsdp_collectives.py", "foreach_all_gather", TSR_CAT_ALL_GATHER},
    {"optim/", "_init_group", TSR_CAT_OPT_STATE},
    {"optim/", "step", TSR_CAT_OPT_TEMP},
};

static bool contains(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

static bool is_of_torch(const char *file)
{
    return contains(file, "/torch/") || contains(file, "torch/_") || *file == '<' || !*file;
}

struct stack {
    struct tsr_pickle_value **frames; /* the innermost first */
    size_t n;
};

static struct stack stack_of(const struct tsr_pickle_value *event)
{
    struct stack out;
    out.n = tsr_pickle_list(tsr_pickle_get(event, "frames"), &out.frames);
    out.n = out.n < MAX_FRAMES ? out.n : MAX_FRAMES;
    return out;
}

static uint8_t category_by_stack(const struct stack *stack)
{
    for (size_t i = 0; i < stack->n; i++) {
        const char *file = tsr_pickle_text(stack->frames[i], "filename");
        const char *function = tsr_pickle_text(stack->frames[i], "name");
        for (size_t k = 0; k < sizeof allocators / sizeof allocators[0]; k++)
            if (!strcmp(function, allocators[k].function) && contains(file, allocators[k].file))
                return allocators[k].category;
    }
    return TSR_DIFF_UNKNOWN;
}

/* True if a function of that name in a file of that name is on the stack. */
static bool runs(const struct stack *stack, const char *part, const char *function)
{
    for (size_t i = 0; i < stack->n; i++)
        if (contains(tsr_pickle_text(stack->frames[i], "filename"), part) &&
            !strcmp(tsr_pickle_text(stack->frames[i], "name"), function))
            return true;
    return false;
}

/* "train.py:40 step": the innermost frame of the user's own code, else the innermost. */
static tsr_status name_frame(const struct stack *stack, struct tsr_arena *arena, const char **out)
{
    size_t at = 0;
    uint64_t line = 0;
    *out = "";
    while (at < stack->n && is_of_torch(tsr_pickle_text(stack->frames[at], "filename")))
        at++;
    if (at == stack->n)
        at = 0;
    if (at == stack->n)
        return TSR_OK;
    const char *file = tsr_pickle_text(stack->frames[at], "filename");
    const char *slash = strrchr(file, '/');
    (void)tsr_pickle_count(stack->frames[at], "line", &line);
    *out = tsr_arena_printf(arena, "%.120s:%llu %.120s", slash ? slash + 1 : file,
                            (unsigned long long)line, tsr_pickle_text(stack->frames[at], "name"));
    return *out ? TSR_OK : tsr_no_memory("stacks of a snapshot");
}

/* ---- stacks of `compare` --------------------------------------------------------------------- */

/* The name of the frame of a kind: "phase", "module"; NULL: there is none. */
static const char *frame_of(const struct stack *stack, const char *kind)
{
    for (size_t i = 0; i < stack->n; i++)
        if (!strcmp(tsr_pickle_text(stack->frames[i], "filename"), kind))
            return tsr_pickle_text(stack->frames[i], "name");
    return NULL;
}

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

static void read_own(const struct stack *stack, struct tsr_snapshot_place *out)
{
    const char *category = frame_of(stack, "category"), *step = frame_of(stack, "step");
    const char *module = frame_of(stack, "module"), *number = strrchr(or_empty(step), ' ');
    out->own = true;
    out->phase = or_empty(frame_of(stack, "phase"));
    out->module = or_empty(module ? module : frame_of(stack, "group"));
    out->operation = or_empty(frame_of(stack, "op"));
    out->step = number ? (uint32_t)strtoul(number, NULL, 10) + 1 : 0;
    for (uint8_t c = 0; category && c < TSR_N_CATEGORIES; c++)
        if (!strcmp(tsr_category_name(c), category))
            out->category = c;
}

/* ---- annotations ----------------------------------------------------------------------------- */

void tsr_snapshot_walk_begin(const struct tsr_pickle_value *root, struct tsr_arena *arena,
                             struct tsr_snapshot_walk *out)
{
    *out = (struct tsr_snapshot_walk){.arena = arena, .phase = "", .module = ""};
    out->n_annotations =
        tsr_pickle_list(tsr_pickle_get(root, "external_annotations"), &out->annotations);
    for (size_t i = 0; i < out->n_annotations; i++)
        out->named |= !strncmp(tsr_pickle_text(out->annotations[i], "name"), "FSDP::", 6);
}

static bool begins(const char *text, const char *start)
{
    return !strncmp(text, start, strlen(start));
}

/* The group of "FSDP::pre_forward (layers.0)"; the root has no name. */
static tsr_status group_of(struct tsr_snapshot_walk *walk, const char *name)
{
    const char *open = strchr(name, '('), *close = strrchr(name, ')');
    walk->module = "(root)";
    if (open && close && close > open)
        walk->module = tsr_arena_printf(walk->arena, "%.*s", (int)(close - open - 1), open + 1);
    return walk->module ? TSR_OK : tsr_no_memory("annotations of a snapshot");
}

static void enter_optimizer(struct tsr_snapshot_walk *walk, bool start)
{
    walk->steps += !start && walk->in_optimizer;
    walk->in_optimizer = start;
    walk->phase = start ? "optimizer" : "end";
    walk->module = "(optimizer)";
}

/* Blocks are recomputed in backward, with the hooks of forward. */
static tsr_status pass(struct tsr_snapshot_walk *walk, const char *name, bool start)
{
    bool in_backward = !strcmp(walk->phase, "backward");
    if (begins(name, "Optimizer.step")) {
        enter_optimizer(walk, start);
    } else if (begins(name, "Optimizer.zero_grad")) {
        walk->phase = start ? "zero_grad" : "inputs";
        walk->module = "(root)";
    } else if (start && begins(name, "FSDP::root_pre_forward")) {
        walk->phase = in_backward ? "backward" : "forward";
    } else if (start && begins(name, "FSDP::pre_forward")) {
        walk->phase = in_backward ? "backward" : "forward";
        return group_of(walk, name);
    } else if (!start && begins(name, "FSDP::post_forward")) {
        bool root = !strchr(name, '(');
        walk->module = "(root)";
        walk->phase = root && !in_backward ? "loss" : walk->phase;
    } else if (start && begins(name, "FSDP::pre_backward")) {
        walk->phase = "backward";
        return group_of(walk, name);
    }
    return TSR_OK;
}

static tsr_status pass_annotations(struct tsr_snapshot_walk *walk, uint64_t time)
{
    uint64_t when;
    while (walk->next < walk->n_annotations) {
        const struct tsr_pickle_value *annotation = walk->annotations[walk->next];
        if (!tsr_pickle_count(annotation, "time_us", &when) || when > time)
            break;
        TSR_TRY(pass(walk, tsr_pickle_text(annotation, "name"),
                     !strcmp(tsr_pickle_text(annotation, "stage"), "START")));
        walk->next++;
    }
    return TSR_OK;
}

/* Without annotations: the optimizer and modules are seen in stacks, and what has no stack while
 * the step is neither is autograd's thread. */
static void follow_stack(struct tsr_snapshot_walk *walk, const struct stack *stack)
{
    bool in_optimizer = runs(stack, "optim/", "step");
    if (walk->n_annotations == 0 && in_optimizer != walk->in_optimizer)
        enter_optimizer(walk, in_optimizer);
    if (walk->named || walk->in_optimizer || in_optimizer)
        return;
    if (runs(stack, "modules/module.py", "_call_impl"))
        walk->phase = "forward";
    else if (!stack->n && !strcmp(walk->phase, "forward"))
        walk->phase = "backward";
    walk->module = "(root)";
}

tsr_status tsr_snapshot_place(struct tsr_snapshot_walk *walk, const struct tsr_pickle_value *event,
                              bool allocates, struct tsr_snapshot_place *out)
{
    uint64_t time;
    struct stack stack = stack_of(event);
    *out = (struct tsr_snapshot_place){"", "", "", TSR_DIFF_UNKNOWN, 0, false};
    if (frame_of(&stack, "step") && frame_of(&stack, "phase")) {
        read_own(&stack, out);
        return TSR_OK;
    }
    if (tsr_pickle_count(event, "time_us", &time))
        TSR_TRY(pass_annotations(walk, time));
    if (allocates) {
        follow_stack(walk, &stack);
        out->category = category_by_stack(&stack);
        TSR_TRY(name_frame(&stack, walk->arena, &out->operation));
    }
    out->phase = walk->phase;
    out->module = walk->module;
    out->step = walk->steps;
    return TSR_OK;
}
