/* test_operands.c: what the checker says of operands that are missing or too small is what an
 * executor says: of every kernel of every strategy of tests/exec each slot is left out once, and
 * the host's kernel refuses the call exactly where the checker finds it. Then the last operand of
 * each slot is one element shorter, and half as long: what the checker finds the host refuses, but
 * for copies of bytes, which the host cuts; and of what the host refuses the checker finds most.
 *
 *   check_test_operands --print    the table of engine/check/check_kernels.c, as the host has it,
 * without sizes
 */
#include "engine/check/check.h"
#include "tests/exec/jobs_testing.h"

enum { STEPS = 2, MOST_KERNELS = 256, MOST_SLOTS = 16, MOST_OPERANDS = 4096 };

/* A kernel as the host knows it: what it did without a slot. */
struct known {
    const char *name;
    uint32_t calls, refused[MOST_SLOTS], left_out[MOST_SLOTS];
    unsigned reads, writes;
};

static struct {
    struct known kernels[MOST_KERNELS];
    size_t n, mutants, refused, differ;
    size_t n_short, short_refused, short_found, short_differ;
} report;

/* ---- the host -------------------------------------------------------------------------------- */

/* Memory of every operand, by itself or in that of another one that shares its buffer. */
static void back(const struct tsr_instr *instr, struct tsr_view *views, void **memory)
{
    for (uint32_t i = 0; i < instr->n_operands; i++) {
        const struct tsr_operand *o = &instr->operands[i];
        uint64_t end = 0;
        memory[i] = NULL;
        for (uint32_t k = 0; k < i && !memory[i]; k++)
            if (instr->operands[k].buffer == o->buffer)
                memory[i] = views[k].base;
        for (uint32_t k = 0; k < instr->n_operands; k++)
            if (instr->operands[k].buffer == o->buffer)
                end = tsr_max_u64(end, instr->operands[k].offset + instr->operands[k].bytes);
        void *base = memory[i] ? memory[i] : calloc(1, end + 64);
        assert_non_null(base);
        memory[i] = memory[i] ? NULL : base; /* whoever made it frees it */
        views[i] = (struct tsr_view){.data = (char *)base + o->offset,
                                     .bytes = o->bytes,
                                     .width = o->width,
                                     .pitch = o->pitch,
                                     .dtype = o->dtype,
                                     .slot = o->slot,
                                     .access = o->access,
                                     .space = o->space,
                                     .buffer = o->buffer,
                                     .base = base};
    }
}

/* without: a slot that is left out; -1: none. */
static bool host_refuses(const struct tsr_instr *instr, int without)
{
    static struct tsr_view views[MOST_OPERANDS], kept[MOST_OPERANDS];
    static void *memory[MOST_OPERANDS];
    static const double scalars[TSR_N_SCALARS] = {0.1, 0.9, 0.9, 1e-6, 0, 0.9, 1, 1};
    uint32_t n = 0;
    assert_true(instr->n_operands <= MOST_OPERANDS);
    back(instr, views, memory);
    for (uint32_t i = 0; i < instr->n_operands; i++)
        if (views[i].slot != without)
            kept[n++] = views[i];
    const struct tsr_kernel_call call = {
        .work = instr->work, .n_views = n, .views = kept, .scalars = scalars};
    tsr_status status = tsr_host_kernel(instr->work->name)(&call);
    for (uint32_t i = 0; i < instr->n_operands; i++)
        free(memory[i]);
    return status != TSR_OK;
}

/* ---- the checker ----------------------------------------------------------------------------- */

/* Of this instruction alone; its memory is not there, which is found in any case. */
static bool checker_finds_words(const struct tsr_tables *tables, const struct tsr_instr *instr,
                                const char *words)
{
    struct tsr_checker *checker;
    struct tsr_executor *x;
    const struct tsr_checker_config config = {.world = 1};
    bool found = false;
    job_ok(tsr_checker_create(&config, &checker));
    job_ok(tsr_checker_rank(checker, 0, tables, NULL, &x));
    job_ok(x->ops->submit(x, instr));
    job_ok(tsr_checker_finish(checker));
    for (size_t i = 0; i < tsr_checker_n_findings(checker); i++)
        found |= strstr(tsr_checker_finding(checker, i)->headline, words) != NULL;
    tsr_checker_destroy(checker);
    return found;
}

