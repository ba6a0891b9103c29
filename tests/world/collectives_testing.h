/* collectives_testing.h: a random program of collectives on overlapping communicators, run by three
 * streams of every rank and compared bit for bit with a naive reference. Used for every kind of
 * world.
 */
#ifndef COLLECTIVES_TESTING_H
#define COLLECTIVES_TESTING_H

#include "exec/base/numeric.h"
#include "exec/world/world.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CT_STREAMS = 3, CT_OPS = 150, CT_COMMS = 3, CT_MESSAGES = 3 };

struct ct_op {
    uint8_t kind, dtype, reduce_op; /* TSR_SEND: a launch of messages around the ring */
    uint8_t in_place, stream;
    uint16_t comm;
    uint32_t n; /* elements of the big side, per member where it is divided */
    double factor;
    uint64_t sequence;
};

struct ct_program {
    uint32_t world;
    struct tsr_comm comms[CT_COMMS]; /* world, rows, columns */
    struct ct_op ops[CT_OPS];
};

static inline uint64_t ct_mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = tsr_hash_u64(TSR_HASH_INIT, a);
    return tsr_hash_u64(tsr_hash_u64(h, b), c);
}

static inline struct ct_program ct_program(uint32_t world, uint64_t seed)
{
    static const uint8_t kinds[] = {TSR_ALL_GATHER, TSR_REDUCE_SCATTER, TSR_ALL_REDUCE,
                                    TSR_BROADCAST,  TSR_ALL_TO_ALL,     TSR_SEND};
    uint32_t row = 1;
    for (uint32_t d = 2; d * d <= world; d++)
        if (world % d == 0)
            row = d;
    struct ct_program p = {.world = world,
                           .comms = {{.name = "world", .size = world, .stride = 1},
                                     {.name = "row", .size = row, .stride = 1},
                                     {.name = "column", .size = world / row, .stride = row}}};
    uint64_t next[CT_COMMS] = {0};
    for (uint32_t i = 0; i < CT_OPS; i++) {
        struct ct_op *op = &p.ops[i];
        uint64_t r = ct_mix(seed, world, i);
        op->kind = kinds[r % sizeof kinds];
        op->dtype = (uint8_t)(1 + (r >> 8) % (TSR_F8 - 1)); /* fp8 is not executed */
        op->reduce_op = (uint8_t)(TSR_REDUCE_SUM + (r >> 16) % 4);
        op->in_place = r >> 24 & 1;
        op->stream = (uint8_t)((r >> 28) % CT_STREAMS);
        op->comm = (uint16_t)((r >> 32) % CT_COMMS);
        op->n = (uint32_t)((r >> 36) % (r >> 61 < 5 ? 40 : 3000));
        op->factor = op->dtype == TSR_I64 || op->dtype == TSR_U8 ? 3 : 0.3;
        op->sequence = next[op->comm]++;
    }
    return p;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* What rank `rank` has as element i of the input of an operation: no NaN, some subnormals. */
static void ct_fill(uint32_t op, uint32_t rank, uint8_t dtype, void *out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t r = ct_mix(op + 1, rank, i);
        double x = ((double)(r >> 11) / 4503599627370496.0 - 1) * (r & 7 ? 3 : 1e-5);
        switch (dtype) {
        case TSR_F32:
            ((float *)out)[i] = (float)x;
            break;
        case TSR_F64:
            ((double *)out)[i] = x;
            break;
        case TSR_BF16:
            ((uint16_t *)out)[i] = tsr_to_bf16((float)x);
            break;
        case TSR_F16:
            ((uint16_t *)out)[i] = tsr_to_f16((float)x);
            break;
        case TSR_I64:
            ((int64_t *)out)[i] = (int64_t)(r % 20001) - 10000;
            break;
        default:
            ((uint8_t *)out)[i] = (uint8_t)r;
        }
    }
}

