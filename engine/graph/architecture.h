/* architecture.h: families of models in numbers: Llama, GPT-2, MPT. engine/models/models.h builds
 * them; operations and tracing read what a family does in its own way.
 */
#ifndef TSR_ENGINE_ARCHITECTURE_H
#define TSR_ENGINE_ARCHITECTURE_H

#include "engine/program/base.h"

/* Whose module names and order of parameters a model has. */
enum tsr_names {
    TSR_NAMES_HF,   /* Hugging Face: model.layers.0.mlp.gate_proj, transformer.h.0 ... */
    TSR_NAMES_PLAIN /* torchtitan and alike: layers.0.feed_forward.w1; GPT-2: h.0, with [out, in]
                       matrices */
};
/* Whose forward a model runs: what is allocated when, and kept. */
enum tsr_impl {
    TSR_IMPL_PLAIN,       /* plain modules in the style of torchtitan and nanoGPT */
    TSR_IMPL_TRANSFORMERS /* LlamaForCausalLM, GPT2LMHeadModel with the sdpa attention */
};

/* Of a feed-forward. */
enum tsr_activation {
    TSR_ACT_OF_FAMILY, /* Llama: silu; GPT-2: gelu_new */
    TSR_ACT_SILU,
    TSR_ACT_GELU,      /* torch.nn.GELU() */
    TSR_ACT_GELU_TANH, /* torch.nn.GELU(approximate="tanh") */
    TSR_ACT_GELU_NEW,  /* the same function; in transformers operation by operation */
    TSR_ACT_RELU
};

/* Rotary embedding. theta 0: 10000. llama3: frequencies are scaled as Llama 3.1 does. */
struct tsr_rope {
    double theta;
    bool llama3;
    bool other; /* scaled in a way that no kernel here knows: simulated, not executed */
    uint64_t factor, low_freq_factor, high_freq_factor, original_positions; /* of llama3 */
};

/* Llama, Mistral, Qwen2, Qwen3 (dense). */
struct tsr_llama_config {
    uint64_t hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim, vocab_size;
    uint64_t max_positions;
    double norm_eps; /* 0: 1e-5 */
    double init_std; /* of matrices and embeddings; 0: 0.02 */
    struct tsr_rope rope;
    bool qkv_bias, o_bias,
        mlp_bias;            /* Qwen2: qkv_bias. attention_bias of a config sets q, k, v and o */
    bool qk_norm;            /* Qwen3 */
    enum tsr_activation act; /* of the gate; kernels that fuse it with the product have silu only */
    bool tie_embeddings;
    enum tsr_names names;
    enum tsr_impl impl;
    bool hand_norm; /* RMSNorm of elementary operations instead of one kernel; always so with
                       TSR_IMPL_TRANSFORMERS */
    /* TSR_IMPL_PLAIN: queries and keys are widened as by the tables of transformers, which have the
     * dtype of the embeddings until a wrapped layer casts them; no table is made. */
    bool table_dtypes;
    /* TSR_IMPL_TRANSFORMERS: position ids are read back from the device to see whether sequences
     * are packed; what the read yields is declared here. true: an attention mask is built. */
    bool packed_mask;
};
struct tsr_gpt2_config {
    uint64_t n_embd, n_layer, n_head, n_positions, n_inner, vocab_size; /* n_inner 0: 4 n_embd */
    double norm_eps;                                                    /* 0: 1e-5 */
    double init_std;                                                    /* 0: 0.02 */
    bool untied; /* lm_head has a weight of its own */
    /* Scores of attention: unscaled: not times 1 / sqrt(head size); scale_by_layer: over the
     * layer's number, from 1. */
    bool unscaled, scale_by_layer;
    enum tsr_activation act;
    bool hand_act; /* gelu_new of elementary operations; always so with TSR_IMPL_TRANSFORMERS */
    enum tsr_names names;
    enum tsr_impl impl;
    bool packed_mask; /* as above */
};
/* MPT of llm-foundry with learned positions (no ALiBi), biases, low-precision LayerNorm and GELU
 * (that of torch.nn.GELU()); module names of MPTForCausalLM. Parameters: vocab_size d + max_seq_len
 * d + 2 d, and in a layer 4 d^2 + 2 d w + 8 d + w + d of width d and feed-forward width w (12 d^2 +
 * 13 d for w = 4 d). */
struct tsr_mpt_config {
    uint64_t d_model, n_heads, n_layers, max_seq_len, vocab_size;
    uint64_t ffn_width; /* expansion_ratio times d_model; 0: 4 d_model */
    double norm_eps;    /* 0: 1e-5 */
    double init_std;    /* 0: 0.02 */
    bool untied;        /* the head has a weight of its own */
    /* flash-attn's variable-length form: each block takes padding away from q, k and v and puts it
     * back, with six reads on the host, although there is none. */
    bool unpad;
};

#endif
