/* host_fit.c: sums what the ranks of a node hold on its host, and compares it with the host's
 * memory. */
#include "experiments/study/job/host_fit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/graph/host_memory.h"
#include "experiments/study/job/emit.h"

const char *tsr_host_word(int verdict)
{
    return verdict == TSR_HOST_FITS ? "yes" : verdict == TSR_HOST_TOO_SMALL ? "no" : "unknown";
}

const char *tsr_host_text(int verdict)
{
    return verdict == TSR_HOST_FITS ? "yes" : verdict == TSR_HOST_TOO_SMALL ? "NO" : "?";
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Ranks of a node; the last one may have fewer than GPUs. */
static uint32_t ranks_of(const struct tsr_job *job, uint32_t node)
{
    uint32_t each = job->cluster.gpus_per_node, first = node * each;
    return job->world - first < each ? job->world - first : each;
}

/* Bytes of each node's host that the dataset holds. */
static uint64_t dataset_of(const struct tsr_job *job)
{
    return (uint64_t)(job->settings->data_host_gib * 1073741824.0);
}

/* Nodes that differ in the classes of their ranks. Large jobs have few of them. */
struct kinds {
    uint32_t n;
    uint32_t *first; /* [n] a node of each kind */
};

static bool is_alike(const struct tsr_job *job, const uint32_t *class_of, uint32_t a, uint32_t b)
{
    uint32_t each = job->cluster.gpus_per_node, n = ranks_of(job, a);
    return n == ranks_of(job, b) && memcmp(class_of + (size_t)a * each, class_of + (size_t)b * each,
                                           n * sizeof *class_of) == 0;
}

/* None without a cluster. */
static tsr_status find_kinds(const struct tsr_job *job, const struct tsr_emission *emission,
                             struct kinds *out)
{
    uint32_t each = job->cluster.gpus_per_node, n = each ? tsr_ceil_div(job->world, each) : 0;
    *out = (struct kinds){.first = calloc(n + 1UL, sizeof *out->first)};
    if (!out->first)
        return tsr_no_memory(NULL);
    for (uint32_t node = 0; node < n; node++) {
        uint32_t k = 0;
        while (k < out->n && !is_alike(job, emission->class_of, out->first[k], node))
            k++;
        if (k == out->n)
            out->first[out->n++] = node;
    }
    return TSR_OK;
}

/* ---- all classes side by side ---------------------------------------------------------------- */

/* A rank class while its programs are replayed. */
struct rank_class {
    const struct tsr_program *program;
    struct tsr_host_level level;
    uint64_t reserved; /* by the allocator, where that is memory of the host */
    size_t at;         /* the next instruction */
    uint64_t most;     /* bytes since the classes were in step last */
    uint64_t *peak;    /* bytes in the program */
};

struct walk {
    const struct tsr_job *job;
    const struct tsr_emission *emission;
    struct kinds kinds;
    struct rank_class *classes; /* [emission->n_classes] */
    struct tsr_host_sum *sum;   /* of the program */
};

enum { END = TSR_N_INSTR_KINDS }; /* behind the last instruction */

static bool is_memory(const struct walk *w, uint8_t kind)
{
    bool shares = w->job->cluster.intra == TSR_INTRA_MEMORY;
    return kind == TSR_HOST_ALLOC || kind == TSR_HOST_FREE || kind == TSR_PIN ||
           (shares && (kind == TSR_SEGMENT_ALLOC || kind == TSR_SEGMENT_FREE));
}

/* All ranks of a communicator take part. */
static bool is_collective(uint8_t kind)
{
    return (kind >= TSR_ALL_GATHER && kind <= TSR_ALL_TO_ALL) || kind == TSR_CUSTOM_COLLECTIVE;
}

/* Goes on to the next instruction that counts; returns its kind, or END. */
static uint8_t find_next(const struct walk *w, struct rank_class *c)
{
    for (; c->at < c->program->n_instrs; c->at++) {
        uint8_t kind = c->program->instrs[c->at].kind;
        if (is_memory(w, kind) || is_collective(kind))
            return kind;
    }
    return END;
}

static tsr_status take_next(struct rank_class *c)
{
    const struct tsr_instr *instr = &c->program->instrs[c->at++];
    if (instr->kind == TSR_SEGMENT_ALLOC)
        c->reserved += instr->bytes;
    else if (instr->kind == TSR_SEGMENT_FREE)
        c->reserved -= instr->bytes;
    else
        TSR_TRY(tsr_host_apply(&c->level, instr));
    uint64_t bytes = c->level.host + c->level.held + c->reserved;
    c->most = tsr_max_u64(c->most, bytes);
    *c->peak = tsr_max_u64(*c->peak, bytes);
    return TSR_OK;
}

/* All classes are in step: what was held since they were last may have been so at one time. */
static void meet(struct walk *w)
{
    uint32_t each = w->job->cluster.gpus_per_node;
    for (uint32_t k = 0; k < w->kinds.n; k++) {
        uint32_t node = w->kinds.first[k];
        uint64_t sum = dataset_of(w->job);
        for (uint32_t r = 0; r < ranks_of(w->job, node); r++)
            sum += w->classes[w->emission->class_of[node * each + r]].most;
        if (sum > w->sum->bytes)
            *w->sum = (struct tsr_host_sum){sum, node};
    }
    for (uint32_t i = 0; i < w->emission->n_classes; i++) {
        struct rank_class *c = &w->classes[i];
        c->most = c->level.host + c->level.held + c->reserved;
    }
}

/* The kind of the next instruction of all classes; else false. */
static bool is_in_step(struct walk *w, uint8_t *kind)
{
    *kind = find_next(w, &w->classes[0]);
    for (uint32_t i = 1; i < w->emission->n_classes; i++)
        if (find_next(w, &w->classes[i]) != *kind)
            return false;
    return true;
}

/* Each class goes on by itself, to the next collective or to the end. */
static tsr_status go_apart(struct walk *w, bool to_end)
{
    for (uint32_t i = 0; i < w->emission->n_classes; i++) {
        struct rank_class *c = &w->classes[i];
        for (uint8_t kind = find_next(w, c); kind != END; kind = find_next(w, c)) {
            bool collective = is_collective(kind);
            if (collective && !to_end)
                break;
            if (collective)
                c->at++;
            else
                TSR_TRY(take_next(c));
        }
    }
    meet(w);
    return TSR_OK;
}

static tsr_status walk_program(struct walk *w)
{
    uint8_t kind;
    bool is_one = w->emission->n_classes == 1; /* in step from end to end */
    meet(w);
    while (!is_one) {
        if (!is_in_step(w, &kind)) {
            TSR_TRY(go_apart(w, false));
            if (!is_in_step(w, &kind))
                break;
        }
        if (kind == END)
            return TSR_OK;
        for (uint32_t i = 0; i < w->emission->n_classes; i++) {
            struct rank_class *c = &w->classes[i];
            if (is_collective(kind))
                c->at++;
            else
                TSR_TRY(take_next(c));
        }
        meet(w);
    }
    return go_apart(w, true);
}

static tsr_status walk_all(struct walk *w, struct tsr_host_use *use)
{
    for (uint32_t k = 0; k < use->n_programs; k++) {
        w->sum = &use->nodes[k];
        for (uint32_t i = 0; i < w->emission->n_classes; i++) {
            struct rank_class *c = &w->classes[i];
            c->program = w->emission->classes[i].programs[k];
            c->at = 0;
            c->peak = &use->bytes[(size_t)i * use->n_programs + k];
            *c->peak = c->level.host + c->level.held + c->reserved;
        }
        TSR_TRY(walk_program(w));
    }
    return TSR_OK;
}

tsr_status tsr_host_use_of(const struct tsr_job *job, const struct tsr_emission *emission,
                           struct tsr_host_use *out)
{
    struct walk w = {.job = job, .emission = emission};
    size_t n = (size_t)emission->n_classes * emission->n_iterations;
    tsr_status status;
    *out = (struct tsr_host_use){.n_programs = emission->n_iterations};
    out->bytes = calloc(n + 1, sizeof *out->bytes);
    out->nodes = calloc(emission->n_iterations + 1UL, sizeof *out->nodes);
    w.classes = calloc(emission->n_classes + 1UL, sizeof *w.classes);
    TSR_GOTO(done, find_kinds(job, emission, &w.kinds));
    if (!out->bytes || !out->nodes || !w.classes)
        TSR_GOTO(done, tsr_no_memory(NULL));
    TSR_GOTO(done, walk_all(&w, out));
done:
    free(w.classes);
    free(w.kinds.first);
    if (status != TSR_OK)
        tsr_host_use_fini(out);
    return status;
}

void tsr_host_use_fini(struct tsr_host_use *use)
{
    free(use->bytes);
    free(use->nodes);
    memset(use, 0, sizeof *use);
}

/* ---- against the memory of the host ---------------------------------------------------------- */

static uint64_t bytes_of(const struct tsr_emission *emission, const struct tsr_host_use *use,
                         uint32_t rank, uint32_t i)
{
    return use->bytes[(size_t)emission->class_of[rank] * use->n_programs + i];
}

static void find_rank(const struct tsr_job *job, const struct tsr_emission *emission,
                      const struct tsr_host_use *use, struct tsr_host_fit *out)
{
    uint32_t first = out->node * job->cluster.gpus_per_node;
    out->ranks = ranks_of(job, out->node);
    out->rank = first;
    for (uint32_t r = first; r < first + out->ranks; r++) {
        uint64_t bytes = bytes_of(emission, use, r, out->program);
        if (bytes > out->rank_bytes)
            out->rank = r;
        out->rank_bytes = tsr_max_u64(out->rank_bytes, bytes);
    }
}

static const char *section_name(const struct tsr_emission *emission, uint32_t i)
{
    enum tsr_section section = tsr_section_of(emission, i);
    return section < TSR_N_SECTIONS ? tsr_words_sections[section] : "step";
}

void tsr_host_fit_of(const struct tsr_job *job, const struct tsr_emission *emission,
                     const struct tsr_host_use *use, struct tsr_host_fit *out)
{
    *out = (struct tsr_host_fit){.memory = job->cluster.host_memory_bytes};
    snprintf(out->section, sizeof out->section, "%s", section_name(emission, 0));
    if (!job->cluster.gpus_per_node)
        return;
    out->steady = use->nodes[emission->steady].bytes;
    for (uint32_t i = 0; i < use->n_programs; i++) {
        if (use->nodes[i].bytes <= out->required)
            continue;
        out->required = use->nodes[i].bytes;
        out->node = use->nodes[i].node;
        out->program = i;
        snprintf(out->section, sizeof out->section, "%s", section_name(emission, i));
    }
    out->dataset = dataset_of(job);
    find_rank(job, emission, use, out);
    if (!out->memory)
        return;
    bool is_enough = out->required <= out->memory;
    out->verdict = is_enough ? TSR_HOST_FITS : TSR_HOST_TOO_SMALL;
    out->shortfall = is_enough ? 0 : out->required - out->memory;
}
