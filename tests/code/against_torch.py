#!/usr/bin/env python3
"""Code that `--emit torch` writes, run by PyTorch: does it make what the strategy asks for?

    against_torch.py [WORD]...      only strategies whose names have one of the words

Each file is imported and applied to a model of transformers (names: hf) or to modules named as torchtitan's, on a
fake process group of the strategy's world: groups, their parameters and shards as `tessera inspect` has them; mesh,
dtypes, resharding, prefetch lists, offload and checkpointed blocks as the strategy says. Tiny models on the CPU then
run two steps; the flagship's are whole, on the meta device. Environment: TESSERA, TSR_SOURCE_DIR.
"""
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
import yaml
from transformers import AutoConfig, AutoModelForCausalLM

TESSERA = os.environ["TESSERA"]
SOURCE = os.environ["TSR_SOURCE_DIR"]
DTYPES = {"none": None, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 130, "max_position_embeddings": 64, "tie_word_embeddings": False}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 130}
SUBLAYERS = [{"modules": ["model.layers.*.self_attn", "model.layers.*.mlp"]}, {"modules": ["model.layers.*"]},
             {"modules": ["model.norm", "lm_head"], "group": True, "reshard_after_forward": False}, {"modules": [""]}]
TITAN = [{"modules": ["tok_embeddings"]}, {"modules": ["layers.*"]},
         {"modules": ["norm", "output"], "group": True, "reshard_after_forward": False}, {"modules": [""]}]
TINY = {
    "model": {"name": "llama.json", "implementation": "transformers"}, "cluster": "dgx-h100-1", "batch": 2, "seq": 8,
    "strategies": {
        "plain": {}, "root": {"wrap": "root"}, "sides": {"wrap": "block_embed_head"}, "sublayers": {"wrap": SUBLAYERS},
        "keeps": {"reshard_after_forward": False}, "frees": {"reshard_after_forward": True}, "two": {"reshard_after_forward": 2},
        "three-ranks": {"world": 3}, "one-rank": {"world": 1},
        "dtypes": {"precision": {"param": "bf16", "reduce": "bf16", "output": "bf16"}},
        "no-casts": {"precision": {"param": "none", "reduce": "bf16", "cast_inputs": False}},
        "no-dtypes": {"precision": {"param": "none", "reduce": "none"}},
        "hsdp": {"mesh": {"replicate": 2, "shard": 4}, "accumulation": {"steps": 2, "mode": "no_all_reduce"}},
        "no-sync": {"accumulation": {"steps": 3, "mode": "no_reduce"}},
        "no-reshard": {"accumulation": {"steps": 2, "mode": "no_reduce_no_reshard"}},
        "stays": {"reshard_after_backward": False},
        "ahead": {"forward_prefetch": 1, "backward_prefetch": 2},
        "ahead-sublayers": {"wrap": SUBLAYERS, "forward_prefetch": 3, "backward_prefetch": 1},
        "full": {"checkpoint": "full"}, "second": {"checkpoint": {"every": 2, "first": 1}, "forward_prefetch": 2},
        "some": {"checkpoint": {"every": "full", "share": 0.4}}, "selective": {"checkpoint": "selective_op"},
        "through": {"checkpoint": {"every": "full", "early_stop": False}},
        "outside": {"checkpoint": {"every": "full", "hooks": "outside"}, "backward_prefetch": 1},
        "offload": {"offload": "cpu"}, "pinned": {"offload": "cpu_pinned"},
        "replicate": {"api": "replicate"}, "replicate-sides": {"api": "replicate", "wrap": "block_embed_head", "forward_prefetch": 1},
        "fsdp1": {"api": "fsdp1", "checkpoint": "full", "fsdp1": {"backward_prefetch": "post", "forward_prefetch": True, "limit_all_gathers": False}},
        "fsdp1-keeps": {"api": "fsdp1", "reshard_after_forward": False, "wrap": [{"modules": ["model.layers.*"]}, {"modules": [""], "reshard_after_forward": True}]},
        "fsdp1-hybrid": {"api": "fsdp1", "mesh": {"replicate": 2, "shard": 4}, "precision": {"param": "none", "reduce": "none"}},
        "ddp": {"api": "ddp", "ddp": {"bucket_cap_mb": 0.5, "gradient_as_bucket_view": True}, "precision": {"param": "none", "reduce": "none"}},
        "ddp-static": {"api": "ddp", "ddp": {"static_graph": True}, "accumulation": {"steps": 2}, "checkpoint": "full",
                       "precision": {"param": "none", "reduce": "none"}},
        "gpt2": {"model": {"name": "gpt2.json", "implementation": "transformers"}, "wrap": "block_embed_head"},
        "tied": {"model": {"name": "tied.json", "implementation": "transformers"}, "wrap": "block"},
        "titan": {"model": {"name": "llama.json", "names": "torchtitan", "implementation": "plain"}, "wrap": TITAN, "checkpoint": {"every": 3}, "reshard_after_forward": True},
    }}
