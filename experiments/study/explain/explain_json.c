/* explain_json.c: an explanation as a JSON object. Keys ending in _bytes are bytes. */
#include <jansson.h>

#include "experiments/study/config/needs.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/explain/explain.h"
#include "experiments/study/report/validated.h"

static void put_int(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

static void put_text(json_t *object, const char *key, const char *text)
{
    json_object_set_new(object, key, json_string(text));
}

static json_t *place_json(const struct tsr_explain_place *place)
{
    return json_pack("{s:s, s:i, s:s, s:s, s:b, s:s, s:I}", "phase", place->phase, "micro_batch",
                     (int)place->micro, "module", place->module, "hook", place->hook, "recompute",
                     (int)place->recompute, "operation", place->operation, "instruction",
                     (json_int_t)place->instr);
}

/* ---- the peak -------------------------------------------------------------------------------- */

static json_t *iteration_json(const struct tsr_explain_iteration *iteration)
{
    json_t *out = place_json(&iteration->place);
    put_text(out, "iteration", iteration->name);
    json_object_set_new(out, "iteration_number", json_integer(iteration->number));
    return out;
}

static json_t *peak_json(const struct tsr_explanation *x)
{
    json_t *out = iteration_json(&x->peak);
    put_text(out, "category", x->category);
    put_int(out, "requested_bytes", x->requested);
    put_int(out, "allocated_bytes", x->peak.allocated);
    put_int(out, "reserved_bytes", x->peak.reserved);
    put_int(out, "rank", x->rank);
    put_int(out, "rank_class", x->class);
    put_int(out, "rank_classes", x->n_classes);
    return out;
}

static json_t *iterations_json(const struct tsr_explanation *x)
{
    json_t *list = json_array();
    for (size_t i = 0; i < x->n_iterations; i++) {
        json_t *row = iteration_json(&x->iterations[i]);
        put_int(row, "allocated_bytes", x->iterations[i].allocated);
        put_int(row, "reserved_bytes", x->iterations[i].reserved);
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *known(uint64_t bytes)
{
    return bytes ? json_integer((json_int_t)bytes) : json_null();
}

static json_t *unless_negative(int64_t bytes)
{
    return bytes >= 0 ? json_integer((json_int_t)bytes) : json_null();
}

/* Everything that the card must hold, as in the tables of `compare`. */
static json_t *card_json(const struct tsr_row *row)
{
    return json_pack(
        "{s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:s, s:I, s:I, s:f}", "most_reserved_bytes",
        (json_int_t)row->most_reserved, "context_bytes", unless_negative(row->context_bytes),
        "library_bytes", unless_negative(row->library_bytes), "nccl_bytes",
        unless_negative(row->nccl_bytes), "needed_bytes", (json_int_t)row->needed, "usable_bytes",
        known(row->usable_bytes), "fits",
        row->fit.verdict < 0 ? json_null() : json_boolean(row->fit.verdict), "verdict",
        tsr_fits_word((int)row->fit.verdict), "short_of_bytes", (json_int_t)row->fit.short_of,
        "wanted_bytes", (json_int_t)row->fit.wanted, "alloc_retries_per_step", row->fit.retries);
}

/* The parts of the run that `phases` names. */
static json_t *sections_json(const struct tsr_row *row)
{
    json_t *list = json_array();
    for (int i = 0; i < TSR_N_SECTIONS; i++) {
        const struct tsr_section_peak *s = &row->sections[i];
        if (!(row->show_sections >> i & 1) || !s->there)
            continue;
        json_array_append_new(
            list,
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s}", "section", tsr_words_sections[i],
                      "allocated_bytes", (json_int_t)s->allocated, "reserved_bytes",
                      (json_int_t)s->reserved, "host_bytes", (json_int_t)s->host, "pinned_bytes",
                      (json_int_t)s->pinned, "host_bytes_per_node", (json_int_t)s->node_host,
                      "phase", s->phase, "module", s->module));
    }
    return list;
}

/* ---- what is alive --------------------------------------------------------------------------- */

static json_t *owners_json(const struct tsr_explain_owner *owners, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        const struct tsr_explain_owner *o = &owners[i];
        json_array_append_new(
            list,
            json_pack("{s:s, s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I}", "category", o->category,
                      "owner", o->owner, "allocated_in", o->phase, "earlier_iteration",
                      (int)o->earlier, "recomputed", (int)o->recomputed, "owners",
                      (json_int_t)o->n_owners, "buffers", (json_int_t)o->n_buffers, "bytes",
                      (json_int_t)o->bytes, "smallest_owner_bytes", (json_int_t)o->smallest,
                      "largest_owner_bytes", (json_int_t)o->largest));
    }
    return list;
}

