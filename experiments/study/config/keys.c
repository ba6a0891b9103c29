/* keys.c: the table of keys. Adding a key is adding a row here and a field in settings.h. */
#include <stddef.h>
#include <string.h>

#include "experiments/study/config/changes.h"
#include "experiments/study/config/section.h"
#include "experiments/study/config/settings.h"

#define AT(field)  offsetof(struct tsr_settings, field)
#define SIZE_MAX_D 1048576.0 /* of a size that a user gives: 2^20 */

static const char *const word_all[] = {"all", NULL};

/* Which APIs read a key. The strategy of another one may not give it (job/job.h). */
enum {
    FSDP2 = 1 << TSR_API_FULLY_SHARD,
    REPLICATE = 1 << TSR_API_REPLICATE,
    DDP = 1 << TSR_API_DDP,
    FSDP1 = 1 << TSR_API_FSDP1,
    HOOKS = FSDP2 | REPLICATE, /* the two that have FSDP2's hooks */
    SHARD = FSDP2 | FSDP1,
    GROUPS = FSDP2 | REPLICATE | FSDP1,
    NOT_FSDP1 = FSDP2 | REPLICATE | DDP,
    ALL = GROUPS | DDP
};

/* What another value changes beside speed. Keys of the software are left out of sim.*: a user may
 * choose them freely. */
enum { NUMBERS = TSR_CHANGES_NUMBERS, HARDWARE = TSR_CHANGES_HARDWARE };