failures, checks = [], 0


def check(strategy, what, found, wanted):
    global checks
    checks += 1
    if found != wanted:
        failures.append(f"{strategy}: {what}: found {found!s:.300}, wanted {wanted!s:.300}")


def tessera(*args):
    run = subprocess.run([TESSERA, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if run.returncode:
        sys.exit(f"FAILED: tessera {' '.join(args)}: {run.stderr}")
    return run.stdout


# ---- models ------------------------------------------------------------------------------------------------


class Titan(torch.nn.Module):
    """The names and the order of torchtitan's Llama; what it computes is no matter."""

    def __init__(self, config):
        super().__init__()
        width, linear = config["hidden_size"], lambda a, b: torch.nn.Linear(a, b, bias=False)
        kv = width // config["num_attention_heads"] * config["num_key_value_heads"]
        self.tok_embeddings = torch.nn.Embedding(config["vocab_size"], width)
        self.layers = torch.nn.ModuleDict()
        for i in range(config["num_hidden_layers"]):
            block = self.layers[str(i)] = torch.nn.Module()
            block.attention, block.feed_forward = torch.nn.Module(), torch.nn.Module()
            for name, n in (("wq", width), ("wk", kv), ("wv", kv)):
                setattr(block.attention, name, linear(width, n))
            block.attention.wo = linear(width, width)
            block.feed_forward.w1 = linear(width, config["intermediate_size"])
            block.feed_forward.w2 = linear(config["intermediate_size"], width)
            block.feed_forward.w3 = linear(width, config["intermediate_size"])
            block.attention_norm, block.ffn_norm = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)
        self.norm, self.output = torch.nn.RMSNorm(width), linear(width, config["vocab_size"])


def build(config, names):
    if names == "torchtitan":
        return Titan(config)
    known = {k: v for k, v in config.items() if k not in ("architectures", "model_type")}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **known, use_cache=False))


def clean(name):
    return name.replace("_checkpoint_wrapped_module.", "").replace("._checkpoint_wrapped_module", "").replace("_checkpoint_wrapped_module", "")


# ---- what was made -----------------------------------------------------------------------------------------