/* One element of a reduction, the plain way. `in` has the members' inputs. */
static void ct_reduce_element(const struct ct_op *op, void *const *in, uint32_t n, uint64_t i,
                              void *out)
{
    float f = 0;
    double d = 0;
    int64_t k = 0;
    for (uint32_t m = 0; m < n; m++) {
        double x = 0;
        if (op->dtype == TSR_F32)
            x = ((float *)in[m])[i];
        else if (op->dtype == TSR_BF16)
            x = tsr_from_bf16(((uint16_t *)in[m])[i]);
        else if (op->dtype == TSR_F16)
            x = tsr_from_f16(((uint16_t *)in[m])[i]);
        else if (op->dtype == TSR_F64)
            x = ((double *)in[m])[i];
        int64_t y = op->dtype == TSR_I64  ? ((int64_t *)in[m])[i]
                    : op->dtype == TSR_U8 ? ((uint8_t *)in[m])[i]
                                          : 0;
        float xf = (float)x;
        if (op->reduce_op == TSR_REDUCE_PREMUL_SUM) {
            xf *= (float)op->factor;
            x *= op->factor;
            y *= (int64_t)op->factor;
        }
        bool larger = op->reduce_op == TSR_REDUCE_MAX;
        f = m == 0 ? xf : larger ? (xf > f ? xf : f) : f + xf;
        d = m == 0 ? x : larger ? (x > d ? x : d) : d + x;
        k = m == 0 ? y : larger ? (y > k ? y : k) : k + y;
    }
    if (op->reduce_op == TSR_REDUCE_AVG) {
        f /= (float)n;
        d /= n;
        k /= n;
    }
    switch (op->dtype) {
    case TSR_F32:
        *(float *)out = f;
        break;
    case TSR_F64:
        *(double *)out = d;
        break;
    case TSR_BF16:
        *(uint16_t *)out = tsr_to_bf16(f);
        break;
    case TSR_F16:
        *(uint16_t *)out = tsr_to_f16(f);
        break;
    case TSR_I64:
        *(int64_t *)out = k;
        break;
    default:
        *(uint8_t *)out = (uint8_t)k;
    }
}

/* ---- one operation on one rank --------------------------------------------------------------- */

struct ct_shape {
    uint32_t size, me;
    unsigned item;
    uint64_t in, out; /* elements */
    uint64_t bytes;   /* of the call */
};

static struct ct_shape ct_shape(const struct ct_program *p, const struct ct_op *op, uint32_t rank)
{
    const struct tsr_comm *comm = &p->comms[op->comm];
    struct ct_shape s = {
        .size = comm->size, .me = tsr_comm_index(comm, rank), .item = tsr_dtype_bytes(op->dtype)};
    bool whole = op->kind == TSR_ALL_REDUCE || op->kind == TSR_BROADCAST;
    uint64_t big = whole ? op->n : (uint64_t)op->n * s.size;
    s.in = op->kind == TSR_ALL_GATHER || op->kind == TSR_SEND ? op->n : big;
    s.out = op->kind == TSR_REDUCE_SCATTER ? op->n : big;
    if (op->kind == TSR_SEND)
        s.out = (uint64_t)CT_MESSAGES * op->n;
    s.bytes = big * s.item;
    return s;
}

