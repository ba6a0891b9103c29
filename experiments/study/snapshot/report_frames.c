/* report_frames.c: texts, frames and stacks of a snapshot, each written once; labels of a
 * profiler.
 *
 * A frame is a dictionary of filename, line and name, as viewers print them ("module:0:lm_head"):
 * the file says what kind of place it is, the line is a number where there is one (the step, the
 * micro-batch).
 */
#include "experiments/study/snapshot/report_frames.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/report/report_text.h"

enum { MAX_DEPTH = 24 };

/* ---- what was written --------------------------------------------------------------------- */

void tsr__frames_init(struct tsr__frames *frames, FILE *out)
{
    *frames = (struct tsr__frames){0};
    tsr_arena_init(&frames->arena);
    tsr__pickle_begin(&frames->pickle, out);
}

void tsr__frames_fini(struct tsr__frames *frames)
{
    free(frames->keys);
    frames->keys = NULL;
    tsr_map_fini(&frames->first);
    tsr_arena_fini(&frames->arena);
}

static uint32_t hash_of(const char *text)
{
    return (uint32_t)(tsr_hash_bytes(TSR_HASH_INIT, text, strlen(text)) % TSR_MAP_NONE);
}

/* True: it was written before, and is on the stack now. */
static bool known(struct tsr__frames *frames, const char *key)
{
    uint32_t i = tsr_map_get(&frames->first, hash_of(key));
    while (i != TSR_MAP_NONE && strcmp(frames->keys[i].text, key) != 0)
        i = frames->keys[i].next;
    if (i == TSR_MAP_NONE)
        return false;
    tsr__pickle_get(&frames->pickle, frames->keys[i].remembered);
    return true;
}

/* The value on the stack is what `key` stands for. */
static void remember(struct tsr__frames *frames, const char *key)
{
    uint32_t hash = hash_of(key), place = (uint32_t)frames->n_keys;
    struct tsr__frame_key added = {tsr_arena_strdup(&frames->arena, key), 0,
                                   tsr_map_get(&frames->first, hash)};
    if (!added.text ||
        !tsr_grow(&frames->keys, frames->n_keys, &frames->cap_keys, sizeof *frames->keys) ||
        !tsr_map_put(&frames->first, hash, place)) {
        frames->failed = true;
        return;
    }
    added.remembered = tsr__pickle_remember(&frames->pickle);
    frames->keys[frames->n_keys++] = added;
}

void tsr__frames_text(struct tsr__frames *frames, const char *text)
{
    char key[1024];
    (void)snprintf(key, sizeof key, "t%s", text);
    if (known(frames, key))
        return;
    tsr__pickle_text(&frames->pickle, text);
    if (strlen(text) + 2 < sizeof key) /* a longer one is written anew each time */
        remember(frames, key);
}

/* ---- frames ------------------------------------------------------------------------------- */

struct frame {
    const char *file;
    int line;
    char name[400];
};

struct stack {
    struct frame frames[MAX_DEPTH];
    size_t n;
};

static void push(struct stack *stack, const char *file, int line, const char *name, size_t length)
{
    if (stack->n == MAX_DEPTH)
        return;
    struct frame *frame = &stack->frames[stack->n++];
    frame->file = file;
    frame->line = line;
    (void)snprintf(frame->name, sizeof frame->name, "%.*s", (int)length, name);
}

static void push_text(struct stack *stack, const char *file, int line, const char *name)
{
    push(stack, file, line, name, strlen(name));
}

/* A module and those around it, the innermost first: "model.layers.0", "model.layers", "model". */
static void push_modules(struct stack *stack, const struct tsr_tables *tables,
                         const struct tsr_origin *origin)
{
    bool has_module = origin->module < tables->n_modules;
    const char *name = has_module ? tables->modules[origin->module] : "";
    for (size_t n = strlen(name); n > 0; n--) {
        if (!name[n] || name[n] == '.')
            push(stack, "module", 0, name, n);
    }
    if (has_module)
        push_text(stack, "module", 0, "(root)");
    else if (origin->group < tables->n_groups)
        push_text(stack, "group", 0,
                  tables->groups[origin->group][0] ? tables->groups[origin->group] : "(root)");
}

static void push_step(struct stack *stack, const struct tsr_program *program,
                      const struct tsr_instr *instr)
{
    char name[64];
    push_text(stack, "phase", instr->origin.micro, tsr_phase_name(instr->origin.phase));
    if (program->iteration < 0)
        (void)snprintf(name, sizeof name, "initialisation");
    else
        (void)snprintf(name, sizeof name, "iteration %d", program->iteration);
    push_text(stack, "step", program->iteration, name);
}

static void fill_stack(struct stack *stack, const struct tsr_program *program,
                       const struct tsr_instr *instr, const char *op)
{
    char label[300];
    stack->n = 0;
    if (instr->kind == TSR_ALLOC || instr->kind == TSR_FREE)
        push_text(stack, "category", 0, tsr_category_name(instr->category));
    if (op)
        push_text(stack, "op", 0, op);
    push_modules(stack, program->tables, &instr->origin);
    if (instr->origin.recompute)
        push_text(stack, "checkpoint", 0, "recomputation");
    if (tsr__hook_label(program->tables, instr, label, sizeof label))
        push_text(stack, "hook", 0, label);
    push_step(stack, program, instr);
}

static void put_frame(struct tsr__frames *frames, const struct frame *frame)
{
    char key[600];
    (void)snprintf(key, sizeof key, "f%s:%d:%s", frame->file, frame->line, frame->name);
    if (known(frames, key))
        return;
    struct tsr__pickle *pickle = &frames->pickle;
    tsr__pickle_dict(pickle);
    tsr__frames_text(frames, "name");
    tsr__frames_text(frames, frame->name);
    tsr__pickle_set(pickle);
    tsr__frames_text(frames, "filename");
    tsr__frames_text(frames, frame->file);
    tsr__pickle_set(pickle);
    tsr__frames_text(frames, "line");
    tsr__pickle_int(pickle, frame->line);
    tsr__pickle_set(pickle);
    remember(frames, key);
}

void tsr__frames_stack(struct tsr__frames *frames, const struct tsr_program *program,
                       const struct tsr_instr *instr, const char *op)
{
    const struct tsr_origin *o = &instr->origin;
    bool is_block = instr->kind == TSR_ALLOC || instr->kind == TSR_FREE;
    char key[256];
    (void)snprintf(key, sizeof key, "s%d.%u.%u.%u.%u.%u.%u.%d.%s", program->iteration, o->module,
                   o->group, o->micro, o->phase, o->hook, o->recompute,
                   is_block ? instr->category : -1, op ? op : "");
    if (known(frames, key))
        return;
    struct stack stack;
    fill_stack(&stack, program, instr, op);
    tsr__pickle_list(&frames->pickle);
    for (size_t i = 0; i < stack.n; i++) {
        put_frame(frames, &stack.frames[i]);
        tsr__pickle_append(&frames->pickle);
    }
    remember(frames, key);
}

/* ---- labels of a profiler -------------------------------------------------------------------- */

/* The labels that PyTorch's profiler would show for the work of fully_shard
 * ("FSDP::all_gather (layers.3)"), from the origin of the instructions (R256). */

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
