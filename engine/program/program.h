/* program.h: the instruction set and the step program.
 *
 * The engine writes, for each rank class and iteration, a list of instructions in host issue order.
 * Executors (simulator, host, CUDA, checker, recorder) read it and know nothing of sharding.
 * Everything that a step does is an instruction, so everything is simulated, checked, attributed.
 *
 * Units: bytes, FLOP. There is no time in a program: executors own clocks.
 */
#ifndef TSR_ENGINE_PROGRAM_H
#define TSR_ENGINE_PROGRAM_H

#include "engine/program/base.h"

enum tsr_instr_kind {
    TSR_SEGMENT_ALLOC, /* device allocation: bytes, address, stream */
    TSR_SEGMENT_FREE,
    TSR_ALLOC, /* buffer gets [address, address+block_bytes) of a segment; bytes = requested */
    TSR_FREE,
    TSR_COPY, /* device copy, cast, H2D or D2H (memory spaces of the two operands tell) */
    TSR_FILL,
    TSR_OP, /* a kernel: work describes it */
    TSR_ALL_GATHER,
    TSR_REDUCE_SCATTER,
    TSR_ALL_REDUCE,
    TSR_BROADCAST,
    TSR_ALL_TO_ALL,
    TSR_SEND, /* peer = rank inside the communicator */
    TSR_RECV,
    TSR_GROUP_BEGIN, /* the calls up to GROUP_END are one launch */
    TSR_GROUP_END,
    TSR_CUSTOM_COLLECTIVE,
    TSR_COMM_CREATE,
    TSR_RECORD,    /* event := tail of stream */
    TSR_WAIT,      /* stream waits for event */
    TSR_HOST_WAIT, /* the host waits for event */
    TSR_HOST_READ, /* the host waits for stream's tail and reads a scalar */
    TSR_HOST_OP,   /* work on the host: work describes it */
    TSR_MARK,      /* no work: a phase or hook begins (mark says which) */
    /* Memory of the host (space says pageable or pinned; host_memory.h). No device is involved. */
    TSR_HOST_ALLOC, /* buffer; bytes requested, block_bytes taken */
    TSR_HOST_FREE,
    TSR_PIN, /* the process gets block_bytes of page-locked memory, and keeps them */
    TSR_N_INSTR_KINDS
};

enum tsr_phase {
    TSR_PHASE_INIT,
    TSR_PHASE_INPUTS,
    TSR_PHASE_ZERO_GRAD,
    TSR_PHASE_FORWARD,
    TSR_PHASE_LOSS,
    TSR_PHASE_BACKWARD,
    TSR_PHASE_METRICS, /* what a trainer computes from the logits beside the loss */
    TSR_PHASE_CLIP,
    TSR_PHASE_OPTIMIZER,
    TSR_PHASE_END,
    TSR_PHASE_LOAD, /* outside the step: a checkpoint is read, ... */
    TSR_PHASE_EVAL, /* ... the model runs without gradients, ... */
    TSR_PHASE_SAVE, /* ... a checkpoint is written */
    TSR_N_PHASES
};

/* What a MARK marks. */
enum tsr_mark {
    TSR_MARK_ITERATION,   /* value = iteration */
    TSR_MARK_PHASE,       /* phase of the instruction begins; value = micro-batch */
    TSR_MARK_PRE_FORWARD, /* hook of origin.group begins */
    TSR_MARK_POST_FORWARD,
    TSR_MARK_PRE_BACKWARD,
    TSR_MARK_POST_BACKWARD,
    TSR_MARK_ITERATION_END,
    TSR_MARK_GROUP_BEGIN, /* origin.group runs the hook `value` (enum tsr_hook) */
    TSR_MARK_GROUP_END,
    TSR_MARK_DROPPED, /* the block of `buffer`, of `block_bytes`, was freed and waits for its last
                         use: PyTorch's allocated bytes lose it here, its FREE returns it */
    TSR_N_MARKS
};

enum tsr_space { TSR_SPACE_DEVICE, TSR_SPACE_HOST, TSR_SPACE_PINNED };
enum tsr_access { TSR_READ = 1, TSR_WRITE = 2, TSR_READ_WRITE = 3 };

enum tsr_reduce_op {
    TSR_REDUCE_NONE,
    TSR_REDUCE_SUM,
    TSR_REDUCE_AVG,
    TSR_REDUCE_PREMUL_SUM,
    TSR_REDUCE_MAX
};

