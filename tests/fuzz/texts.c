/* texts.c: targets that read YAML: experiments, stacks, models, trees, scenarios, rules; arguments;
 * and what a search leaves for the next. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/more.h"
#include "experiments/study/base/yaml.h"
#include "experiments/study/compare/part.h"
#include "experiments/study/config/experiment.h"
#include "experiments/study/config/stack.h"
#include "experiments/study/model/model.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report.h"
#include "experiments/study/study.h"
#include "experiments/study/validate/validate.h"
#include "fuzz/fuzz.h"
#include "tests/player/events/trace.h"

static void yaml(const uint8_t *data, size_t n)
{
    struct tsr_doc doc;
    char *text = tsr_fuzz_string(data, n);
    if (tsr_doc_read("fuzz.yaml", text, n, &doc) == TSR_OK)
        tsr_doc_fini(&doc);
    free(text);
}

/* --set: the first line; the rest is the document. */
static void set(const uint8_t *data, size_t n)
{
    static const char fixed[] = "a: {b: 1, c.d: 2}\ne: [1, 2]\n";
    struct tsr_doc doc;
    char *text = tsr_fuzz_string(data, n);
    if (tsr_doc_read("fuzz.yaml", fixed, sizeof fixed - 1, &doc) == TSR_OK) {
        if (tsr_doc_set(&doc, text) == TSR_OK)
            (void)tsr_node_show(tsr_node_get(doc.root, "a"));
        tsr_doc_fini(&doc);
    }
    free(text);
}

/* What can be read can be printed, and that reads back. */
static void experiment(const uint8_t *data, size_t n)
{
    char *text = tsr_fuzz_string(data, n), *printed = NULL;
    const struct tsr_study_request request = {.text = text};
    struct tsr_experiment e, again;
    if (strlen(text) == n && tsr_experiment_open(&request, &e) == TSR_OK) {
        if (tsr_experiment_print(&e, &printed) == TSR_OK) {
            const struct tsr_study_request back = {.text = printed};
            if (tsr_experiment_open(&back, &again) != TSR_OK) {
                fprintf(stderr, "what was printed does not read back: %s\n%s\n", tsr_error_text(),
                        printed);
                abort();
            }
            tsr_experiment_fini(&again);
        }
        tsr_experiment_fini(&e);
    }
    free(printed);
    free(text);
}

/* A stack by its path. */
static void stack(const uint8_t *data, size_t n)
{
    struct tsr_stack stack;
    const char *path = tsr_fuzz_file("stack.yaml", data, n);
    if (tsr_stack_open(path, NULL, path, &stack) == TSR_OK)
        tsr_stack_close(&stack);
}

static void hf_config(const uint8_t *data, size_t n)
{
    struct tsr_model model;
    if (tsr_model_load_hf(tsr_fuzz_file("config.json", data, n), &model) != TSR_OK)
        return;
    if (tsr_model_require_runnable(&model) == TSR_OK && tsr_model_count(&model) == TSR_OK)
        (void)model.type;
    tsr_model_fini(&model);
}

static void tree(const uint8_t *data, size_t n)
{
    struct tsr_model model;
    if (tsr_model_load_tree(tsr_fuzz_file("tree.yaml", data, n), &model) != TSR_OK)
        return;
    if (tsr_model_require_runnable(&model) == TSR_OK && tsr_model_count(&model) == TSR_OK)
        (void)model.type;
    tsr_model_fini(&model);
}

/* A recorded scenario of `tessera trace`, up to its wrapped model. */
static void trace(const uint8_t *data, size_t n)
{
    struct tsr_scenario scenario;
    if (tsr_scenario_load(tsr_fuzz_file("scenario.json", data, n), &scenario) != TSR_OK)
        return;
    if (tsr_scenario_mesh(&scenario) != TSR_OK) {
        tsr_scenario_fini(&scenario);
        return;
    }
    (void)scenario.name;
    tsr_scenario_fini(&scenario);
}

static void rules(const uint8_t *data, size_t n)
{
    struct tsr_rules rules_of;
    if (tsr_rules_open(tsr_fuzz_file("conditions.yaml", data, n), &rules_of) == TSR_OK)
        tsr_rules_close(&rules_of);
}

/* The first byte chooses a subcommand, lines are arguments. */
static void arguments(const uint8_t *data, size_t n)
{
    enum { MOST = 64 };
    static struct tsr_args args;
    char *text = tsr_fuzz_string(data, n), *argv[MOST + 2];
    const struct tsr_command *list[64];
    size_t n_commands = 0;
    int argc = 1;
    bool help;
    for (const struct tsr_command *c = tsr_commands; c->run; c++)
        list[n_commands++] = c;
    for (const struct tsr_command *c = tsr_more_commands; c->run; c++)
        list[n_commands++] = c;
    const struct tsr_command *command = list[n && n_commands ? data[0] % n_commands : 0];
    argv[0] = text + n; /* "" */
    for (char *at = n ? text + 1 : text; *at && argc < MOST;) {
        size_t length = strcspn(at, "\n");
        argv[argc++] = at;
        at += length;
        if (*at)
            *at++ = 0;
    }
    argv[argc] = NULL;
    memset(&args, 0, sizeof args);
    if (tsr_args_parse(&command->usage, argc, argv, &args, &help) == TSR_OK && help)
        tsr_usage_print(stdout, &command->usage);
    free(text);
}

