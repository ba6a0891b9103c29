/* inspect.c: `tessera inspect`: what a file stands for, without simulating it. */
#include "experiments/cli/inspect/inspect.h"

#include <stdlib.h>
#include <string.h>

#include "engine/fsdp/transitions.h"
#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/study_args.h"
#include "experiments/study/report/report.h"

static const char *const formats[] = {"text", "json", NULL};

enum file_kind { FILE_EXPERIMENT, FILE_HF, FILE_TREE, FILE_CLUSTER };

static tsr_status sniff(const char *path, enum file_kind *kind)
{
    struct tsr_doc doc;
    TSR_TRY(tsr_doc_load(path, &doc));
    const struct tsr_yaml_node *what = tsr_node_get(doc.root, "kind");
    *kind = FILE_EXPERIMENT;
    if (tsr_node_get(doc.root, "model_type"))
        *kind = FILE_HF;
    else if (tsr_node_get(doc.root, "modules"))
        *kind = FILE_TREE;
    else if (what && (!strcmp(what->text, "cluster") || !strcmp(what->text, "node")))
        *kind = FILE_CLUSTER;
    tsr_doc_fini(&doc);
    return TSR_OK;
}

/* ---- gathering ------------------------------------------------------------------------------- */

static tsr_status add_layouts(const struct tsr_experiment *e, json_t *out)
{
    json_t *list = json_array();
    json_object_set_new(out, "strategies", list);
    for (size_t i = 0; i < e->n; i++) {
        struct tsr_job job;
        json_t *layout = NULL;
        TSR_TRY(tsr_job_open(e, &e->strategies[i], TSR_MAY_LACK_CLUSTER, &job));
        tsr_status status = tsr_inspect_layout(&job, &layout);
        if (status == TSR_OK && *job.cluster.name && !json_object_get(out, "cluster"))
            json_object_set_new(out, "cluster", tsr_inspect_cluster(&job.cluster));
        tsr_job_close(&job);
        TSR_TRY(status);
        if (i == 0)
            json_object_set(out, "modules", json_object_get(layout, "modules"));
        json_object_del(layout, "modules");
        json_array_append_new(list, layout);
    }
    return TSR_OK;
}

static tsr_status gather_experiment(const struct tsr_experiment *e, json_t *out)
{
    struct tsr_model model;
    TSR_TRY(tsr_load_model(e, &e->strategies[0], &model));
    bool runnable = model.family != TSR_FAMILY_MOE;
    json_object_set_new(out, "model", tsr_inspect_model(&model));
    tsr_model_fini(&model);
    return runnable ? add_layouts(e, out) : TSR_OK;
}

/* A model file alone: an experiment of one rank around it. */
static tsr_status gather_model(const char *path, bool is_tree, json_t *out)
{
    struct tsr_strategy strategy = {.name = "one rank", .base = "one rank"};
    struct tsr_experiment e = {.path = path, .title = path, .n = 1, .strategies = &strategy};
    tsr_settings_default(&strategy.settings);
    strategy.settings.world = 1;
    strategy.settings.seq = 1;
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path; /* relative to the folder of the file itself */
    if (is_tree)
        strategy.settings.model_tree = name;
    else
        strategy.settings.model = name;
    strategy.settings.wrap.kind = TSR_WRAP_ROOT;
    tsr_status status = gather_experiment(&e, out);
    json_object_del(out, "strategies");
    return status;
}

static tsr_status gather(const struct tsr_args *args, json_t *out)
{
    enum file_kind kind;
    TSR_TRY(sniff(args->file, &kind));
    if (kind == FILE_CLUSTER) {
        struct tsr_cluster cluster;
        TSR_TRY(tsr_cluster_load(args->file, &cluster));
        json_object_set_new(out, "cluster", tsr_inspect_cluster(&cluster));
        return TSR_OK;
    }
    if (kind != FILE_EXPERIMENT)
        return gather_model(args->file, kind == FILE_TREE, out);
    struct tsr_experiment experiment;
    TSR_TRY(tsr_experiment_load(args->file, args->sets, args->n_sets, &experiment));
    tsr_status status = args->only ? tsr_experiment_only(&experiment, args->only) : TSR_OK;
    if (status == TSR_OK)
        status = gather_experiment(&experiment, out);
    tsr_experiment_fini(&experiment);
    return status;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_text(const json_t *facts)
{
    const json_t *model = json_object_get(facts, "model");
    const json_t *modules = json_object_get(facts, "modules");
    const json_t *cluster = json_object_get(facts, "cluster");
    const json_t *strategies = json_object_get(facts, "strategies");
    if (model)
        tsr_print_model(stdout, model);
    if (modules) {
        printf("\n");
        tsr_print_modules(stdout, modules);
    }
    if (cluster) {
        if (model)
            printf("\n");
        tsr_print_cluster(stdout, cluster);
    }
    for (size_t i = 0; i < json_array_size(strategies); i++) {
        printf("\n");
        tsr_print_layout(stdout, json_array_get(strategies, i));
    }
}

/* The tables of legal moves as one graph, a cluster per machine. */
static void print_states(void)
{
    printf("digraph tessera {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n"
           "  edge [fontname=\"sans-serif\", fontsize=10];\n");
    for (int m = 0; m < TSR_N_MACHINES; m++) {
        enum tsr_machine machine = (enum tsr_machine)m;
        const char *name = tsr_machine_name(machine), *state;
        size_t n;
        const struct tsr_transition *rows = tsr_transitions(machine, &n);
        printf("  subgraph cluster_%s {\n    label=\"%s\";\n", name, name);
        for (unsigned i = 0; (state = tsr_machine_state_name(machine, i)); i++)
            printf("    %s_%s [label=\"%s\"];\n", name, state, state);
        for (size_t i = 0; i < n; i++)
            printf("    %s_%s -> %s_%s [label=\"%s\"];\n", name,
                   tsr_machine_state_name(machine, rows[i].from), name,
                   tsr_machine_state_name(machine, rows[i].to), rows[i].by);
        printf("  }\n");
    }
    printf("}\n");
}

tsr_status tsr_cmd_inspect(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    if (args->states) {
        print_states();
        return TSR_OK;
    }
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    if (args->print_config)
        return tsr_print_config(args);
    json_t *facts = json_object();
    if (!facts)
        return tsr_no_memory(NULL);
    tsr_status status = gather(args, facts);
    if (status == TSR_OK && !strcmp(args->format, "json")) {
        status = tsr_print_report(stdout, facts);
    } else if (status == TSR_OK) {
        print_text(facts);
    }
    json_decref(facts);
    return status;
}
