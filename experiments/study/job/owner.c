/* owner.c: names of owners and of the work that allocates. */
#include "experiments/study/job/owner.h"

#include <stdio.h>
#include <string.h>

const char *tsr_owner_of(const struct tsr_tables *tables, const struct tsr_origin *origin,
                         char buffer[32])
{
    const char *name = NULL;
    if (origin->module < tables->n_modules)
        name = tables->modules[origin->module];
    else if (origin->group < tables->n_groups)
        name = tables->groups[origin->group];
    if (name)
        return *name ? name : "(root)";
    snprintf(buffer, 32, "(%s)", tsr_phase_name(origin->phase));
    return buffer;
}

/* Length of the component that begins at `text`; *number: it has digits only. */
static size_t component(const char *text, bool *number)
{
    size_t n = strcspn(text, ".");
    *number = n > 0 && strspn(text, "0123456789") == n;
    return n;
}

static void put_pattern(const char *fqn, bool cut, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    while (*fqn && used + 1 < size) {
        bool number;
        size_t n = component(fqn, &number);
        int put = snprintf(out + used, size - used, "%s%.*s", used ? "." : "", number ? 1 : (int)n,
                           number ? "*" : fqn);
        used += put > 0 ? (size_t)put : 0;
        if (number && cut)
            return;
        fqn += n + (fqn[n] == '.');
    }
}

void tsr_owner_pattern(const char *fqn, char *out, size_t size)
{
    put_pattern(fqn, false, out, size);
}

void tsr_owner_block_pattern(const char *fqn, char *out, size_t size)
{
    put_pattern(fqn, true, out, size);
}

size_t tsr_owner_block_length(const char *fqn)
{
    for (const char *at = fqn; *at;) {
        bool number;
        size_t n = component(at, &number);
        if (number)
            return (size_t)(at - fqn) + n;
        at += n + (at[n] == '.');
    }
    return 0;
}

static bool uses(const struct tsr_instr *instr, uint32_t buffer)
{
    for (uint32_t i = 0; i < instr->n_operands; i++)
        if (instr->operands[i].buffer == buffer)
            return true;
    return false;
}

static bool is_device_work(const struct tsr_instr *instr)
{
    return tsr_instr_is_work(instr) && instr->kind != TSR_RECORD && instr->kind != TSR_WAIT &&
           instr->kind != TSR_HOST_WAIT;
}

size_t tsr_work_of_alloc(const struct tsr_program *program, size_t alloc)
{
    size_t first = program->n_instrs;
    uint32_t buffer = program->instrs[alloc].buffer;
    for (size_t i = alloc + 1; i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        if (instr->kind == TSR_FREE && instr->buffer == buffer)
            break;
        if (!is_device_work(instr))
            continue;
        if (uses(instr, buffer))
            return i;
        if (first == program->n_instrs)
            first = i;
    }
    return first;
}

const char *tsr_work_name(const struct tsr_instr *instr)
{
    if (instr->work && instr->work->name && *instr->work->name)
        return instr->work->name;
    return tsr_instr_kind_name(instr->kind);
}