/* ---- plan.resume ----------------------------------------------------------------------------- */

static struct tsr_plan searched;
static char question[32]; /* its digest, of a file that it left */

static bool keep_nothing(const char *dir)
{
    char path[5000];
    searched.counts.interrupted = true;
    searched.points = calloc(searched.space.n, sizeof *searched.points);
    snprintf(path, sizeof path, "%s/plan.resume", dir);
    if (!searched.points || tsr_plan_keep(&searched) != TSR_OK)
        return false;
    FILE *file = fopen(path, "rb");
    bool ok = file && fscanf(file, "{\"format\": \"tessera.plan.2\", \"question\": \"%31[0-9a-f]\"",
                             question) == 1;
    if (file)
        fclose(file);
    return ok;
}

/* A search of two configurations that was interrupted before the first. */
static bool begin_resume(void)
{
    static char dir[4096];
    static struct tsr_study *study;
    snprintf(dir, sizeof dir, "%s",
             tsr_fuzz_text_file("plan.yaml", "model: llama-3.2-1b\ncluster: dgx-h100-1\n"
                                             "plan: {space: {batch: [1, 2]}}\n"
                                             "strategies: {fsdp: {}}\n"));
    const struct tsr_study_request request = {.path = strdup(dir)};
    *strrchr(dir, '/') = 0;
    const struct tsr_plan_options options = {.jobs = 1, .top = 1, .resume = true, .dir = dir};
    return request.path && tsr_study_open(&request, &study) == TSR_OK &&
           tsr_plan_open(study, &options, &searched) == TSR_OK &&
           tsr_plan_space_read(&searched.experiment, &searched.job, &searched.space) == TSR_OK &&
           keep_nothing(dir);
}

/* The records, one a line, behind a first line that is right for them, or (an odd first byte) the
 * whole file. Whatever is taken can be printed. */
static void plan_resume(const uint8_t *data, size_t n)
{
    if (!n)
        return;
    char *file = malloc(n + 300);
    size_t bytes = 0, lines = 0;
    if (!file)
        abort();
    for (size_t i = 1; i < n; i++)
        lines += data[i] == '\n';
    if (!(data[0] & 1))
        bytes = (size_t)snprintf(file, 300,
                                 "{\"format\": \"tessera.plan.2\", \"question\": \"%s\", "
                                 "\"records\": %zu, \"check\": \"%016" PRIx64 "\"}\n",
                                 question, lines, tsr_hash_bytes(TSR_HASH_INIT, data + 1, n - 1));
    memcpy(file + bytes, data + 1, n - 1);
    (void)tsr_fuzz_file("plan.resume", (const uint8_t *)file, bytes + n - 1);
    free(file);
    if (tsr_plan_resume(&searched) == TSR_OK)
        for (size_t i = 0; i < searched.space.n; i++) {
            const struct tsr_plan_measure *m = tsr_plan_kept_of(&searched, i, false);
            if (m)
                tsr__put_rows_csv(stdout, &m->row, 1);
        }
    tsr_plan_past_destroy(searched.past);
    searched.past = NULL;
}

/* ---- rows/STRATEGY.row ----------------------------------------------------------------------- */

/* The row's line behind a first one that is right for it, or (an odd first byte) the whole file.
 * Whatever is taken has texts that end, and can be printed. */
static void row_file(const uint8_t *data, size_t n)
{
    bool whole = n && data[0] & 1;
    char *file = malloc(TSR_ROW_HEAD_BYTES + n);
    struct tsr_row *row = calloc(1, sizeof *row);
    if (!file || !row || !n)
        goto done;
    size_t at = whole ? 0 : tsr__row_head((const char *)data + 1, n - 1, 0, file);
    memcpy(file + at, data + 1, n - 1);
    if (tsr__row_parse(file, at + n - 1, 0, row)) {
        if (!memchr(row->strategy, 0, sizeof row->strategy) ||
            !memchr(row->peak_phase, 0, sizeof row->peak_phase) ||
            !memchr(row->sections[0].module, 0, sizeof row->sections[0].module))
            abort();
        tsr__put_rows_csv(stdout, row, 1);
    }
done:
    free(file);
    free(row);
}

const struct tsr_fuzz_target tsr_fuzz_texts[] = {
    {.name = "yaml", .run = yaml, .dictionary = "yaml"},
    {.name = "set", .run = set, .dictionary = "yaml"},
    {.name = "experiment", .run = experiment, .dictionary = "yaml"},
    {.name = "stack", .run = stack, .dictionary = "yaml"},
    {.name = "hf_config", .run = hf_config, .dictionary = "json"},
    {.name = "tree", .run = tree, .dictionary = "yaml"},
    {.name = "trace", .run = trace, .dictionary = "json"},
    {.name = "rules", .run = rules, .dictionary = "yaml"},
    {.name = "arguments", .run = arguments, .dictionary = "arguments"},
    {.name = "plan_resume", .run = plan_resume, .dictionary = "csv", .begin = begin_resume},
    {.name = "row_file", .run = row_file, .dictionary = "csv"},
    {.name = NULL},
};
