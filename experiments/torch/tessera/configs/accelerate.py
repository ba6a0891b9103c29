"""Accelerate's `config.yaml`, the file of `accelerate launch --config_file`, as Accelerate 1.15 prepares a model with it."""

import json
import os
import re

from .. import start
from ..errors import Refused
from . import deepspeed
from .common import Sections, document, gpus, place, quoted, traced

# Of `fsdp_sharding_strategy`, which may be a number: whether parameters are freed after forward, and whether nodes are replicas.
SHARDING = {"FULL_SHARD": (True, False), "SHARD_GRAD_OP": (False, False), "HYBRID_SHARD": (True, True),
            "HYBRID_SHARD_ZERO2": (False, True)}
NUMBERS = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "4": "HYBRID_SHARD", "5": "HYBRID_SHARD_ZERO2"}
PREFETCH = {"BACKWARD_PRE": "backward_pre", "BACKWARD_POST": "backward_post", "NO_PREFETCH": "none"}
DTYPES = {"no": "none", "bf16": "bf16", "fp16": "fp16"}
# What changes neither time nor memory of a step.
ELSEWHERE = {"compute_environment", "debug", "enable_cpu_affinity", "gpu_ids", "machine_rank", "main_process_ip", "main_process_port",
             "main_training_function", "mpirun_config", "rdzv_backend", "same_network"}
IGNORED = {"fsdp_config": {"fsdp_cpu_ram_efficient_loading", "fsdp_state_dict_type", "fsdp_sync_module_states"}}
WRAPPED = '''"""A function's model with its forward as Accelerate makes it: under autocast, its output in float32."""
import os

from tessera.configs import prepared
from tessera.source import load_file

{function} = prepared.accelerate(load_file(os.path.join(os.path.dirname(os.path.abspath(__file__)), {file!r})).{function}, {dtype!r})
'''


def accelerate(path, target, cluster, batch=None, seq=None):
    """A strategy of the model that `target`, FILE.py:FUNCTION, makes (`batch` and `seq` are its arguments)."""
    s, cluster = Sections(path, document(path), "{}.{}"), place(cluster)
    kind = s.take("", "distributed_type", "NO", ["FSDP", "MULTI_GPU", "DEEPSPEED"])
    for part in ("fsdp_config", "parallelism_config", "deepspeed_config", "dynamo_config", "fp8_config"):
        if not isinstance(s.document.setdefault(part, {}), dict):
            s.refuse("", part, quoted(s.document[part]), "a table")
    if s.document["dynamo_config"].get("dynamo_backend", "NO") != "NO":
        s.refuse("dynamo_config", "dynamo_backend", quoted(s.document["dynamo_config"]["dynamo_backend"]),
                 "NO: a compiled model cannot be traced")
    s.document.pop("dynamo_config")
    if s.document.get("mixed_precision") is False:   # an unquoted no is a Boolean in YAML
        s.document["mixed_precision"] = "no"
    dtype = s.take("", "mixed_precision", "no", DTYPES)
    s.take("", "use_cpu", False, [False])
    world = ranks(s, cluster)
    if kind == "DEEPSPEED":
        return deepspeed.of_accelerate(s, target, cluster, batch, seq, world, dtype, is_ignored)
    keys = {"cluster": cluster, "world": world, "precision": precision(s, kind, dtype)}
    model = made_by(target, dtype)
    if kind == "FSDP":
        sharded(s, keys, target)
    else:
        s.known.append(("distributed_type", kind, "api: ddp"))
        keys["api"] = "ddp"
    return traced(s, keys, model, s.rest(is_ignored), batch, seq)


def ranks(s, cluster):
    """Processes, which `num_processes: -1` leaves to the launcher: all GPUs."""
    all_of_them = gpus(cluster)
    world = s.take("", "num_processes", -1, int)
    s.take("", "num_machines", 1, int)
    if world != -1 and not 1 <= world <= all_of_them:
        s.refuse("", "num_processes", world, f"1 to the {all_of_them} GPUs of {cluster}")
    world = all_of_them if world == -1 else world
    s.known.append(("num_processes", world, f"world: {world}"))
    return world