/* Owner category of a buffer (golden-memory names). */
enum tsr_category {
    TSR_CAT_SHARDED_PARAM,
    TSR_CAT_BUFFER,
    TSR_CAT_INPUTS,
    TSR_CAT_ALL_GATHER,
    TSR_CAT_ALL_GATHER_INPUT,
    TSR_CAT_UNSHARDED_PARAM,
    TSR_CAT_POST_FORWARD_SHARD,
    TSR_CAT_UNSHARDED_GRAD,
    TSR_CAT_UNSHARDED_ACC_GRAD,
    TSR_CAT_REDUCE_SCATTER,
    TSR_CAT_REDUCE_SCATTER_OUTPUT,
    TSR_CAT_PARTIAL_REDUCE_OUTPUT,
    TSR_CAT_SHARDED_GRAD,
    TSR_CAT_OPT_STATE,
    TSR_CAT_OPT_TEMP,
    TSR_CAT_ACTIVATION,
    TSR_CAT_TEMP,
    TSR_CAT_WORKSPACE,
    TSR_CAT_INIT,
    TSR_N_CATEGORIES
};

/* Kinds of kernels. The cost model prices a kernel by kind, dims, FLOP and bytes only. */
enum tsr_op_kind {
    TSR_OP_GEMM,          /* dims: m, n, k, batch */
    TSR_OP_ATTENTION,     /* dims: batch, heads, kv heads, query length, key length, head size */
    TSR_OP_ATTENTION_BWD, /* as above */
    TSR_OP_NORM,          /* dims: rows, columns */
    TSR_OP_NORM_BWD,
    TSR_OP_SOFTMAX,
    TSR_OP_POINTWISE, /* bytes moved decide */
    TSR_OP_REDUCTION, /* sums over rows, norms of gradients */
    TSR_OP_EMBEDDING,
    TSR_OP_EMBEDDING_BWD,
    TSR_OP_LOSS,
    TSR_OP_CHUNK_CAT,  /* reduce-scatter copy-in */
    TSR_OP_SPLIT_COPY, /* all-gather copy-out */
    TSR_OP_OPTIMIZER,
    TSR_OP_USER,    /* emitted by a user's hook */
    TSR_OP_GENERIC, /* described by what it costs; dims: rows, columns of the input */
    TSR_N_OP_KINDS
};

enum { TSR_MAX_DIMS = 6 };

/* Who launches a kernel: the eager dispatcher, or compiled code; the first one of each call of such
 * code also stands for the call. */
enum tsr_compiled { TSR_COMPILED_NOT, TSR_COMPILED, TSR_COMPILED_FIRST };

/* What a kernel does. flops: executed. model_flops: counted for MFU; 0 for recomputation and for
 * everything that is not a matrix product, attention or generic; a causal attention counts in full
 * there (PaLM, arXiv 2204.02311, appendix B), while `flops` has the half that is computed. */
struct tsr_work {
    uint8_t op;     /* enum tsr_op_kind */
    uint8_t dtype;  /* of the arithmetic */
    uint8_t causal; /* attention only */
    uint8_t recompute;
    uint8_t compiled; /* enum tsr_compiled */
    const char *name; /* "mm", "rms_norm", ...; static or owned by the engine */
    double flops, model_flops;
    uint64_t bytes_read, bytes_written;
    uint64_t dims[TSR_MAX_DIMS];
    double constants[2];  /* of the kernel: an epsilon, a factor */
    uint32_t n_args;      /* more integers, of kernels over lists of tensors */
    const uint64_t *args; /* owner as that of operands */
};

/* What a HOST_OP "report" reports (KERNELS.md). */
enum tsr_report { TSR_REPORT_LOSS, TSR_REPORT_GRAD_NORM };

/* How init_param makes values (KERNELS.md): all alike, normal around 0, even in [-c, c]. */
enum tsr_init_kind { TSR_INIT_CONSTANT, TSR_INIT_NORMAL, TSR_INIT_UNIFORM };

#define TSR_NO_ID UINT32_MAX

/* A range of a buffer that an instruction reads or writes, and what lies in it. Together with
 * tsr_work it says all that a kernel needs (engine/ops/KERNELS.md). */
struct tsr_operand {
    uint32_t buffer; /* id, unique in a run; see tsr_program_hash() for the canonical numbering */
    uint8_t access;  /* enum tsr_access; scratch is WRITE */
    uint8_t space;   /* enum tsr_space */
    uint8_t dtype;   /* of the elements; NONE: bytes */
    uint8_t slot;    /* which argument of the kernel; several operands of one slot are a list */
    uint64_t offset, bytes;
    /* Rows of `width` bytes that begin `pitch` bytes apart; both 0: contiguous. pitch < width: a
     * row has only `pitch` bytes, which repeat. */
    uint32_t width, pitch;
};

