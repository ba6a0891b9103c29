/* compile.h: the dialect `compile`: a transformer block as torch.compile runs it (COMPILE.md).
 * Private to engine/.
 *
 * A block is traced once: its eager operations, forward and backward, become a graph of values
 * instead of instructions (compile_trace.c, compile_ops.c). The graph is cut into what the forward
 * saves and what the backward computes again (compile_cut.c), each half is fused into kernels
 * (compile_fuse.c), and every later call of the block emits these kernels (compile_run.c).
 *
 * Everything lives in the engine's arena. Values and operations are named by their indices.
 */
#ifndef TSR_ENGINE_COMPILE_H
#define TSR_ENGINE_COMPILE_H

#include "engine/ops/ops_common.h"

#define TSR_NONE UINT32_MAX
enum { TSR_MAX_KERNEL_OPERANDS = 64 };

/* Where a value comes from. */
enum tsr_value_kind {
    TSR_VALUE_INPUT,   /* of the block */
    TSR_VALUE_PARAM,   /* of tsr_cgraph.params: read where it lies */
    TSR_VALUE_BUFFER,  /* of the model: likewise */
    TSR_VALUE_TANGENT, /* the gradient of the result */
    TSR_VALUE_RESULT,  /* of an operation */
    TSR_VALUE_ALIAS    /* another value: the same operation came twice */
};

struct tsr_cvalue {
    uint8_t kind, dtype;
    bool scratch; /* memory that a kernel takes for itself */
    uint64_t bytes;
    uint32_t index; /* PARAM: into params. RESULT: the operation that makes it. ALIAS: the value */
    struct tsr_storage *storage; /* BUFFER; borrowed */
};

/* How an operation takes part in fusion. */
enum tsr_cclass {
    TSR_CLASS_CALL,  /* a library's kernel, never fused */
    TSR_CLASS_POINT, /* an element of the result from a few elements of the inputs */
    TSR_CLASS_ROW,   /* reduces rows, and what is computed from the sums and the rows */
    TSR_CLASS_COLUMN /* sums over rows */
};

/* As tsr_operand, with a value of the graph in place of the buffer. */
struct tsr_coperand {
    uint32_t value;
    uint8_t access, dtype, slot;
    uint64_t offset, bytes; /* as in tsr_operand */
    uint32_t width, pitch;
};

/* An operation of the graph. */
struct tsr_cop {
    uint8_t cls;                   /* enum tsr_cclass */
    uint8_t collective, reduce_op; /* of a CALL over the tensor-parallel ranks: enum tsr_instr_kind,
                                      and how it adds; 0: it is a kernel */
    bool backward;   /* of the traced backward; before n_forward: it needs no gradient, either half
                        may run it */
    bool takes_lt;   /* a biased product: cublasLt's workspace */
    uint32_t module; /* id */
    uint64_t rows, columns; /* ROW, COLUMN */
    uint64_t numel;         /* POINT: of the result */
    struct tsr_work work;
    uint32_t n_operands;
    struct tsr_coperand *operands;
};

/* A traced block.
 *
 * Invariant: operations stand in the order in which eager PyTorch runs them, so a value is written
 * before it is read; each RESULT is written once, by the operation that it names. */
struct tsr_cgraph {
    struct tsr_cvalue *values;
    struct tsr_cop *ops;
    size_t n_values, cap_values, n_ops, cap_ops;
    size_t n_forward; /* ops before this one are the forward's */
    struct tsr_param **params;
    size_t n_params, cap_params;
    uint32_t input, result, tangent;   /* values; NONE */
    uint32_t input_grad, *param_grads; /* NONE: there is none */
    int result_dims;
    uint64_t result_shape[4];
};

/* One launch. reads and writes of `operands` name values; outputs are those with WRITE. */
struct tsr_ckernel {
    struct tsr_work work;
    uint32_t module;
    bool recompute, takes_lt, is_product;
    uint8_t collective, reduce_op; /* as in tsr_cop: not a launch but a collective */
    uint32_t group; /* of the half that made it; TSR_NONE: a library's, or partial sums */
    uint32_t n_operands;
    struct tsr_coperand *operands;
    uint32_t *over;         /* by operand: the input whose memory an output takes; NONE */
    uint32_t n_dead, *dead; /* values that nothing uses after it */
};

struct tsr_cschedule {
    size_t n, cap;
    struct tsr_ckernel *kernels;
};

/* A block compiled for one shape and one way to run.
 *
 * Invariant: `table` is NULL-filled between runs; while the backward is owed, the values in `saved`
 * live in the node of that forward, not here: a plan may have several forwards waiting. */
