/* kineto.c: reads a trace of PyTorch's profiler. A kernel (category "kernel") names the operator
 * that launched it by an "External id"; operators ("cpu_op") have their inputs, launches
 * ("cuda_runtime") are those of a thread one after the other, and kernels of NCCL say what they
 * moved. Without kernels it is the trace of a processor, whose operators are its kernels.
 */
#include "experiments/cli/calibrate/kineto.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/gz.h"
#include "sim/base/json_load.h"
#include "sim/base/text.h"
#include "sim/card/kernels.h"

static const double US = 1e-6;
/* Longer gaps between two launches are the host's other work, or it waits. */
static const double MAX_GAP_US = 1000;

struct op {
    json_int_t id;
    const char *name;
    const json_t *args;
    double us, kernel_us; /* of its own call; of the kernels that it launched */
};

struct launch {
    json_int_t thread;
    double at_us;
};

struct trace {
    const char *path;
    const json_t *events;
    struct op *ops;
    size_t n_ops, cap_ops;
    struct launch *launches;
    size_t n_launches, cap_launches;
    size_t n_kernels;
    uint32_t most;
    struct tsr_times *times;
    struct tsr_kineto *out;
};

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    double out = json_is_number(value) ? json_number_value(value) : -1;
    return isfinite(out) && out < 1e18 ? out : -1;
}

static json_int_t id_of(const json_t *event)
{
    const json_t *id = json_object_get(json_object_get(event, "args"), "External id");
    return json_is_integer(id) ? json_integer_value(id) : -1;
}

/* ---- operators and their kernels ------------------------------------------------------------- */

static tsr_status add_op(struct trace *t, const json_t *event)
{
    struct op op = {.id = id_of(event),
                    .name = text(event, "name"),
                    .args = json_object_get(event, "args"),
                    .us = number(event, "dur")};
    if (op.id < 0 || op.us < 0)
        return TSR_OK;
    return TSR_PUSH(t->ops, t->n_ops, t->cap_ops, op) ? TSR_OK : tsr_no_memory(t->path);
}

