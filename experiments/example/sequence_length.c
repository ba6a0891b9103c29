/* sequence_length.c: studies as a library: how peak memory and step time of a strategy grow with
 * the sequence length.
 *
 * Usage: sequence_length EXPERIMENT.yaml STRATEGY LENGTH...
 */
#include <inttypes.h>
#include <stdio.h>

#include "experiments/study/study.h"

/* A length that does not fit has a row as well, which says why. */
static void print(const char *length, const struct tsr_row *row)
{
    printf("%s,%" PRIu64 ",%.9g,%s\n", length, row->peak_allocated, row->steady.step_s,
           tsr_fits_word(row->fits));
    if (row->failure[0])
        fprintf(stderr, "seq=%s: %s\n", length, row->failure);
}

static tsr_status simulate(struct tsr_study *study, const char *length)
{
    const struct tsr_compare_options options = {.jobs = 1};
    struct tsr_comparison comparison;
    TSR_TRY(tsr_study_compare(study, &options, &comparison));
    print(length, &comparison.rows[0]);
    tsr_comparison_fini(&comparison);
    return TSR_OK;
}

static tsr_status try_length(const char *file, const char *strategy, const char *length)
{
    char set[64];
    const char *sets[] = {set};
    struct tsr_study *study;
    snprintf(set, sizeof set, "seq=%s", length);
    const struct tsr_study_request request = {
        .path = file, .strategy = strategy, .sets = sets, .n_sets = 1};
    TSR_TRY(tsr_study_open(&request, &study));
    tsr_status status = simulate(study, length);
    tsr_study_close(study);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: %s EXPERIMENT.yaml STRATEGY LENGTH...\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* each row as soon as it is known */
    printf("seq,peak_allocated_bytes,step_time_s,fits\n");
    tsr_status status = TSR_OK;
    for (int i = 3; i < argc && status == TSR_OK; i++)
        status = try_length(argv[1], argv[2], argv[i]);
    if (status != TSR_OK)
        fprintf(stderr, "%s\n", tsr_error_text());
    return status != TSR_OK;
}
