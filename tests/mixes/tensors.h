/* tensors.h: what the ranks of a job save, put together: whole tensors in f64, by name. */
#ifndef TSR_TEST_TENSORS_H
#define TSR_TEST_TENSORS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "exec/base/source.h"

enum { TENSOR_TEXT = 256 };

struct tensor {
    uint64_t name;
    uint8_t what; /* of struct tsr_piece */
    uint64_t n;
    double *values; /* [n] */
    bool *has;      /* [n] */
};

/* Ranks add to it as threads. */
struct tensors {
    pthread_mutex_t mutex;
    struct tensor *v;
    size_t n, cap;
    char why[TENSOR_TEXT]; /* of the first piece that does not fit; "" */
};

void tensors_init(struct tensors *t);
void tensors_fini(struct tensors *t);
/* Elements that two ranks save must be equal in every bit. */
tsr_status tensors_add(struct tensors *t, const struct tsr_piece *piece, const void *data);
/* What was added, of the same or another piece. TSR_EDEFECT: there is no such element. */
tsr_status tensors_read(struct tensors *t, const struct tsr_piece *piece, void *out);
/* Have both the same tensors, whole? With a tolerance > 0 their elements are compared: the
 * difference relative to the largest of the tensor, at least 1. why: a line. */
bool tensors_same(struct tensors *a, struct tensors *b, double tolerance, char *why, size_t size);

#endif
