/* report_validated.h: the lines and the JSON that say how good the figures of a comparison are. */
#ifndef TSR_STUDY_REPORT_VALIDATED_H
#define TSR_STUDY_REPORT_VALIDATED_H

#include "experiments/study/job/result.h"

#include <jansson.h>
#include <stdio.h>

/* One line on the sources of times, one for each class of configuration in the study. */
void tsr__put_validated(FILE *out, const struct tsr_study_info *info);
/* [{"api", "gpu", "nodes": "one|many", "error": {"rows", "median", "p90", "max", "source",
 * "claimed"} or null}], one for each class in the study; NULL when out of memory. */
json_t *tsr__validated_json(const struct tsr_study_info *info);

#endif
