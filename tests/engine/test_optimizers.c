/* test_optimizers.c: steps of SGD and AdamW against PyTorch's, operation by operation: kernels, new
 * memory, memory that goes, in order (tests/golden-memory/optimizers.txt, where lines are
 * explained).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/tessera.h"

enum { LINE = 1024, MOST_FREED = 8 };

/* ---- what the engine says -------------------------------------------------------------------- */

struct said {
    char text[LINE];
    uint64_t freed[MOST_FREED]; /* since the latest word */
    size_t n_freed;
    uint32_t maximum; /* buffer of AMSGrad's latest maximum; 0: none */
};

static int larger_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

static void say(struct said *s, const char *word)
{
    size_t n = strlen(s->text);
    if (s->n_freed)
        qsort(s->freed, s->n_freed, sizeof *s->freed, larger_first);
    for (size_t i = 0; i < s->n_freed; i++)
        n += (size_t)snprintf(s->text + n, LINE - n, " -%llu", (unsigned long long)s->freed[i]);
    s->n_freed = 0;
    if (*word)
        n += (size_t)snprintf(s->text + n, LINE - n, " %s", word);
    assert_true(n < LINE);
}

static unsigned access_of(const struct tsr_instr *in, unsigned slot)
{
    for (uint32_t i = 0; i < in->n_operands; i++)
        if (in->operands[i].slot == slot)
            return in->operands[i].access;
    return 0;
}

static uint32_t buffer_of(const struct tsr_instr *in, unsigned slot)
{
    for (uint32_t i = 0; i < in->n_operands; i++)
        if (in->operands[i].slot == slot)
            return in->operands[i].buffer;
    return 0;
}

/* Where a kernel finds the gradient (KERNELS.md). */
static char gradient_of(const struct tsr_instr *in)
{
    bool copy = access_of(in, 4) & TSR_READ || access_of(in, 5);
    return copy ? 't' : access_of(in, 0) ? 'g' : 'm';
}

/* PyTorch's name of a kernel; d: where its gradient is; an operation on lists: "_foreach" before
 * it. */
static void say_kernel(struct said *s, const struct tsr_instr *in)
{
    static const struct {
        const char *name, *torch;
    } known[] = {{"neg_grad", "neg(g)"},
                 {"clone_momentum", "clone(d)"},
                 {"mul_momentum", "mul_(m)"},
                 {"add_momentum", "add_(m,d)"},
                 {"add_sgd", "add_(p,d)"},
                 {"add_step", "add_(s)"},
                 {"mul_weight_decay", "mul_(p)"},
                 {"lerp_exp_avg", "lerp_(m,d)"},
                 {"mul_exp_avg_sq", "mul_(v)"},
                 {"addcmul_exp_avg_sq", "addcmul_(v,d,d)"},
                 {"sqrt", "sqrt(v)"},
                 {"maximum", "maximum(x,v)"},
                 {"div_bias_correction", "div(t)"},
                 {"add_eps", "add_(t)"},
                 {"addcdiv", "addcdiv_(p,m,t)"},
                 {"fused_adamw", "_fused_adamw_(p,g,m,v,s)"}};
    const char *name = in->work->name, *torch = NULL;
    bool list = !strncmp(name, "foreach_", 8);
    name += list ? 8 : 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name))
            torch = known[i].torch;
    if (!strcmp(name, "div_bias_correction") && list)
        torch = "div_(t)";
    if (!strcmp(name, "maximum") && list)
        torch = "maximum_(x,v)";
    if (!strcmp(name, "maximum"))
        s->maximum = buffer_of(in, 1);
    if (!strcmp(name, "sqrt") && s->maximum && buffer_of(in, 2) == s->maximum)
        torch = "sqrt(x)";
    if (!strcmp(name, "fused_adamw") && access_of(in, 4))
        torch = "_fused_adamw_(p,g,m,v,x,s)";
    if (!strcmp(name, "add_decay"))
        torch = access_of(in, 4) & TSR_READ ? "add_(d,p)" : "add(d,p)";
    if (!strcmp(name, "add_nesterov"))
        torch = list ? "add_(d,m)" : "add(d,m)";
    if (!strncmp(name, "fused_sgd", 9))
        torch = access_of(in, 1) ? "_fused_sgd_(p,g,m)" : "_fused_sgd_(p,g)";
    assert_non_null(torch);
    char word[64];
    snprintf(word, sizeof word, "%s%s", list ? "_foreach_" : "", torch);
    for (char *c = strchr(word, '('); *c; c++)
        if (*c == 'd')
            *c = gradient_of(in);
    say(s, word);
}

static void say_step(struct said *s, const struct tsr_program *p)
{
    char word[32];
    for (size_t i = 0; i < p->n_instrs; i++) {
        const struct tsr_instr *in = &p->instrs[i];
        if (in->origin.phase != TSR_PHASE_OPTIMIZER)
            continue;
        snprintf(word, sizeof word, "+%llu", (unsigned long long)in->bytes);
        if (in->kind == TSR_ALLOC)
            say(s, word);
        else if (in->kind == TSR_FREE && s->n_freed < MOST_FREED)
            s->freed[s->n_freed++] = in->bytes;
        else if (in->kind == TSR_FILL)
            say(s, "fill");
        else if (in->kind == TSR_OP)
            say_kernel(s, in);
    }
    say(s, "");
}

