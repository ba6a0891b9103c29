/* sim_job.c: see the header. */
#include "experiments/study/job/sim_job.h"

#include <stdlib.h>
#include <string.h>

tsr_status tsr_sim_job_of(const struct tsr_emission *emission, struct tsr_sim_job *out)
{
    const struct tsr_program *const **programs =
        calloc(emission->n_classes + 1u, sizeof(*programs));
    *out = (struct tsr_sim_job){0};
    if (!programs)
        return tsr_no_memory(NULL);
    for (uint32_t i = 0; i < emission->n_classes; i++)
        programs[i] = (const struct tsr_program *const *)emission->classes[i].programs;
    *out = (struct tsr_sim_job){.world = emission->world,
                                .n_classes = emission->n_classes,
                                .n_iterations = emission->n_iterations,
                                .class_of = emission->class_of,
                                .programs = programs};
    return TSR_OK;
}

void tsr_sim_job_fini(struct tsr_sim_job *job)
{
    free((void *)job->programs);
    *job = (struct tsr_sim_job){0};
}

tsr_status tsr_at_sim_key(const struct tsr_job *job, tsr_status status)
{
    static const char *const keys[] = {
        "sim.slow_rank",       "sim.slow_factor",      "sim.nic_bw",   "sim.intra_bw",
        "sim.link_efficiency", "sim.host_scale",       "sim.protocol", "sim.latency_scale",
        "sim.queue_depth",     "sim.attention_kernel", "sim.faults",   "sim.traffic",
        "sim.jitter_kernel",   "sim.jitter_gpu"};
    const char *text = tsr_error_text();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *name = keys[i] + strlen("sim.");
        if (strncmp(text, name, strlen(name)) || text[strlen(name)] != ':')
            continue;
        const struct tsr_yaml_node *at = tsr_setting_at(job->settings, keys[i]);
        return at ? tsr_node_wrap_error(at, status, "sim") : status;
    }
    return status;
}
