/* tensors.c: saved pieces become whole tensors (tensors.h). */
#include "tests/mixes/tensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/base/convert.h"

void tensors_init(struct tensors *t)
{
    *t = (struct tensors){0};
    if (pthread_mutex_init(&t->mutex, NULL) != 0)
        abort();
}

void tensors_fini(struct tensors *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->v[i].values);
        free(t->v[i].has);
    }
    free(t->v);
    pthread_mutex_destroy(&t->mutex);
}

static struct tensor *find(struct tensors *t, uint64_t name, uint8_t what)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i].name == name && t->v[i].what == what)
            return &t->v[i];
    return NULL;
}

static struct tensor *find_or_add(struct tensors *t, const struct tsr_piece *piece)
{
    struct tensor *old = find(t, piece->name, piece->what);
    struct tensor fresh = {.name = piece->name, .what = piece->what, .n = 1};
    if (old)
        return old;
    for (int k = 0; k < piece->n_dims; k++)
        fresh.n *= piece->shape[k];
    fresh.values = calloc(fresh.n + 1, sizeof *fresh.values);
    fresh.has = calloc(fresh.n + 1, sizeof *fresh.has);
    if (!fresh.values || !fresh.has || !TSR_PUSH(t->v, t->n, t->cap, fresh))
        abort();
    return &t->v[t->n - 1];
}

/* Where element i of the piece is in the tensor. */
static uint64_t place(const struct tsr_piece *p, uint64_t i)
{
    uint64_t at = 0, stride = 1;
    for (int k = p->n_dims; k-- > 0;) {
        at += (p->start[k] + i % p->size[k]) * stride;
        i /= p->size[k];
        stride *= p->shape[k];
    }
    return at;
}

tsr_status tensors_add(struct tensors *t, const struct tsr_piece *piece, const void *data)
{
    uint64_t n = 1, item = tsr_dtype_bytes((tsr_dtype)piece->dtype);
    for (int k = 0; k < piece->n_dims; k++) {
        n *= piece->size[k];
        if (piece->start[k] + piece->size[k] > piece->shape[k])
            return tsr_fail(TSR_EDEFECT, "a piece that goes beyond its tensor");
    }
    pthread_mutex_lock(&t->mutex);
    struct tensor *tensor = find_or_add(t, piece);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = place(piece, i);
        double value;
        tsr_convert((tsr_dtype)piece->dtype, (const unsigned char *)data + i * item, TSR_F64,
                    &value, 1);
        if (tensor->has[at] && memcmp(&tensor->values[at], &value, sizeof value) && !t->why[0])
            snprintf(t->why, sizeof t->why,
                     "two ranks save other values of element %" PRIu64 " of tensor %016" PRIx64
                     ".%u: %.17g and %.17g",
                     at, piece->name, piece->what, tensor->values[at], value);
        tensor->values[at] = value;
        tensor->has[at] = true;
    }
    pthread_mutex_unlock(&t->mutex);
    return TSR_OK;
}

tsr_status tensors_read(struct tensors *t, const struct tsr_piece *piece, void *out)
{
    uint64_t n = 1, item = tsr_dtype_bytes((tsr_dtype)piece->dtype);
    tsr_status status = TSR_OK;
    for (int k = 0; k < piece->n_dims; k++)
        n *= piece->size[k];
    pthread_mutex_lock(&t->mutex);
    struct tensor *tensor = find(t, piece->name, piece->what);
    for (uint64_t i = 0; i < n && status == TSR_OK; i++) {
        uint64_t at = place(piece, i);
        if (!tensor || !tensor->has[at])
            status = tsr_fail(TSR_EDEFECT, "a piece is loaded that nobody has saved");
        else
            tsr_convert(TSR_F64, &tensor->values[at], (tsr_dtype)piece->dtype,
                        (unsigned char *)out + i * item, 1);
    }
    pthread_mutex_unlock(&t->mutex);
    return status;
}

static bool is_whole(const struct tensor *t, char *why, size_t size)
{
    for (uint64_t i = 0; i < t->n; i++)
        if (!t->has[i]) {
            snprintf(why, size,
                     "nobody saves element %" PRIu64 " of tensor %016" PRIx64 ".%u (of %" PRIu64
                     ")",
                     i, t->name, t->what, t->n);
            return false;
        }
    return true;
}

static bool is_same(const struct tensor *a, const struct tensor *b, double tolerance, char *why,
                    size_t size)
{
    double largest = 1;
    for (uint64_t i = 0; i < b->n; i++)
        largest = fmax(largest, fabs(b->values[i]));
    for (uint64_t i = 0; i < a->n && tolerance > 0; i++)
        if (!(fabs(a->values[i] - b->values[i]) <= tolerance * largest)) {
            snprintf(why, size,
                     "element %" PRIu64 " of tensor %016" PRIx64 ".%u (of %" PRIu64
                     "): %.17g instead of %.17g",
                     i, a->name, a->what, a->n, a->values[i], b->values[i]);
            return false;
        }
    return true;
}

bool tensors_same(struct tensors *a, struct tensors *b, double tolerance, char *why, size_t size)
{
    if (a->why[0] || b->why[0]) {
        snprintf(why, size, "%s", a->why[0] ? a->why : b->why);
        return false;
    }
    if (a->n != b->n || a->n == 0) {
        snprintf(why, size, "%zu tensors are saved instead of %zu", a->n, b->n);
        return false;
    }
    for (size_t i = 0; i < a->n; i++) {
        const struct tensor *other = find(b, a->v[i].name, a->v[i].what);
        if (!other || other->n != a->v[i].n) {
            snprintf(why, size, "tensor %016" PRIx64 ".%u is not the one rank's", a->v[i].name,
                     a->v[i].what);
            return false;
        }
        if (!is_whole(&a->v[i], why, size) || !is_whole(other, why, size) ||
            !is_same(&a->v[i], other, tolerance, why, size))
            return false;
    }
    return true;
}
