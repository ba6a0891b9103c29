"""DeepSpeed's `ds_config.json`. DeepSpeed is not simulated: a stage is read as what PyTorch has in its place."""

from .common import Sections, document, gpus, place, quoted, traced

# Stage 3 shards parameters, 2 gradients and states only, 0 nothing. PyTorch has no stage 1, which shards states alone.
STAGES = {3: {"reshard_after_forward": True}, 2: {"reshard_after_forward": False}, 0: {"api": "ddp"}}
IGNORED = {"": {"steps_per_print", "wall_clock_breakdown", "dump_state", "zero_allow_untested_optimizer"},
           "scheduler": None, "tensorboard": None, "wandb": None, "csv_monitor": None, "comms_logger": None, "checkpoint": None,
           "data_types": None, "aio": None, "flops_profiler": None,
           "bf16": None, "fp16": None,
           # sizes of DeepSpeed's own buffers and schedules, which PyTorch has not
           "zero_optimization": {"overlap_comm", "contiguous_gradients", "sub_group_size", "reduce_bucket_size", "reduce_scatter",
                                 "allgather_partitions", "allgather_bucket_size", "stage3_prefetch_bucket_size",
                                 "stage3_param_persistence_threshold", "stage3_max_live_parameters", "stage3_max_reuse_distance",
                                 "stage3_gather_16bit_weights_on_model_save", "round_robin_gradients", "ignore_unused_parameters"}}
# Of Accelerate: how its processes start and save.
LAUNCHING = ("zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher", "deepspeed_hostfile")
NOTE = "DeepSpeed is not simulated: this is {}, PyTorch's counterpart of stage {}; buckets and buffers of DeepSpeed are left out"


def deepspeed(path, target, cluster, batch=None, seq=None, world=None):
    """A strategy of the model that `target`, FILE.py:FUNCTION, makes (`batch`, which is train_micro_batch_size_per_gpu where that is
    a number, and `seq` are its arguments), on `world` GPUs; None: all of the cluster's."""
    s, cluster = Sections(path, document(path), "{}.{}"), place(cluster)
    return read(s, target, cluster, batch, seq, world or gpus(cluster), None)


def of_accelerate(outer, target, cluster, batch, seq, world, dtype, is_outer_ignored):
    """Of Accelerate's `deepspeed_config`, which names a file or has the keys itself."""
    inner = outer.document.pop("deepspeed_config")
    for key in LAUNCHING:
        inner.pop(key, None)
    file = inner.pop("deepspeed_config_file", None)
    if isinstance(file, str):
        s = Sections(file, document(file), "{}.{}")
    elif file is not None:
        outer.refuse("deepspeed_config", "deepspeed_config_file", quoted(file), "a path")
    else:
        zero = {"stage": inner.pop("zero_stage", 2)}
        zero |= {f"offload_{kind}": {"device": inner.pop(f"offload_{kind}_device", "none")} for kind in ("optimizer", "param")}
        s = Sections(outer.path, {"zero_optimization": zero, "gradient_accumulation_steps": inner.pop("gradient_accumulation_steps", 1),
                                 "gradient_clipping": inner.pop("gradient_clipping", 0)},
                     "deepspeed_config.{}.{}")
    if inner:
        outer.refuse("deepspeed_config", next(iter(inner)), quoted(next(iter(inner.values()))) + ", which is not known", "no such key")
    found = read(s, target, cluster, batch, seq, world, dtype)
    found.path, found.known, found.ignored = outer.path, outer.known + found.known, outer.rest(is_outer_ignored) + found.ignored
    return found


def read(s, target, cluster, batch, seq, world, dtype):
    for part in ("zero_optimization", "bf16", "fp16", "optimizer", "activation_checkpointing"):
        if not isinstance(s.document.setdefault(part, {}), dict):
            s.refuse("", part, quoted(s.document[part]), "a table")
    stage = s.take("zero_optimization", "stage", 0, [0, 2, 3])
    param = halved(s, dtype)
    if param != "none" and not stage:
        s.refuse("zero_optimization", "stage", "0 with weights in 16 bits, which DDP has not", "2, 3, or weights in float32")
    api = STAGES[stage].get("api", "fully_shard")
    s.known.append((s.named("zero_optimization", "stage"), stage, f"api: {api}"
                    + (f", reshard_after_forward: {str(stage == 3).lower()}" if stage else "")))
    keys = {"cluster": cluster, "world": world, **STAGES[stage],
            "precision": {"param": param} | ({"reduce": param} if param != "none" else {})}
    offload(s, keys, stage)
    batch = sizes(s, keys, world, batch)
    optimizer(s, keys)
    clipping(s, keys)
    s.document.pop("activation_checkpointing")   # it configures what the model's own code calls
    return traced(s, keys, (target, None), s.rest(is_ignored), batch, seq, [NOTE.format(api, stage)])


