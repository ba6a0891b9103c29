/* data.c: windows of token files in a permuted order. */
#include "exec/data/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/program/base.h"
#include "exec/data/token_file.h"

struct tsr_data {
    uint64_t seq, n_vocab, seed;
    bool sequential;
    size_t n_files;
    struct tsr_token_file *files;
    uint64_t *first; /* [n_files + 1] the first sample of each file; the last entry is N */
};

/* ---- opening --------------------------------------------------------------------------------- */

static tsr_status check_config(const struct tsr_data_config *config)
{
    if (config->n_files == 0)
        return tsr_fail(TSR_ECONFIG, "data: no files; at least one file of tokens is needed");
    if (config->seq == 0 || config->seq > INT32_MAX)
        return tsr_fail(TSR_ECONFIG,
                        "data: sequence length is %" PRIu64 "; allowed: 1 to 2147483647",
                        config->seq);
    return TSR_OK;
}

/* Ids of two tokenizers mean different things, though they may fit the same vocabulary. */
static tsr_status check_kind(const struct tsr_data *data, size_t i)
{
    if (data->files[i].kind == data->files[0].kind)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: has %u bytes a token, but %s has %u; allowed: files of one kind",
                    data->files[i].path, data->files[i].token_bytes, data->files[0].path,
                    data->files[0].token_bytes);
}

static tsr_status open_files(struct tsr_data *data, const struct tsr_data_config *config)
{
    uint64_t longest = 0;
    for (size_t i = 0; i < config->n_files; i++) {
        TSR_TRY(tsr_token_file_open(config->files[i], config->sequential, &data->files[i]));
        data->n_files = i + 1;
        TSR_TRY(check_kind(data, i));
        uint64_t n = data->files[i].n_tokens;
        longest = tsr_max_u64(longest, n);
        data->first[i + 1] = data->first[i] + (n - 1) / data->seq;
    }
    if (data->first[data->n_files] == 0)
        return tsr_fail(TSR_ECONFIG,
                        "%s: the longest file has %" PRIu64
                        " tokens; a sample of sequence length %" PRIu64 " needs %" PRIu64,
                        config->files[0], longest, data->seq, data->seq + 1);
    return TSR_OK;
}

tsr_status tsr_data_open(const struct tsr_data_config *config, struct tsr_data **out)
{
    *out = NULL;
    TSR_TRY(check_config(config));
    struct tsr_data *data = calloc(1, sizeof *data);
    if (data) {
        data->files = calloc(config->n_files, sizeof *data->files);
        data->first = calloc(config->n_files + 1, sizeof *data->first);
    }
    if (!data || !data->files || !data->first) {
        tsr_data_close(data);
        return tsr_no_memory("files of data");
    }
    data->seq = config->seq;
    data->n_vocab = config->n_vocab;
    data->seed = config->seed;
    data->sequential = config->sequential;
    tsr_status status = open_files(data, config);
    if (status != TSR_OK) {
        tsr_data_close(data);
        return status;
    }
    *out = data;
    return TSR_OK;
}

void tsr_data_close(struct tsr_data *data)
{
    if (!data)
        return;
    for (size_t i = 0; i < data->n_files; i++)
        tsr_token_file_close(&data->files[i]);
    free(data->files);
    free(data->first);
    free(data);
}

/* ---- what is there --------------------------------------------------------------------------- */

uint64_t tsr_data_samples(const struct tsr_data *data)
{
    return data->first[data->n_files];
}

uint64_t tsr_data_hash(const struct tsr_data *data)
{
    uint64_t hash = tsr_hash_u64(TSR_HASH_INIT, data->seq);
    hash = tsr_hash_u64(hash, data->sequential ? 0 : data->seed);
    hash = tsr_hash_u64(hash, data->sequential);
    for (size_t i = 0; i < data->n_files; i++) {
        const char *path = data->files[i].path, *slash = strrchr(path, '/');
        const char *name = slash ? slash + 1 : path;
        hash = tsr_hash_bytes(hash, name, strlen(name) + 1);
        hash = tsr_hash_u64(hash, data->files[i].n_tokens);
        hash = tsr_hash_u64(hash, data->files[i].kind);
    }
    return hash;
}

uint64_t tsr_data_index(const struct tsr_data *data, uint64_t position)
{
    uint64_t n = tsr_data_samples(data);
    if (data->sequential)
        return position % n;
    struct tsr_permutation permutation;
    tsr_permutation_init(&permutation, n, data->seed, position / n);
    return tsr_permutation_at(&permutation, position % n);
}

