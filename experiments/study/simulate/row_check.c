/* row_check.c: checks the bytes of a row that a file holds as they were in memory (row_check.h). A
 * new text, bool or enumeration of struct tsr_row has a line in the table. */
#include "experiments/study/simulate/row_check.h"

#include <stddef.h>
#include <string.h>

#include "experiments/study/job/result.h"

/* One member of a row and the bytes that it may have: a text that ends in its room, or a number
 * from least to most. Reading other bytes as a bool, an enumeration or a text is undefined. */
struct member {
    size_t at, bytes;
    bool is_number;
    int least, most;
};

#define ROOM(member) offsetof(struct tsr_row, member), sizeof(((struct tsr_row *)0)->member)
#define TEXT(member)              \
    {                             \
        ROOM(member), false, 0, 0 \
    }
#define NUMBER(member, least, most)     \
    {                                   \
        ROOM(member), true, least, most \
    }

static const struct member members[] = {
    TEXT(strategy),
    TEXT(summary),
    TEXT(changes.words),
    TEXT(failure),
    TEXT(remedy),
    TEXT(peak_module),
    TEXT(peak_phase),
    NUMBER(failure_status, 0, 255),
    NUMBER(oom_phase, 0, TSR_N_PHASES),
    NUMBER(trains, 0, 1),
    NUMBER(measured, 0, 1),
    NUMBER(fits, TSR_FITS_UNKNOWN, TSR_FITS_RETRIES),
    NUMBER(node_host.verdict, TSR_HOST_UNKNOWN, TSR_HOST_TOO_SMALL),
    TEXT(node_host.section),
    NUMBER(fit.is_known, 0, 1),
    NUMBER(fit.has_nccl, 0, 1),
    NUMBER(fit.verdict, TSR_FITS_UNKNOWN, TSR_FITS_RETRIES),
};

static const struct member in_sections[] = {TEXT(sections[0].module), TEXT(sections[0].phase),
                                            NUMBER(sections[0].there, 0, 1)};

static bool holds(const char *row, const struct member *member, size_t shift)
{
    const char *at = row + member->at + shift;
    int value = (unsigned char)*at;
    if (!member->is_number)
        return memchr(at, 0, member->bytes) != NULL;
    if (member->bytes == sizeof value)
        memcpy(&value, at, sizeof value);
    return value >= member->least && value <= member->most;
}

bool tsr_row_is_possible(const void *bytes)
{
    const char *row = bytes;
    bool good = true;
    for (size_t k = 0; k < sizeof members / sizeof *members; k++)
        good = good && holds(row, &members[k], 0);
    for (size_t k = 0; k < sizeof in_sections / sizeof *in_sections; k++)
        for (size_t i = 0; i < TSR_N_SECTIONS; i++)
            good = good && holds(row, &in_sections[k], i * sizeof(struct tsr_section_peak));
    return good;
}
