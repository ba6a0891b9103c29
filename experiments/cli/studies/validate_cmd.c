/* validate_cmd.c: `tessera validate`: a published table against the simulator. */
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/study/base/files.h"
#include "experiments/study/study.h"

static const char *const formats[] = {"md", "csv", "json", NULL};

static tsr_status report(const struct tsr_args *args, const struct tsr_validation *validation)
{
    tsr_status (*print)(FILE *, const struct tsr_validation *) =
        !strcmp(args->format, "md")    ? tsr_validation_print
        : !strcmp(args->format, "csv") ? tsr_validation_csv
                                       : tsr_validation_json;
    struct tsr_page page;
    TSR_TRY(tsr_page_begin(args, &page));
    TSR_TRY(tsr_page_end(&page, print(page.out, validation)));
    return args->out ? tsr_validation_write(args->out, validation) : TSR_OK;
}

tsr_status tsr_cmd_validate(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_validation *validation = NULL;
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    const struct tsr_validate_options options = {.table = args->file,
                                                 .conditions = args->conditions,
                                                 .sets = args->sets,
                                                 .n_sets = args->n_sets,
                                                 .jobs = args->jobs,
                                                 .out = args->out,
                                                 .strict = args->strict};
    TSR_TRY(tsr_study_validate(&options, &validation));
    tsr_status status = report(args, validation);
    tsr_study_validation_free(validation);
    return status;
}
