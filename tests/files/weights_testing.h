/* weights_testing.h: small models of Hugging Face as files.
 *
 * Element k of a tensor of a file is a small integer that depends on the tensor's name there and on
 * k: exact in every dtype, so that any mistake of place is seen.
 */
#ifndef TSR_WEIGHTS_TESTING_H
#define TSR_WEIGHTS_TESTING_H

#include "engine/layout/sharded_state.h"
#include "exec/base/convert.h"
#include "exec/files/safetensors.h"
#include "exec/files/weights.h"
#include "tests/files/disk_testing.h"

enum { MOST = 8192 }; /* elements of a tensor */

/* ---- values and models ----------------------------------------------------------------------- */

static inline float value_of(const char *name, uint64_t k)
{
    uint64_t hash = tsr_hash_bytes(TSR_HASH_INIT, name, strlen(name));
    return (float)(tsr_hash_u64(hash, k) % 255) - 127;
}

static const struct tsr_mesh one = {1, {1}, {"shard"}}, three = {1, {3}, {"shard"}};

static inline struct tsr_state_dict state_of(struct tsr_engine *e,
                                             const struct tsr_wrap_options *options)
{
    struct tsr_module *root = tsr_module_root(e);
    struct tsr_state_dict s;
    assert_int_equal(tsr_fully_shard(e, &root, 1, options), TSR_OK);
    assert_int_equal(tsr_state_dict_of(e, NULL, &s), TSR_OK);
    tsr_engine_destroy(e);
    return s;
}

static inline struct tsr_state_dict llama(const struct tsr_mesh *mesh, enum tsr_names names,
                                          bool tied, bool qwen)
{
    struct tsr_llama_config c = {.hidden_size = 8,
                                 .intermediate_size = 10,
                                 .n_layers = 2,
                                 .n_heads = 2,
                                 .n_kv_heads = 1,
                                 .head_dim = 4,
                                 .vocab_size = 11,
                                 .max_positions = 16,
                                 .tie_embeddings = tied,
                                 .qkv_bias = qwen,
                                 .qk_norm = qwen,
                                 .names = names};
    struct tsr_engine *e = test_engine(mesh, 0);
    assert_int_equal(tsr_model_llama(e, &c), TSR_OK);
    return state_of(e, NULL);
}

static inline struct tsr_state_dict gpt2(const struct tsr_mesh *mesh, enum tsr_names names)
{
    struct tsr_gpt2_config c = {.n_embd = 36,
                                /* more than a tile of the transposition */ .n_layer = 2,
                                .n_head = 2,
                                .n_positions = 5,
                                .vocab_size = 13,
                                .names = names};
    struct tsr_shard_dim columns = {.pattern = "**.c_fc.weight", .dim = 1};
    struct tsr_wrap_options options = {.n_shard_dims = 1, .shard_dims = &columns};
    struct tsr_engine *e = test_engine(mesh, 0);
    assert_int_equal(tsr_model_gpt2(e, &c), TSR_OK);
    return state_of(e, &options);
}

static const struct tsr_dtensor *layout(const struct tsr_state_dict *s, size_t i)
{
    return &s->layouts[s->entries[i].layout];
}

/* ---- files ----------------------------------------------------------------------------------- */

struct file {
    const char *path;
    tsr_dtype dtype;
    const char *drop;  /* prefix that its names lack */
    const char *extra; /* a tensor more; "lm_head.weight": a copy of the embedding */
    const char *skip;  /* without this one */
    int part, n_parts; /* every n-th tensor; n_parts 0: all */
};

static const char *dropped(const struct file *f, const char *name)
{
    size_t n = f->drop ? strlen(f->drop) : 0;
    return n && !strncmp(name, f->drop, n) ? name + n : name;
}

static inline void put_values(struct tsr_safetensors_writer *w, const char *name,
                              const char *values_of, tsr_dtype dtype, uint64_t numel)
{
    float *x = malloc((numel + 1) * sizeof *x);
    char *out = malloc((numel + 1) * 8);
    for (uint64_t k = 0; k < numel; k++)
        x[k] = value_of(values_of, k);
    tsr_convert(TSR_F32, x, dtype, out, numel);
    assert_int_equal(tsr_safetensors_put(w, name, out, numel * tsr_dtype_bytes(dtype)), TSR_OK);
    free(x);
    free(out);
}

static inline bool is_in(const struct file *f, const struct tsr_state_dict *hf, size_t i)
{
    return hf->entries[i].alias_of == i && (!f->n_parts || (int)i % f->n_parts == f->part) &&
           !(f->skip && !strcmp(f->skip, hf->entries[i].fqn));
}

/* A model with Hugging Face's names as a file. */
static inline void write_model(const struct tsr_state_dict *hf, const struct file *f)
{
    struct tsr_safetensors_writer *w = NULL;
    bool head = f->extra && !strcmp(f->extra, "lm_head.weight");
    const uint64_t mask[2] = {2, 2}, *extra_shape = head ? layout(hf, 0)->shape : mask;
    assert_int_equal(tsr_safetensors_create(f->path, NULL, &w), TSR_OK);
    for (size_t i = 0; i < hf->n; i++)
        if (is_in(f, hf, i))
            assert_int_equal(tsr_safetensors_declare(w, dropped(f, hf->entries[i].fqn), f->dtype,
                                                     layout(hf, i)->n_dims, layout(hf, i)->shape,
                                                     NULL),
                             TSR_OK);
    if (f->extra)
        assert_int_equal(tsr_safetensors_declare(w, f->extra, f->dtype, 2, extra_shape, NULL),
                         TSR_OK);
    assert_int_equal(tsr_safetensors_begin(w), TSR_OK);
    for (size_t i = 0; i < hf->n; i++)
        if (is_in(f, hf, i))
            put_values(w, dropped(f, hf->entries[i].fqn), hf->entries[i].fqn, f->dtype,
                       tsr_dtensor_numel(layout(hf, i)));
    if (f->extra)
        put_values(w, f->extra, hf->entries[0].fqn, f->dtype, extra_shape[0] * extra_shape[1]);
    assert_int_equal(tsr_safetensors_finish(w), TSR_OK);
    tsr_safetensors_destroy(w);
}

static inline struct tsr_weights *open_ok(const char *path)
{
    struct tsr_weights *w = NULL;
    if (tsr_weights_open(path, &w) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    return w;
}

static inline struct tsr_piece all_of(const struct tsr_dtensor *t)
{
    struct tsr_piece piece = {.dtype = TSR_F32, .n_dims = t->n_dims};
    memcpy(piece.shape, t->shape, sizeof piece.shape);
    memcpy(piece.size, t->shape, sizeof piece.size);
    return piece;
}

#endif