static int by_id(const void *a, const void *b)
{
    const struct op *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static struct op *find_op(const struct trace *t, json_int_t id)
{
    const struct op key = {.id = id};
    return id >= 0 && t->n_ops ? bsearch(&key, t->ops, t->n_ops, sizeof *t->ops, by_id) : NULL;
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* The big side of a collective: what the engine counts. */
static tsr_status add_collective(struct trace *t, const json_t *args, double us)
{
    static const struct {
        const char *name;
        uint8_t kind;
        const char *elements;
    } kinds[] = {{"_allgather_base", TSR_ALL_GATHER, "Out msg nelems"},
                 {"all_gather_into_tensor", TSR_ALL_GATHER, "Out msg nelems"},
                 {"_reduce_scatter_base", TSR_REDUCE_SCATTER, "In msg nelems"},
                 {"reduce_scatter_tensor", TSR_REDUCE_SCATTER, "In msg nelems"},
                 {"allreduce", TSR_ALL_REDUCE, "In msg nelems"},
                 {"broadcast", TSR_BROADCAST, "In msg nelems"}};
    const char *name = text(args, "Collective name");
    double ranks = number(args, "Group size");
    uint64_t item = tsr_dtype_bytes(tsr_kineto_dtype(text(args, "dtype")));
    if (ranks < 2 || ranks > UINT32_MAX / 2)
        return TSR_OK;
    t->out->group = (uint32_t)ranks > t->out->group ? (uint32_t)ranks : t->out->group;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        double n = number(args, kinds[i].elements);
        if (strcmp(name, kinds[i].name) != 0 || n < 1 || n > 1e15 || !item || ranks > t->most)
            continue;
        const struct tsr_instr instr = {.kind = kinds[i].kind, .bytes = (uint64_t)n * item};
        return tsr_times_collective(t->times, &instr, (uint32_t)ranks, us * US);
    }
    return TSR_OK;
}

static tsr_status add_kernel(struct trace *t, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    double us = number(event, "dur");
    if (us < 0)
        return TSR_OK;
    t->n_kernels++;
    if (*text(args, "Collective name") || !strncmp(text(event, "name"), "nccl", 4))
        return add_collective(t, args, us);
    struct op *op = find_op(t, id_of(event));
    t->out->seconds += us * US;
    if (op)
        op->kernel_us += us;
    return TSR_OK;
}

/* ---- the host -------------------------------------------------------------------------------- */

static tsr_status add_runtime(struct trace *t, const json_t *event)
{
    static const struct tsr_instr record = {.kind = TSR_RECORD},
                                  segment = {.kind = TSR_SEGMENT_ALLOC};
    const char *name = text(event, "name");
    double us = number(event, "dur"), at = number(event, "ts");
    const json_t *thread = json_object_get(event, "tid");
    if (us < 0 || at < 0)
        return TSR_OK;
    if (!strcmp(name, "cudaEventRecord") || !strcmp(name, "cudaStreamWaitEvent"))
        return tsr_times_host(t->times, &record, us * US);
    if (!strcmp(name, "cudaMalloc"))
        return tsr_times_host(t->times, &segment, us * US);
    if (!strstr(name, "LaunchKernel"))
        return TSR_OK;
    struct launch launch = {json_is_integer(thread) ? json_integer_value(thread) : 0, at};
    return TSR_PUSH(t->launches, t->n_launches, t->cap_launches, launch) ? TSR_OK
                                                                         : tsr_no_memory(t->path);
}

static int by_time(const void *a, const void *b)
{
    const struct launch *x = a, *y = b;
    if (x->thread != y->thread)
        return x->thread < y->thread ? -1 : 1;
    return (x->at_us > y->at_us) - (x->at_us < y->at_us);
}

static tsr_status add_gaps(struct trace *t)
{
    static const struct tsr_instr launch = {.kind = TSR_OP};
    if (t->n_launches)
        qsort(t->launches, t->n_launches, sizeof *t->launches, by_time);
    for (size_t i = 1; i < t->n_launches; i++) {
        double gap = t->launches[i].at_us - t->launches[i - 1].at_us;
        if (t->launches[i].thread == t->launches[i - 1].thread && gap <= MAX_GAP_US)
            TSR_TRY(tsr_times_host(t->times, &launch, gap * US));
    }
    return TSR_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

typedef tsr_status (*take_fn)(struct trace *t, const json_t *event);

static tsr_status take_all(struct trace *t, const char *category, take_fn take)
{
    size_t i;
    const json_t *event;
    json_array_foreach(t->events, i, event)
    {
        if (!strcmp(text(event, "ph"), "X") && !strcmp(text(event, "cat"), category))
            TSR_TRY(take(t, event));
    }
    return TSR_OK;
}

/* What is lost most by operators that no kernel of the engine is: of those with kernels, or, on a
 * processor, not known, as operators call each other. */
static void note_missing(struct trace *t, const struct op *op, double *most_us)
{
    if (op->kernel_us <= *most_us)
        return;
    *most_us = op->kernel_us;
    snprintf(t->out->missing, sizeof t->out->missing, "%s", op->name);
}

static tsr_status add_ops(struct trace *t)
{
    double most_us = 0;
    for (size_t i = 0; i < t->n_ops; i++) {
        const struct op *op = &t->ops[i];
        struct tsr_work work;
        double us = t->n_kernels ? op->kernel_us : op->us;
        if (us <= 0)
            continue;
        if (!tsr_kineto_work(op->name, op->args, &work)) {
            note_missing(t, op, &most_us);
            continue;
        }
        t->out->kept += us * US;
        TSR_TRY(tsr_times_kernel(t->times, &work, us * US));
        if (t->times->n_kernels > TSR_KERNEL_RUNS)
            return tsr_fail(TSR_ECONFIG,
                            "%s: found more than %d kernels of different names and shapes; "
                            "allowed: up to that",
                            t->path, TSR_KERNEL_RUNS);
    }
    return TSR_OK;
}

static tsr_status read_device(const char *path, const json_t *root, struct tsr_kineto *out)
{
    const json_t *device = json_array_get(json_object_get(root, "deviceProperties"), 0);
    double memory = number(device, "totalGlobalMem"), units = number(device, "numSms");
    double major = number(device, "computeMajor"), minor = number(device, "computeMinor");
    const char *name = text(device, "name");
    if (strlen(name) >= sizeof out->gpu)
        return tsr_fail(TSR_ECONFIG,
                        "%s: deviceProperties: found a name of %zu bytes, %s; allowed: up to %zu",
                        path, strlen(name), tsr_show(name).text, sizeof out->gpu - 1);
    snprintf(out->gpu, sizeof out->gpu, "%s", name);
    out->memory = memory >= 1 && memory < 1e15 ? (uint64_t)memory : 0;
    out->units = units >= 1 && units < 1e5 ? (uint32_t)units : 0;
    out->capability = major >= 1 && major < 1000 ? 10 * (uint32_t)major : 0;
    if (out->capability && minor >= 1 && minor <= 9)
        out->capability += (uint32_t)minor;
    return TSR_OK;
}

static tsr_status read_root(struct trace *t, const json_t *root)
{
    t->events = json_object_get(root, "traceEvents");
    if (!json_array_size(t->events))
        return tsr_fail(TSR_ECONFIG,
                        "%s: has no \"traceEvents\"; allowed: a trace of torch.profiler, as "
                        "export_chrome_trace() writes it",
                        t->path);
    TSR_TRY(read_device(t->path, root, t->out));
    TSR_TRY(take_all(t, "cpu_op", add_op));
    if (t->n_ops)
        qsort(t->ops, t->n_ops, sizeof *t->ops, by_id);
    TSR_TRY(take_all(t, "kernel", add_kernel));
    TSR_TRY(take_all(t, "cuda_runtime", add_runtime));
    TSR_TRY(take_all(t, "cuda_driver", add_runtime));
    TSR_TRY(add_gaps(t));
    TSR_TRY(add_ops(t));
    if (!t->n_kernels)
        t->out->gpu[0] = 0;
    if (t->times->n_kernels)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: found no operator with its shapes that is known; allowed: a trace with "
                    "record_shapes=True",
                    t->path);
}

tsr_status tsr_kineto_read(const char *path, uint32_t most, struct tsr_times *times,
                           struct tsr_kineto *out)
{
    struct trace t = {.path = path, .most = most, .times = times, .out = out};
    json_error_t error;
    char *bytes = NULL;
    size_t n = 0;
    *out = (struct tsr_kineto){0};
    TSR_TRY(tsr_gz_load(path, TSR_GZ_BYTES, &bytes, &n));
    json_t *root = tsr_json_loadb(bytes, n, TSR_TEXT_MANY_VALUES, &error);
    free(bytes);
    if (!root)
        return tsr_fail(TSR_ECONFIG, "%s:%d: %s", path, error.line, error.text);
    tsr_status status = read_root(&t, root);
    json_decref(root);
    free(t.ops);
    free(t.launches);
    return status;
}
