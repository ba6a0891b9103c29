/* study_args.c: from options to a study. */
#include "experiments/cli/args/study_args.h"

#include <stdlib.h>

#include "experiments/study/study.h"

struct tsr_study_request tsr_args_request(const struct tsr_args *args)
{
    return (struct tsr_study_request){.path = args->file,
                                      .sets = args->sets,
                                      .n_sets = args->n_sets,
                                      .only = args->only,
                                      .strategy = args->strategy,
                                      .out = args->out};
}

tsr_status tsr_args_open(const struct tsr_args *args, struct tsr_study **out)
{
    const struct tsr_study_request request = tsr_args_request(args);
    return tsr_study_open(&request, out);
}

tsr_status tsr_print_config(const struct tsr_args *args)
{
    struct tsr_study *study = NULL;
    char *text = NULL;
    TSR_TRY(tsr_args_open(args, &study));
    tsr_status status = tsr_study_print(study, &text);
    if (status == TSR_OK)
        fputs(text, stdout);
    free(text);
    tsr_study_close(study);
    return status;
}
