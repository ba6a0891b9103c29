/* trace_asked.c: reads how a trace was asked for: what a command that traces the same model again
 * must repeat. It is no part of the hash, and a file may lack it.
 */
#include <string.h>

#include "experiments/study/model/trace_file.h"
#include "experiments/study/model/trace_json.h"

enum { MAX_OPTIONS = 64 };

/* Reads one option. Only options that change what is traced are taken: a command is printed with
 * them, and a file must not put others into it. */
static tsr_status read_option(const struct tsr__trace_at *at, const json_t *pair,
                              struct tsr_trace_option *out)
{
    static const char *const names[] = {"--blocks", "--wrap", "--sdpa", "--readback",
                                        "--load-factor"};
    TSR_TRY(tsr__trace_list_of(at, pair, 2, 2));
    TSR_TRY(tsr__trace_text(at, json_array_get(pair, 0), false, &out->name));
    TSR_TRY(tsr__trace_text(at, json_array_get(pair, 1), false, &out->value));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(names[i], out->name))
            return TSR_OK;
    return tsr__trace_wrong(at, json_array_get(pair, 0),
                            "--blocks, --wrap, --sdpa, --readback, --load-factor");
}

tsr_status tsr__trace_read_asked(const struct tsr__trace_reader *r, const json_t *root)
{
    static const char *const keys[] = {"batch", "seq", "options", NULL};
    struct tsr_traced_file *t = r->trace;
    const json_t *asked = json_object_get(json_object_get(root, "made_by"), "asked");
    struct tsr__trace_at at = {r, asked, "made_by.asked", SIZE_MAX};
    if (!asked)
        return TSR_OK;
    TSR_TRY(tsr__trace_keys(&at, keys));
    TSR_TRY(tsr__trace_bool(&at, json_object_get(asked, "batch"), &t->takes_batch));
    TSR_TRY(tsr__trace_bool(&at, json_object_get(asked, "seq"), &t->takes_seq));
    const json_t *list = json_object_get(asked, "options");
    TSR_TRY(tsr__trace_list_of(&at, list, 0, MAX_OPTIONS));
    struct tsr_trace_option *options = tsr__trace_memory(r, json_array_size(list), sizeof *options);
    if (!options)
        return tsr_no_memory(r->path);
    for (size_t i = 0; i < json_array_size(list); i++)
        TSR_TRY(read_option(&at, json_array_get(list, i), &options[i]));
    t->options = options;
    t->n_options = json_array_size(list);
    t->was_asked = true;
    return TSR_OK;
}
