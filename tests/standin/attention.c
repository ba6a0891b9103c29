/* attention.c: stand-in of exec/cuda/cudnn/cudnn_attention.h: by the book, in double, late on the
 * stream. It is there when a test wants it; otherwise the program's own kernels do all, as without
 * cuDNN.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/base/numeric.h"
#include "exec/cuda/cudnn/cudnn_attention.h"
#include "tests/standin/standin.h"

enum { PLANS = 64 };

struct tsr_attention_plan {
    struct tsr_cudnn_shape shape;
};
struct tsr_cuda_attention {
    struct tsr_attention_plan plans[PLANS];
    int n;
    uint64_t lacks;
};

static _Atomic uint64_t workspace_bytes;
static _Atomic bool is_there;

void tsr_standin_attention(bool there, uint64_t bytes)
{
    is_there = there;
    workspace_bytes = bytes;
}

static int say(char why[TSR_ATTENTION_TEXT], const char *text)
{
    snprintf(why, TSR_ATTENTION_TEXT, "%s", text);
    return 1;
}

int tsr_attention_create(int architecture, struct tsr_cuda_attention **out,
                         char why[TSR_ATTENTION_TEXT])
{
    (void)architecture;
    *out = is_there ? calloc(1, sizeof **out) : NULL;
    if (*out)
        return 0;
    (void)say(why, "the stand-in has none");
    return TSR_ATTENTION_NOT_BUILT;
}

void tsr_attention_destroy(struct tsr_cuda_attention *attention)
{
    free(attention);
}

void tsr_attention_lacks(struct tsr_cuda_attention *attention,
                         const struct tsr_attention_plan *plan, uint64_t bytes)
{
    (void)plan;
    attention->lacks = bytes;
}

void tsr_attention_note(struct tsr_cuda_attention *attention, char note[TSR_ATTENTION_TEXT])
{
    note[0] = 0;
    if (attention->lacks)
        snprintf(note, TSR_ATTENTION_TEXT, "no memory for a workspace of %llu bytes",
                 (unsigned long long)attention->lacks);
}

int tsr_attention_validate(int architecture, const struct tsr_cudnn_shape *s,
                           char why[TSR_ATTENTION_TEXT])
{
    (void)architecture;
    return s->d % 8 || s->d > 128 ? say(why, "heads of another size") : 0;
}

const struct tsr_attention_plan *tsr_attention_prepare(struct tsr_cuda_attention *attention,
                                                       const struct tsr_cudnn_shape *shape,
                                                       uint64_t *bytes)
{
    char why[TSR_ATTENTION_TEXT];
    if (attention->n == PLANS || tsr_attention_validate(90, shape, why))
        return NULL;
    *bytes = workspace_bytes;
    for (int i = 0; i < attention->n; i++)
        if (memcmp(&attention->plans[i].shape, shape, sizeof *shape) == 0)
            return &attention->plans[i];
    attention->plans[attention->n].shape = *shape;
    return &attention->plans[attention->n++];
}

/* ---- work ------------------------------------------------------------------------------------ */

struct work {
    struct tsr_cudnn_shape s;
    struct tsr_attention_pointers at;
    unsigned char *workspace;
    uint64_t bytes;
};

/* Element e of row t of a head. */
static uint64_t place(const struct work *w, int tensor, uint64_t b, uint64_t t, uint64_t h,
                      uint64_t e)
{
    const struct tsr_cudnn_shape *s = &w->s;
    bool keys = tensor == TSR_ATTENTION_K || tensor == TSR_ATTENTION_V ||
                tensor == TSR_ATTENTION_GK || tensor == TSR_ATTENTION_GV;
    return (b * (keys ? s->keys : s->queries) + t) * s->row[tensor] + h * s->head[tensor] + e;
}

static double load(const struct work *w, int tensor, uint64_t at)
{
    uint16_t bits = ((const uint16_t *)w->at.tensor[tensor])[at];
    return w->s.half ? (double)tsr_from_f16(bits) : (double)tsr_from_bf16(bits);
}

static void store(const struct work *w, int tensor, uint64_t at, double x)
{
    ((uint16_t *)w->at.tensor[tensor])[at] =
        w->s.half ? tsr_to_f16((float)x) : tsr_to_bf16((float)x);
}

static double dot(const struct work *w, int x, uint64_t at_x, int y, uint64_t at_y)
{
    double sum = 0;
    for (uint64_t e = 0; e < w->s.d; e++)
        sum += load(w, x, at_x + e) * load(w, y, at_y + e);
    return sum;
}

static double score(const struct work *w, uint64_t b, uint64_t h, uint64_t i, uint64_t j)
{
    uint64_t kv = h * w->s.kv_heads / w->s.heads;
    return w->s.scale * dot(w, TSR_ATTENTION_Q, place(w, TSR_ATTENTION_Q, b, i, h, 0),
                            TSR_ATTENTION_K, place(w, TSR_ATTENTION_K, b, j, kv, 0));
}

