/* validate_collective.c: rows of nccl-tests tables: one call on the row's machine. */
#include <stdio.h>
#include <string.h>

#include "experiments/study/base/paths.h"
#include "experiments/study/validate/validate.h"
#include "sim/predict.h"

static const struct {
    const char *name;
    uint8_t kind;
} kinds[] = {{"all_reduce", TSR_ALL_REDUCE},
             {"all_gather", TSR_ALL_GATHER},
             {"reduce_scatter", TSR_REDUCE_SCATTER},
             {"all_to_all", TSR_ALL_TO_ALL},
             {"broadcast", TSR_BROADCAST}};

static tsr_status find_kind(const char *name, uint8_t *kind)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(kinds[i].name, name)) {
            *kind = kinds[i].kind;
            return TSR_OK;
        }
    return tsr_fail(TSR_ECONFIG, "the collective %s is not modelled", name);
}

static tsr_status load_cluster(const struct tsr_experiment *experiment,
                               const struct tsr_settings *s, struct tsr_cluster *out)
{
    char path[TSR_FILE_BYTES];
    if (!s->cluster)
        return tsr_fail(TSR_ECONFIG, "no rule names the machine");
    TSR_TRY(tsr_find_cluster(s->cluster, tsr_setting_at(s, "cluster"), experiment->path, path));
    TSR_TRY(tsr_cluster_load(path, out));
    tsr_calibration_override(&out->gpu.calibration, s->calibration, "sim.calibration");
    return TSR_OK;
}

static tsr_status predict(const struct tsr_experiment *experiment, const struct tsr_recipe *recipe,
                          struct tsr_outcome *out)
{
    const struct tsr_settings *s = &experiment->strategies[0].settings;
    struct tsr_collective_query what = {.ranks = (uint32_t)recipe->collective.gpus,
                                        .nodes = (uint32_t)recipe->collective.nodes};
    struct tsr_cluster cluster;
    TSR_TRY(find_kind(recipe->collective.kind, &what.kind));
    TSR_TRY(load_cluster(experiment, s, &cluster));
    TSR_TRY(tsr_predict_collective(&cluster, &s->sim, &what, &recipe->collective.bytes, 1,
                                   &out->seconds));
    snprintf(out->gpu, sizeof out->gpu, "%s", cluster.gpu.name);
    out->world = what.ranks;
    if (out->seconds > 0)
        out->busbw =
            (double)recipe->collective.bytes * tsr_bus_factor(what.kind, what.ranks) / out->seconds;
    return TSR_OK;
}

tsr_status tsr_collective_outcome(const struct tsr_recipe *recipe, const char *const *sets,
                                  size_t n_sets, struct tsr_outcome *out)
{
    struct tsr_experiment experiment;
    TSR_TRY(tsr_recipe_load(recipe, sets, n_sets, "", 1, &experiment));
    tsr_status status = predict(&experiment, recipe, out);
    tsr_experiment_fini(&experiment);
    return status;
}
