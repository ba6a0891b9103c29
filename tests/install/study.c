/* study.c: a program of somebody else that studies strategies; built against what was installed.
 *
 * Usage: study FOLDER, which has tiny-gpt2.json.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/study/study.h"

static const char experiment[] = "title: from a string\n"
                                 "model: ./tiny-gpt2.json\n"
                                 "world: 2\n"
                                 "batch: 2\n"
                                 "seq: 32\n"
                                 "strategies:\n"
                                 "  sharded: {}\n"
                                 "  copies: {api: ddp}\n";

static void expect(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "not so: %s (%s)\n", what, tsr_error_text());
    exit(1);
}

/* Messages of a text name its lines. */
static void mistakes(void)
{
    struct tsr_study *study;
    const struct tsr_study_request wrong = {.text = "model: ./tiny-gpt2.json\nbatch: -1\n"};
    expect(tsr_study_open(&wrong, &study) == TSR_ECONFIG && !study, "a batch of -1 is refused");
    expect(!strncmp(tsr_error_text(), "<text>:2:", 9), "the place is <text>, line 2");
    const struct tsr_study_request none = {.path = "there-is-no-such-file.yaml"};
    expect(tsr_study_open(&none, &study) == TSR_ECONFIG, "a missing file is refused");
}

static void reasons(void)
{
    struct tsr_study *study;
    struct tsr_explanation why;
    const struct tsr_study_request request = {.text = experiment, .strategy = "sharded"};
    const struct tsr_reason_options options = {.jobs = 1, .no_what_if = true};
    expect(tsr_study_open(&request, &study) == TSR_OK, "the experiment opens");
    expect(tsr_study_n_strategies(study) == 1, "one strategy is kept");
    expect(!strcmp(tsr_study_strategy(study, 0), "sharded"), "it is the one that was named");
    expect(tsr_study_explain(study, &options, &why) == TSR_OK, "its peak is explained");
    expect(why.peak.allocated > 0 && why.alive.bytes == why.peak.allocated,
           "what is alive is the peak");
    uint64_t sum = 0;
    for (size_t i = 0; i < why.alive.n_owners; i++)
        sum += why.alive.owners[i].bytes;
    expect(sum == why.alive.bytes, "owners add up");
    expect(why.row.peak_allocated > 0 && !why.has_what_if, "what was not asked for is not there");
    tsr_explanation_fini(&why);
    tsr_study_close(study);
}

static void two_runs(void)
{
    struct tsr_diff diff;
    const struct tsr_study_request a = {.text = experiment, .strategy = "sharded"};
    const struct tsr_study_request b = {.text = experiment, .strategy = "copies"};
    expect(tsr_study_diff(&a, &b, &diff) == TSR_OK, "two strategies are compared");
    const struct tsr_diff_run *sharded = &diff.runs[0], *copies = &diff.runs[1];
    expect(sharded->points[sharded->peak].total < copies->points[copies->peak].total,
           "sharding takes less");
    expect(diff.parts && diff.n_gaps > 0 && diff.n_peak > 0, "it says where");
    tsr_diff_fini(&diff);
}

int main(int argc, char **argv)
{
    if (argc != 2 || chdir(argv[1]) != 0)
        return 2;
    mistakes();
    reasons();
    two_runs();
    printf("studied\n");
    return 0;
}