static json_t *alive_json(const struct tsr_explain_alive *alive)
{
    json_t *out = json_object(), *categories = json_array();
    put_int(out, "bytes", alive->bytes);
    put_int(out, "buffers", alive->n_buffers);
    for (size_t i = 0; i < alive->n_categories; i++) {
        const struct tsr_explain_category *c = &alive->categories[i];
        json_array_append_new(categories, json_pack("{s:s, s:I, s:I, s:f}", "category", c->category,
                                                    "bytes", (json_int_t)c->bytes, "buffers",
                                                    (json_int_t)c->n_buffers, "share", c->share));
    }
    json_object_set_new(out, "by_category", categories);
    json_object_set_new(out, "owners", owners_json(alive->owners, alive->n_owners));
    json_object_set_new(out, "modules", owners_json(alive->modules, alive->n_modules));
    return out;
}

/* ---- the host ---------------------------------------------------------------------------------
 */

static json_t *node_json(const struct tsr_host_fit *node)
{
    json_t *shortfall = node->memory ? json_integer((json_int_t)node->shortfall) : json_null();
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:o, s:o, s:s, s:I}", "node",
        (json_int_t)node->node, "ranks", (json_int_t)node->ranks, "rank", (json_int_t)node->rank,
        "rank_bytes", (json_int_t)node->rank_bytes, "required_bytes", (json_int_t)node->required,
        "dataset_bytes", (json_int_t)node->dataset, "phase", node->section, "steady_bytes",
        (json_int_t)node->steady, "shortfall_bytes", shortfall, "memory_bytes", known(node->memory),
        "verdict", tsr_host_word(node->verdict), "program", (json_int_t)node->program);
}

/* The most that the process of a rank takes on the host, what it is made of, and the node. */
static json_t *host_json(const struct tsr_explanation *x)
{
    const struct tsr_row *row = &x->row;
    json_t *out = json_pack("{s:I, s:I}", "host_bytes", (json_int_t)row->host_bytes, "pinned_bytes",
                            (json_int_t)row->pinned_bytes);
    json_object_set_new(out, "node",
                        row->node_host.ranks ? node_json(&row->node_host) : json_null());
    put_int(out, "rank", x->host.rank);
    json_object_set_new(out, "peak", place_json(&x->host.place));
    json_object_set_new(out, "alive", alive_json(&x->host.alive));
    put_int(out, "cached_bytes", x->host.cached);
    return out;
}

static json_t *allocator_json(const struct tsr_explain_allocator *a)
{
    json_t *pools = json_array();
    for (size_t i = 0; i < a->n_pools; i++) {
        const struct tsr_explain_pool *p = &a->pools[i];
        json_array_append_new(
            pools, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "stream", p->stream, "segments",
                             (json_int_t)p->n_segments, "reserved_bytes", (json_int_t)p->reserved,
                             "allocated_bytes", (json_int_t)p->allocated, "cached_segments",
                             (json_int_t)p->n_cached, "cached_bytes", (json_int_t)p->cached,
                             "inactive_split_bytes", (json_int_t)p->inactive));
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "requested_bytes",
                     (json_int_t)a->requested, "rounding_bytes", (json_int_t)a->rounding,
                     "allocated_bytes", (json_int_t)a->allocated, "cached_bytes",
                     (json_int_t)a->cached, "inactive_split_bytes", (json_int_t)a->inactive,
                     "reserved_bytes", (json_int_t)a->reserved, "pools", pools);
}