def precision(s, kind, dtype):
    """The policy's dtypes; without one, autocast alone changes what is computed."""
    name = DTYPES[dtype]
    if kind != "FSDP":
        s.known.append(("mixed_precision", dtype, "traced under autocast" if dtype != "no" else "precision.param: none"))
        return {"param": "none"}
    version = s.document["fsdp_config"].get("fsdp_version", 1)
    s.known.append(("mixed_precision", dtype, f"precision.param and reduce: {name}" + (", traced under autocast" if dtype != "no" else "")))
    if dtype == "no":
        return {"param": "none"}
    return {"param": name, "reduce": name} | ({"output": name} if version == 2 else {})


def sharded(s, keys, target):
    version = s.take("fsdp_config", "fsdp_version", 1, [1, 2])
    groups = json.loads(start.child({"groups": target}))
    wrap(s, keys, groups, version)
    offload = s.take("fsdp_config", "fsdp_offload_params", False, [False, True] if version == 2 else [False],
                     lambda v: f"offload: {'cpu_pinned' if v else 'none'}")
    if version == 2:
        keys["offload"] = "cpu_pinned" if offload else "none"
    checkpoint(s, keys, version)
    replicas, shards = mesh(s, keys["world"])
    if replicas > 1:
        keys["mesh"] = {"replicate": replicas, "shard": shards}


def classes(s, groups):
    """Names of the classes that are wrapped: the configuration's, else the model's own."""
    policy = s.take("fsdp_config", "fsdp_auto_wrap_policy", "NO_WRAP", ["TRANSFORMER_BASED_WRAP", "NO_WRAP"])
    named = s.document["fsdp_config"].pop("fsdp_transformer_layer_cls_to_wrap", None)
    if policy == "NO_WRAP":
        return []
    if named is not None and not isinstance(named, str):
        s.refuse("fsdp_config", "fsdp_transformer_layer_cls_to_wrap", quoted(named), "names of classes, separated by commas")
    wanted = [name.strip() for name in named.split(",")] if named else groups["no_split"]
    known = {kind for _, kind in groups["modules"]}
    for name in wanted:
        if name not in known:
            s.refuse("fsdp_config", "fsdp_transformer_layer_cls_to_wrap", name, "classes of the model's modules: " + ", ".join(sorted(known)))
    return wanted


def wrap(s, keys, groups, version):
    wanted = classes(s, groups)
    blocks = [name for name, kind in groups["modules"] if kind in wanted and name]
    words = f"a group of each of {len(blocks)} {', '.join(wanted) or 'blocks'}"
    if version == 1:
        keep = sharding(s, keys)
        keys["wrap"] = [{"modules": patterns(blocks, groups)}, {"modules": [""]}] if blocks else "root"
        s.known.append(("fsdp_config.fsdp_transformer_layer_cls_to_wrap", ", ".join(wanted), f"wrap: {words}"))
        keys["reshard_after_forward"] = keep
        return
    keep = s.take("fsdp_config", "fsdp_reshard_after_forward", True, [True, False], lambda v: f"reshard_after_forward: {str(v).lower()}")
    entries = [{"modules": patterns(blocks, groups), "reshard_after_forward": keep}] if blocks else []
    entries += [{"modules": [groups["embedding"]], "reshard_after_forward": keep}] if groups["embedding"] else []
    if groups["tail"]:
        entries.append({"modules": groups["tail"], "group": len(groups["tail"]) > 1, "reshard_after_forward": False})
    keys["wrap"] = entries + [{"modules": [""]}]
    s.known.append(("fsdp_config.fsdp_transformer_layer_cls_to_wrap", ", ".join(wanted), f"wrap: {words}, of "
                    + ", of ".join(filter(None, [groups["embedding"], " with ".join(groups["tail"]), "the rest"]))))


def patterns(blocks, groups):
    """`layers.*` where that names these and no others, else all of them."""
    short = sorted({re.sub(r"\.\d+$", ".*", name) for name in blocks})
    named = {name for name, _ in groups["modules"]
             if any(re.fullmatch(re.escape(p).replace(r"\*", "[^.]*"), name) for p in short)}
    return short if named == set(blocks) else blocks


