/* row_json.c: the table of a row's members, and how members become JSON and are read (row_json.h).
 */
#include "experiments/study/simulate/row_json.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/json.h"
#include "experiments/study/job/result.h"

/* ---- the members of a row -------------------------------------------------------------------- */

#define PEAK(field)                TSR_MEMBER_IS(struct tsr_section_peak, field)
#define TIMES(field)               TSR_MEMBER_IS(struct tsr_metrics, field)
#define ROW(field)                 TSR_MEMBER_IS(struct tsr_row, field)
#define WITHIN(field, least, most) TSR_MEMBER_WITHIN(struct tsr_row, field, least, most)
#define LIST(field, members, n)    TSR_MEMBER_LIST_OF(struct tsr_row, field, members, n)

static const struct tsr_member section_members[] = {
    PEAK(there),  PEAK(added_s),   PEAK(allocated), PEAK(reserved), PEAK(host),
    PEAK(pinned), PEAK(node_host), PEAK(module),    PEAK(phase),    {NULL},
};

static const struct tsr_member metrics_members[] = {
    TIMES(step_s),
    TIMES(compute_s),
    TIMES(comm_s),
    TIMES(exposed_s),
    TIMES(exposed_gather_s),
    TIMES(exposed_reduce_s),
    TIMES(host_bound_s),
    TIMES(flops),
    TIMES(model_flops),
    TIMES(sent_intra),
    TIMES(sent_inter),
    TIMES(n_collectives),
    {NULL},
};

static const struct tsr_member bytes_members[] = {
    {.name = "bytes", .kind = TSR_MEMBER_INTEGER, .bytes = sizeof(uint64_t)},
    {NULL},
};

const struct tsr_member tsr_row_members[] = {
    ROW(strategy),
    ROW(summary),
    ROW(device),
    ROW(changes.kinds),
    ROW(changes.words),
    ROW(failure),
    WITHIN(failure_status, 0, 255),
    WITHIN(oom_phase, 0, TSR_N_PHASES),
    ROW(remedy),
    ROW(trains),
    ROW(measured),
    ROW(world),
    ROW(tokens_per_rank),
    LIST(first, metrics_members, 1),
    LIST(steady, metrics_members, 1),
    ROW(mfu),
    ROW(peak_allocated),
    ROW(peak_reserved),
    ROW(first_peak_allocated),
    ROW(first_peak_reserved),
    LIST(peak_by_category, bytes_members, TSR_N_CATEGORIES),
    ROW(peak_module),
    ROW(peak_phase),
    ROW(usable_bytes),
    ROW(context_bytes),
    ROW(library_bytes),
    ROW(nccl_bytes),
    ROW(most_reserved),
    ROW(run_workspace_bytes),
    ROW(run_workspace_deterministic_bytes),
    ROW(most_requested),
    ROW(needed),
    WITHIN(fits, TSR_FITS_UNKNOWN, TSR_FITS_RETRIES),
    ROW(fit.is_known),
    WITHIN(fit.verdict, TSR_FITS_UNKNOWN, TSR_FITS_RETRIES),
    ROW(fit.usable),
    ROW(fit.has_nccl),
    ROW(fit.nccl),
    ROW(fit.nccl_at_most),
    ROW(fit.left),
    ROW(fit.left_surely),
    ROW(fit.wanted),
    ROW(fit.short_of),
    ROW(fit.retries),
    ROW(fit.all_retries),
    ROW(fit.limit),
    WITHIN(node_host.verdict, TSR_HOST_UNKNOWN, TSR_HOST_TOO_SMALL),
    ROW(node_host.memory),
    ROW(node_host.required),
    ROW(node_host.dataset),
    ROW(node_host.steady),
    ROW(node_host.shortfall),
    ROW(node_host.node),
    ROW(node_host.ranks),
    ROW(node_host.rank),
    ROW(node_host.rank_bytes),
    ROW(node_host.program),
    ROW(node_host.section),
    ROW(unknown_s),
    ROW(retry_s),
    ROW(host_bytes),
    ROW(pinned_bytes),
    ROW(show_sections),
    LIST(sections, section_members, TSR_N_SECTIONS),
    ROW(program_hash),
    ROW(expected_exec_hash),
    ROW(exec_hash),
    ROW(n_instructions),
    ROW(n_activities),
    ROW(n_iterations),
    ROW(n_rank_classes),
    ROW(n_simulated_ranks),
    ROW(emit_s),
    ROW(sim_s),
    ROW(samples.n),
    ROW(samples.p5_s),
    ROW(samples.p50_s),
    ROW(samples.p95_s),
    ROW(samples.mean_s),
    ROW(time_error.is_predicted),
    ROW(time_error.extrapolated),
    ROW(time_error.many_nodes),
    ROW(time_error.api),
    ROW(time_error.gpu),
    ROW(time_error.nearest),
    ROW(time_error.differs),
    ROW(time_error.rows),
    ROW(time_error.median),
    ROW(time_error.p90),
    ROW(time_error.nodes),
    ROW(time_error.straggler_share),
    ROW(time_error.slowest),
    {NULL},
};

/* ---- to JSON --------------------------------------------------------------------------------- */

static json_t *pack_members(const struct tsr_member *members, const void *from);

static bool is_zero(const struct tsr_member *m, const char *at)
{
    size_t n = m->kind == TSR_MEMBER_TEXT ? 1 : m->bytes;
    for (size_t i = 0; i < n; i++)
        if (at[i])
            return false;
    return true;
}