/* ---- units, phases, maxima ------------------------------------------------------------------- */

static json_t *unsharded_json(const struct tsr_explain_unsharded *u)
{
    json_t *rows = json_array(), *most = place_json(&u->most);
    for (size_t i = 0; i < u->n; i++)
        json_array_append_new(
            rows, json_pack("{s:s, s:I, s:I}", "unit", u->at_peak[i].name, "unsharded_param_bytes",
                            (json_int_t)u->at_peak[i].unsharded, "all_gather_bytes",
                            (json_int_t)u->at_peak[i].gathered));
    put_int(most, "bytes", u->most_bytes);
    put_int(most, "units", u->most_units);
    return json_pack("{s:o, s:o}", "at_peak", rows, "most", most);
}

static json_t *checkpointing_json(const struct tsr_explain_checkpointing *c)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < c->n_kept; i++) {
        const struct tsr_explain_kept *k = &c->kept[i];
        json_array_append_new(
            rows, json_pack("{s:s, s:b, s:I, s:I, s:I, s:I}", "owner", k->owner, "recomputed",
                            (int)k->recomputed, "blocks", (json_int_t)k->n_blocks, "bytes",
                            (json_int_t)k->bytes, "smallest_block_bytes", (json_int_t)k->smallest,
                            "largest_block_bytes", (json_int_t)k->largest));
    }
    return json_pack("{s:I, s:I, s:o, s:I, s:I}", "blocks", (json_int_t)c->n_blocks,
                     "recomputed_blocks", (json_int_t)c->n_recomputed, "kept", rows,
                     "activation_bytes_after_forward", (json_int_t)c->after_forward,
                     "activation_bytes_after_backward", (json_int_t)c->after_backward);
}