/* ---- serving --------------------------------------------------------------------------------- */

/* The last file whose first sample is not behind `sample`; files without samples are passed over.
 */
static size_t file_of(const struct tsr_data *data, uint64_t sample)
{
    size_t low = 0, high = data->n_files; /* first[low] <= sample < first[high] */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (data->first[middle] <= sample)
            low = middle;
        else
            high = middle;
    }
    return low;
}

tsr_status tsr_data_sample(const struct tsr_data *data, uint64_t position, int64_t *inputs,
                           int64_t *labels)
{
    uint64_t sample = tsr_data_index(data, position);
    size_t i = file_of(data, sample);
    uint64_t token = (sample - data->first[i]) * data->seq;
    if (inputs)
        TSR_TRY(tsr_token_file_read(&data->files[i], token, data->seq, data->n_vocab, inputs));
    if (labels)
        TSR_TRY(tsr_token_file_read(&data->files[i], token + 1, data->seq, data->n_vocab, labels));
    return TSR_OK;
}

uint64_t tsr_global_batch(const struct tsr_batch_split *split)
{
    return (uint64_t)split->world * split->n_micro * split->micro_batch;
}

tsr_status tsr_data_batch(const struct tsr_data *data, uint64_t position,
                          const struct tsr_batch_split *split, uint32_t micro, int64_t *inputs,
                          int64_t *labels)
{
    TSR_CHECK(split->rank < split->world && micro < split->n_micro && split->micro_batch > 0);
    uint64_t batch = (uint64_t)split->rank * split->n_micro + micro; /* of the global batch */
    position += batch * split->micro_batch;
    for (uint64_t row = 0; row < split->micro_batch; row++)
        TSR_TRY(tsr_data_sample(data, position + row, inputs ? inputs + row * data->seq : NULL,
                                labels ? labels + row * data->seq : NULL));
    return TSR_OK;
}

tsr_status tsr_data_part(const struct tsr_data *data, uint64_t position,
                         const struct tsr_batch_split *split, uint32_t micro,
                         enum tsr_batch_part part, tsr_dtype dtype, void *out, uint64_t bytes)
{
    uint64_t expected = (uint64_t)split->micro_batch * data->seq * sizeof(int64_t);
    if (dtype != TSR_I64 || bytes != expected)
        return tsr_fail(TSR_EDEFECT,
                        "data: %" PRIu64 " bytes of %s are asked for; a micro-batch has %" PRIu64
                        " of i64",
                        bytes, tsr_dtype_name(dtype), expected);
    bool input = part == TSR_BATCH_INPUT;
    return tsr_data_batch(data, position, split, micro, input ? out : NULL, input ? NULL : out);
}

/* ---- permutation: a Feistel network with cycle walking --------------------------------------- */

/* The finalizer of splitmix64: every bit of the input changes every bit of the output. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

void tsr_permutation_init(struct tsr_permutation *out, uint64_t n, uint64_t seed, uint64_t epoch)
{
    TSR_CHECK(n > 0);
    uint32_t half_bits = 3; /* with fewer, some orders of 5 or 6 things come up more often */
    while (half_bits < 32 && (n - 1) >> 2 * half_bits != 0)
        half_bits++;
    *out = (struct tsr_permutation){.n = n, .half_bits = half_bits};
    uint64_t state = mix(mix(seed) ^ epoch);
    for (int i = 0; i < TSR_PERMUTATION_ROUNDS; i++)
        out->keys[i] = state = mix(state);
}

static uint64_t feistel(const struct tsr_permutation *p, uint64_t x)
{
    uint64_t mask = (UINT64_C(1) << p->half_bits) - 1;
    uint64_t left = x >> p->half_bits, right = x & mask;
    for (int i = 0; i < TSR_PERMUTATION_ROUNDS; i++) {
        /* The upper bits of the mix are as good as any, and there are always 32 of them. */
        uint64_t next = left ^ (mix(right ^ p->keys[i]) >> 32 & mask);
        left = right;
        right = next;
    }
    return left << p->half_bits | right;
}

uint64_t tsr_permutation_at(const struct tsr_permutation *p, uint64_t i)
{
    TSR_CHECK(i < p->n);
    do
        i = feistel(p, i);
    while (i >= p->n);
    return i;
}