def sharding(s, keys):
    """What FSDP1 has and FSDP2 has not. Returns whether parameters are freed after forward."""
    value = s.document["fsdp_config"].pop("fsdp_sharding_strategy", None)
    older = s.document["fsdp_config"].pop("fsdp_reshard_after_forward", None)   # Accelerate's newer name of the same
    value = older if value is None and isinstance(older, (str, int)) and not isinstance(older, bool) else value
    value = "FULL_SHARD" if value is None else str(value)
    value = NUMBERS.get(value, value)
    if value not in SHARDING:
        s.refuse("fsdp_config", "fsdp_sharding_strategy", value, ", ".join(SHARDING))
    keep, hybrid = SHARDING[value]
    s.known.append(("fsdp_config.fsdp_sharding_strategy", value, f"api: fsdp1, reshard_after_forward: {str(keep).lower()}"))
    s.take("fsdp_config", "fsdp_use_orig_params", True, [True])
    keys["api"] = "fsdp1"
    backward = s.take("fsdp_config", "fsdp_backward_prefetch", "NO_PREFETCH", PREFETCH, lambda v: f"fsdp1.backward_prefetch: {PREFETCH[v]}")
    forward = s.take("fsdp_config", "fsdp_forward_prefetch", False, bool, lambda v: f"fsdp1.forward_prefetch: {str(v).lower()}")
    keys["fsdp1"] = {"backward_prefetch": PREFETCH[backward], "forward_prefetch": forward}
    each = min(keys["world"], gpus(keys["cluster"], "gpus_per_node"))
    if hybrid and keys["world"] % each:
        s.refuse("", "num_processes", keys["world"], f"whole nodes of {each} GPUs beside {value}")
    if hybrid and keys["world"] > each:
        keys["mesh"] = {"replicate": keys["world"] // each, "shard": each}
    return keep


def checkpoint(s, keys, version):
    s.take("fsdp_config", "fsdp_activation_checkpointing_offload", False, [False])
    active = s.document["fsdp_config"].pop("fsdp_activation_checkpointing", False)
    if not isinstance(active, bool):
        s.refuse("fsdp_config", "fsdp_activation_checkpointing", quoted(active), "true or false")
    if active and version == 2:
        s.refuse("fsdp_config", "fsdp_activation_checkpointing", "true beside fsdp_version 2, whose hooks Accelerate puts inside of the "
                 "checkpoint, which no trace has", "false, and model.gradient_checkpointing_enable() in the function")
    keys["checkpoint"] = "full" if active else "none"
    s.known.append(("fsdp_config.fsdp_activation_checkpointing", active, f"checkpoint: {keys['checkpoint']}"))


def mesh(s, world):
    """(replicas, shards) of `parallelism_config`."""
    for name in ("tp", "cp", "sp"):
        s.take("parallelism_config", f"parallelism_config_{name}_size", 1, [1])
    replicas, shards = (s.take("parallelism_config", f"parallelism_config_dp_{name}_size", 1, int) for name in ("replicate", "shard"))
    if (replicas, shards) == (1, 1):
        return 1, world
    if replicas < 1 or shards < 1 or replicas * shards != world:
        s.refuse("parallelism_config", "parallelism_config_dp_replicate_size", f"{replicas} replicas of {shards} shards",
                 f"sizes whose product is the {world} processes")
    s.known.append(("parallelism_config", f"{replicas} x {shards}", f"mesh: {replicas} replicas of {shards} shards"))
    return replicas, shards


def is_ignored(section, key):
    return section in ELSEWHERE or section.startswith("tpu_") or key in IGNORED.get(section, ()) or (section == "parallelism_config" and key.endswith(
        ("_backend", "_comm_strategy", "_seq_length", "_seq_length_is_variable", "_attn_implementation"))) \
        or (section == "downcast_bf16" and not key)


# ---- the model ---------------------------------------------------------------------------------------------


def made_by(target, dtype):
    """(name, text) of a file whose function makes the model as Accelerate prepares it; None: as it is."""
    file, separator, function = target.rpartition(":")
    if not separator or not function.isidentifier():
        raise Refused(f"{target}: name a function as FILE.py:FUNCTION")
    if dtype == "no":
        return target, None
    name = os.path.splitext(file)[0] + "_accelerate.py"
    return f"{name}:{function}", WRAPPED.format(function=function, file=os.path.basename(file), dtype=dtype)