/* clang-format off */
const struct tsr_key tsr_keys[] = {
    /* What is trained, and on what. */
    {"stack", TSR_KEY_STRING, AT(stack), "null", 0, 0, 0, NULL,
     "name of a file of stacks/ (torchtitan-2024-12), or a path: the defaults of the keys that it "
     "has, as a training stack sets them", ALL, 0},
    {"model.name", TSR_KEY_STRING, AT(model), "null", 0, 0, 0, NULL,
     "name of a file of models/ (llama-3.1-8b), or the path of a Hugging Face model: its folder or "
     "its config.json", ALL, NUMBERS},
    {"model.tree", TSR_KEY_TREE, AT(model_tree), "null", 0, 0, 0, NULL,
     "an own model as a module tree (instead of model.name): the path of its file, or its keys", ALL, NUMBERS},
    {"model.trace", TSR_KEY_STRING, AT(model_trace), "null", 0, 0, 0, NULL,
     "a model traced in PyTorch (instead of model.name): the file of `python -m tessera trace`", ALL, NUMBERS},
    {"model.variant", TSR_KEY_STRING, AT(model_variant), "null", 0, 0, 0, NULL,
     "the variant of the trace by its name; null: the one that batch, seq and checkpoint mean", ALL, 0},
    {"model.blocks", TSR_KEY_STRING, AT(model_blocks), "null", 0, 0, 0, NULL,
     "pattern of the repeated blocks; null: the layers of the family, or of a tree's longest list", ALL, 0},
    {"model.layers", TSR_KEY_UINT, AT(model_layers), "null", 1, 100000, 0, NULL,
     "layers of the model, the rest of it unchanged; null: as in its file (not of own trees)", ALL, NUMBERS},
    {"model.positions", TSR_KEY_UINT, AT(model_positions), "null", 1, 1073741824, 0, NULL,
     "length of the table of learned positions (GPT-2, MPT); null: as in the model's file", ALL, NUMBERS},
    {"model.implementation", TSR_KEY_ENUM, AT(model_impl), "plain", 0, 0, 0, tsr_words_impl,
     "whose forward: modules as in torchtitan or nanoGPT, or those of transformers (Llama, GPT-2)", ALL, 0},
    {"model.names", TSR_KEY_ENUM, AT(model_names), "hf", 0, 0, 0, tsr_words_names,
     "module names and parameter order: model.layers.*, or torchtitan's layers.* (GPT-2: h.*)", ALL, 0},
    {"model.norm", TSR_KEY_ENUM, AT(model_norm), "kernel", 0, 0, 0, tsr_words_norm,
     "RMSNorm as one kernel, or by hand of elementary operations (transformers': always by hand)", ALL, 0},
    {"model.packed", TSR_KEY_BOOL, AT(model_packed), "false", 0, 0, 0, NULL,
     "transformers finds sequences packed and builds an attention mask", ALL, 0},
    {"model.weights", TSR_KEY_STRING, AT(run.weights), "null", 0, 0, 0, NULL,
     "run: .safetensors file, index or folder of Hugging Face to begin with; null: random values", ALL, 0},
    {"cluster.name", TSR_KEY_STRING, AT(cluster), "null", 0, 0, 0, NULL,
     "name (dgx-h100-1) or path of a cluster or node file of clusters/, or an .xml file: NCCL's "
     "topology of a node, or a SimGrid platform; null: the keys below describe the cluster", ALL, HARDWARE},
    {"cluster.nodes", TSR_KEY_UINT, AT(own.nodes), "null", 1, SIZE_MAX_D, 0, NULL,
     "nodes; null: as the file says, without one 1", ALL, HARDWARE},
    {"cluster.gpus", TSR_KEY_UINT, AT(own.gpus), "null", 1, 1024, 0, NULL,
     "GPUs of a node; null: as the file says, without one it has to be given", ALL, HARDWARE},
    {"cluster.gpu", TSR_KEY_STRING, AT(own.gpu), "null", 0, 0, 0, NULL,
     "name of a device file of clusters/ (h200-sxm), or its path; null: as the file says", ALL, HARDWARE},
    {"cluster.nvlink", TSR_KEY_ENUM, AT(own.nvlink), "default", 0, 0, 0, tsr_words_nvlink,
     "how GPUs of a node are joined; none: PCIe; default: as the file says, without one as the "
     "reference node of the card", ALL, HARDWARE},
    {"cluster.nics", TSR_KEY_UINT, AT(own.nics), "null", 1, 1024, 0, NULL,
     "adapters of a node; null: as the file says, without one in proportion to the reference node", ALL, HARDWARE},
    {"cluster.nic_gbit", TSR_KEY_DOUBLE, AT(own.nic_gbit), "null", 0.1, 100000, 0, NULL,
     "nominal rate of an adapter and direction, Gbit/s; null: as the file, or the reference node", ALL, HARDWARE},
    {"cluster.oversubscription", TSR_KEY_DOUBLE, AT(own.oversubscription), "null", 1, 10000, 0, NULL,
     "how much less goes up from a group of nodes than their adapters carry; null: as the file "
     "says, without one 1", ALL, HARDWARE},
    {"cluster.leaf_nodes", TSR_KEY_UINT, AT(own.leaf_nodes), "null", 1, SIZE_MAX_D, 0, NULL,
     "nodes of such a group, which reach each other unhindered; null: 1", ALL, HARDWARE},
    {"nodes", TSR_KEY_UINT, AT(nodes), "null", 1, SIZE_MAX_D, 0, NULL,
     "nodes of the cluster; null: as its file says (NCCL's topology: one)", ALL, HARDWARE},
    {"gpu", TSR_KEY_STRING, AT(gpu), "null", 0, 0, 0, NULL,
     "name (h100-sxm5-80g) or path of the device file of the cards; null: as the cluster says", ALL, HARDWARE},
    {"gpus_per_node", TSR_KEY_UINT, AT(gpus_per_node), "null", 1, 1024, 0, NULL,
     "with a SimGrid platform: GPUs of each host; null: one", ALL, HARDWARE},
    {"world", TSR_KEY_UINT, AT(world), "all", 1, SIZE_MAX_D, 0, word_all,
     "GPUs that take part, the first ones of the cluster; all: every GPU, or the mesh's product", ALL, 0},
    {"mesh.shape", TSR_KEY_SHAPE, AT(mesh), "null", 1, SIZE_MAX_D, 0, NULL,
     "device mesh [shard] or [replicate, shard]; null: one dimension over the world", SHARD, 0},
    {"mesh.replicate", TSR_KEY_UINT, AT(mesh_replicate), "null", 1, SIZE_MAX_D, 0, NULL,
     "copies of the parameters; > 1 with sharding is HSDP (instead of mesh.shape)", SHARD, 0},
    {"mesh.shard", TSR_KEY_UINT, AT(mesh_shard), "null", 1, SIZE_MAX_D, 0, NULL,
     "ranks over which parameters are cut (instead of mesh.shape)", SHARD, 0},

    /* The step. */
    {"batch", TSR_KEY_UINT, AT(batch), "1", 1, SIZE_MAX_D, 0, NULL,
     "sequences per rank and micro-batch", ALL, 0},
    {"seq", TSR_KEY_UINT, AT(seq), "1024", 1, 16777216, 0, NULL, "tokens per sequence", ALL, NUMBERS},
    {"accumulation.steps", TSR_KEY_UINT, AT(accum_steps), "1", 1, 64, 0, NULL,
     "micro-batches per iteration", ALL, 0},
    {"accumulation.mode", TSR_KEY_ENUM, AT(accum_mode), "reduce_each", 0, 0, 0, tsr_words_accum,
     "what micro-batches before the last do with gradients and parameters", ALL, 0},
    {"iterations", TSR_KEY_UINT, AT(iterations), "3", 3, 64, 0, NULL,
     "iterations simulated at least; more follow until two are alike", ALL, 0},

    /* What a run does besides its steps. */
    {"phases", TSR_KEY_LIST, AT(phases), "null", 0, 0, 0, tsr_words_sections,
     "parts of the run that are emitted and whose memory is shown in one curve; null: steps only", ALL, 0},
    {"init", TSR_KEY_ENUM, AT(init), "meta", 0, 0, 0, tsr_words_init,
     "where parameters are built before they are sharded; device: the full model on each GPU", NOT_FSDP1, 0},
    {"load", TSR_KEY_ENUM, AT(load), "sharded", 0, 0, 0, tsr_words_load,
     "phase load: each rank reads its shards, or rank 0 broadcasts full tensors", ALL, 0},
    {"load_optimizer", TSR_KEY_BOOL, AT(load_optimizer), "true", 0, 0, 0, NULL,
     "phase load: optimizer states, too (a run is resumed)", ALL, 0},
    {"save", TSR_KEY_ENUM, AT(save), "sharded", 0, 0, 0, tsr_words_save,
     "phase save: shards, copied and written before the next step or beside it (async; run, too), or "
     "full tensors gathered for rank 0's host or on every device", ALL, 0},

    /* Numbers. */
    {"precision.master", TSR_KEY_ENUM, AT(master), "f32", 0, 0, 0, tsr_words_real,
     "dtype in which parameters, gradients and optimizer state are kept; f64: with param and reduce none, "
     "everything is in f64 (a reference for the other dtypes; executed on the host only)", ALL, NUMBERS},
    {"precision.param", TSR_KEY_ENUM, AT(param), "bf16", 0, 0, 0, tsr_words_dtype,
     "dtype of computation and of gathered parameters; none: as kept", ALL, NUMBERS},
    {"precision.reduce", TSR_KEY_ENUM, AT(reduce), "f32", 0, 0, 0, tsr_words_dtype,
     "dtype of gradient reduction; none: that of the gradients", ALL, NUMBERS},
    {"precision.linear", TSR_KEY_ENUM, AT(linear), "plain", 0, 0, 0, tsr_words_linear,
     "products of the blocks' linear layers: in precision.param, or in fp8: scaled tensorwise "
     "(torchao; dialect: compile) or by delayed scales (TransformerEngine)", ALL, NUMBERS},
    {"precision.fp8_gather", TSR_KEY_BOOL, AT(fp8_gather), "false", 0, 0, 0, NULL,
     "with precision.linear: fp8_tensorwise, fully_shard: these layers' weights travel in fp8", FSDP2, NUMBERS},
    {"precision.output", TSR_KEY_ENUM, AT(output), "none", 0, 0, 0, tsr_words_dtype,
     "dtype to which outputs of wrapped modules are cast", HOOKS, NUMBERS},
    {"precision.cast_inputs", TSR_KEY_BOOL, AT(cast_inputs), "true", 0, 0, 0, NULL,
     "cast inputs of wrapped modules to precision.param", ALL, NUMBERS},
    {"optimizer.name", TSR_KEY_ENUM, AT(optimizer), "adamw", 0, 0, 0, tsr_words_optimizer,
     "optimizer", ALL, NUMBERS},
    {"optimizer.variant", TSR_KEY_ENUM, AT(variant), "foreach", 0, 0, 0, tsr_words_variant,
     "implementation: multi-tensor, one fused kernel, a loop over parameters; of adamw also composer's "
     "(decoupled), which since 2023-06 reads each step number from the device (decoupled_read)", ALL, 0},
    {"optimizer.state", TSR_KEY_ENUM, AT(state_dtype), "master", 0, 0, 0, tsr_words_state,
     "dtype in which moments are kept; master: that of precision.master", ALL, NUMBERS},
    {"optimizer.momentum", TSR_KEY_BOOL, AT(momentum), "true", 0, 0, 0, NULL,
     "sgd keeps a momentum buffer", ALL, NUMBERS},
    {"optimizer.nesterov", TSR_KEY_BOOL, AT(nesterov), "false", 0, 0, 0, NULL,
     "sgd with momentum: Nesterov's", ALL, NUMBERS},
    {"optimizer.maximize", TSR_KEY_BOOL, AT(maximize), "false", 0, 0, 0, NULL,
     "steps go against the gradient", ALL, NUMBERS},
    {"optimizer.amsgrad", TSR_KEY_BOOL, AT(amsgrad), "false", 0, 0, 0, NULL,
     "adamw divides by the largest second moment so far, a third state of each parameter", ALL, NUMBERS},
    {"clip", TSR_KEY_BOOL, AT(clip), "false", 0, 0, 0, NULL,
     "clip gradients by their global norm before the optimizer", ALL, NUMBERS},
    {"clip_variant", TSR_KEY_ENUM, AT(clip_how), "foreach", 0, 0, 0, tsr_words_clip,
     "kernels over all gradients, or FSDP1's: a norm and a product for each; up to torch 2.1 the host "
     "waits in it (loop_read)", ALL, 0},
    {"loss.kernel", TSR_KEY_ENUM, AT(loss_kernel), "eager", 0, 0, 0, tsr_words_loss,
     "cross-entropy of eager PyTorch, or flash-attn's, whose backward may be in place", ALL, 0},
    {"loss.metrics", TSR_KEY_UINT, AT(metrics), "0", 0, TSR_MAX_METRICS, 0, NULL,
     "cross-entropies over the logits after each micro-batch's backward (composer: 2)", ALL, 0},
    {"loss.read", TSR_KEY_BOOL, AT(reads_loss), "false", 0, 0, 0, NULL,
     "the host reads the loss after every step, as a logger does, and so ends its run-ahead", ALL, 0},
    {"loss.chunks", TSR_KEY_UINT, AT(loss_chunks), "1", 1, SIZE_MAX_D, 0, NULL,
     "> 1: head, loss and their gradients in so many chunks of tokens: logits of one at a time", ALL, 0},
    {"sync_each_step", TSR_KEY_ENUM, AT(sync), "none", 0, 0, 0, tsr_words_sync,
     "the host stops: to read each micro-batch's loss before backward, or at the end of the step "
     "until the device is done", ALL, 0},
    {"checkpoint.every", TSR_KEY_CHECKPOINT, AT(ckpt_every), "none", 0, SIZE_MAX_D, 0,
     tsr_words_ckpt,
     "activation checkpointing of every k-th block; full: each block; selective_op: each, with "
     "attention and every second matrix product kept", ALL, 0},
    {"checkpoint.first", TSR_KEY_UINT, AT(ckpt_first), "null", 1, SIZE_MAX_D, 0, NULL,
     "the first block that is checkpointed, from 1; null: the k-th", ALL, 0},
    {"checkpoint.count", TSR_KEY_UINT, AT(ckpt_count), "null", 1, SIZE_MAX_D, 0, NULL,
     "how many blocks are checkpointed, from checkpoint.first on; null: all that `every` says", ALL, 0},
    {"checkpoint.share", TSR_KEY_DOUBLE, AT(ckpt_share), "1", 0, 1, 0, NULL,
     "this share of the blocks, evenly spread as fms-fsdp does it (0.5, 0.3333); 1: each", ALL, 0},
    {"checkpoint.hooks", TSR_KEY_ENUM, AT(ckpt_hooks), "inside", 0, 0, 0, tsr_words_hooks,
     "inside: sharding hooks stay outside of the recomputation; outside: they run again in it", HOOKS, 0},
    {"checkpoint.early_stop", TSR_KEY_BOOL, AT(ckpt_early_stop), "true", 0, 0, 0, NULL,
     "recomputation ends with the last tensor that is needed", ALL, 0},
    {"attention", TSR_KEY_ENUM, AT(attention), "flash", 0, 0, 0, tsr_words_attention,
     "attention kernel", ALL, 0},
    {"attention_unpad", TSR_KEY_BOOL, AT(attention_unpad), "false", 0, 0, 0, NULL,
     "MPT: padding is taken away around attention, as flash-attn's variable-length form needs it", ALL, 0},
    {"gqa_repeat", TSR_KEY_BOOL, AT(gqa_repeat), "false", 0, 0, 0, NULL,
     "repeat key and value heads in memory before attention", ALL, 0},
    {"dialect", TSR_KEY_ENUM, AT(dialect), "eager", 0, 0, 0, tsr_words_dialect,
     "kernels of plain modules: those of eager PyTorch; fused ones (norms with sums, SwiGLU, "
     "rotation and loss in place); or compile: compile.components by torch.compile, simulated only", ALL, 0},
    {"compile.components", TSR_KEY_LIST, AT(compile_parts), "[model]", 0, 0, 0, tsr_words_compiled,
     "what dialect: compile compiles, as in torchtitan: model: each block; loss: the cross-entropy, which "
     "then has nothing in fp32 of the logits' size", ALL, 0},
    {"tp", TSR_KEY_UINT, AT(tp), "1", 1, 1024, 0, NULL,
     "tensor-parallel ranks, side by side; the mesh is made of the rest (Llama family, head not tied)", HOOKS, 0},
    {"sequence_parallel", TSR_KEY_BOOL, AT(sequence_parallel), "true", 0, 0, 0, NULL,
     "with tp: activations between the cut regions are divided along the sequence", HOOKS, 0},

    /* The strategy. */
    {"description", TSR_KEY_STRING, AT(description), "null", 0, 0, 0, NULL,
     "words for tables and people", ALL, 0},
    {"api", TSR_KEY_ENUM, AT(api), "fully_shard", 0, 0, 0, tsr_words_api,
     "fully_shard (FSDP2), replicate on its machinery, bucketed ddp, or fsdp1 (flat parameters)", ALL, 0},
    {"two_level_gather", TSR_KEY_BOOL, AT(two_level_gather), "false", 0, 0, 0, NULL,
     "all-gather by SEND and RECV: between nodes first, then inside them", FSDP2, 0},
    {"separate_reduce_scatter_group", TSR_KEY_BOOL, AT(separate_reduce), "false", 0, 0, 0, NULL,
     "reduce-scatters have a communicator of their own: they run beside all-gathers", FSDP2, 0},
    {"mirror", TSR_KEY_BOOL, AT(mirror), "false", 0, 0, 0, NULL,
     "beyond PyTorch: shards are kept in precision.param as well; nothing is cast before gathers, "
     "nothing is copied where one rank has all", HOOKS, 0},
    {"direct_gather", TSR_KEY_BOOL, AT(direct_gather), "false", 0, 0, 0, NULL,
     "beyond PyTorch: parameters are gathered into their places, a group in one launch: no copies", FSDP2, 0},
    {"folded_scale", TSR_KEY_BOOL, AT(folded_scale), "false", 0, 0, 0, NULL,
     "beyond PyTorch: gradients stay sums; fused AdamW divides and clips them as it reads them", HOOKS, 0},
    {"wrap", TSR_KEY_WRAP, AT(wrap), "block", 0, 0, 0, tsr_words_wrap,
     "what forms groups; a list has {modules: [PATTERN], group: BOOL, reshard_after_forward: V}", GROUPS, 0},
    {"reshard_after_forward", TSR_KEY_RESHARD, AT(reshard), "null", 0, 0, 0, NULL,
     "null: true except for the root; an integer: reshard to groups of that many ranks", SHARD, 0},
    {"reshard_after_backward", TSR_KEY_BOOL, AT(reshard_after_backward), "true", 0, 0, 0, NULL,
     "free gathered parameters after backward", HOOKS, 0},
    {"forward_prefetch", TSR_KEY_UINT, AT(forward_prefetch), "0", 0, 1024, 0, NULL,
     "groups gathered ahead in forward; 0: as far as the host runs ahead", HOOKS, 0},
    {"backward_prefetch", TSR_KEY_UINT, AT(backward_prefetch), "0", 0, 1024, 0, NULL,
     "groups gathered ahead in backward; 0: the default, one", FSDP2, 0},
    {"offload", TSR_KEY_ENUM, AT(offload), "none", 0, 0, 0, tsr_words_offload,
     "keep shards and gradients in host memory", HOOKS, 0},
    {"ddp.bucket_cap_mb", TSR_KEY_DOUBLE, AT(ddp_bucket_mb), "0", 0, SIZE_MAX_D, 0, NULL,
     "MiB per bucket; 0: PyTorch's default, 25 with a first bucket of 1", DDP, 0},
    {"ddp.find_unused", TSR_KEY_BOOL, AT(ddp_find_unused), "false", 0, 0, 0, NULL,
     "find_unused_parameters", DDP, 0},
    {"ddp.static_graph", TSR_KEY_BOOL, AT(ddp_static_graph), "false", 0, 0, 0, NULL,
     "static_graph", DDP, 0},
    {"ddp.gradient_as_bucket_view", TSR_KEY_BOOL, AT(ddp_view), "false", 0, 0, 0, NULL,
     "gradients are views of the buckets", DDP, 0},
    {"fsdp1.backward_prefetch", TSR_KEY_ENUM, AT(fsdp1_backward_prefetch), "pre", 0, 0, 0,
     tsr_words_fsdp1_prefetch,
     "the next all-gather of backward: when a module's backward begins, when its gradients are "
     "there (post), or when it is needed (none)", FSDP1, 0},
    {"fsdp1.forward_prefetch", TSR_KEY_BOOL, AT(fsdp1_forward_prefetch), "false", 0, 0, 0, NULL,
     "gather the next module's parameters before the current forward, in recorded order", FSDP1, 0},
    {"fsdp1.limit_all_gathers", TSR_KEY_BOOL, AT(fsdp1_limit_all_gathers), "true", 0, 0, 0, NULL,
     "the rate limiter: the host waits where more than two all-gathers would be in flight", FSDP1, 0},

    /* Training (tessera run). */
    {"data.train", TSR_KEY_STRING, AT(run.train), "null", 0, 0, 0, NULL,
     "run: token files (llm.c's .bin), separated by commas; null: random tokens", ALL, 0},
    {"data.val", TSR_KEY_STRING, AT(run.val), "null", 0, 0, 0, NULL,
     "run: token files to evaluate on", ALL, 0},
    {"data.order", TSR_KEY_ENUM, AT(run.order), "shuffled", 0, 0, 0, tsr_words_order,
     "run: a permutation of all samples that train.seed chooses, or the order of the files", ALL, 0},
    {"data.host_gib", TSR_KEY_DOUBLE, AT(data_host_gib), "0", 0, 1e6, 0, NULL,
     "memory of each node's host that the dataset holds (GiB): loaders' workers, the batches that "
     "they prefetch, copies in memory", ALL, 0},
    {"train.steps", TSR_KEY_UINT, AT(run.steps), "100", 1, 1e12, 0, NULL,
     "run: optimizer steps", ALL, 0},
    {"train.seed", TSR_KEY_UINT, AT(run.seed), "0", 0, 9e15, 0, NULL,
     "run: of initial values and of the order of samples", ALL, 0},
    {"train.lr", TSR_KEY_DOUBLE, AT(run.lr), "0.0003", 0, 1e6, 0, NULL,
     "run: the highest learning rate", ALL, 0},
    {"train.schedule", TSR_KEY_ENUM, AT(run.schedule), "cosine", 0, 0, 0, tsr_words_schedule,
     "run: how the learning rate goes on after the warm-up", ALL, 0},
    {"train.warmup", TSR_KEY_UINT, AT(run.warmup), "0", 0, 1e12, 0, NULL,
     "run: steps in which the learning rate grows", ALL, 0},
    {"train.min_lr", TSR_KEY_DOUBLE, AT(run.min_lr), "0.1", 0, 1, 0, NULL,
     "run: where the learning rate ends, as a share of train.lr", ALL, 0},
    {"train.weight_decay", TSR_KEY_DOUBLE, AT(run.weight_decay), "0.1", 0, 1e6, 0, NULL,
     "run: weight decay (adamw: decoupled; sgd: added to gradients, so that 0 saves memory)", ALL, 0},
    {"train.decay", TSR_KEY_ENUM, AT(run.decay), "matrices", 0, 0, 0, tsr_words_decay,
     "run: what decays: all parameters, or those of two dimensions and more", ALL, 0},
    {"train.beta1", TSR_KEY_DOUBLE, AT(run.beta1), "0.9", 0, 0.999999, 0, NULL, "run: of adamw", ALL, 0},
    {"train.beta2", TSR_KEY_DOUBLE, AT(run.beta2), "0.95", 0, 0.999999, 0, NULL, "run: of adamw", ALL, 0},
    {"train.eps", TSR_KEY_DOUBLE, AT(run.eps), "1e-8", 0, 1, 0, NULL, "run: of adamw", ALL, 0},
    {"train.momentum", TSR_KEY_DOUBLE, AT(run.momentum), "0.9", 0, 1, 0, NULL, "run: of sgd", ALL, 0},
    {"train.dampening", TSR_KEY_DOUBLE, AT(run.dampening), "0", 0, 1, 0, NULL,
     "run: of sgd's momentum: new gradients count 1 less it", ALL, 0},
    {"train.max_norm", TSR_KEY_DOUBLE, AT(run.max_norm), "1", 1e-9, 1e12, 0, NULL,
     "run: to which norm gradients are clipped, with clip", ALL, 0},
    {"train.log_every", TSR_KEY_UINT, AT(run.log_every), "1", 1, 1e12, 0, NULL,
     "run: steps from one line of the console and the metrics to the next", ALL, 0},
    {"eval.every", TSR_KEY_UINT, AT(run.eval_every), "0", 0, 1e12, 0, NULL,
     "run: steps from one evaluation to the next, and one at the end; 0: none", ALL, 0},
    {"eval.batches", TSR_KEY_UINT, AT(run.eval_batches), "8", 1, 1e12, 0, NULL,
     "run: batches of an evaluation", ALL, 0},
    {"checkpoints.every", TSR_KEY_UINT, AT(run.save_every), "0", 0, 1e12, 0, NULL,
     "run: steps from one checkpoint to the next; 0: only at the end", ALL, 0},
    {"checkpoints.keep", TSR_KEY_UINT, AT(run.keep), "2", 0, 1e6, 0, NULL,
     "run: complete checkpoints that stay; 0: all", ALL, 0},
    {"checkpoints.last", TSR_KEY_BOOL, AT(run.save_last), "true", 0, 0, 0, NULL,
     "run: a checkpoint at the end, too", ALL, 0},

    /* The device allocator (PyTorch's rules). */
    {"allocator.limit", TSR_KEY_ENUM, AT(alloc_limit), "auto", 0, 0, 0, tsr_words_limit,
     "the allocator has what is visible of the card less its context, libraries and NCCL: auto: it "
     "gives back what it has cached and asks again where it has to, and where that is not enough "
     "has no limit and does not fit; card: it fails there; none: it never has a limit", ALL, 0},
    {"allocator.expandable_segments", TSR_KEY_BOOL, AT(allocator.expandable_segments), "false", 0,
     0, 0, NULL, "expandable_segments:True of PYTORCH_CUDA_ALLOC_CONF", ALL, 0},
    {"allocator.max_split_mb", TSR_KEY_UINT, AT(allocator.max_split_bytes), "0", 0, SIZE_MAX_D,
     1048576, NULL, "max_split_size_mb (MiB); 0: unlimited", ALL, 0},
    {"allocator.roundup_power2_divisions", TSR_KEY_UINT32, AT(allocator.roundup_power2_divisions),
     "0", 0, 64, 0, NULL, "roundup_power2_divisions; 0: off", ALL, 0},
    {"allocator.gc_threshold", TSR_KEY_DOUBLE, AT(allocator.gc_threshold), "0", 0, 0.999999, 0, NULL,
     "garbage_collection_threshold, a share of the card; 0: off", ALL, 0},
    {"allocator.large_segment_mb", TSR_KEY_UINT, AT(allocator.large_segment_bytes), "0", 0,
     SIZE_MAX_D, 1048576, NULL, "size of a large segment (MiB); 0: PyTorch's 20", ALL, 0},

    /* The simulation. */
    {"sim.host_launch_us", TSR_KEY_DOUBLE, AT(sim.host_launch_s), NULL, 0, 1e6, 1e-6, NULL,
     "host time to launch a kernel or copy (microseconds)", ALL, HARDWARE},
    {"sim.host_compiled_us", TSR_KEY_DOUBLE, AT(sim.host_compiled_s), NULL, 0, 1e6, 1e-6, NULL,
     "dialect compile: host time to launch a kernel from compiled code (microseconds)", ALL, HARDWARE},
    {"sim.host_region_us", TSR_KEY_DOUBLE, AT(sim.host_region_s), NULL, 0, 1e6, 1e-6, NULL,
     "dialect compile: host time of a call of a compiled block (microseconds)", ALL, HARDWARE},
    {"sim.host_collective_us", TSR_KEY_DOUBLE, AT(sim.host_collective_s), NULL, 0, 1e6, 1e-6, NULL,
     "host time to launch a collective, with its hook (microseconds)", ALL, HARDWARE},
    {"sim.host_event_us", TSR_KEY_DOUBLE, AT(sim.host_event_s), NULL, 0, 1e6, 1e-6, NULL,
     "host time to record or wait for an event (microseconds)", ALL, HARDWARE},
    {"sim.host_alloc_us", TSR_KEY_DOUBLE, AT(sim.host_alloc_s), NULL, 0, 1e6, 1e-6, NULL,
     "host time of an allocation from the cache, or a free (microseconds)", ALL, HARDWARE},
    {"sim.host_segment_us", TSR_KEY_DOUBLE, AT(sim.host_segment_s), NULL, 0, 1e6, 1e-6, NULL,
     "host time of a call of cudaMalloc or cudaFree (microseconds); on top 0.7 ms per GiB of a "
     "segment that is made, 2 ms that is given back", ALL, HARDWARE},
    {"sim.host_scale", TSR_KEY_DOUBLE, AT(sim.host_scale), NULL, 0, 1e6, 0, NULL,
     "multiplies the host times; 0: an infinitely fast host", ALL, HARDWARE},
    {"sim.queue_depth", TSR_KEY_UINT32, AT(sim.queue_depth), NULL, 0, SIZE_MAX_D, 0, NULL,
     "device instructions that the host may be ahead; 0: unlimited", ALL, HARDWARE},
    {"sim.cuda_device_max_connections", TSR_KEY_UINT32, AT(sim.max_connections), NULL, 0, 32, 0,
     NULL,
     "CUDA_DEVICE_MAX_CONNECTIONS: hardware queues that streams share, in which what is issued "
     "later starts later; 0: each stream has its own", ALL, 0},
    {"sim.latency_scale", TSR_KEY_DOUBLE, AT(sim.latency_scale), NULL, 0, 1e6, 0, NULL,
     "multiplies the latencies of collectives and kernels; 0: none", ALL, HARDWARE},
    {"sim.link_efficiency", TSR_KEY_DOUBLE, AT(sim.link_efficiency), NULL, 0, 1, 0, NULL,
     "reachable share of every link's rate; 0: the calibration of the GPU's file", ALL, HARDWARE},
    {"sim.infinite_bandwidth", TSR_KEY_BOOL, AT(sim.infinite_bandwidth), NULL, 0, 0, 0, NULL,
     "links cost nothing", ALL, HARDWARE},
    {"sim.protocol", TSR_KEY_ENUM, AT(sim.protocol), NULL, 0, 0, 0, tsr_words_protocol,
     "NCCL protocol; auto: as NCCL chooses", ALL, 0},
    {"sim.algorithm", TSR_KEY_ENUM, AT(sim.algorithm), NULL, 0, 0, 0, tsr_words_algorithm,
     "NCCL algorithm where the collective has it; auto: as NCCL chooses", ALL, 0},
    {"sim.fold", TSR_KEY_BOOL, AT(sim.fold), NULL, 0, 0, 0, NULL,
     "simulate one rank per symmetry class", ALL, 0},
    {"sim.nccl_at_init", TSR_KEY_BOOL, AT(sim.nccl_at_init), NULL, 0, 0, 0, NULL,
     "NCCL before 2.22, or NCCL_RUNTIME_CONNECT=0: communicators take all their memory when they "
     "are made, not when an algorithm is first used", ALL, 0},
    {"sim.slow_rank", TSR_KEY_UINT32, AT(sim.slow_rank), NULL, 0, SIZE_MAX_D, 0, NULL,
     "the GPU that sim.slow_factor slows", ALL, HARDWARE},
    {"sim.slow_factor", TSR_KEY_DOUBLE, AT(sim.slow_factor), NULL, 0, 1e6, 0, NULL,
     "kernels of one GPU take this many times as long; 0 or 1: none", ALL, HARDWARE},
    {"sim.attention_kernel", TSR_KEY_ENUM, AT(sim.kernels.attention), NULL, 0, 0, 0,
     tsr_words_attention_kernel,
     "whose attention kernel is timed (what is launched and saved stays that of `attention`); auto: "
     "flash2, and flash1 for attention: efficient", ALL, 0},
    {"sim.norm_kernel", TSR_KEY_ENUM, AT(sim.kernels.norm), NULL, 0, 0, 0, tsr_words_norm_kernel,
     "whose layer and RMS norms are timed; auto: eager, or compiled where they are fused", ALL, 0},
    {"sim.tf32", TSR_KEY_BOOL, AT(sim.kernels.tf32), NULL, 0, 0, 0, NULL,
     "fp32 matrix products run in TF32 (torch.backends.cuda.matmul.allow_tf32)", ALL, NUMBERS},
    {"sim.nic_bw", TSR_KEY_DOUBLE, AT(sim.nic_bw), NULL, 0, 1e15, 0, NULL,
     "bytes/s per network adapter instead of the cluster's; 0: the cluster's", ALL, HARDWARE},
    {"sim.intra_bw", TSR_KEY_DOUBLE, AT(sim.intra_bw), NULL, 0, 1e15, 0, NULL,
     "bytes/s per GPU inside a node instead of the cluster's; 0: the cluster's", ALL, HARDWARE},
    {"sim.faults", TSR_KEY_FAULTS, AT(sim.conditions.faults), "null", 0, 0, 0, NULL,
     "slow GPUs, and links with a share of their rate left (0: dead), both directions", ALL, HARDWARE},
    {"sim.reroute", TSR_KEY_BOOL, AT(sim.conditions.reroute), "false", 0, 0, 0, NULL,
     "bytes of a dead adapter take the next one of its node; false: its collectives fail", ALL, HARDWARE},
    {"sim.traffic", TSR_KEY_TRAFFIC, AT(sim.conditions.traffic), "null", 0, 0, 0, NULL,
     "what others send between the GPUs of two ranks, over and over", ALL, HARDWARE},
    {"sim.background_port", TSR_KEY_DOUBLE, AT(sim.conditions.background[TSR_LINK_PORT]), "0", 0,
     0.99, 0, NULL, "share of each NVLink or PCIe port that others take", ALL, HARDWARE},
    {"sim.background_nic", TSR_KEY_DOUBLE, AT(sim.conditions.background[TSR_LINK_NIC]), "0", 0,
     0.99, 0, NULL, "share of each network adapter that others take", ALL, HARDWARE},
    {"sim.background_uplink", TSR_KEY_DOUBLE, AT(sim.conditions.background[TSR_LINK_UPLINK]), "0",
     0, 0.99, 0, NULL, "share of each uplink between tiers of the network that others take", ALL, HARDWARE},
    {"sim.jitter_kernel", TSR_KEY_DOUBLE, AT(sim.conditions.jitter_kernel), "0", 0, 1, 0, NULL,
     "relative spread of each kernel's time (log-normal, mean 1)", ALL, HARDWARE},
    {"sim.jitter_gpu", TSR_KEY_DOUBLE, AT(sim.conditions.jitter_gpu), "0", 0, 1, 0, NULL,
     "relative spread of the GPUs' speeds, each constant over the run (log-normal, mean 1)", ALL, HARDWARE},
    {"sim.seed", TSR_KEY_UINT, AT(sim.conditions.seed), "1", 0, 9e15, 0, NULL,
     "of the noise", ALL, 0},
    {"sim.samples", TSR_KEY_UINT, AT(samples), "1", 1, 100000, 0, NULL,
     "simulations with noise of the seeds that follow; the table has the step's percentiles", ALL, 0},

    /* Numbers of the device file, given here instead (sim/card/calibration.h). */
    {"sim.calibration.matmul_sustained", TSR_KEY_DOUBLE, AT(calibration[TSR_CAL_MATMUL_SUSTAINED]),
     "null", 0.1, 1.5, 0, NULL, "rate of matrix products in a step over the table's; null: the device file's", ALL, HARDWARE},
    {"sim.calibration.attention_sustained", TSR_KEY_DOUBLE, AT(calibration[TSR_CAL_ATTENTION_SUSTAINED]),
     "null", 0.1, 1.5, 0, NULL, "rate of attention kernels in a step over the table's; null: the device file's",
     ALL, HARDWARE},
    {"sim.calibration.triton_sustained", TSR_KEY_DOUBLE,
     AT(calibration[TSR_CAL_TRITON_SUSTAINED]), "null", 0.1, 2, 0, NULL,
     "rate of the attention kernel flash1_triton in a step over the table's; null: the device file's", ALL, HARDWARE},
    {"sim.calibration.backward_sustained", TSR_KEY_DOUBLE,
     AT(calibration[TSR_CAL_BACKWARD_SUSTAINED]), "null", 0.1, 1.5, 0, NULL,
     "rate of products and attention of backward over forward's; null: the device file's", ALL, HARDWARE},
    {"sim.calibration.memory_sustained", TSR_KEY_DOUBLE, AT(calibration[TSR_CAL_MEMORY_SUSTAINED]),
     "null", 0.1, 1.5, 0, NULL, "bandwidth of memory-bound kernels in a step over the table's; null: the device file's",
     ALL, HARDWARE},
    {"sim.calibration.host_scale", TSR_KEY_DOUBLE, AT(calibration[TSR_CAL_HOST_SCALE]),
     "null", 0, 100, 0, NULL, "multiplies every host cost of this GPU type; null: the device file's", ALL, HARDWARE},
    {"sim.calibration.comm_compute_slowdown", TSR_KEY_DOUBLE, AT(calibration[TSR_CAL_COMM_COMPUTE_SLOWDOWN]),
     "null", 0, 0.9, 0, NULL, "share of speed that kernels lose beside a collective; null: the device file's", ALL, HARDWARE},
    {"sim.calibration.intra_efficiency", TSR_KEY_DOUBLE, AT(calibration[TSR_CAL_INTRA_EFFICIENCY]),
     "null", 0.05, 1, 0, NULL, "reachable share of the link rate inside a node; null: the device file's", ALL, HARDWARE},
    {"sim.calibration.inter_efficiency", TSR_KEY_DOUBLE, AT(calibration[TSR_CAL_INTER_EFFICIENCY]),
     "null", 0.05, 1, 0, NULL, "reachable share of the link rate between nodes; null: the device file's", ALL, HARDWARE},
    {"sim.calibration.straggler_share", TSR_KEY_DOUBLE, AT(calibration[TSR_CAL_STRAGGLER_SHARE]),
     "null", 0, 1, 0, NULL, "extra share of a step per doubling of the nodes; null: the device file's", ALL, HARDWARE},
    {"sim.calibration.step_overhead_s", TSR_KEY_DOUBLE, AT(calibration[TSR_CAL_STEP_OVERHEAD]),
     "null", 0, 10, 0, NULL, "seconds of the host per step outside of the program; null: the device file's", ALL, HARDWARE},
    {"sim.calibration.collective_base_s", TSR_KEY_DOUBLE, AT(calibration[TSR_CAL_COLLECTIVE_BASE]),
     "null", 0, 0.01, 0, NULL, "seconds of every collective beyond NCCL's tuner; null: the device file's", ALL, HARDWARE},
    {"sim.calibration.collective_fill_s", TSR_KEY_DOUBLE, AT(calibration[TSR_CAL_COLLECTIVE_FILL]),
     "null", 0, 0.1, 0, NULL, "seconds until the pipeline of a large collective is full; null: the device file's",
     ALL, HARDWARE},
    {"sim.calibration.collective_own", TSR_KEY_DOUBLE, AT(calibration[TSR_CAL_COLLECTIVE_OWN]),
     "null", 0, 10, 0, NULL, "time of a rank's own bytes over that of bytes on a link; null: the device file's",
     ALL, HARDWARE},

    /* A month of a run that fails now and then. */
    {"goodput.node_mtbf_hours", TSR_KEY_DOUBLE, AT(goodput.node_mtbf_s), "6300", 0.001, 1e9, 3600, NULL,
     "mean time between failures of one node (Llama 3: 419 in 54 days on 2,048 nodes)", ALL, 0},
    {"goodput.checkpoint_minutes", TSR_KEY_DOUBLE, AT(goodput.interval_s), "0", 0, 1e7, 60, NULL,
     "work from one checkpoint to the next; 0: only the best interval is looked for", ALL, 0},
    {"goodput.restart_minutes", TSR_KEY_DOUBLE, AT(goodput.restart_s), "10", 0, 1e6, 60, NULL,
     "from a failure to the loading of the checkpoint: noticing, another node, starting (assumption)", ALL, 0},
    {"goodput.storage_gb_per_s", TSR_KEY_DOUBLE, AT(goodput.storage_bw), "1", 1e-6, 1e6, 1e9, NULL,
     "rate to and from storage per node, GB/s (assumption)", ALL, 0},
    {"goodput.asynchronous", TSR_KEY_BOOL, AT(goodput.asynchronous), "false", 0, 0, 0, NULL,
     "checkpoints are written beside the work, after the copies to the hosts", ALL, 0},
    {"goodput.days", TSR_KEY_DOUBLE, AT(goodput.days), "30", 0.01, 3650, 0, NULL,
     "how long the job runs", ALL, 0},
    {"goodput.runs", TSR_KEY_UINT, AT(goodput.runs), "200", 1, 100000, 0, NULL,
     "simulated runs of that length (seed: sim.seed)", ALL, 0},
};
/* clang-format on */