static json_t *pack_text(const char *at)
{
    size_t n = 0;
    char *text = malloc(2 * strlen(at) + 1);
    for (; text && *at; at++) {
        unsigned char c = (unsigned char)*at;
        if (c >= 0x80)
            text[n++] = (char)(0xc0 | c >> 6);
        text[n++] = (char)(c >= 0x80 ? 0x80 | (c & 0x3f) : c);
    }
    json_t *value = text ? json_stringn(text, n) : NULL;
    free(text);
    return value;
}

static json_t *pack_real(const char *at)
{
    double real;
    char text[64];
    memcpy(&real, at, sizeof real);
    (void)snprintf(text, sizeof text, "%a", real);
    return json_string(text);
}

static json_t *pack_integer(const struct tsr_member *m, const char *at)
{
    int64_t wide = 0;
    int32_t narrow;
    if (m->bytes == sizeof narrow) {
        memcpy(&narrow, at, sizeof narrow);
        wide = m->least < 0 ? narrow : (int64_t)(uint32_t)narrow;
    } else if (m->bytes == 1) {
        wide = (unsigned char)*at;
    } else {
        memcpy(&wide, at, sizeof wide);
    }
    return json_integer(wide);
}

static json_t *pack_list(const struct tsr_member *m, const char *at)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < m->n; i++)
        if (json_array_append_new(list, pack_members(m->of, at + i * (m->bytes / m->n))) != 0) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

static json_t *pack(const struct tsr_member *m, const char *at)
{
    switch (m->kind) {
    case TSR_MEMBER_TEXT:
        return pack_text(at);
    case TSR_MEMBER_REAL:
        return pack_real(at);
    case TSR_MEMBER_LIST:
        return pack_list(m, at);
    default:
        return pack_integer(m, at);
    }
}

static json_t *pack_members(const struct tsr_member *members, const void *from)
{
    json_t *out = json_object();
    for (const struct tsr_member *m = members; out && m->name; m++) {
        const char *at = (const char *)from + m->at;
        if (!is_zero(m, at) && json_object_set_new(out, m->name, pack(m, at)) != 0) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

char *tsr_members_line(const struct tsr_member *members, const void *from)
{
    char *line = NULL;
    size_t n = 0;
    json_t *object = pack_members(members, from);
    FILE *out = object ? open_memstream(&line, &n) : NULL;
    bool ok = out && tsr_json_dump(object, out, JSON_COMPACT) == 0 && fputc('\n', out) != EOF;
    ok = out && fclose(out) == 0 && ok;
    json_decref(object);
    if (!ok)
        free(line);
    return ok ? line : NULL;
}

/* ---- from JSON ------------------------------------------------------------------------------- */

/* Characters 1 to 255 are the bytes of the text; `size` is its room. */
static bool unpack_text(const json_t *value, char *to, size_t size)
{
    const unsigned char *text = (const unsigned char *)json_string_value(value);
    size_t n = 0, length = json_string_length(value);
    if (!text || strlen((const char *)text) != length)
        return false;
    for (; *text; text++) {
        bool pair = *text >= 0x80;
        if (n + 1 >= size || (pair && *text != 0xc2 && *text != 0xc3))
            return false;
        to[n++] = (char)(pair ? (unsigned)*text << 6 | (text[1] & 0x3fU) : *text);
        text += pair;
    }
    return true;
}

static bool unpack_real(const json_t *value, char *to)
{
    const char *text = json_string_value(value);
    char *end = NULL;
    double real = text ? strtod(text, &end) : 0;
    memcpy(to, &real, sizeof real);
    return text && end != text && !*end;
}

static bool unpack_integer(const struct tsr_member *m, const json_t *value, char *to)
{
    int64_t wide = json_integer_value(value);
    int32_t narrow = (int32_t)(uint32_t)(uint64_t)wide;
    if (!json_is_integer(value))
        return false;
    if (m->bytes == sizeof wide)
        memcpy(to, &wide, sizeof wide);
    else if (wide < m->least || wide > m->most)
        return false;
    else if (m->bytes == 1)
        *to = (char)narrow;
    else
        memcpy(to, &narrow, sizeof narrow);
    return true;
}

static bool unpack_list(const struct tsr_member *m, const json_t *value, char *to)
{
    bool good = json_array_size(value) == m->n;
    for (size_t i = 0; good && i < m->n; i++)
        good = tsr_members_unpack(m->of, json_array_get(value, i), to + i * (m->bytes / m->n));
    return good;
}

static bool unpack(const struct tsr_member *m, const json_t *value, char *to)
{
    switch (m->kind) {
    case TSR_MEMBER_TEXT:
        return unpack_text(value, to, m->bytes);
    case TSR_MEMBER_REAL:
        return unpack_real(value, to);
    case TSR_MEMBER_LIST:
        return unpack_list(m, value, to);
    default:
        return unpack_integer(m, value, to);
    }
}

bool tsr_members_unpack(const struct tsr_member *members, const json_t *from, void *to)
{
    size_t n = 0;
    for (const struct tsr_member *m = members; m->name; m++) {
        const json_t *value = json_object_get(from, m->name);
        if (value && !unpack(m, value, (char *)to + m->at))
            return false;
        n += value != NULL;
    }
    return json_is_object(from) && n == json_object_size(from);
}