static void forward_row(const struct work *w, uint64_t b, uint64_t h, uint64_t i, double *p)
{
    const struct tsr_cudnn_shape *s = &w->s;
    uint64_t kv = h * s->kv_heads / s->heads, seen = s->causal && i < s->keys ? i + 1 : s->keys;
    double max = -INFINITY, sum = 0;
    for (uint64_t j = 0; j < seen; j++) {
        p[j] = score(w, b, h, i, j);
        max = fmax(max, p[j]);
    }
    for (uint64_t j = 0; j < seen; j++)
        sum += p[j] = exp(p[j] - max);
    for (uint64_t e = 0; e < s->d; e++) {
        double x = 0;
        for (uint64_t j = 0; j < seen; j++)
            x += p[j] / sum * load(w, TSR_ATTENTION_V, place(w, TSR_ATTENTION_V, b, j, kv, e));
        store(w, TSR_ATTENTION_OUT, place(w, TSR_ATTENTION_OUT, b, i, h, e), x);
    }
    w->at.lse[(b * s->heads + h) * s->lse_row + i] = (float)(max + log(sum));
}

/* Sums of one sequence: gq, then gk and gv. */
static void backward_row(const struct work *w, uint64_t b, uint64_t h, uint64_t i, double *sums)
{
    const struct tsr_cudnn_shape *s = &w->s;
    uint64_t kv = h * s->kv_heads / s->heads, seen = s->causal && i < s->keys ? i + 1 : s->keys;
    uint64_t at_g = place(w, TSR_ATTENTION_G, b, i, h, 0), q = (i * s->heads + h) * s->d;
    double *gk = sums + s->queries * s->heads * s->d, *gv = gk + s->keys * s->kv_heads * s->d;
    double delta =
        dot(w, TSR_ATTENTION_G, at_g, TSR_ATTENTION_OUT, place(w, TSR_ATTENTION_OUT, b, i, h, 0));
    double lse = (double)w->at.lse[(b * s->heads + h) * s->lse_row + i];
    for (uint64_t j = 0; j < seen; j++) {
        uint64_t at_k = place(w, TSR_ATTENTION_K, b, j, kv, 0), k = (j * s->kv_heads + kv) * s->d;
        double p = exp(score(w, b, h, i, j) - lse);
        double gp =
            dot(w, TSR_ATTENTION_G, at_g, TSR_ATTENTION_V, place(w, TSR_ATTENTION_V, b, j, kv, 0));
        double gs = s->scale * p * (gp - delta);
        for (uint64_t e = 0; e < s->d; e++) {
            sums[q + e] += gs * load(w, TSR_ATTENTION_K, at_k + e);
            gk[k + e] += gs * load(w, TSR_ATTENTION_Q, place(w, TSR_ATTENTION_Q, b, i, h, e));
            gv[k + e] += p * load(w, TSR_ATTENTION_G, at_g + e);
        }
    }
}

static void store_sums(const struct work *w, int tensor, uint64_t b, uint64_t tokens,
                       uint64_t heads, const double *sums)
{
    for (uint64_t n = 0; n < tokens * heads * w->s.d; n++)
        store(w, tensor, place(w, tensor, b, n / w->s.d / heads, n / w->s.d % heads, n % w->s.d),
              sums[n]);
}

static void backward(const struct work *w, uint64_t b, double *sums, uint64_t n)
{
    const struct tsr_cudnn_shape *s = &w->s;
    double *gk = sums + s->queries * s->heads * s->d, *gv = gk + s->keys * s->kv_heads * s->d;
    memset(sums, 0, n * sizeof *sums);
    for (uint64_t h = 0; h < s->heads; h++)
        for (uint64_t i = 0; i < s->queries; i++)
            backward_row(w, b, h, i, sums);
    store_sums(w, TSR_ATTENTION_GQ, b, s->queries, s->heads, sums);
    store_sums(w, TSR_ATTENTION_GK, b, s->keys, s->kv_heads, gk);
    store_sums(w, TSR_ATTENTION_GV, b, s->keys, s->kv_heads, gv);
}

static int run(void *data)
{
    const struct work *w = data;
    const struct tsr_cudnn_shape *s = &w->s;
    uint64_t n = (s->queries * s->heads + 2 * s->keys * s->kv_heads) * s->d;
    double *room = malloc((s->backward ? n : s->keys) * sizeof *room);
    if (!room)
        return (int)cudaErrorMemoryAllocation;
    memset(w->workspace, 0xff, w->bytes);
    for (uint64_t b = 0; b < s->batch; b++) {
        if (s->backward)
            backward(w, b, room, n);
        for (uint64_t h = 0; h < s->heads && !s->backward; h++)
            for (uint64_t i = 0; i < s->queries; i++)
                forward_row(w, b, h, i, room);
    }
    free(room);
    return 0;
}

int tsr_attention_run(struct tsr_cuda_attention *attention, const struct tsr_attention_plan *plan,
                      const struct tsr_attention_pointers *at, void *workspace, cudaStream_t stream,
                      char why[TSR_ATTENTION_TEXT])
{
    TSR_STANDIN(cudnnBackendExecute, int);
    (void)attention;
    if (tsr_standin_left_error())
        return say(why, "an earlier error of CUDA");
    const struct work w = {plan->shape, *at, workspace, workspace_bytes};
    for (int i = 0; i < (plan->shape.backward ? TSR_ATTENTION_TENSORS : TSR_ATTENTION_G); i++)
        if ((uintptr_t)at->tensor[i] % 16 || !at->tensor[i])
            return say(why, "a tensor at an odd address");
    if (w.bytes && !workspace)
        return say(why, "no workspace");
    return tsr_standin_enqueue(stream, run, &w, sizeof w) != cudaSuccess;
}