size_t tsr_n_keys(void)
{
    size_t n = sizeof tsr_keys / sizeof tsr_keys[0];
    TSR_CHECK(n <= TSR_MAX_KEYS);
    return n;
}

size_t tsr_key_find(const char *name)
{
    size_t i = 0, n = tsr_n_keys();
    while (i < n && strcmp(tsr_keys[i].name, name))
        i++;
    return i;
}

bool tsr_key_is_read(const struct tsr_key *key, unsigned api)
{
    return key->reads >> api & 1;
}

bool tsr_name_is_read(const char *name, unsigned api, bool has_world)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < tsr_n_keys(); i++) {
        const char *key = tsr_keys[i].name;
        bool is_it = !strncmp(key, name, n) && (!key[n] || key[n] == '.');
        if (is_it &&
            (tsr_key_is_read(&tsr_keys[i], api) || (!strncmp(key, "mesh.", 5) && !has_world)))
            return true;
    }
    return false;
}

void tsr_key_readers(const struct tsr_key *key, char *out, size_t size)
{
    const char *words[TSR_API_FSDP1 + 2];
    size_t n = 0;
    out[0] = 0;
    if (key->reads == ALL)
        return;
    for (unsigned api = 0; api <= TSR_API_FSDP1; api++)
        if (tsr_key_is_read(key, api))
            words[n++] = tsr_words_api[api];
    words[n] = NULL;
    tsr_join_words(words, out, size);
}

