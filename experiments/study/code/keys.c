/* keys.c: which keys of a strategy a written file says, and what becomes of the others.
 *
 * The rows of the keys tell (config/keys.def): said in the file; the user's (model, data, loop); of
 * the simulation alone; or nothing that the format can say, with what to do about it.
 */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/code/code.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/job/job.h"

_Static_assert((int)TSR_N_CODES == (int)TSR_N_EXPORT_FORMATS, "a column of exports per format");

/* Keys that the API of the strategy does not read have a list of their own. */
enum { UNREAD = TSR_N_EXPORTS, N_LISTS };

static const struct tsr_key_export *export_of(const struct tsr_key *key, const char *value)
{
    const struct tsr_key_export *row = key->exports;
    while (row && row->value && strcmp(row->value, value) != 0)
        row++;
    return row;
}

/* A value that is a whole file is not repeated. */
static void add_pair(struct tsr_code_text *to, const char *key, const char *value)
{
    enum { LONGEST = 72 };
    bool shown = strlen(value) <= LONGEST;
    tsr_code_add(to, "%s%s%s%s", to->n ? ", " : "", key, shown ? "=" : "", shown ? value : "");
}

/* Too large for a stack. `value`, `plain`: of a key, and its default. */
struct scratch {
    struct tsr_settings defaults;
    char value[TSR_VALUE_BYTES], plain[TSR_VALUE_BYTES];
};

/* Adds a key that the strategy inherits and its API does not read, if its value is not the default.
 */
static tsr_status add_unread(const struct tsr_code_job *code, struct scratch *scratch, size_t key,
                             struct tsr_code_text *unread)
{
    const struct tsr_settings *s = &code->job->strategy->settings;
    TSR_TRY(tsr_key_format(&tsr_keys[key], s, scratch->value, TSR_VALUE_BYTES));
    TSR_TRY(tsr_key_format(&tsr_keys[key], &scratch->defaults, scratch->plain, TSR_VALUE_BYTES));
    if (strcmp(scratch->value, scratch->plain) != 0)
        add_pair(unread, tsr_keys[key].name, scratch->value);
    return TSR_OK;
}

static tsr_status sort_keys(const struct tsr_code_job *code, struct scratch *scratch,
                            struct tsr_code_text lists[N_LISTS], struct tsr_code_text *lacks)
{
    char *value = scratch->value, *plain = scratch->plain;
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        const char *key = tsr_keys[i].name;
        if (!tsr_key_is_read(&tsr_keys[i], code->settings->api)) {
            TSR_TRY(add_unread(code, scratch, i, &lists[UNREAD]));
            continue;
        }
        TSR_TRY(tsr_key_format(&tsr_keys[i], code->settings, value, TSR_VALUE_BYTES));
        TSR_TRY(tsr_key_format(&tsr_keys[i], &scratch->defaults, plain, TSR_VALUE_BYTES));
        if (!code->settings->from[i] && !strcmp(value, plain))
            continue;
        const struct tsr_key_export *row = export_of(&tsr_keys[i], value);
        if (!row)
            return tsr_fail(TSR_EDEFECT, "defect: key %s has no exports in config/keys.def", key);
        unsigned becomes = row->becomes[code->format];
        if (becomes == TSR_EXPORT_LACKING || (becomes == TSR_EXPORT_BROUGHT && row->note))
            tsr_code_comment(lacks, "# ", 2, "%s: %s=%s: %s.",
                             becomes == TSR_EXPORT_LACKING ? "Not said" : "You bring", key, value,
                             row->note);
        else
            add_pair(&lists[becomes], key, value);
    }
    return TSR_OK;
}

tsr_status tsr_code_put_unsaid(const struct tsr_code_job *code, struct tsr_code_text *to)
{
    struct tsr_code_text lists[N_LISTS] = {{.s = NULL}}, lacks = {.s = NULL};
    struct scratch *scratch = malloc(sizeof *scratch);
    if (!scratch)
        return tsr_no_memory(NULL);
    tsr_settings_default(&scratch->defaults);
    tsr_status status = sort_keys(code, scratch, lists, &lacks);
    free(scratch);
    if (status == TSR_OK) {
        tsr_code_add_bytes(to, tsr_code_str(&lacks), lacks.n);
        if (lists[TSR_EXPORT_BROUGHT].n)
            tsr_code_comment(to, "# ", 2, "Yours, and part of the prediction: %s.",
                             tsr_code_str(&lists[TSR_EXPORT_BROUGHT]));
        if (lists[TSR_EXPORT_SIMULATED].n)
            tsr_code_comment(to, "# ", 2, "Of the simulation alone: %s.",
                             tsr_code_str(&lists[TSR_EXPORT_SIMULATED]));
        if (lists[UNREAD].n)
            tsr_code_comment(to, "# ", 2, "Not read by api: %s: %s.",
                             tsr_words_api[code->settings->api], tsr_code_str(&lists[UNREAD]));
        if (tsr_decays_nothing(code->job))
            tsr_code_comment(to, "# ", 2, "%s.", tsr_decays_nothing_words);
    }
    for (int i = 0; i < N_LISTS; i++) {
        to->failed |= lists[i].failed;
        tsr_code_text_fini(&lists[i]);
    }
    to->failed |= lacks.failed;
    tsr_code_text_fini(&lacks);
    return status;
}