/* Where an instruction comes from. module and group index tsr_tables; TSR_NO_ID if none. */
struct tsr_origin {
    uint32_t module, group;
    uint16_t iteration, micro;
    uint8_t phase; /* enum tsr_phase */
    uint8_t hook;  /* enum tsr_hook */
    uint8_t recompute;
};

/* The hook of the engine that issued an instruction. */
enum tsr_hook {
    TSR_HOOK_NONE,
    TSR_HOOK_PRE_FORWARD,
    TSR_HOOK_POST_FORWARD,
    TSR_HOOK_PRE_BACKWARD,
    TSR_HOOK_POST_BACKWARD,
    TSR_HOOK_FINAL_CALLBACK,
    TSR_HOOK_USER,
    TSR_N_HOOKS
};

/* What changes from one iteration to the next without being another program. An instruction with
 * `scalar` set reads the executor's table of them as it is when the instruction is submitted. */
enum tsr_scalar {
    TSR_SCALAR_LR,
    TSR_SCALAR_BETA1,
    TSR_SCALAR_BETA2,
    TSR_SCALAR_EPS,
    TSR_SCALAR_WEIGHT_DECAY,
    TSR_SCALAR_MOMENTUM,
    TSR_SCALAR_STEP, /* of the optimizer: 1, 2, ... */
    TSR_SCALAR_MAX_NORM,
    TSR_SCALAR_DAMPENING, /* of momentum: new gradients count 1 less it */
    TSR_N_SCALARS
};

/* One instruction: which fields count is said by its kind.
 *
 * Invariant, of all that one engine emits: operands of a device buffer come between its ALLOC and
 * its FREE, an event is recorded before it is waited for, GROUP_BEGIN and GROUP_END come in pairs.
 */
struct tsr_instr {
    uint8_t kind;      /* enum tsr_instr_kind */
    uint8_t dtype;     /* collectives, copies */
    uint8_t reduce_op; /* enum tsr_reduce_op */
    uint8_t category;  /* ALLOC, FREE: enum tsr_category */
    uint8_t mark;      /* MARK: enum tsr_mark */
    uint8_t space;     /* HOST_ALLOC, HOST_FREE, PIN: enum tsr_space */
    uint8_t scalar;    /* 1: reads the table of enum tsr_scalar; 0: does not */
    uint16_t stream;   /* index into tsr_tables.streams */
    uint16_t comm;     /* collectives: index into tsr_tables.comms; UINT16_MAX: none */
    uint16_t peer;     /* SEND, RECV */
    uint32_t event;    /* RECORD, WAIT, HOST_WAIT */
    uint32_t buffer;   /* ALLOC, FREE, HOST_ALLOC, HOST_FREE */
    uint32_t segment;  /* SEGMENT_*, ALLOC, FREE. PIN, HOST_ALLOC: the pinned block; 0: pageable */
    uint32_t value;    /* MARK. FREE: 1 if the block was dropped before (TSR_MARK_DROPPED) */
    uint32_t n_operands;
    const struct tsr_operand *operands; /* owner: whoever hands the instruction out */
    const struct tsr_work *work;        /* OP, HOST_OP, COPY, CUSTOM_COLLECTIVE; else NULL */
    uint64_t bytes;       /* ALLOC: requested. Collectives: the big side (all-gather output,
                             reduce-scatter input, all-reduce buffer). COPY, FILL: bytes moved */
    uint64_t block_bytes; /* ALLOC, FREE: what the allocator took */
    uint64_t address;     /* ALLOC, FREE, SEGMENT_*: device address, relative */
    double factor;        /* PREMUL_SUM: multiplier. FILL: the value */
    struct tsr_origin origin;
};

/* A communicator: all groups {base + i*stride, 0 <= i < size} of a row-major mesh dimension. */
struct tsr_comm {
    const char *name; /* "shard", "replicate", "post_forward_2", "world" ... */
    uint32_t size, stride;
    bool separate; /* own wire queue; false: shares the queue of `queue` */
    uint16_t queue;
};
/* Global rank of member i of the group that contains `rank`. */
static inline uint32_t tsr_comm_member(const struct tsr_comm *comm, uint32_t rank, uint32_t i)
{
    uint32_t mine = rank / comm->stride % comm->size;
    return rank - mine * comm->stride + i * comm->stride;
}
/* Index of `rank` in its group. */
static inline uint32_t tsr_comm_index(const struct tsr_comm *comm, uint32_t rank)
{
    return rank / comm->stride % comm->size;
}