def halved(s, dtype):
    """What weights are computed in: DeepSpeed keeps them in it, beside a float32 copy of each rank's part."""
    found = {name: s.document[name].pop("enabled", False) for name in ("bf16", "fp16")}
    for name, value in found.items():
        if value not in (True, False, "auto"):
            s.refuse(name, "enabled", quoted(value), "true, false, auto")
    if found["bf16"] is True and found["fp16"] is True:
        s.refuse("fp16", "enabled", "true beside bf16.enabled", "one of both")
    chosen = next((name for name, value in found.items() if value is True), None)
    if chosen is None and "auto" in found.values() and dtype is None:
        s.refuse("bf16", "enabled", "auto", "true or false: the trainer's choice is not in the file")
    chosen = chosen or (dtype if dtype not in (None, "no") else None)
    s.known.append(("bf16, fp16", chosen or "neither", f"precision.param: {chosen or 'none'}"))
    return chosen or "none"


def offload(s, keys, stage):
    devices = []
    for kind in ("optimizer", "param"):
        part = s.document["zero_optimization"].pop(f"offload_{kind}", None) or {}
        device = part.get("device", "none") if isinstance(part, dict) else part
        if device not in ("none", "cpu"):
            s.refuse("zero_optimization", f"offload_{kind}", quoted(device), "a table whose device is none or cpu")
        devices.append(device)
    if devices == ["none", "cpu"] or (devices == ["cpu", "none"] and stage == 3) or ("cpu" in devices and not stage):
        s.refuse("zero_optimization", "offload_optimizer", f"{devices[0]}, with offload_param {devices[1]}",
                 "both cpu or both none: fully_shard offloads parameters, gradients and states together")
    if stage:
        keys["offload"] = "cpu_pinned" if devices[0] == "cpu" else "none"
        s.known.append((s.named("zero_optimization", "offload_optimizer"), devices[0], f"offload: {keys['offload']}"))


def sizes(s, keys, world, batch):
    """Sequences of a micro-batch, None: the function's; they and the steps agree with the whole batch."""
    def number(key):
        value = s.document.get(key, "auto")
        if value == "auto":
            s.document.pop(key, None)
            return None
        if s.take("", key, None, int) < 1:
            s.refuse("", key, quoted(value), "1 and more, or auto")
        return value
    steps, each, whole = (number(key) for key in ("gradient_accumulation_steps", "train_micro_batch_size_per_gpu", "train_batch_size"))
    each, whole = batch or each, None if batch else whole
    if whole and each and not steps:
        steps = max(1, whole // (each * world))
    steps = steps or 1
    if whole and not each:
        each = max(1, whole // (steps * world))
    if whole and whole != each * steps * world:
        s.refuse("", "train_batch_size", whole, f"the product of micro-batch {each}, {steps} steps and {world} GPUs")
    if each:
        s.known.append(("train_micro_batch_size_per_gpu", each, f"batch: {each}"))
    s.known.append(("gradient_accumulation_steps", steps, f"accumulation.steps: {steps}"))
    keys |= {"accumulation": {"steps": steps}} if steps > 1 else {}
    return each


def optimizer(s, keys):
    kind = s.document["optimizer"].get("type", "AdamW")
    if kind not in ("AdamW", "Adam"):
        s.refuse("optimizer", "type", quoted(kind), "AdamW, Adam")
    s.known.append((s.named("optimizer", "type"), kind, "optimizer: adamw, fused"))
    keys["optimizer"] = {"name": "adamw", "variant": "fused"}
    s.document.pop("optimizer")


def clipping(s, keys):
    value = s.document.pop("gradient_clipping", 0)
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf")):
        s.refuse("", "gradient_clipping", quoted(value), "a number from 0, or auto, which is the trainer's 1.0")
    keys["clip"] = bool(value)
    s.known.append(("gradient_clipping", value, f"clip: {str(keys['clip']).lower()}"))


def is_ignored(section, key):
    if section in IGNORED[""] and not key:
        return True
    return section in IGNORED and (IGNORED[section] is None or key in IGNORED[section])