bool tsr_key_is_prefix(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < tsr_n_keys(); i++)
        if (!strncmp(tsr_keys[i].name, name, length) && tsr_keys[i].name[length] == '.')
            return true;
    return false;
}

const char *tsr_key_shorthand(const char *prefix)
{
    static const char *const table[][2] = {{"model", "model.name"},
                                           {"mesh", "mesh.shape"},
                                           {"checkpoint", "checkpoint.every"},
                                           {"cluster", "cluster.name"}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!strcmp(table[i][0], prefix))
            return table[i][1];
    return NULL;
}

bool tsr_key_prefix_resets(const char *prefix)
{
    return !strcmp(prefix, "model") || !strcmp(prefix, "mesh") || !strcmp(prefix, "cluster");
}

/* ---- words of enumerated keys ---------------------------------------------------------------- */

/* Words of enumerated keys, in the order of their enums. An empty word is a value
 * that a key does not offer. */

const char *const tsr_words_accum[] = {"reduce_each", "no_reduce", "no_reduce_no_reshard",
                                       "no_all_reduce", NULL};
const char *const tsr_words_dtype[] = {"none", "f32", "bf16", "f16", NULL};
const char *const tsr_words_real[] = {"", "f32", "bf16", "f16", "f64", NULL};
const char *const tsr_words_optimizer[] = {"adamw", "sgd", "none", NULL};
const char *const tsr_words_variant[] = {"foreach",   "fused",          "loop",
                                         "decoupled", "decoupled_read", NULL};