enum tsr_stream_role {
    TSR_ROLE_COMPUTE,
    TSR_ROLE_COPY_IN,
    TSR_ROLE_ALL_GATHER,
    TSR_ROLE_REDUCE_SCATTER,
    TSR_ROLE_ALL_REDUCE,
    TSR_ROLE_USER,
    TSR_ROLE_COPY_OUT
};
struct tsr_stream_info {
    const char *name; /* golden names: default, copy_in, all_gather, reduce_scatter, all_reduce,
                         user; and tensor_parallel, save */
    uint8_t role;
    int8_t priority; /* -1 high, 0 default */
};

/* Names and communicators that instructions refer to by index. Owned by the engine; grows during
 * emission and never shrinks. */
struct tsr_tables {
    uint32_t world, rank;
    uint32_t n_modules, n_groups;
    uint16_t n_streams, n_comms;
    const char *const *modules; /* FQNs; root "" */
    const char *const *groups;  /* group names */
    const struct tsr_stream_info *streams;
    const struct tsr_comm *comms;
};

/* The recorded instructions of one iteration of one rank. Owns instructions, operands and works;
 * borrows `tables` (and the strings in works) from the engine that emitted it. */
struct tsr_program {
    size_t n_instrs;
    struct tsr_instr *instrs;
    const struct tsr_tables *tables;
    int iteration;
    struct tsr_arena arena; /* operands and works */
    size_t cap;
};

/* An empty program; `tables` may be NULL and set later. */
void tsr_program_init(struct tsr_program *program, const struct tsr_tables *tables);
void tsr_program_fini(struct tsr_program *program);
/* Appends a deep copy of `instr`. Errors: TSR_ENOMEM. */
tsr_status tsr_program_append(struct tsr_program *program,
                              const struct tsr_instr *instr) TSR_MUST_USE;

/* Program hash: kind, stream, operands (buffers numbered by first appearance), communicator, bytes,
 * dtype, work of every instruction; no addresses, no scalars, no iteration number. Two ranks, or
 * two iterations, with equal hashes do the same. */
uint64_t tsr_program_hash(const struct tsr_program *program);
/* Hash of the addresses that ALLOC hands out, in order: equal program and offset hashes mean that
 * an iteration can be replayed as a captured graph. */
uint64_t tsr_program_offsets_hash(const struct tsr_program *program);

/* Executed hash. The expected one comes from the program; an executor builds its own from the
 * arguments that it really handed to its back end, in order of completion on each stream
 * (tsr_exec_record_done()). They are equal iff every stream did exactly the program's work in
 * order. MARK, ALLOC, FREE, SEGMENT_*, HOST_ALLOC, HOST_FREE and PIN are not device work and are
 * left out. */
struct tsr_exec_hash {
    uint64_t stream[64]; /* one running hash per stream */
    uint64_t host;       /* HOST_WAIT, HOST_READ, HOST_OP in host order */
};
/* What an executor says about one finished piece of work. */
struct tsr_exec_record {
    uint8_t kind, dtype, reduce_op, op;
    uint16_t stream, comm;
    uint64_t bytes;
    double flops;
    uint64_t operands; /* tsr_operands_hash() of what was passed */
};
void tsr_exec_hash_init(struct tsr_exec_hash *hash);
/* Takes in one finished piece of work, in order of completion on its stream. */
void tsr_exec_record_done(struct tsr_exec_hash *hash, const struct tsr_exec_record *record);
/* All streams and the host as one number. */
uint64_t tsr_exec_hash_value(const struct tsr_exec_hash *hash);
/* Of all fields of n operands, buffer ids as they are. */
uint64_t tsr_operands_hash(const struct tsr_operand *operands, uint32_t n);
/* True for the kinds that the executed hash covers. */
bool tsr_instr_is_work(const struct tsr_instr *instr);
/* What `instr` is when it was done as it stands there. */
struct tsr_exec_record tsr_exec_record_of(const struct tsr_instr *instr);
/* The executed hash if all of the program is done. */
uint64_t tsr_program_expected_exec_hash(const struct tsr_program *program);

/* Names for dumps, traces and CSV files. Never NULL. */
const char *tsr_instr_kind_name(int kind);
const char *tsr_op_kind_name(int op);
const char *tsr_category_name(int category); /* "Sharded Param", ... */
const char *tsr_phase_name(int phase);
const char *tsr_hook_name(int hook);
const char *tsr_mark_name(int mark);
const char *tsr_reduce_op_name(int op);

/* One line per instruction, stable text for people and diffs; through `write` (user, text). */
void tsr_program_dump(const struct tsr_program *program,
                      void (*write)(void *user, const char *text), void *user);

#endif