/* What `out` must be, from the inputs of all members. */
static void ct_expect(const struct ct_program *p, uint32_t index, uint32_t rank, char *out)
{
    const struct ct_op *op = &p->ops[index];
    struct ct_shape s = ct_shape(p, op, rank);
    void *in[64];
    for (uint32_t m = 0; m < s.size; m++) {
        in[m] = malloc(s.in * s.item + 1);
        ct_fill(index, tsr_comm_member(&p->comms[op->comm], rank, m), op->dtype, in[m], s.in);
    }
    uint64_t chunk = (uint64_t)op->n * s.item;
    uint64_t first = op->kind == TSR_REDUCE_SCATTER ? (uint64_t)op->n * s.me : 0;
    switch (op->kind) {
    case TSR_ALL_GATHER:
        for (uint32_t m = 0; m < s.size; m++)
            memcpy(out + m * chunk, in[m], chunk);
        break;
    case TSR_ALL_TO_ALL:
        for (uint32_t m = 0; m < s.size; m++)
            memcpy(out + m * chunk, (char *)in[m] + s.me * chunk, chunk);
        break;
    case TSR_BROADCAST:
        memcpy(out, in[0], chunk);
        break;
    case TSR_SEND: /* two from the one before, one from the one before that */
        memcpy(out, in[(s.me + s.size - 1) % s.size], chunk);
        memcpy(out + chunk, in[(s.me + s.size - 1) % s.size], chunk / 2);
        memset(out + chunk + chunk / 2, 0, chunk - chunk / 2);
        memcpy(out + 2 * chunk, in[(s.me + 2 * s.size - 2) % s.size], chunk);
        break;
    default:
        for (uint64_t i = 0; i < s.out; i++)
            ct_reduce_element(op, in, s.size, first + i, out + i * s.item);
    }
    for (uint32_t m = 0; m < s.size; m++)
        free(in[m]);
}

static tsr_status ct_messages(struct tsr_world *world, const struct ct_program *p,
                              const struct ct_op *op, const struct ct_shape *s, char *in, char *out)
{
    uint64_t chunk = (uint64_t)op->n * s->item;
    uint32_t next = (s->me + 1) % s->size, after = (s->me + 2) % s->size;
    uint32_t before = (s->me + s->size - 1) % s->size;
    uint32_t further = (s->me + 2 * s->size - 2) % s->size;
    const struct tsr_message messages[] = {
        {true, next, in, chunk},     {false, before, out, chunk},
        {true, next, in, chunk / 2}, {false, before, out + chunk, chunk / 2},
        {true, after, in, chunk},    {false, further, out + 2 * chunk, chunk},
    };
    memset(out, 0, 3 * chunk);
    /* With one or two members, messages of the two kinds go between the same two: their order is
     * that of the list, so the sizes still match. */
    return world->ops->messages(world, &p->comms[op->comm], op->comm, op->sequence, messages, 6);
}

static tsr_status ct_call(struct tsr_world *world, const struct ct_program *p, uint32_t index,
                          char *memory, char **result)
{
    const struct ct_op *op = &p->ops[index];
    struct ct_shape s = ct_shape(p, op, world->rank);
    uint64_t chunk = (uint64_t)op->n * s.item, in_bytes = s.in * s.item;
    char *in = memory, *out = memory + in_bytes;
    if (op->in_place && op->kind == TSR_ALL_GATHER) {
        out = memory;
        in = out + s.me * chunk;
    } else if (op->in_place && op->kind == TSR_REDUCE_SCATTER) {
        out = in + s.me * chunk;
    } else if (op->in_place && (op->kind == TSR_ALL_REDUCE || op->kind == TSR_BROADCAST)) {
        out = in;
    }
    ct_fill(index, world->rank, op->dtype, in, s.in);
    *result = out;
    if (op->kind == TSR_SEND)
        return ct_messages(world, p, op, &s, in, out);
    const struct tsr_collective call = {.kind = op->kind,
                                        .dtype = op->dtype,
                                        .reduce_op = op->reduce_op,
                                        .factor = op->factor,
                                        .comm = &p->comms[op->comm],
                                        .comm_id = op->comm,
                                        .sequence = op->sequence,
                                        .send = in,
                                        .recv = out,
                                        .bytes = s.bytes};
    return world->ops->collective(world, &call);
}

/* ---- streams --------------------------------------------------------------------------------- */

struct ct_stream {
    struct tsr_world *world;
    const struct ct_program *program;
    uint8_t stream;
    uint64_t digest; /* of the results */
    char error[512]; /* empty: all is well */
};