const char *const tsr_words_clip[] = {"foreach", "loop", "loop_read", NULL};
const char *const tsr_words_loss[] = {"eager", "flash_attn", "flash_attn_inplace", NULL};
const char *const tsr_words_state[] = {"master", "f32", "bf16", NULL};
const char *const tsr_words_impl[] = {"plain", "transformers", NULL};
const char *const tsr_words_names[] = {"hf", "torchtitan", NULL};
const char *const tsr_words_norm[] = {"kernel", "hand", NULL};
const char *const tsr_words_sync[] = {"none", "loss", "step", NULL};
const char *const tsr_words_ckpt[] = {"none", "full", "selective_op", NULL};
const char *const tsr_words_hooks[] = {"inside", "outside", NULL};
const char *const tsr_words_attention[] = {"flash", "efficient", "math", "eager", NULL};
const char *const tsr_words_linear[] = {"plain", "fp8_tensorwise", "fp8_delayed", NULL};
const char *const tsr_words_dialect[] = {"eager", "fused", "compile", NULL};
const char *const tsr_words_compiled[] = {"model", "loss", NULL};
const char *const tsr_words_api[] = {"fully_shard", "replicate", "ddp", "fsdp1", NULL};
const char *const tsr_words_fsdp1_prefetch[] = {"pre", "post", "none", NULL};
const char *const tsr_words_wrap[] = {"block", "block_embed_head", "root", NULL};
const char *const tsr_words_offload[] = {"none", "cpu", "cpu_pinned", NULL};
const char *const tsr_words_sections[] = {TSR_SECTION_WORDS, NULL};
const char *const tsr_words_init[] = {"meta", "device", "host", NULL};
const char *const tsr_words_load[] = {"sharded", "full_rank0", NULL};
const char *const tsr_words_save[] = {"sharded", "full_rank0", "full_device", "sharded_async",
                                      NULL};
const char *const tsr_words_order[] = {"shuffled", "sequential", NULL};
const char *const tsr_words_decay[] = {"all", "matrices", NULL};
const char *const tsr_words_schedule[] = {"constant", "linear", "cosine", NULL};
const char *const tsr_words_limit[] = {"auto", "card", "none", NULL};
const char *const tsr_words_algorithm[] = {"auto",      "ring", "tree",        "nvls",
                                           "nvls_tree", "pat",  "copy_engine", NULL};
const char *const tsr_words_protocol[] = {"auto", "ll", "ll128", "simple", NULL};
const char *const tsr_words_attention_kernel[] = {"auto",   "flash1", "flash1_triton", "flash2",
                                                  "flash3", "cudnn",  "math",          NULL};
const char *const tsr_words_norm_kernel[] = {"auto", "eager", "compiled", "cudnn", NULL};
