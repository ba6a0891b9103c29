/* texts.c: targets that read YAML: experiments, models, trees, scenarios, rules; and arguments. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/commands.h"
#include "experiments/cli/player/trace/trace.h"
#include "experiments/study/base/yaml.h"
#include "experiments/study/config/experiment.h"
#include "experiments/study/model/model.h"
#include "experiments/study/validate/validate.h"
#include "fuzz/fuzz.h"

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
    size_t n_commands = 0;
    int argc = 1;
    bool help;
    while (tsr_commands[n_commands].run)
        n_commands++;
    const struct tsr_command *command = &tsr_commands[n ? data[0] % n_commands : 0];
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

const struct tsr_fuzz_target tsr_fuzz_texts[] = {
    {.name = "yaml", .run = yaml, .dictionary = "yaml"},
    {.name = "set", .run = set, .dictionary = "yaml"},
    {.name = "experiment", .run = experiment, .dictionary = "yaml"},
    {.name = "hf_config", .run = hf_config, .dictionary = "json"},
    {.name = "tree", .run = tree, .dictionary = "yaml"},
    {.name = "trace", .run = trace, .dictionary = "json"},
    {.name = "rules", .run = rules, .dictionary = "yaml"},
    {.name = "arguments", .run = arguments, .dictionary = "arguments"},
    {.name = NULL},
};
