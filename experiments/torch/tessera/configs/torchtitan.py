"""torchtitan's `train.toml`."""

from ..errors import Refused
from .common import Config, Sections, gpus, place, shown

# torchtitan's models that are built in.
TORCHTITAN_MODELS = {("llama3", "8B"): "llama-3.1-8b", ("llama3", "70B"): "llama-3.1-70b", ("llama3", "405B"): "llama-3.1-405b"}
DTYPES = {"bfloat16": "bf16", "float32": "none"}
IMPLEMENTATIONS = {"fused": "fused", "foreach": "foreach", "for-loop": "loop"}
RESHARD = {"default": True, "always": True, "never": False}
# What changes neither time nor memory of a step: whole sections, and keys of others.
ELSEWHERE = {"job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "validation", "debug", "fault_tolerance",
             "memory_estimation", "float8", "mx", "quantize"}   # the last three belong to converters, which are refused
IGNORED = {"model": {"tokenizer_path", "hf_assets_path", "print_after_conversion"},
           "training": {"dataset", "dataset_path", "steps", "max_norm", "seed", "deterministic", "gc_freq", "gc_debug"},
           "optimizer": {"lr", "beta1", "beta2", "eps", "weight_decay"}}
ONE = ("pipeline_parallel_degree", "context_parallel_degree", "expert_parallel_degree", "expert_tensor_parallel_degree")


def toml(path):
    try:
        import tomllib
    except ImportError:
        raise Refused("a TOML file is read by Python 3.11 or newer") from None
    with open(path, "rb") as f:
        try:
            return tomllib.load(f)
        except (ValueError, RecursionError) as error:   # among them those of the decoders
            raise Refused(f"{path}: {shown(error)}") from None


def torchtitan(path, cluster):
    """torchtitan's `train.toml` on a cluster of `tessera help clusters`, or a file."""
    s, cluster = Sections(path, toml(path), "[{}] {}"), place(cluster)
    if any(not isinstance(table, dict) for table in s.document.values()):
        raise Refused(f"{path}: is no configuration of torchtitan: a key stands outside of its sections")
    for degree in ONE:
        s.take("parallelism", degree, 1, [1])
    s.take("parallelism", "enable_async_tensor_parallel", False, [False])
    s.take("model", "converters", [], [[]])
    name, flavor = (s.take("model", key, None, str) for key in ("name", "flavor"))
    if (name, flavor) not in TORCHTITAN_MODELS:
        raise Refused(f"{path}: [model] flavor: found {name} {flavor}; allowed: "
                      + ", ".join(" ".join(pair) for pair in TORCHTITAN_MODELS) + ", or a trace of the model (python -m tessera trace)")
    model = TORCHTITAN_MODELS[name, flavor]
    s.known.append(("[model] name, flavor", f"{name} {flavor}", f"model: {model}"))
    keys = {"stack": "torchtitan-2026", "model": model, "cluster": cluster}
    keys |= training(s) | {"checkpoint": checkpointing(s)} | compiling(s)
    mesh(s, keys)
    variant = s.take("optimizer", "implementation", "fused", IMPLEMENTATIONS, lambda v: f"optimizer.variant: {IMPLEMENTATIONS[v]}")
    s.take("optimizer", "name", "AdamW", ["AdamW"], lambda v: "optimizer: adamw")
    keys["optimizer"] = {"variant": IMPLEMENTATIONS[variant]}
    return Config(path, keys, s.known, s.rest(is_ignored))


def is_ignored(section, key):
    return section in ELSEWHERE or key in IGNORED.get(section, ())


def training(s):
    batch = s.take("training", "local_batch_size", 8, int, lambda v: f"batch: {v}")
    seq = s.take("training", "seq_len", 2048, int, lambda v: f"seq: {v}")
    param = s.take("training", "mixed_precision_param", "bfloat16", DTYPES, lambda v: f"precision.param: {DTYPES[v]}")
    s.take("training", "mixed_precision_reduce", "float32", ["float32"], lambda v: "precision.reduce: f32")
    offload = s.take("training", "enable_cpu_offload", False, bool, lambda v: f"offload: {'cpu_pinned' if v else 'none'}")
    return {"batch": batch, "seq": seq, "precision": {"param": DTYPES[param], "reduce": "f32"},
            "offload": "cpu_pinned" if offload else "none"}


def checkpointing(s):
    mode = s.take("activation_checkpoint", "mode", "selective", ["none", "full", "selective"])
    option = str(s.take("activation_checkpoint", "selective_ac_option", "op", str))
    if mode == "selective" and option != "op" and not option.isdigit():
        raise Refused(f"{s.path}: [activation_checkpoint] selective_ac_option: found {option!r}; allowed: op, or a number of blocks")
    value = mode if mode != "selective" else "selective_op" if option == "op" else int(option)
    s.known.append(("[activation_checkpoint] mode", mode if mode != "selective" else f"selective, {option}", f"checkpoint: {value}"))
    return value


def compiling(s):
    enabled = s.take("compile", "enable", False, bool)
    parts = s.take("compile", "components", ["model", "loss"], list)
    if not enabled:
        return {}
    wrong = [x for x in parts if x not in ("model", "loss")]
    if wrong:
        raise Refused(f"{s.path}: [compile] components: found {wrong[0]!r}; allowed: model, loss")
    s.known.append(("[compile] enable", ", ".join(parts), "dialect: compile"))
    return {"dialect": "compile", "compile": {"components": parts}}


def mesh(s, keys):
    """Ranks, meshes and accumulation; the shards of -1 are what the cluster has left."""
    def degree(name, default):
        return s.take("parallelism", name, default, int)
    replicas, shards, tp = (degree(f"{n}_degree", d) for n, d in
                            (("data_parallel_replicate", 1), ("data_parallel_shard", -1), ("tensor_parallel", 1)))
    reshard = s.take("parallelism", "fsdp_reshard_after_forward", "default", RESHARD,
                     lambda v: f"reshard_after_forward: {str(RESHARD[v]).lower()}")
    world = gpus(keys["cluster"])
    if replicas < 1 or tp < 1 or shards == 0 or shards < -1 or (shards == -1 and world % (replicas * tp)):
        raise Refused(f"{s.path}: [parallelism]: found {replicas} replicas of {shards} shards with tensor parallelism of {tp}; "
                      f"allowed: degrees whose product divides the {world} GPUs of {keys['cluster']}")
    shards = world // (replicas * tp) if shards == -1 else shards
    ranks = replicas * shards
    keys["world"] = ranks * tp
    s.known.append(("[parallelism]", f"{replicas} x {shards} x {tp}", f"world: {ranks * tp}"))
    if shards == 1:
        raise Refused(f"{s.path}: [parallelism] data_parallel_shard_degree: found 1, with which torchtitan wraps nothing, or runs "
                      "DDP under autocast, which is not modelled; allowed: -1, or 2 and more")
    keys["reshard_after_forward"] = RESHARD[reshard]
    if replicas > 1:
        keys["mesh"] = {"replicate": replicas, "shard": shards}
    if tp > 1:
        keys["tp"] = tp
    whole = s.take("training", "global_batch_size", -1, int)
    each = keys["batch"] * ranks
    if whole != -1 and (whole <= 0 or whole % each):
        raise Refused(f"{s.path}: [training] global_batch_size: found {whole}; allowed: -1, or a multiple of the {each} sequences "
                      "of a micro-batch of all ranks")
    if whole not in (-1, each):
        keys["accumulation"] = {"steps": whole // each}
    s.known.append(("[training] global_batch_size", whole, f"accumulation.steps: {max(whole, each) // each}"))