static json_t *phases_json(const struct tsr_explanation *x)
{
    json_t *list = json_array();
    for (size_t i = 0; i < x->n_phases; i++) {
        json_t *row = place_json(&x->phases[i].place);
        put_int(row, "allocated_bytes", x->phases[i].allocated);
        put_int(row, "reserved_bytes", x->phases[i].reserved);
        json_object_set_new(row, "level_at_start", json_boolean(x->phases[i].at_start));
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *next_json(const struct tsr_explanation *x)
{
    json_t *list = json_array();
    for (size_t i = 0; i < x->n_next; i++) {
        json_t *row = place_json(&x->next[i].place);
        put_int(row, "allocated_bytes", x->next[i].allocated);
        put_int(row, "reserved_bytes", x->next[i].reserved);
        json_object_set_new(row, "alive", alive_json(&x->next[i].alive));
        json_array_append_new(list, row);
    }
    return list;
}

/* ---- what if --------------------------------------------------------------------------------- */

static json_t *bytes_json(bool is_known, uint64_t bytes)
{
    return is_known ? json_integer((json_int_t)bytes) : json_null();
}

static json_t *row_json(const struct tsr_what_if_row *r)
{
    static const char *const effects[] = {"none", "numbers", "gpus"};
    json_t *row = json_object(), *sets = json_array();
    bool ok = !r->failed;
    char needs[128];
    tsr_needs_words(r->needs, needs, sizeof needs);
    for (size_t i = 0; i < r->n_sets; i++)
        json_array_append_new(sets, json_string(r->sets[i]));
    json_object_set_new(row, "set", sets);
    put_text(row, "effect", effects[r->effect]);
    put_text(row, "needs", needs);
    json_object_set_new(row, "already_set", json_boolean(r->already_set));
    json_object_set_new(row, "out_of_memory", json_boolean(r->out_of_memory));
    json_object_set_new(row, "failure", ok ? json_null() : json_string(r->failure));
    json_object_set_new(row, "allocated_bytes", bytes_json(ok, r->allocated));
    json_object_set_new(row, "reserved_bytes", bytes_json(ok, r->reserved));
    json_object_set_new(row, "needed_bytes", bytes_json(ok, r->needed));
    json_object_set_new(row, "host_bytes", bytes_json(ok, r->host));
    json_object_set_new(row, "pinned_bytes", bytes_json(ok, r->pinned));
    json_object_set_new(row, "host_required_bytes_per_node", bytes_json(ok, r->node_host));
    json_object_set_new(row, "host_verdict",
                        ok ? json_string(tsr_host_word(r->host_verdict)) : json_null());
    json_object_set_new(row, "fits", ok && r->fits >= 0 ? json_boolean(r->fits) : json_null());
    json_object_set_new(row, "verdict", ok ? json_string(tsr_fits_word(r->fits)) : json_null());
    json_object_set_new(row, "saves_allocated_bytes", bytes_json(ok, (uint64_t)r->saves_allocated));
    json_object_set_new(row, "saves_reserved_bytes", bytes_json(ok, (uint64_t)r->saves_reserved));
    json_object_set_new(row, "tokens_per_gpu_and_step", bytes_json(ok && r->tokens, r->tokens));
    json_object_set_new(row, "step_s", ok && r->step_s >= 0 ? json_real(r->step_s) : json_null());
    return row;
}

static json_t *sets_json(const struct tsr_what_if_sets *sets)
{
    return json_pack("{s:I, s:I, s:o, s:o}", "possible", (json_int_t)sets->possible, "emitted",
                     (json_int_t)sets->emitted, "best",
                     sets->has_best ? row_json(&sets->best) : json_null(), "best_same_training",
                     sets->has_same ? row_json(&sets->same) : json_null());
}

static json_t *what_if_json(const struct tsr_what_ifs *what_if)
{
    json_t *out = json_object(), *rows = json_array();
    for (size_t i = 0; i < what_if->n; i++)
        json_array_append_new(rows, row_json(&what_if->rows[i]));
    json_object_set_new(out, "base", row_json(&what_if->base));
    json_object_set_new(out, "rows", rows);
    json_object_set_new(out, "pairs", sets_json(&what_if->pairs));
    json_object_set_new(out, "triples", sets_json(&what_if->triples));
    put_int(out, "useful", what_if->n_useful);
    put_int(out, "emissions", what_if->n_emitted);
    return out;
}

/* ---- all of it ------------------------------------------------------------------------------- */

json_t *tsr_explain_json(const struct tsr_explanation *x)
{
    json_t *out = json_object();
    if (!out)
        return NULL;
    put_text(out, "file", x->file);
    put_text(out, "strategy", x->strategy);
    put_text(out, "summary", x->summary);
    put_text(out, "model", x->model);
    put_text(out, "cluster", x->cluster);
    put_int(out, "world", x->world);
    json_object_set_new(out, "peak", peak_json(x));
    json_object_set_new(out, "card", card_json(&x->row));
    json_object_set_new(out, "host", host_json(x));
    if (x->row.show_sections)
        json_object_set_new(out, "sections", sections_json(&x->row));
    json_object_set_new(out, "iterations", iterations_json(x));
    json_object_set_new(out, "alive", alive_json(&x->alive));
    json_object_set_new(out, "allocator", allocator_json(&x->allocator));
    json_object_set_new(out, "unsharded", unsharded_json(&x->unsharded));
    json_object_set_new(out, "checkpointing", checkpointing_json(&x->checkpointing));
    json_object_set_new(out, "phases", phases_json(x));
    json_object_set_new(out, "next_peaks", next_json(x));
    if (x->has_what_if)
        json_object_set_new(out, "what_if", what_if_json(&x->what_if));
    if (x->times.time_sources)
        json_object_set_new(out, "validated_error", tsr_validated_json(&x->times));
    return out;
}
