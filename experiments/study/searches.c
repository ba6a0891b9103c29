/* searches.c: studies that try many configurations (study.h): plans, published tables. */
#include <stdlib.h>

#include "experiments/study/plan/plan.h"
#include "experiments/study/study.h"
#include "experiments/study/validate/validate.h"

/* ---- plan -------------------------------------------------------------------------------- */

static tsr_status open_plan(struct tsr_study *study, const struct tsr_plan_options *options,
                            struct tsr_plan **out)
{
    *out = NULL;
    struct tsr_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_plan_open(study, options, plan);
    if (status != TSR_OK) {
        free(plan);
        return status;
    }
    if (study->request.out)
        status = tsr_prepare_out(study->request.out);
    if (status == TSR_OK)
        *out = plan;
    else
        tsr_plan_free(plan);
    return status;
}

static tsr_status search(struct tsr_plan *plan, const char *dir)
{
    TSR_TRY(tsr_plan_search(plan));
    if (dir)
        TSR_TRY(tsr_plan_write(plan, dir));
    return plan->n_shown ? TSR_OK : tsr_plan_nothing_fits(plan);
}

tsr_status tsr_study_plan(struct tsr_study *study, const struct tsr_plan_options *options,
                          struct tsr_plan **out)
{
    struct tsr_plan *plan = NULL;
    *out = NULL;
    TSR_TRY(open_plan(study, options, &plan));
    tsr_status status = search(plan, study->request.out);
    if (status == TSR_OK)
        *out = plan;
    else
        tsr_plan_free(plan);
    return status;
}

tsr_status tsr_study_largest(struct tsr_study *study, const struct tsr_plan_options *options,
                             enum tsr_plan_size size, struct tsr_plan **plan,
                             struct tsr_plan_largest *out)
{
    TSR_TRY(open_plan(study, options, plan));
    tsr_status status = tsr_plan_solve(*plan, size, study->request.out, out);
    if (status != TSR_OK) {
        tsr_plan_free(*plan);
        *plan = NULL;
    }
    return status;
}

size_t tsr_plan_n(const struct tsr_plan *plan)
{
    return plan->n_shown;
}

void tsr_plan_counts_of(const struct tsr_plan *plan, size_t *space, struct tsr_plan_counts *out)
{
    *space = plan->space.n;
    *out = plan->counts;
}

void tsr_plan_free(struct tsr_plan *plan)
{
    if (plan)
        tsr_plan_close(plan);
    free(plan);
}

/* ---- validate ---------------------------------------------------------------------------- */

/* A validation borrows its table and conditions: they live as long. */
struct whole {
    struct tsr_validation validation; /* first: what the caller has is this */
    struct tsr_table table;
    struct tsr_rules rules;
};

static tsr_status validate(const struct tsr_validate_options *options, struct whole *whole)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_table_open(options->table, &whole->table));
    TSR_GOTO(no_rules, tsr_rules_open(options->conditions, &whole->rules));
    TSR_GOTO(failed, tsr_validate(&whole->table, &whole->rules, options->sets, options->n_sets,
                                  options->jobs, &whole->validation));
    return TSR_OK;
failed:
    tsr_rules_close(&whole->rules);
no_rules:
    tsr_table_close(&whole->table);
    return status;
}

tsr_status tsr_study_validate(const struct tsr_validate_options *options,
                              struct tsr_validation **out)
{
    *out = NULL;
    if (options->out)
        TSR_TRY(tsr_prepare_out(options->out));
    struct whole *whole = calloc(1, sizeof *whole);
    if (!whole)
        return tsr_no_memory(NULL);
    tsr_status status = validate(options, whole);
    if (status == TSR_OK)
        *out = &whole->validation;
    else
        free(whole);
    return status;
}

void tsr_study_validation_free(struct tsr_validation *validation)
{
    struct whole *whole = (struct whole *)validation;
    if (!whole)
        return;
    tsr_validation_fini(&whole->validation);
    tsr_rules_close(&whole->rules);
    tsr_table_close(&whole->table);
    free(whole);
}