static void *ct_stream_main(void *arg)
{
    struct ct_stream *s = arg;
    for (uint32_t i = 0; i < CT_OPS && !s->error[0]; i++) {
        const struct ct_op *op = &s->program->ops[i];
        if (op->stream != s->stream)
            continue;
        struct ct_shape shape = ct_shape(s->program, op, s->world->rank);
        uint64_t bytes = shape.out * shape.item;
        char *memory = malloc((shape.in + shape.out) * shape.item + 16);
        char *want = malloc(bytes + 16), *got = NULL;
        if (ct_call(s->world, s->program, i, memory, &got) != TSR_OK) {
            snprintf(s->error, sizeof s->error, "%s", tsr_error_text());
        } else {
            ct_expect(s->program, i, s->world->rank, want);
            if (memcmp(got, want, bytes) != 0)
                snprintf(
                    s->error, sizeof s->error,
                    "rank %u, op %u: %s of %s (%s), %u x %u elements, in place %d: wrong bytes",
                    s->world->rank, i, tsr_instr_kind_name(op->kind), tsr_dtype_name(op->dtype),
                    tsr_reduce_op_name(op->reduce_op), shape.size, op->n, op->in_place);
            s->digest = tsr_hash_bytes(s->digest, got, bytes);
        }
        free(memory);
        free(want);
    }
    return NULL;
}

/* Runs the program on one rank. `error` is empty when every result was right. The digest is that of
 * all results of this rank. */
static uint64_t ct_run_rank(struct tsr_world *world, const struct ct_program *program, char *error,
                            size_t error_bytes)
{
    struct ct_stream streams[CT_STREAMS];
    pthread_t threads[CT_STREAMS];
    uint64_t digest = TSR_HASH_INIT;
    for (uint8_t i = 0; i < CT_STREAMS; i++) {
        streams[i] = (struct ct_stream){
            .world = world, .program = program, .stream = i, .digest = TSR_HASH_INIT};
        if (pthread_create(&threads[i], NULL, ct_stream_main, &streams[i]) != 0)
            abort();
    }
    error[0] = '\0';
    for (uint8_t i = 0; i < CT_STREAMS; i++) {
        (void)pthread_join(threads[i], NULL);
        digest = tsr_hash_u64(digest, streams[i].digest);
        if (streams[i].error[0])
            snprintf(error, error_bytes, "%s", streams[i].error);
    }
    return digest;
}

/* ---- threads that stand for ranks ------------------------------------------------------------ */

struct ct_rank {
    struct tsr_world *world;
    void (*body)(struct ct_rank *rank);
    void *user;
    tsr_status status;
    char error[512];
    uint64_t digest;
    double seconds;
};

static void *ct_rank_main(void *arg)
{
    struct ct_rank *rank = arg;
    rank->body(rank);
    return NULL;
}

/* Runs `body` on every rank of a world of threads and destroys it. */
static inline void ct_threads(uint32_t size, double timeout_s, struct ct_rank *ranks,
                              void (*body)(struct ct_rank *rank), void *user)
{
    struct tsr_world *worlds[64];
    pthread_t threads[64];
    if (tsr_world_threads(size, timeout_s, worlds) != TSR_OK)
        abort();
    for (uint32_t r = 0; r < size; r++) {
        ranks[r] = (struct ct_rank){.world = worlds[r], .body = body, .user = user};
        if (pthread_create(&threads[r], NULL, ct_rank_main, &ranks[r]) != 0)
            abort();
    }
    for (uint32_t r = 0; r < size; r++) {
        (void)pthread_join(threads[r], NULL);
        worlds[r]->ops->destroy(worlds[r]);
    }
}

static inline void ct_random_body(struct ct_rank *rank)
{
    rank->digest = ct_run_rank(rank->world, rank->user, rank->error, sizeof rank->error);
}

#endif