struct tsr_cplan {
    struct tsr_cplan *next;
    /* what it was made for */
    uint64_t tokens, width;
    uint8_t dtype;
    bool grad, input_grad, selective, full;
    struct tsr_cgraph graph;
    uint32_t *saved; /* values */
    size_t n_saved;
    struct tsr_cschedule forward, backward;
    struct tsr_storage **table; /* by value, while a schedule runs; borrowed or owned by the run */
    uint64_t *offsets;          /* likewise: bytes into the storage */
};

/* ---- compile_trace.c ------------------------------------------------------------------------- */

/* A trace that runs. */
struct tsr_capture {
    struct tsr_cgraph *graph;
    struct tsr_module *block;
    const struct tsr_tensor *x;
    uint32_t pending[TSR_MAX_KERNEL_OPERANDS]; /* values of the operands of the next operation */
    size_t n_pending;
    bool backward;
};

/* Traces the block; `grad`: its backward, too. Errors are the engine's. */
void tsr__trace_block(struct tsr_engine *e, struct tsr_module *m, struct tsr_tensor *x,
                      struct tsr_cplan *plan);

/* What takes the engine's instructions while a block is traced (compile_ops.c): operations of the
 * graph. */
void tsr__capture_emit(struct tsr_engine *e, const struct tsr_instr *instr);

/* Walks the operands of an operation that read, or write, a value. */
static inline bool tsr__reads(const struct tsr_cop *op, uint32_t value)
{
    for (uint32_t i = 0; i < op->n_operands; i++)
        if (op->operands[i].value == value && op->operands[i].access == TSR_READ)
            return true;
    return false;
}

/* ---- compile_cut.c, compile_fuse.c ----------------------------------------------------------- */

/* Which results of the forward the backward gets: plan->saved. */
void tsr__cut(struct tsr_engine *e, struct tsr_cplan *plan);
/* Order of operations of one half, and its kernels. */
void tsr__fuse(struct tsr_engine *e, struct tsr_cplan *plan, bool backward);

/* ---- compile_run.c --------------------------------------------------------------------------- */

/* From here on blocks run compiled, if that is the engine's dialect. */
void tsr__compile_begin(struct tsr_engine *e);

/* ---- kernels of one half --------------------------------------------------------------------- */

/* What compile_fuse.c and compile_kernels.c share: one half of a compiled block
 * while its operations are put into groups and the groups become kernels. Private to engine/. */

enum { TSR_FUSE_OPS = 512, TSR_FUSE_LEAVES = 64, TSR_FUSE_MEMBERS = 32 };

/* Operations that one kernel, or a few, will run, in an order that works. A merged group makes no
 * kernel: its members are another one's, too. */
struct tsr_fuse_group {
    uint8_t cls;
    uint64_t rows, columns, numel;
    uint32_t n_members, members[TSR_FUSE_MEMBERS]; /* operations, in order */
    uint32_t n_leaves, leaves[TSR_FUSE_LEAVES];    /* what it reads from outside */
    bool merged;                                   /* into another one */
};

/* Invariant: `place` of a value that this half makes is a group that is not merged away; a value
 * that is neither stored nor ready is computed by each of its readers. */
struct tsr_fuse {
    struct tsr_engine *e;
    struct tsr_cplan *plan;
    struct tsr_cgraph *g;
    struct tsr_cschedule *out;
    bool backward;
    uint32_t order[TSR_FUSE_OPS];
    size_t n_order;
    bool *listed;    /* by operation */
    bool *final;     /* by value: leaves this half */
    bool *ready;     /* by value: is there before this half */
    bool *stored;    /* by value */
    uint32_t *place; /* by value: the group that makes it */
    struct tsr_fuse_group *groups;
    size_t n_groups;
};

/* Raises the error of a block with more operations or operands than there is room for. */
void tsr__fuse_too_large(struct tsr_fuse *f);
/* A pointwise result that is not stored: its readers compute it. */
bool tsr__fuse_is_inlined(const struct tsr_fuse *f, uint32_t value);
/* Returns true if an operation reads the stored value, itself or through what it computes for
 * itself. */
bool tsr__fuse_reads(struct tsr_fuse *f, uint32_t op, uint32_t value);
/* The group reads the value from outside. */
bool tsr__fuse_has_leaf(const struct tsr_fuse_group *g, uint32_t value);

/* compile_kernels.c: the kernels of every group, in order, with what each may overwrite and what
 * nobody needs after it. */
void tsr__fuse_kernels(struct tsr_fuse *f);

#endif