static bool checker_refuses(const struct tsr_tables *tables, const struct tsr_instr *instr,
                            int without)
{
    static struct tsr_operand kept[MOST_OPERANDS];
    struct tsr_instr mutant = *instr;
    mutant.n_operands = 0;
    mutant.operands = kept;
    for (uint32_t i = 0; i < instr->n_operands; i++)
        if (instr->operands[i].slot != without)
            kept[mutant.n_operands++] = instr->operands[i];
    return checker_finds_words(tables, &mutant, "has no operand");
}

/* ---- all kernels ----------------------------------------------------------------------------- */

static struct known *kernel_of(const char *name)
{
    for (size_t i = 0; i < report.n; i++)
        if (!strcmp(report.kernels[i].name, name))
            return &report.kernels[i];
    assert_true(report.n < MOST_KERNELS);
    struct known *k = &report.kernels[report.n++];
    k->name = strdup(name);
    return k;
}

static void leave_out(const struct tsr_tables *tables, const struct tsr_instr *instr,
                      struct known *k, uint8_t slot, bool compare)
{
    bool host = host_refuses(instr, slot);
    k->left_out[slot]++;
    k->refused[slot] += host;
    report.mutants++;
    report.refused += host;
    if (compare && host != checker_refuses(tables, instr, slot)) {
        if (report.differ++ < 20)
            fprintf(stderr, "%s without slot %u: the host %s it, the checker does not agree\n",
                    k->name, slot, host ? "refuses" : "runs");
    }
}

/* False: there is nothing to take away. */
static bool shorten(const struct tsr_instr *instr, uint8_t slot, bool half,
                    struct tsr_operand *operands, struct tsr_instr *out)
{
    struct tsr_operand *last = NULL;
    *out = *instr;
    out->operands = operands;
    for (uint32_t i = 0; i < instr->n_operands; i++) {
        operands[i] = instr->operands[i];
        if (operands[i].slot == slot)
            last = &operands[i];
    }
    uint64_t unit = last->pitch                     ? last->pitch
                    : last->dtype == TSR_DTYPE_NONE ? 1
                                                    : tsr_dtype_bytes((tsr_dtype)last->dtype);
    uint64_t n = tsr_ceil_div(last->bytes, unit);
    last->bytes = (half ? n / 2 : n - 1) * unit;
    return n > 0;
}

static bool cuts_bytes(const char *name)
{
    static const char *const copies[] = {"d2h_",
                                         "h2d_",
                                         "device_copy",
                                         "load_shard",
                                         "save_shard",
                                         "post_forward_slice",
                                         "reduce_scatter_copy"};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        if (!strncmp(name, copies[i], strlen(copies[i])))
            return true;
    return false;
}

static void make_shorter(const struct tsr_tables *tables, const struct tsr_instr *instr,
                         uint8_t slot)
{
    static struct tsr_operand operands[MOST_OPERANDS];
    const char *name = instr->work->name;
    for (int half = 0; half < 2; half++) {
        struct tsr_instr mutant;
        if (!shorten(instr, slot, half, operands, &mutant))
            continue;
        bool host = host_refuses(&mutant, -1) || cuts_bytes(name);
        bool found = checker_finds_words(tables, &mutant, "do not fit");
        report.n_short++;
        report.short_refused += host;
        report.short_found += host && found;
        if (found && !host && report.short_differ++ < 20)
            fprintf(stderr, "%s with a %s slot %u: the host runs it, the checker does not\n", name,
                    half ? "half" : "shorter", slot);
    }
}

