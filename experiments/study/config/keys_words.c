/* keys_words.c: words of enumerated keys, in the order of their enums. An empty word is a value
 * that a key does not offer. */
#include "experiments/study/config/keys_words.h"

#include <stddef.h>

#include "experiments/study/config/section.h"

const char *const tsr_words_accum[] = {"reduce_each", "no_reduce", "no_reduce_no_reshard",
                                       "no_all_reduce", NULL};
const char *const tsr_words_dtype[] = {"none", "f32", "bf16", "f16", NULL};
const char *const tsr_words_real[] = {"", "f32", "bf16", "f16", "f64", NULL};
const char *const tsr_words_optimizer[] = {"adamw", "sgd", "none", NULL};
const char *const tsr_words_variant[] = {"foreach",   "fused",          "loop",
                                         "decoupled", "decoupled_read", NULL};
const char *const tsr_words_clip[] = {"foreach", "loop", "loop_read", NULL};
const char *const tsr_words_loss[] = {"eager", "flash_attn", "flash_attn_inplace", NULL};
const char *const tsr_words_state[] = {"master", "f32", "bf16", NULL};
const char *const tsr_words_impl[] = {"plain", "transformers", NULL};
const char *const tsr_words_names[] = {"hf", "torchtitan", NULL};
const char *const tsr_words_norm[] = {"kernel", "hand", NULL};
const char *const tsr_words_sync[] = {"none", "loss", "step", NULL};
const char *const tsr_words_ckpt[] = {"none", "full", "selective_op", NULL};
const char *const tsr_words_hooks[] = {"inside", "outside", NULL};
const char *const tsr_words_attention[] = {"flash", "efficient", "math", "eager", NULL};
const char *const tsr_words_linear[] = {"plain", "fp8_tensorwise", "fp8_delayed", NULL};
const char *const tsr_words_dialect[] = {"eager", "fused", "compile", NULL};
const char *const tsr_words_api[] = {"fully_shard", "replicate", "ddp", "fsdp1", NULL};
const char *const tsr_words_fsdp1_prefetch[] = {"pre", "post", "none", NULL};
const char *const tsr_words_wrap[] = {"block", "block_embed_head", "root", NULL};
const char *const tsr_words_offload[] = {"none", "cpu", "cpu_pinned", NULL};
const char *const tsr_words_sections[] = {TSR_SECTION_WORDS, NULL};
const char *const tsr_words_init[] = {"meta", "device", "host", NULL};
const char *const tsr_words_load[] = {"sharded", "full_rank0", NULL};
const char *const tsr_words_save[] = {"sharded", "full_rank0", "full_device", "sharded_async",
                                      NULL};
const char *const tsr_words_order[] = {"shuffled", "sequential", NULL};
const char *const tsr_words_decay[] = {"all", "matrices", NULL};
const char *const tsr_words_schedule[] = {"constant", "linear", "cosine", NULL};
const char *const tsr_words_limit[] = {"none", "card", NULL};
const char *const tsr_words_algorithm[] = {"auto",      "ring", "tree",        "nvls",
                                           "nvls_tree", "pat",  "copy_engine", NULL};
const char *const tsr_words_protocol[] = {"auto", "ll", "ll128", "simple", NULL};
const char *const tsr_words_attention_kernel[] = {"auto",   "flash1", "flash1_triton", "flash2",
                                                  "flash3", "cudnn",  "math",          NULL};
const char *const tsr_words_norm_kernel[] = {"auto", "eager", "compiled", "cudnn", NULL};