def states(model):
    """(names of its modules, state) of each call, in module order."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            found.setdefault(id(module._get_fsdp_state()), ([], module._get_fsdp_state()))[0].append(clean(name))
    return list(found.values())


def check_groups(name, model, layout):
    where = {m: clean(n) for n, m in model.named_modules() if not isinstance(m, CheckpointWrapper)}
    order = list(where)
    found, wanted = [], []

    def first(info): # of the places of a tied parameter
        places = [(info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names)]
        module, param = min(places, key=lambda place: order.index(place[0]))
        return f"{where[module]}.{param}"

    for modules, state in states(model):
        group = state._fsdp_param_group
        params = group.fsdp_params if group else []
        names = [first(p._module_info) for p in params]
        sizes = [(p.sharded_param.numel() if layout["groups"][0]["api"] == "replicate" else p.padded_sharded_param_size.numel()) for p in params]
        found.append((sorted(modules), names, sum(sizes)))
    for group in layout["groups"]:
        wanted.append((sorted(group["modules"]), group["parameter_names"], group["shard_elements"]))
    check(name, "groups", sorted(found), sorted(wanted))


def pattern(text):
    return re.compile("".join("[^.]+" if c == "*" else re.escape(c) for c in text) + r"\Z")


def reshard_of(s, modules):
    wrap = s.get("wrap", "block")
    for entry in wrap if isinstance(wrap, list) else []:
        if any(pattern(p).match(modules[0]) for p in entry["modules"]) and "reshard_after_forward" in entry:
            return entry["reshard_after_forward"]
    return s.get("reshard_after_forward")


def check_states(name, model, s, layout):
    precision = {"param": "bf16", "reduce": "f32", "output": "none", "cast_inputs": True, **s.get("precision", {})}
    policy = MixedPrecisionPolicy(DTYPES[precision["param"]], DTYPES[precision["reduce"]], DTYPES[precision["output"]], precision["cast_inputs"])
    all_states = states(model)
    name_of = {id(state): modules[0] for modules, state in all_states}
    units = [modules[0] for modules, _ in all_states if modules != [""]]
    ahead, back = s.get("forward_prefetch", 0), s.get("backward_prefetch", 0)
    for modules, state in all_states:
        check(name, f"dtypes of {modules}", state._mp_policy, policy)
        i = units.index(modules[0]) if modules != [""] else None
        for what, lists, want in (("forward", state._states_to_forward_prefetch, [] if i is None else units[i + 1:i + 1 + ahead]),
                                  ("backward", state._states_to_backward_prefetch, [] if i is None else units[max(i - back, 0):i][::-1])):
            check(name, f"{what} prefetch of {modules}", [name_of[id(x)] for x in lists], want)
        group = state._fsdp_param_group
        if not group:
            continue
        check(name, f"mesh of {modules}", list(group.mesh_info.mesh.shape), layout["mesh"])
        check(name, f"offload of {modules}", getattr(group.offload_policy, "pin_memory", None),
              {"none": None, "cpu": False, "cpu_pinned": True}[s.get("offload", "none")])
        check(name, f"reshard after backward of {modules}", group.reshard_after_backward, s.get("reshard_after_backward", True))
        if s.get("api", "fully_shard") == "fully_shard":
            check_reshard(name, modules, state, group, reshard_of(s, modules))


def check_reshard(name, modules, state, group, wanted):
    post, ranks = group.post_forward_mesh_info, group.mesh_info.shard_mesh_size
    check(name, f"automatic reshard of {modules}", state._auto_reshard_after_forward, wanted is None)
    value = {None: ranks, True: ranks, False: None}[wanted] if wanted is None or isinstance(wanted, bool) else wanted
    check(name, f"reshard of {modules}", post and post.shard_mesh_size, value)


class Wrapped(torch.nn.Module):
    """FullyShardedDataParallel where there is no GPU, without which that does nothing: what it was told."""

    def __init__(self, module, **words):
        super().__init__()
        inspect.signature(FullyShardedDataParallel.__init__).bind(self, module, **words)
        self._fsdp_wrapped_module, self.words = module, words

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._fsdp_wrapped_module, name)


def check_fsdp1(name, model, s, layout):
    """Wrapped modules, their strategy and what the wrapper was told."""
    found = sorted(clean(n.replace("_fsdp_wrapped_module.", "").replace("._fsdp_wrapped_module", "").replace("_fsdp_wrapped_module", ""))
                   for n, m in model.named_modules() if isinstance(m, Wrapped))
    check(name, "wrapped modules", found, sorted(m for group in layout["groups"] for m in group["modules"]))
    words = {"backward_prefetch": "pre", "forward_prefetch": False, "limit_all_gathers": True, **s.get("fsdp1", {})}
    precision = {"param": "bf16", "reduce": "f32", **s.get("precision", {})}
    for wrapped, m in ((n, m) for n, m in model.named_modules() if isinstance(m, Wrapped)):
        keeps = reshard_of(s, [clean(wrapped.replace("_fsdp_wrapped_module.", "").replace("._fsdp_wrapped_module", ""))]) is False
        want = ("_HYBRID_SHARD_ZERO2" if keeps else "HYBRID_SHARD") if "mesh" in s else "SHARD_GRAD_OP" if keeps else "FULL_SHARD"
        check(name, f"strategy of {wrapped}", m.words["sharding_strategy"].name, want)
        check(name, f"prefetch of {wrapped}", m.words["backward_prefetch"] and m.words["backward_prefetch"].name,
              {"pre": "BACKWARD_PRE", "post": "BACKWARD_POST", "none": None}[words["backward_prefetch"]])
        check(name, f"words of {wrapped}", (m.words["forward_prefetch"], m.words["limit_all_gathers"]), (words["forward_prefetch"], words["limit_all_gathers"]))
        check(name, f"dtypes of {wrapped}", (m.words["mixed_precision"].param_dtype, m.words["mixed_precision"].reduce_dtype),
              (DTYPES[precision["param"]], DTYPES[precision["reduce"]]))


def blocks_of(model):
    return next(m for n, m in model.named_modules() if n.split(".")[-1] in ("layers", "h"))


def check_checkpoints(name, model, s):
    every = s.get("checkpoint", "none")
    every = every if isinstance(every, dict) else {"every": every}
    blocks = list(blocks_of(model).children())
    found = [i for i, b in enumerate(blocks) if isinstance(b, CheckpointWrapper)]
    step = every.get("every")
    n = {"none": 0, "full": 1, "selective_op": 1}.get(step, step)
    first = every.get("first", n) - 1 if n else 0
    wanted = list(range(first, len(blocks), n)) if n else []
    if "share" in every:
        wanted = []
        for i in range(len(blocks)):
            if (i + 1) * every["share"] >= len(wanted) + 0.5:
                wanted.append(i)
    check(name, "checkpointed blocks", found, wanted)
    outside = every.get("hooks") == "outside"
    for i in found if s.get("api") != "ddp" and s.get("wrap") != "root" else []:
        check(name, f"order of block {i}", isinstance(blocks[i]._checkpoint_wrapped_module, FSDPModule), outside)


# ---- running -----------------------------------------------------------------------------------------------


def check_flags(name, model, mode, last, s):
    """What micro-batches before the last one leave out."""
    wanted = {"reduce_grads": last or mode in ("reduce_each", "no_all_reduce"), "all_reduce_grads": last or mode == "reduce_each",
              "reshard_after_backward": s.get("reshard_after_backward", True) and (last or mode != "no_reduce_no_reshard")}
    for modules, state in states(model):
        if modules == [""]: # its context is that of all from the first forward on
            check(name, "last backward", state._state_ctx.is_last_backward, last or mode == "reduce_each")
        for flag, want in wanted.items() if state._fsdp_param_group else ():
            check(name, f"{flag} of {modules}, last {last}", getattr(state._fsdp_param_group, flag), want)


def step(name, module, model, s, batch, seq, vocab):
    micro = s.get("accumulation", {}).get("steps", 1)
    for _ in range(2):
        for i in range(micro):
            last = i + 1 == micro
            if hasattr(module, "before_micro_batch"):
                module.before_micro_batch(model, last)
            check_flags(name, model, s.get("accumulation", {}).get("mode", "reduce_each"), last, s)
            tokens = torch.randint(0, vocab, (batch, seq))
            model(input_ids=tokens, labels=tokens).loss.backward()
            groups = [state._fsdp_param_group for _, state in states(model) if state._fsdp_param_group]
            reduced = [p.sharded_param.grad is not None for group in groups for p in group.fsdp_params]
            waits = s.get("accumulation", {}).get("mode", "reduce_each") != "reduce_each" and not last
            check(name, f"reduced gradients behind micro-batch {i}", set(reduced), {not waits})
        for group in groups:
            for p in group.fsdp_params:
                p.sharded_param.grad = None


def load(folder, name):
    stem = re.sub(r"[^0-9a-zA-Z]", "_", name)
    spec = importlib.util.spec_from_file_location(stem, os.path.join(folder, f"{stem}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(folder, name, s, layout, config, names, runs):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout["world"])
    try:
        module = load(folder, name)
        is_ddp = s.get("api") == "ddp"
        older = s.get("api") in ("ddp", "fsdp1")
        with torch.device("cpu" if older and runs else "meta"):
            model = build(config, names)
        if s.get("api") == "fsdp1":
            module.FullyShardedDataParallel = Wrapped
        mesh = module.build_mesh("cpu")
        check(name, "mesh", list(mesh.shape), layout["mesh"])
        if is_ddp and not runs: # DDP compares parameters between ranks: they have to be somewhere
            return
        model = module.apply(model, mesh)
        if is_ddp:
            check(name, "DDP", isinstance(model, DistributedDataParallel), True)
            check(name, "bucket", model.bucket_bytes_cap, int(s.get("ddp", {}).get("bucket_cap_mb", 25) * 2**20))
            check(name, "static graph", model.static_graph, s.get("ddp", {}).get("static_graph", False))
            check(name, "views", model.gradient_as_bucket_view, s.get("ddp", {}).get("gradient_as_bucket_view", False))
        elif older:
            check_fsdp1(name, model, s, layout)
            return
        else:
            check_groups(name, model, layout)
            check_states(name, model, s, layout)
        check_checkpoints(name, model.module if is_ddp else model, s)
        if not runs or s.get("offload") or names == "torchtitan" or is_ddp: # DDP's reducer needs real collectives
            return
        model.to_empty(device="cpu")
        if hasattr(module, "tie"):
            module.tie(model)
        for x in [*model.parameters(), *model.buffers()]:
            with torch.no_grad():
                (x.to_local() if hasattr(x, "to_local") else x).normal_(0, 0.02)
        step(name, module, model, s, 2, 8, config["vocab_size"])
    except Exception as error: # pylint: disable=broad-except
        failures.append(f"{name}: {type(error).__name__}: {error!s:.400}")
    finally:
        dist.destroy_process_group()


def experiment(path, folder, runs):
    top = yaml.safe_load(open(path))
    tessera("compare", path, "--emit", "torch", folder)
    layouts = {x["strategy"]: x for x in json.loads(tessera("inspect", path, "--format", "json"))["strategies"]}
    for name, own in top["strategies"].items():
        s = {**{k: v for k, v in top.items() if k != "strategies"}, **(own or {})}
        if len(sys.argv) > 1 and not any(word in name for word in sys.argv[1:]):
            continue
        model = s["model"] if isinstance(s["model"], dict) else {"name": s["model"]}
        file = os.path.join(os.path.dirname(path), model["name"])
        file = file if os.path.exists(file) else f"{SOURCE}/experiments/models/{model['name']}.json"
        run(folder, name, s, layouts[name], json.load(open(file)), model.get("names", "hf"), runs)


def main():
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as tmp:
        for file, value in (("llama.json", LLAMA), ("gpt2.json", GPT2), ("tied.json", {**LLAMA, "tie_word_embeddings": True}), ("tiny.yaml", TINY)):
            with open(f"{tmp}/{file}", "w") as out:
                json.dump(value, out)
        experiment(f"{tmp}/tiny.yaml", f"{tmp}/tiny", True)
        for file in ("dgx-h100-8", "h100-128"):
            experiment(f"{SOURCE}/experiments/flagship/{file}.yaml", f"{tmp}/{file}", False)
    for failure in failures:
        print("FAILED:", failure)
    print(f"{checks} checks, {len(failures)} failed")
    return 1 if failures or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
