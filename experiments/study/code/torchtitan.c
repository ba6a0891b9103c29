/* torchtitan.c: a strategy as torchtitan's TOML, as far as that can say it.
 *
 * Its groups are its own: embedding, blocks, norm with head, root; what a strategy asks beyond its
 * options is named (keys.c), and here where it depends on more than one key.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "experiments/study/code/code.h"

static void put_parallelism(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    static const char *const reshard[] = {[TSR_RESHARD_DEFAULT] = "default",
                                          [TSR_RESHARD_FALSE] = "never",
                                          [TSR_RESHARD_TRUE] = "default",
                                          [TSR_RESHARD_INT] = "default"};
    const struct tsr_settings *s = c->settings;
    const struct tsr_mesh *mesh = &c->job->mesh;
    bool copies = s->api == TSR_API_DDP || s->api == TSR_API_REPLICATE;
    bool hybrid = !copies && !strcmp(mesh->name[0], "replicate");
    tsr_code_add(to, "\n[parallelism]\n");
    tsr_code_add(to, "data_parallel_replicate_degree = %u\n",
                 copies || hybrid ? mesh->shape[0] : 1);
    tsr_code_add(to, "data_parallel_shard_degree = %u\n", copies ? 1 : mesh->shape[hybrid ? 1 : 0]);
    if (!copies)
        tsr_code_add(to, "fsdp_reshard_after_forward = \"%s\"\n", reshard[s->reshard.kind]);
    tsr_code_add(to, "tensor_parallel_degree = %" PRIu64 "\n", s->tp);
}

static void put_training(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_settings *s = c->settings;
    uint64_t ranks = c->job->world / s->tp;
    tsr_code_add(to, "\n[training]\n");
    tsr_code_add(to, "local_batch_size = %" PRIu64 "\n", s->batch);
    tsr_code_add(to, "global_batch_size = %" PRIu64 "\n", s->batch * ranks * s->accum_steps);
    tsr_code_add(to, "seq_len = %" PRIu64 "\n", s->seq);
    tsr_code_add(to, "steps = %" PRIu64 "\n", s->run.steps);
    tsr_code_add(to, "max_norm = %g\n", s->run.max_norm);
    tsr_code_add(to, "mixed_precision_param = \"%s\"\n",
                 s->param == TSR_BF16 ? "bfloat16" : "float32");
    tsr_code_add(to, "mixed_precision_reduce = \"float32\"\n");
    tsr_code_add(to, "enable_cpu_offload = %s\n", s->offload ? "true" : "false");
}

static void put_optimizer(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    static const char *const variants[] = {"foreach", "fused", "for-loop"};
    const struct tsr_settings *s = c->settings;
    tsr_code_add(to, "\n[optimizer]\nname = \"AdamW\"\nlr = %g\n", s->run.lr);
    if (s->variant < sizeof variants / sizeof *variants)
        tsr_code_add(to, "implementation = \"%s\"\n", variants[s->variant]);
}

static void put_checkpoint(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    uint64_t every = c->settings->ckpt_every;
    tsr_code_add(to, "\n[activation_checkpoint]\n");
    if (every == 0)
        tsr_code_add(to, "mode = \"none\"\n");
    else if (every == 1)
        tsr_code_add(to, "mode = \"full\"\n");
    else if (every == TSR_CKPT_SELECTIVE_OP)
        tsr_code_add(to, "mode = \"selective\"\nselective_ac_option = \"op\"\n");
    else
        tsr_code_add(to, "mode = \"selective\"\nselective_ac_option = \"%" PRIu64 "\"\n", every);
}

/* The call whose modules are these alone, by the last parts of their names. */
static const struct tsr_wrap_call *find_call(const struct tsr_wrapping *w, const char *first,
                                             size_t n)
{
    for (size_t i = 0; i < w->n_calls; i++)
        if (w->calls[i].modules.n == n &&
            !strcmp(tsr_module_fqn(w->calls[i].modules.items[0]), first))
            return &w->calls[i];
    return NULL;
}

/* tok_embeddings, layers.*, [norm, output], root: does the strategy have these? */
static bool has_its_groups(const struct tsr_code_job *c)
{
    const struct tsr_wrapping *w = &c->wrapping;
    const struct tsr_module *layers = tsr_module_find(c->engine, "layers");
    size_t blocks = layers ? tsr_module_n_children(layers) : 0;
    const struct tsr_wrap_call *last = find_call(w, "norm", 2);
    return find_call(w, "tok_embeddings", 1) && last && find_call(w, "", 1) &&
           !strcmp(tsr_module_fqn(last->modules.items[1]), "output") && blocks > 0 &&
           w->n_calls == blocks + 3;
}

void tsr_code_put_torchtitan_lacks(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_settings *s = c->settings;
    bool shards = s->api == TSR_API_FULLY_SHARD;
    if (s->api == TSR_API_REPLICATE || s->api == TSR_API_FSDP1)
        tsr_code_comment(to, "# ", 2, "Not said: api=%s: torchtitan has fully_shard, and DDP.",
                         tsr_words_api[s->api]);
    if (shards && !has_its_groups(c))
        tsr_code_comment(to, "# ", 2,
                         "Not said: wrap: torchtitan's groups are tok_embeddings, each of layers, "
                         "norm with output, and the rest.");
    if (s->reshard.kind == TSR_RESHARD_INT)
        tsr_code_comment(to, "# ", 2,
                         "Not said: reshard_after_forward=%" PRId64 ": torchtitan has default, "
                         "always and never.",
                         s->reshard.value);
    if (c->job->model.family == TSR_FAMILY_LLAMA && c->job->model.llama.names != TSR_NAMES_PLAIN)
        tsr_code_comment(
            to, "# ", 2,
            "Not said: model.names=hf: torchtitan's modules have names of their own, in "
            "another order.");
    if (s->api == TSR_API_DDP && (s->param || s->reduce))
        tsr_code_comment(to, "# ", 2,
                         "Not said: precision beside api: ddp: torchtitan computes under autocast, "
                         "in mixed_precision_param.");
    if (tsr_code_reduce_dtype(s) != TSR_F32)
        tsr_code_comment(to, "# ", 2, "Not said: precision.reduce: torchtitan reduces in float32.");
    if (!s->clip)
        tsr_code_comment(to, "# ", 2, "Not said: clip=false: torchtitan always clips.");
}

static void put_compile(const struct tsr_settings *s, struct tsr_code_text *to)
{
    bool model = tsr_settings_compile(s, TSR_COMPILE_MODEL);
    bool loss = tsr_settings_compile(s, TSR_COMPILE_LOSS);
    tsr_code_add(to, "\n[compile]\nenable = %s\n", model || loss ? "true" : "false");
    if (model || loss)
        tsr_code_add(to, "components = [%s%s%s]\n", model ? "\"model\"" : "",
                     model && loss ? ", " : "", loss ? "\"loss\"" : "");
}

tsr_status tsr_code_put_torchtitan(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    tsr_code_add(to, "\n[model]\n# name, flavor: the model, which is yours\n");
    put_training(c, to);
    put_parallelism(c, to);
    put_checkpoint(c, to);
    put_compile(c->settings, to);
    put_optimizer(c, to);
    return TSR_OK;
}
