/* job_fsdp1.c: which keys go with api: fsdp1, and which only with it. */
#include "experiments/study/job/job.h"

#include <string.h>

/* A key of another API whose value FSDP1 has no use for. */
struct misfit {
    const char *key, *allowed;
    bool found;
};

static tsr_status refuse(const struct tsr_job *job, const struct misfit *m)
{
    char found[64];
    TSR_TRY(tsr_key_format(&tsr_keys[tsr_key_find(m->key)], job->settings, found, sizeof found));
    return tsr_node_error(tsr_job_at(job, m->key), "%s: found %s beside api: fsdp1; allowed: %s",
                          m->key, found, m->allowed);
}

static tsr_status check_others(const struct tsr_job *job)
{
    static const char *const keys[] = {"fsdp1.backward_prefetch", "fsdp1.forward_prefetch",
                                       "fsdp1.limit_all_gathers"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char found[64];
        const struct tsr_key *key = &tsr_keys[tsr_key_find(keys[i])];
        TSR_TRY(tsr_key_format(key, job->settings, found, sizeof found));
        if (strcmp(found, key->def))
            return tsr_node_error(tsr_job_at(job, keys[i]),
                                  "%s: found %s without api: fsdp1; allowed: %s", keys[i], found,
                                  key->def);
    }
    return TSR_OK;
}

tsr_status tsr_job_check_fsdp1(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    if (s->api != TSR_API_FSDP1)
        return check_others(job);
    const struct misfit misfits[] = {
        {"reshard_after_forward", "null, true (FULL_SHARD) or false (SHARD_GRAD_OP)",
         s->reshard.kind == TSR_RESHARD_INT},
        {"reshard_after_backward", "true", !s->reshard_after_backward},
        {"forward_prefetch", "0 (fsdp1.forward_prefetch: true gathers one ahead)",
         s->forward_prefetch > 0},
        {"backward_prefetch", "0 (fsdp1.backward_prefetch: pre, post or none)",
         s->backward_prefetch > 0},
        {"accumulation.mode", "reduce_each or no_reduce (no_sync)",
         s->accum_mode > TSR_ACCUM_NO_REDUCE},
        {"offload", "none", s->offload != TSR_OFFLOAD_NONE},
        {"precision.output", "none", s->output != TSR_DTYPE_NONE},
        {"two_level_gather", "false", s->two_level_gather},
        {"mirror", "false", s->mirror},
        {"direct_gather", "false", s->direct_gather},
        {"folded_scale", "false", s->folded_scale},
        {"tp", "1", s->tp > 1},
        {"init", "meta", s->init != TSR_INIT_META},
    };
    for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++)
        if (misfits[i].found)
            return refuse(job, &misfits[i]);
    return TSR_OK;
}