/* The first calls of each kernel in each strategy: the others are like them. */
static void look_at(const struct tsr_tables *tables, const struct tsr_instr *instr, bool compare)
{
    bool seen[MOST_SLOTS] = {false};
    if (!instr->work || !tsr_host_kernel(instr->work->name) || instr->n_operands == 0)
        return;
    struct known *k = kernel_of(instr->work->name);
    if (++k->calls % 4 != 1)
        return;
    assert_false(host_refuses(instr, -1));
    assert_false(checker_refuses(tables, instr, -1));
    assert_false(checker_finds_words(tables, instr, "do not fit"));
    for (uint32_t i = 0; i < instr->n_operands; i++) {
        const struct tsr_operand *o = &instr->operands[i];
        assert_true(o->slot < MOST_SLOTS);
        k->reads |= o->access & TSR_READ ? 1U << o->slot : 0;
        k->writes |= o->access & TSR_WRITE ? 1U << o->slot : 0;
        if (!seen[o->slot])
            leave_out(tables, instr, k, o->slot, compare);
        if (!seen[o->slot] && compare)
            make_shorter(tables, instr, o->slot);
        seen[o->slot] = true;
    }
}

static void look_at_strategy(const struct strategies *s, const char *name, bool compare)
{
    struct tsr_emission emission;
    struct tsr_job job;
    strategies_job(s, name, &job);
    job_ok(tsr_emit_rank(&job, job.world - 1, TSR_UNTIL_SAVE, &emission));
    for (uint32_t p = 0; p < emission.n_iterations; p++) {
        const struct tsr_program *program = emission.classes[0].programs[p];
        for (size_t i = 0; i < program->n_instrs; i++)
            look_at(program->tables, &program->instrs[i], compare);
    }
    tsr_emission_fini(&emission);
    tsr_job_close(&job);
}

static void look_at_all(bool compare)
{
    struct strategies s;
    strategies_open(&s);
    assert_int_equal(tsr_kernels_init(), TSR_OK);
    for (size_t i = 0; i < s.file.n; i++)
        look_at_strategy(&s, s.file.strategies[i].name, compare);
    strategies_close(&s);
}

static void slots__left_out__refused_by_both_or_by_none(void **state)
{
    (void)state;
    look_at_all(true);
    print_message("%zu kernels, %zu calls without a slot, %zu of which are refused\n", report.n,
                  report.mutants, report.refused);
    print_message("%zu calls with a shorter operand, %zu of which are refused, %zu found\n",
                  report.n_short, report.short_refused, report.short_found);
    assert_int_equal(report.differ, 0);
    assert_int_equal(report.short_differ, 0);
    assert_true(report.n_short > 20000);
    assert_true(report.short_found * 100 > report.short_refused * 85);
    assert_true(report.n > 80);
    assert_true(report.refused > report.mutants / 2);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct known *)a)->name, ((const struct known *)b)->name);
}

static void print_table(void)
{
    look_at_all(false);
    qsort(report.kernels, report.n, sizeof *report.kernels, by_name);
    for (size_t i = 0; i < report.n; i++) {
        const struct known *k = &report.kernels[i];
        char text[MOST_SLOTS + 1] = "", mixed[MOST_SLOTS + 1] = "";
        for (unsigned slot = 0; slot < MOST_SLOTS; slot++) {
            bool needs = k->left_out[slot] && k->refused[slot] == k->left_out[slot];
            bool r = k->reads >> slot & 1, w = k->writes >> slot & 1;
            text[slot] = !needs ? '.' : r && w ? 'b' : r ? 'r' : 'w';
            mixed[slot] = k->refused[slot] > 0 && !needs ? '?' : ' ';
        }
        size_t n = strlen(text);
        while (n > 0 && text[n - 1] == '.')
            text[--n] = '\0';
        printf("    {\"%s\", \"%s\", \"\"}, /* %s */\n", k->name, text, mixed);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots__left_out__refused_by_both_or_by_none)};
    if (argc > 1 && !strcmp(argv[1], "--print")) {
        print_table();
        return 0;
    }
    return cmocka_run_group_tests_name("operands", tests, NULL, NULL);
}