/* ---- cases ----------------------------------------------------------------------------------- */

static bool has(const char *title, const char *word)
{
    return strstr(title, word) != NULL;
}

/* From "sgd foreach momentum decay". */
static struct tsr_step_config config_of(const char *title)
{
    bool sgd = has(title, "sgd"), fused = has(title, "fused"), loop = has(title, "loop");
    return (struct tsr_step_config){.batch = 2,
                                    .seq = 1,
                                    .n_micro = 1,
                                    .optimizer = sgd ? has(title, "momentum") ? TSR_OPT_SGD_MOMENTUM
                                                                              : TSR_OPT_SGD
                                                 : fused ? TSR_OPT_ADAMW_FUSED
                                                 : loop  ? TSR_OPT_ADAMW_LOOP
                                                         : TSR_OPT_ADAMW_FOREACH,
                                    .sgd = fused  ? TSR_SGD_FUSED
                                           : loop ? TSR_SGD_LOOP
                                                  : TSR_SGD_FOREACH,
                                    .sgd_decay = sgd && has(title, "decay"),
                                    .nesterov = has(title, "nesterov"),
                                    .maximize = has(title, "maximize"),
                                    .amsgrad = has(title, "amsgrad")};
}

static const struct tsr_tree_node linear = {
    .name = "a", .type = TSR_TREE_LINEAR, .in = 3, .out = 2, .bias = true};
static const struct tsr_tree_config two = {
    .root = {.type = TSR_TREE_SEQ, .n_children = 1, .children = &linear},
    .in_dim = 3,
    .loss_mse = true};
static const struct tsr_tree_node linears[] = {
    {.name = "a", .type = TSR_TREE_LINEAR, .in = 3, .out = 4, .bias = true},
    {.name = "b", .type = TSR_TREE_LINEAR, .in = 4, .out = 1},
    {.name = "c", .type = TSR_TREE_LINEAR, .in = 1, .out = 4}};
static const struct tsr_tree_config four = {
    .root = {.type = TSR_TREE_SEQ, .n_children = 3, .children = linears},
    .in_dim = 3,
    .loss_mse = true};

/* Two steps of a model of two parameters, without any wrapping; or of the second of two ranks,
 * which has half of each parameter and nothing of the third. */
static void two_steps(const char *title, char said[2][LINE])
{
    struct tsr_recorder recorder;
    struct tsr_program program;
    struct tsr_engine *e = NULL;
    tsr_recorder_init(&recorder, &program);
    bool empty = has(title, "empty");
    const struct tsr_engine_config config = {
        .mesh = {.n_dims = 1, .shape = {empty ? 2 : 1}}, .rank = empty, .executor = &recorder.base};
    assert_int_equal(tsr_engine_create(&config, &e), TSR_OK);
    assert_int_equal(tsr_model_tree(e, empty ? &four : &two), TSR_OK);
    struct tsr_module *root = tsr_module_find(e, "");
    if (empty)
        assert_int_equal(tsr_fully_shard(e, &root, 1, NULL), TSR_OK);
    const struct tsr_step_config step = config_of(title);
    assert_int_equal(tsr_step_configure(e, &step), TSR_OK);
    tsr_program_init(&program, tsr_engine_tables(e));
    assert_int_equal(tsr_engine_init_params(e), TSR_OK);
    for (uint32_t i = 0; i < 2; i++) {
        struct said s = {.n_freed = 0};
        tsr_program_fini(&program);
        tsr_program_init(&program, tsr_engine_tables(e));
        assert_int_equal(tsr_step_run(e, i), TSR_OK);
        say_step(&s, &program);
        snprintf(said[i], LINE, "%s", s.text);
    }
    tsr_program_fini(&program);
    tsr_engine_destroy(e);
}

/* ---- PyTorch's ------------------------------------------------------------------------------- */

static void as_recorded(void **state)
{
    (void)state;
    const char *source = getenv("TSR_SOURCE_DIR");
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/golden-memory/optimizers.txt", source ? source : ".");
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char line[LINE], said[2][LINE];
    int cases = 0, bad = 0;
    while (fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        assert_non_null(colon);
        assert_true(colon - line > 2);
        line[strcspn(line, "\n")] = 0;
        colon[0] = 0;
        unsigned step = (unsigned)(colon[-1] - '1');
        assert_in_range(step, 0, 1);
        if (step == 0)
            two_steps(line, said);
        if (strcmp(colon + 1, said[step])) {
            printf("%s:\n  PyTorch%s\n  engine %s\n", line, colon + 1, said[step]);
            bad++;
        }
        cases++;
    }
    (void)fclose(f);
    assert_int_equal(cases, 192);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_recorded)};
    return cmocka_run_group_tests_name("engine: optimizers", tests, NULL, NULL);
}
