/* host_fit.c: sums what the ranks of a node hold on its host, and compares it with the host's
 * memory. */
#include "experiments/study/job/host_fit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static bool is_alike(const struct tsr_job *job, const uint32_t *class_of, uint32_t a, uint32_t b)
{
    uint32_t each = job->cluster.gpus_per_node, n = ranks_of(job, a);
    return n == ranks_of(job, b) && memcmp(class_of + (size_t)a * each, class_of + (size_t)b * each,
                                           n * sizeof *class_of) == 0;
}

/* Large jobs have few kinds of nodes: one of each is looked at. */
static void find_nodes(const struct tsr_job *job, const struct tsr_emission *emission,
                       struct tsr_host_use *use)
{
    uint32_t n = tsr_ceil_div(job->world, job->cluster.gpus_per_node);
    for (uint32_t node = 0; node < n; node++) {
        uint32_t k = 0;
        while (k < use->n_nodes && !is_alike(job, emission->class_of, use->nodes[k], node))
            k++;
        if (k == use->n_nodes)
            use->nodes[use->n_nodes++] = node;
    }
}

tsr_status tsr_host_use_init(const struct tsr_job *job, const struct tsr_emission *emission,
                             struct tsr_host_use *out)
{
    size_t n = (size_t)emission->n_classes * emission->n_iterations;
    *out = (struct tsr_host_use){.n_programs = emission->n_iterations};
    out->bytes = calloc(n + 1, sizeof *out->bytes);
    out->nodes = calloc(job->world + 1UL, sizeof *out->nodes);
    if (!out->bytes || !out->nodes) {
        tsr_host_use_fini(out);
        return tsr_no_memory(NULL);
    }
    if (job->cluster.gpus_per_node)
        find_nodes(job, emission, out);
    return TSR_OK;
}

void tsr_host_use_fini(struct tsr_host_use *use)
{
    free(use->bytes);
    free(use->nodes);
    memset(use, 0, sizeof *use);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static uint64_t bytes_of(const struct tsr_emission *emission, const struct tsr_host_use *use,
                         uint32_t rank, uint32_t i)
{
    return use->bytes[(size_t)emission->class_of[rank] * use->n_programs + i];
}

uint64_t tsr_host_of_node(const struct tsr_job *job, const struct tsr_emission *emission,
                          const struct tsr_host_use *use, uint32_t i, uint32_t *node)
{
    uint64_t most = 0;
    if (node)
        *node = 0;
    for (uint32_t k = 0; k < use->n_nodes; k++) {
        uint32_t first = use->nodes[k] * job->cluster.gpus_per_node;
        uint64_t sum = 0;
        for (uint32_t r = 0; r < ranks_of(job, use->nodes[k]); r++)
            sum += bytes_of(emission, use, first + r, i);
        if (sum > most && node)
            *node = use->nodes[k];
        most = tsr_max_u64(most, sum);
    }
    return most;
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
    if (!use->n_nodes)
        return;
    for (uint32_t i = 0; i < use->n_programs; i++) {
        uint32_t node;
        uint64_t sum = tsr_host_of_node(job, emission, use, i, &node);
        if (i == emission->steady)
            out->steady = sum;
        if (sum <= out->required)
            continue;
        out->required = sum;
        out->node = node;
        out->program = i;
        snprintf(out->section, sizeof out->section, "%s", section_name(emission, i));
    }
    find_rank(job, emission, use, out);
    if (!out->memory)
        return;
    bool is_enough = out->required <= out->memory;
    out->verdict = is_enough ? TSR_HOST_FITS : TSR_HOST_TOO_SMALL;
    out->shortfall = is_enough ? 0 : out->required - out->memory;
}
