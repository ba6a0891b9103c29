/* validate_cmd.c: `tessera validate`: a published table against the simulator. */
#include <string.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/study/base/out_file.h"
#include "experiments/study/report/report.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/validate/validate.h"

static const char *const formats[] = {"md", "csv", "json", NULL};

static tsr_status report(const struct tsr_args *args, const struct tsr_validation *validation)
{
    tsr_status (*print)(FILE *, const struct tsr_validation *) =
        !strcmp(args->format, "md")    ? tsr_validation_print
        : !strcmp(args->format, "csv") ? tsr_validation_csv
                                       : tsr_validation_json;
    TSR_TRY(print(stdout, validation));
    TSR_TRY(tsr_flush(stdout, "standard output"));
    return args->out ? tsr_validation_write(args->out, validation) : TSR_OK;
}

static tsr_status with_conditions(const struct tsr_args *args, const struct tsr_table *table,
                                  const struct tsr_rules *conditions)
{
    struct tsr_validation validation;
    TSR_TRY(tsr_validate(table, conditions, args->sets, args->n_sets, args->jobs, &validation));
    tsr_status status = report(args, &validation);
    tsr_validation_fini(&validation);
    return status;
}

static tsr_status with_table(const struct tsr_args *args, const struct tsr_table *table)
{
    struct tsr_rules conditions;
    TSR_TRY(tsr_rules_open(args->conditions, &conditions));
    tsr_status status = with_conditions(args, table, &conditions);
    tsr_rules_close(&conditions);
    return status;
}

tsr_status tsr_cmd_validate(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_table table;
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    if (args->out)
        TSR_TRY(tsr_prepare_out(args->out));
    TSR_TRY(tsr_table_open(args->file, &table));
    tsr_status status = with_table(args, &table);
    tsr_table_close(&table);
    return status;
}
