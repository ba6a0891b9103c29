/* trace_scenario.h: a recorded-run scenario (tests/golden/README.md) as `tessera trace` sees it,
 * with what the recordings of PyTorch 2.11 have not (README.md).
 */
#ifndef TSR_PLAYER_TRACE_SCENARIO_H
#define TSR_PLAYER_TRACE_SCENARIO_H

#include "engine/tessera.h"
#include "experiments/study/base/yaml.h"

#define TSR_TRACE_KINDS "train, error, layout, ddp, tp_layout, chunk, bucket"

struct tsr_trace_lists;

struct tsr_scenario {
    struct tsr_doc doc; /* owns every text */
    const char *name, *kind;
    struct tsr_mesh mesh;
};

/* Errors: TSR_ECONFIG with place, value and what is allowed. */
tsr_status tsr_scenario_load(const char *path, struct tsr_scenario *out) TSR_MUST_USE;
/* Every key is one that its kind of scenario has, with a value of its sort (trace_keys.c). Errors:
 * TSR_ECONFIG. */
tsr_status tsr_scenario_check_keys(const struct tsr_scenario *scenario) TSR_MUST_USE;
/* The same of the function of one entry of `calls`, and of its arguments. */
tsr_status tsr_scenario_check_call(const struct tsr_yaml_node *call) TSR_MUST_USE;
/* Reads `mesh`; refuses what no engine takes. */
tsr_status tsr_scenario_mesh(struct tsr_scenario *scenario) TSR_MUST_USE;
void tsr_scenario_fini(struct tsr_scenario *scenario);

/* `torch`: 2.11 if it is absent. */
tsr_status tsr_scenario_version(const struct tsr_scenario *s,
                                enum tsr_version *version) TSR_MUST_USE;
/* Builds the scenario's model, with ties, frozen parameters and dtypes. */
tsr_status tsr_scenario_model(const struct tsr_scenario *s, struct tsr_engine *e) TSR_MUST_USE;
/* Applies `ac` and `wrap`, in order. */
tsr_status tsr_scenario_wrap(const struct tsr_scenario *s, struct tsr_engine *e) TSR_MUST_USE;
/* Applies `ddp`. */
tsr_status tsr_scenario_ddp(const struct tsr_scenario *s, struct tsr_engine *e) TSR_MUST_USE;
/* One entry of `calls`. Gradient hooks that it registers tell `seen` each time that they run, as an
 * event; NULL: nobody listens. It lives as long as the engine. */
tsr_status tsr_scenario_call(struct tsr_engine *e, const struct tsr_yaml_node *call,
                             struct tsr_trace_lists *seen) TSR_MUST_USE;
/* The step configuration of `train`. */
tsr_status tsr_scenario_step(const struct tsr_scenario *s, struct tsr_engine *e) TSR_MUST_USE;

/* Helpers over nodes: absent means the fallback. */
const char *tsr_text_or(const struct tsr_yaml_node *map, const char *key, const char *fallback);
uint64_t tsr_u64_or(const struct tsr_yaml_node *map, const char *key, uint64_t fallback);
bool tsr_bool_or(const struct tsr_yaml_node *map, const char *key, bool fallback);

#endif
