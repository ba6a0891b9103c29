#!/usr/bin/env python3
"""Every key of every format, with a value that must change what comes out, or be refused by name.

    keys.py [model|tree|scenario|memory|card|experiment]...     (default: all)

Environment: TESSERA, TSR_SOURCE_DIR. A key that is neither is one that nobody reads: the class of
mistake in which a file says one thing and the program does another. A new key of experiments
needs a row in ROWS.
"""
import copy
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

TESSERA = os.environ["TESSERA"]
SOURCE = os.environ["TSR_SOURCE_DIR"]
TMP = tempfile.mkdtemp()
THOROUGH = bool(os.environ.get("TSR_THOROUGH"))
failures, checks = [], 0


def tessera(*args):
    p = subprocess.run([TESSERA, *map(str, args)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return p.returncode, p.stdout, p.stderr


def write(name, value):
    path = os.path.join(TMP, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(value if isinstance(value, str) else json.dumps(value))
    return path


def is_refused(result, key):
    """Exit status 2 and one line that names the key's last part."""
    code, _, err = result
    return code == 2 and err.count("\n") == 1 and key.split(".")[-1].split("[")[0] in err


def verdict(what, key, base, result, want):
    """want: "changes", "refused", "same" (known to mean nothing) or "either"."""
    global checks
    checks += 1
    refused, changed = is_refused(result, key), result[0] == 0 and result[1] != base[1]
    good = {"changes": changed, "refused": refused, "same": result[0] == 0 and not changed, "either": changed or refused}
    if base[0] != 0 or not good[want]:
        says = "is refused" if refused else "changes something" if changed else "changes nothing" if result[0] == 0 else f"ends with {result[0]}"
        failures.append(f"{what}: {key} {says}, wanted: {want}: {(result[2] or base[2]).strip()[:200]}")


def in_parallel(jobs):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda job: job(), jobs))


# ---- config.json -----------------------------------------------------------------------------------

LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 1, "vocab_size": 40, "max_position_embeddings": 32, "hidden_act": "silu"}
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 40}
MPT = {"model_type": "mpt", "d_model": 16, "n_heads": 2, "n_layers": 1, "max_seq_len": 32, "vocab_size": 40}
HARMLESS = {"architectures": ["X"], "torch_dtype": "float16", "dtype": "float16", "transformers_version": "9", "bos_token_id": 7,
            "eos_token_id": 7, "pad_token_id": 7, "use_cache": False, "_name_or_path": "x", "output_attentions": True}
CHANGES, REFUSED = "changes", "refused"
MODELS = {
    "llama": (LLAMA, [
        ("hidden_size", 32, CHANGES), ("intermediate_size", 32, CHANGES), ("num_hidden_layers", 2, CHANGES),
        ("num_attention_heads", 4, CHANGES), ("num_key_value_heads", 2, CHANGES), ("vocab_size", 44, CHANGES),
        ("max_position_embeddings", 4, "refused_seq"), ("hidden_act", "gelu", CHANGES), ("hidden_act", "relu", CHANGES),
        ("hidden_act", "gelu_pytorch_tanh", CHANGES), ("hidden_act", "mish", REFUSED), ("head_dim", 4, CHANGES),
        ("attention_bias", True, CHANGES), ("mlp_bias", True, CHANGES), ("tie_word_embeddings", True, CHANGES),
        ("rms_norm_eps", 0.1, CHANGES), ("initializer_range", 0.2, CHANGES), ("rope_theta", 50.0, CHANGES),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 50.0}, CHANGES),
        ("rope_parameters", {"rope_type": "linear", "factor": 4.0}, CHANGES),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, CHANGES),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8}, CHANGES),
        ("rope_scaling", {"rope_type": "llama3", "factor": 2.5}, REFUSED + ":factor"),
        ("rope_scaling", {"rope_type": "llama3", "fctor": 8}, REFUSED + ":fctor"),
        ("rope_scaling", 4, REFUSED), ("attention_dropout", 0.1, REFUSED), ("sliding_window", 4, "same"),
        ("quantization_config", {}, REFUSED), ("num_experts", 4, REFUSED), ("n_inner", 7, REFUSED),
        ("pretraining_tp", 2, "same")]),
    "qwen2": ({**LLAMA, "model_type": "qwen2"}, [
        ("attention_bias", True, REFUSED), ("mlp_bias", True, REFUSED), ("use_sliding_window", "x", REFUSED)]),
    "gpt2": (GPT2, [
        ("n_embd", 32, CHANGES), ("n_layer", 2, CHANGES), ("n_head", 4, CHANGES), ("n_positions", 4, "refused_seq"),
        ("vocab_size", 44, CHANGES), ("n_inner", 24, CHANGES), ("activation_function", "gelu", CHANGES),
        ("activation_function", "relu", CHANGES), ("activation_function", "silu", CHANGES),
        ("activation_function", "gelu_fast", REFUSED), ("tie_word_embeddings", False, CHANGES),
        ("layer_norm_epsilon", 0.1, CHANGES), ("initializer_range", 0.2, CHANGES), ("scale_attn_weights", False, CHANGES),
        ("scale_attn_by_inverse_layer_idx", True, "same"), ("reorder_and_upcast_attn", True, REFUSED),
        ("scale_attn_weights", "x", REFUSED), ("add_cross_attention", True, REFUSED), ("resid_pdrop", 0.1, REFUSED), ("embd_pdrop", 0.1, REFUSED),
        ("attn_pdrop", 0.1, REFUSED), ("hidden_act", "relu", REFUSED), ("n_ctx", 8, "same"), ("summary_first_dropout", 0.1, "same")]),
    "mpt": (MPT, [
        ("d_model", 32, CHANGES), ("n_heads", 4, CHANGES), ("n_layers", 2, CHANGES), ("expansion_ratio", 2, CHANGES),
        ("max_seq_len", 4, "refused_seq"), ("vocab_size", 44, CHANGES), ("no_bias", True, REFUSED), ("learned_pos_emb", False, REFUSED),
        ("norm_type", "rmsnorm", REFUSED), ("logit_scale", 2, REFUSED), ("emb_pdrop", 0.1, REFUSED), ("resid_pdrop", 0.1, REFUSED),
        ("embedding_fraction", 0.5, REFUSED), ("tie_word_embeddings", False, CHANGES), ("layer_norm_epsilon", 0.1, CHANGES),
        ("initializer_range", 0.2, CHANGES), ("init_config", {"init_std": 0.2}, CHANGES),
        ("init_config", {"name": "kaiming_normal_"}, REFUSED + ":name"), ("init_config", {"gain": 2}, REFUSED + ":gain"),
        ("attn_config", {"alibi": True}, REFUSED + ":alibi"), ("attn_config", {"clip_qkv": 6}, REFUSED + ":clip_qkv"),
        ("attn_config", {"new_key": 1}, REFUSED + ":new_key"), ("ffn_config", {"ffn_type": "mptglu"}, REFUSED)]),
}


def run_model(name, config):
    write(f"{name}.json", config)
    out = os.path.join(TMP, f"{name}.out")
    write(f"{name}.yaml", {"model": f"{name}.json", "world": 1, "batch": 2, "seq": 8, "precision": {"param": "none", "reduce": "none"},
                           "train": {"steps": 2, "lr": 0.01}, "strategies": {"s": {}}})
    code, text, err = tessera("run", os.path.join(TMP, f"{name}.yaml"), "--strategy", "s", "--on", "host", "--out", out)
    values = re.findall(r'"loss": ([^,]+)', open(os.path.join(out, "metrics.jsonl")).read()) if code == 0 else [text]
    shutil.rmtree(out, ignore_errors=True)
    return code, " ".join(values), err


def models():
    jobs = []
    for family, (config, rows) in MODELS.items():
        base = run_model(family, config)
        rows = rows + [("no_such_key", 1, REFUSED)] + [(k, v, "same") for k, v in HARMLESS.items()]

        def one(family=family, config=config, base=base, rows=rows, i=0):
            key, value, want = rows[i]
            result = run_model(f"{family}-{i}", {**config, key: value})
            if want == "refused_seq":
                verdict(f"config.json of {family}", "seq", base, result, REFUSED)
            elif ":" in want:
                verdict(f"config.json of {family}", want.split(":")[1], base, result, want.split(":")[0])
            else:
                verdict(f"config.json of {family}", key, base, result, want)
        jobs += [lambda one=one, i=i: one(i=i) for i in range(len(rows))]
    in_parallel(jobs)


# ---- module trees --------------------------------------------------------------------------------------

TREE = {"tokens": 40, "loss": "ce", "modules": [
    {"name": "embed", "type": "embedding", "num": 40, "dim": 8}, {"name": "norm", "type": "rmsnorm", "dim": 8},
    {"name": "body", "type": "seq", "children": [{"name": "act", "type": "gelu"}, {"name": "a", "type": "linear", "in": 8, "out": 8}]},
    {"name": "head", "type": "linear", "in": 8, "out": 40}]}


def grow(name, tree):
    write(f"{name}.json", tree)
    path = write(f"{name}.yaml", {"model": {"tree": f"{name}.json"}, "world": 1, "batch": 2, "seq": 8, "wrap": "root",
                                  "precision": {"param": "none", "reduce": "none"}, "train": {"steps": 2, "lr": 0.01}, "strategies": {"s": {}}})
    out = os.path.join(TMP, f"{name}.out")
    code, text, err = tessera("run", path, "--strategy", "s", "--on", "host", "--out", out)
    if code == 0:
        code, _, err = tessera("inspect", path)
        text = " ".join(re.findall(r'"loss": ([^,]+)', open(os.path.join(out, "metrics.jsonl")).read()))
    shutil.rmtree(out, ignore_errors=True)
    return code, text, err


def trees():
    modules, act, last = ["modules"], ["modules", 2, "children", 0], ["modules", 2, "children", 1]
    rows = [
        (modules + [1, "eps"], 0.1, CHANGES), (modules + [1, "eps"], -1, REFUSED), (modules + [1, "type"], "layernorm", CHANGES),
        (act + ["type"], "gelu_erf", CHANGES), (act + ["type"], "relu", CHANGES), (act + ["type"], "silu", CHANGES),
        (act + ["type"], "tanh", REFUSED), (act + ["approximate"], "none", REFUSED), (modules + [2, "residual"], True, CHANGES),
        (modules + [2, "run"], ["a"], CHANGES), (modules + [2, "run_at"], {"1": ["a"]}, CHANGES), (modules + [3, "bias"], False, CHANGES),
        (modules + [3, "dropout"], 0.1, REFUSED), (["tie"], [["head.weight", "embed.weight"]], CHANGES), (["frozen"], ["body.**"], CHANGES),
        (["in_dim"], 8, REFUSED), (["out_dim"], "wide", REFUSED), (["meta"], True, REFUSED), (["noncontiguous"], [], REFUSED),
        (["kind"], "llama", REFUSED), (["loss"], "l1", REFUSED), (["no_such_key"], 1, REFUSED),
        (last, {"name": "a", "ref": "body.act", "bias": False}, REFUSED + ":bias")]
    base = grow("tree", TREE)

    def one(i):
        path, value, want = rows[i]
        key = want.split(":")[1] if ":" in want else str(path[-1])
        verdict("tree", key, base, grow(f"tree-{i}", changed(TREE, path, value)), want.split(":")[0])
    in_parallel([lambda i=i: one(i) for i in range(len(rows))])


# ---- scenarios of events -----------------------------------------------------------------------------

def at(tree, path):
    for key in path[:-1]:
        tree = tree[key]
    return tree


def changed(tree, path, value):
    tree = copy.deepcopy(tree)
    at(tree, path)[path[-1]] = value
    return tree


def play(name, scenario):
    path = write(f"trace/scenarios/{name}.json", scenario)
    out = os.path.join(TMP, f"trace/{name}.out")
    executes = ["--executor", "host"] if "tensors" in scenario else []
    code, _, err = tessera("trace", path, "-o", out, *executes)
    text = ""
    if code == 0:
        result = json.load(open(out))
        result.pop("tensors", None)
        result.pop("name", None)
        text = json.dumps(result)
        if executes:
            text += str(open(out + ".final.safetensors", "rb").read())
    return code, text, err


def found(name):
    scenario = json.load(open(f"{SOURCE}/tests/golden-found/scenarios/{name}.json"))
    for key, path in scenario["tensors"].items():
        scenario["tensors"][key] = os.path.relpath(f"{SOURCE}/tests/golden-found/{path}", f"{TMP}/trace")
    return scenario


def golden(name):
    scenario = json.load(open(f"{SOURCE}/tests/golden/scenarios/{name}.json"))
    scenario.pop("tensors", None)
    return scenario


def scenarios():
    os.makedirs(f"{TMP}/trace/scenarios", exist_ok=True)
    adamw, sgd, momentum = found("m-opt-adamw-eps"), found("m-opt-sgd-max"), found("m-opt-sgd-damp")
    nesterov = found("m-opt-sgd-nesterov")
    nosync = found("m-adamw-nosync")
    hsdp, ddp = golden("hsdp-2x2"), golden("ddp-cap314-w2")
    optimizer, wrap = ["train", "optimizer"], ["wrap", 0]
    call = {"at": {"when": "before_forward"}, "fn": "set_requires_gradient_sync", "module": "", "args": {"value": False}}
    rows = [
        (adamw, optimizer + ["lr"], 0.2, CHANGES), (adamw, optimizer + ["betas"], [0.4, 0.7], CHANGES),
        (adamw, optimizer + ["eps"], 0.1, CHANGES), (adamw, optimizer + ["weight_decay"], 0.1, CHANGES),
        (adamw, optimizer + ["amsgrad"], True, CHANGES), (adamw, optimizer + ["maximize"], True, CHANGES),
        (adamw, optimizer + ["momentum"], 0.5, REFUSED), (adamw, optimizer + ["name"], "adam", REFUSED),
        (sgd, optimizer + ["lr"], 0.2, CHANGES), (sgd, optimizer + ["maximize"], False, CHANGES),
        (sgd, optimizer + ["momentum"], 0.5, CHANGES), (sgd, optimizer + ["weight_decay"], 0.2, CHANGES),
        (sgd, optimizer + ["nesterov"], True, REFUSED), (sgd, optimizer + ["betas"], [0.4, 0.7], REFUSED),
        (momentum, optimizer + ["dampening"], 0.1, CHANGES), (momentum, optimizer + ["weight_decay"], 0.2, CHANGES),
        (momentum, optimizer + ["nesterov"], True, REFUSED), (momentum, optimizer + ["maximize"], True, CHANGES),
        (nesterov, optimizer + ["nesterov"], False, CHANGES), (nesterov, optimizer + ["dampening"], 0.3, REFUSED + ":nesterov"),
        (momentum, optimizer + ["lr"], "fast", REFUSED),
        (sgd, ["train", "iters"], 2, CHANGES), (sgd, ["train", "batch"], 1, "fails"), (sgd, ["train", "batch"], "two", REFUSED),
        (sgd, ["train", "micro"], 2, "fails"), (sgd, ["train", "no_grad_iters"], [1], CHANGES),
        (sgd, ["train", "schedule"], ["F0"], CHANGES), (nosync, ["train", "entry_at"], {"1": "body.a"}, CHANGES),
        (sgd, ["train", "seed"], 7, "same"), (sgd, ["train", "data_seed"], 7, "same"), (sgd, ["train", "epochs"], 7, REFUSED),
        (sgd, ["model", "frozen"], ["body.a.*"], CHANGES), (sgd, ["model", "param_dtypes"], [["body.**", "bf16"]], "fails"),
        (sgd, ["model", "loss"], "ce", "fails"), (sgd, ["model", "tokens"], 5, "either"), (sgd, ["model", "dropout"], 0.1, REFUSED),
        (sgd, ["model", "modules", 0, "children", 0, "bias"], True, "fails"),
        (sgd, ["model", "modules", 0, "residual"], True, CHANGES), (sgd, ["model", "modules", 0, "run"], ["a"], CHANGES),
        (sgd, ["model", "modules", 0, "run_at"], {"1": ["a"]}, CHANGES), (sgd, ["model", "modules", 0, "eps"], 0.1, REFUSED),
        (sgd, ["mesh", "shape"], [1], "fails"), (sgd, ["mesh", "names"], ["x"], REFUSED),
        (sgd, wrap + ["api"], "replicate", CHANGES), (sgd, wrap + ["api"], "fsdp", REFUSED),
        (sgd, wrap + ["modules"], ["body.a"], CHANGES), (sgd, wrap + ["reshard_after_forward"], True, CHANGES),
        (sgd, wrap + ["mp"], {"param": "bf16"}, CHANGES), (sgd, wrap + ["mp"], {"reduce": "bf16"}, CHANGES),
        (sgd, wrap + ["mp"], {"output": "bf16"}, CHANGES), (sgd, wrap + ["mp"], {"param": "bf8"}, REFUSED + ":param"),
        (sgd, wrap + ["mp"], {"grads": "bf16"}, REFUSED + ":grads"), (sgd, wrap + ["offload"], "cpu", CHANGES),
        (sgd, wrap + ["offload"], "disk", REFUSED), (sgd, wrap + ["shard_dim"], [["body.a.*", 1]], CHANGES),
        (sgd, wrap + ["ignored"], ["body.a.*"], CHANGES), (sgd, wrap + ["group"], 3, REFUSED),
        (sgd, wrap + ["mesh_dims"], ["shard"], REFUSED), (sgd, wrap + ["clip"], 1, REFUSED),
        (sgd, ["ac"], [{"modules": ["body"], "where": "inside"}], CHANGES),
        (sgd, ["ac"], [{"modules": ["body"], "where": "within"}], REFUSED + ":where"),
        (sgd, ["calls"], [call], CHANGES), (sgd, ["calls"], [{**call, "fn": "set_sync"}], REFUSED + ":fn"),
        (sgd, ["calls"], [{**call, "args": {"value": 3}}], REFUSED + ":value"),
        (sgd, ["calls"], [{**call, "args": {"modules": []}}], REFUSED + ":modules"),
        (sgd, ["calls"], [{**call, "at": {"when": "later"}}], REFUSED + ":when"),
        (sgd, ["calls"], [{**call, "at": {"when": "before_forward", "step": 1}}], REFUSED + ":step"),
        (sgd, ["reference"], False, "same"), (sgd, ["reference_divisor"], 7, "same"), (sgd, ["ddp"], {}, REFUSED),
        (sgd, ["tp"], [], REFUSED), (sgd, ["no_such_key"], 1, REFUSED),
        (hsdp, ["mesh", "shape"], [4, 1], CHANGES), (hsdp, ["mesh", "dim_names"], None, "either"),
        (ddp, ["ddp", "bucket_cap_mb"], 9, CHANGES), (ddp, ["ddp", "find_unused_parameters"], True, CHANGES),
        (ddp, ["ddp", "static_graph"], True, CHANGES), (ddp, ["ddp", "skip_all_reduce_unused_params"], True, "same"),
        # where gradients lie, which no event says
        (ddp, ["ddp", "gradient_as_bucket_view"], True, "same"),
        (ddp, ["ddp", "mixed"], True, REFUSED), (ddp, ["wrap"], [{"modules": [""], "api": "fully_shard"}], REFUSED),
        (ddp, ["ac"], [], REFUSED),
    ]
    bases = {id(s): play(f"base-{i}", s) for i, s in enumerate((adamw, sgd, momentum, nesterov, nosync, hsdp, ddp))}

    def one(i):
        scenario, path, value, want = rows[i]
        key = want.split(":")[1] if ":" in want else str(path[-1])
        result = play(f"row-{i}", changed(scenario, path, value))
        if want == "fails":  # other tensors would be needed: noticed, by whatever needs them
            result, want = (2 if result[0] else 0, result[1], f"{key}\n"), REFUSED
        verdict("scenario of events", key, bases[id(scenario)], result, want.split(":")[0])
    in_parallel([lambda i=i: one(i) for i in range(len(rows))])


# ---- scenarios of memory -------------------------------------------------------------------------------

def recall(name, scenario):
    path = write(f"memory/{name}.json", scenario)
    code, text, err = tessera("memory", path)
    return code, text.replace(f"{name}", "NAME"), err


def memory():
    base = json.load(open(f"{SOURCE}/tests/golden-memory/tiny-ac-full.json"))["scenario"]
    base = {**base, "iters": 2}
    none = {**base, "ac": "none"}
    several = {**none, "grad_accum": 2}
    model = ["model_config"]
    rows = [
        (none, ["rank"], 1, "either"), (none, ["mesh"], [2], CHANGES), (none, ["kind"], "replicate", CHANGES),
        (none, ["wrap"], "root", CHANGES), (none, ["wrap"], "embed_block_tail_root", CHANGES), (none, ["ac"], "full", CHANGES),
        (none, ["ac"], "every2", CHANGES), (none, ["reshard_after_forward"], False, CHANGES),
        (none, ["param_dtype"], "fp16", "either"), (none, ["param_dtype"], None, CHANGES), (none, ["reduce_dtype"], "bf16", CHANGES),
        (none, ["output_dtype"], "fp32", "fails"), (none, ["optimizer"], "adamw_fused", CHANGES),
        (none, ["optimizer"], "adamw_loop", CHANGES), (none, ["optimizer"], "sgd", CHANGES), (none, ["optimizer"], "adam", REFUSED),
        (none, ["batch"], 3, CHANGES), (none, ["seq"], 64, CHANGES), (none, ["grad_accum"], 2, CHANGES),
        (several, ["accum_mode"], "no_reduce", CHANGES), (none, ["cpu_offload"], "pinned", CHANGES),
        (none, ["fwd_prefetch"], 1, "either"), (none, ["bwd_prefetch"], 2, "either"), (none, ["device_bytes"], 1 << 25, "oom"),
        (none, ["expandable_segments"], True, CHANGES), (none, ["sdpa"], "math", CHANGES), (none, ["clip"], True, CHANGES),
        (none, ["loss_kernel"], "flash_attn", CHANGES), (none, ["metrics"], 1, CHANGES), (none, ["iters"], 1, CHANGES),
        (none, ["no_such_key"], 1, REFUSED), (none, ["bacth"], 2, REFUSED),
        (none, model + ["num_hidden_layers"], 3, CHANGES), (none, model + ["hidden_size"], 128, CHANGES),
        (none, model + ["intermediate_size"], 512, CHANGES), (none, model + ["num_attention_heads"], 2, "either"),
        (none, model + ["num_key_value_heads"], 1, CHANGES), (none, model + ["vocab_size"], 999, CHANGES),
        (none, model + ["max_position_embeddings"], 4096, CHANGES), (none, model + ["tie_word_embeddings"], True, CHANGES),
        (none, model + ["norm"], "hand", CHANGES), (none, model + ["gqa"], "repeat", "either"), (none, model + ["impl"], "hf", CHANGES),
        (none, model + ["hidden_act"], "relu", REFUSED), (none, model + ["family"], "bert", REFUSED),
    ]
    bases = {id(s): recall("base", s) for s in (none, several)}

    def one(i):
        scenario, path, value, want = rows[i]
        result = recall(f"row-{i}", changed(scenario, path, value))
        if want == "fails":  # as in PyTorch: the next module gets another dtype
            result, want = (0, "other", "") if "same dtype" in result[2] else result, CHANGES
        if want == "oom":
            result, want = (0, "other", "") if result[0] == 3 else result, CHANGES
        verdict("scenario of memory", path[-1], bases[id(scenario)], result, want)
    in_parallel([lambda i=i: one(i) for i in range(len(rows))])


# ---- devices and clusters --------------------------------------------------------------------------------

FACTS = {
    "gpu": ["vendor", "compute_capability", "board_power_w", "memory.nominal_gb", "memory.context_source", "memory.type",
            "memory.l2_bytes", "nvlink.generation", "nvlink.links", "pcie.description", "notes", "source", "reference_node"],
    "node": ["intra_node.switch_chips", "intra_node.all_to_all", "intra_node.source", "nics.rate_bit_per_s", "nics.model",
             "nics.fabric", "nics.fitted", "nics.nics_per_gpu", "host.cpu", "pcie_generation", "nvlink_domain_nodes", "notes", "source"],
    "cluster": ["topology.levels", "topology.switch", "topology.load_balancing",
                "topology.reported_static_latency_s", "notes", "source"],
}


def leaves(tree, prefix=()):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, prefix + (key,))
        else:
            yield prefix + (key,)


def cards():
    folder = f"{SOURCE}/experiments/clusters"
    cluster = json.load(open(f"{folder}/cluster-dgx-h100-128.json"))
    node = json.load(open(f"{folder}/node-{cluster['node']}.json"))
    gpu = json.load(open(f"{folder}/gpu-{node['gpu']}.json"))
    gpu["traits"] = {"nvls_efficiency": 0.85, "ll_max_bw": 141e9, "switch_channels": 24, "nvls_channels": 16,
                     "nvls_channels_net": 16, "links": 18, "receiver_reads": False, "has_multicast": True, "has_flash3": True}
    files = {"cluster": cluster, "node": node, "gpu": gpu}
    write("card/model.json", {**LLAMA, "hidden_size": 1024, "num_attention_heads": 8, "intermediate_size": 2048})

    def simulate(name, changes):
        place = os.path.join(TMP, "card", name)
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        for path in glob.glob(f"{folder}/kernels-*.json") + glob.glob(f"{folder}/gpu-*.json"):
            os.symlink(path, os.path.join(place, os.path.basename(path)))
        for kind, value in {**files, **changes}.items():
            path = os.path.join(place, {"cluster": "cluster-c.json", "node": f"node-{cluster['node']}.json",
                                        "gpu": f"gpu-{node['gpu']}.json"}[kind])
            if os.path.islink(path):
                os.remove(path)
            json.dump(value, open(path, "w"))
        e = {"model": "../model.json", "cluster": f"{place}/cluster-c.json", "batch": 1, "seq": 16,
             "strategies": {"s": {}, "r": {"api": "ddp", "precision": {"param": "none"}}}}
        write(f"card/{name}/e.yaml", e)
        code, text, err = tessera("compare", f"{place}/e.yaml", "--format", "json")
        return code, re.sub(r'"(\w+_wall_s)": [^,\n]*', r'"\1"', text.replace(place, "PLACE")), err

    base = simulate("base", {})
    jobs = []
    for kind, tree in files.items():
        for path in list(leaves(tree)) + [("no_such_key",)] + [(k, "no_such_key") for k, v in tree.items() if isinstance(v, dict)]:
            dotted = ".".join(path)

            def one(kind=kind, tree=tree, path=path, dotted=dotted):
                is_fact = any(dotted == f for f in FACTS[kind])
                if dotted in ("kind", "name", "description", "node", "gpu", "kernels") or path[-1] in ("source", "data") and not is_fact:
                    return
                name = f"{kind}-{'-'.join(path)}"
                want = "same" if is_fact else REFUSED if path[-1] == "no_such_key" else "either"
                # a text where a number is read is refused, also where the number matters elsewhere only
                for value in ["x"] if want != "either" else [3, 0.77, 77e9, {"not": "read"}]:
                    result = simulate(name, {kind: changed(tree, list(path), value)})
                    if want == "either" and (is_refused(result, dotted) or result[1] != base[1]):
                        break
                shutil.rmtree(os.path.join(TMP, "card", name))
                verdict(f"{kind} file", dotted, base, result, want)
            jobs.append(one)
    in_parallel(jobs)


# ---- experiment files ----------------------------------------------------------------------------------

EXPERIMENT = {"model": "model.json", "cluster": "dgx-h100-1", "batch": 2, "seq": 32}
F32 = {"precision": {"param": "none", "reduce": "none"}}
CONTEXTS = {
    "fsdp": {}, "ddp": {"api": "ddp"}, "fsdp1": {"api": "fsdp1"}, "hsdp": {"mesh": {"replicate": 2, "shard": 4}},
    "steps": {"accumulation": {"steps": 2}}, "checkpoint": {"checkpoint": {"every": 1}}, "compile": {"dialect": "compile"},
    "fused": {"dialect": "fused"}, "gpt2": {"model": "gpt2.json"}, "hf": {"model": {"name": "model.json", "implementation": "transformers"}},
    "own": {"cluster": {"nodes": 2, "gpus": 4, "gpu": "h100-sxm5-80g"}},
    "leaves": {"cluster": {"nodes": 4, "gpus": 4, "gpu": "h100-sxm5-80g", "oversubscription": 8}},
    "nodes": {"cluster": "dgx-h100-128", "nodes": 2}, "clip": {"clip": True}, "sgd": {"optimizer": {"name": "sgd"}},
    "f32": F32, "tp": {"tp": 2}, "phases": {"phases": ["init", "load", "step1", "step2", "save"]},
    "noise": {"sim": {"samples": 8, "jitter_kernel": 0.1}}, "slow": {"sim": {"slow_factor": 2}}, "ddp f32": {"api": "ddp", **F32},
    "triton": {"sim": {"attention_kernel": "flash1_triton"}, "model": "long.json", "seq": 4096},
    "tiers": {"cluster": "racks-of-two", "model": "long.json", "seq": 4096},
    "fp8": {"dialect": "compile", "precision": {"linear": "fp8_tensorwise"}},
    "long": {"model": "long.json", "seq": 4096}, "mpt": {"model": "mpt.json", "attention_unpad": True},
    "card": {"mirror": True, "optimizer": {"variant": "fused"}}, "root": {"wrap": "root"}, "tight": {"allocator": {"limit": "card"}},
}
RECORDED = "tests/oracle/train/recorded"


def simulated(context, key, value):
    e = {**EXPERIMENT, **CONTEXTS[context], "strategies": {"s": {}}}
    name = f"{context}-{key}-{value}".replace("/", "_")[:80] if key else context
    path = write(f"experiment/{name}.yaml", e)
    sets = ["--set", f"{key}={value}"] if key else []
    folder = path + ".code"
    code, text, err = tessera("compare", path, "--format", "json", "--emit", "torch", folder, *sets)
    if code == 0:
        WRITTEN[context, key] = open(os.path.join(folder, "s.py")).read()
        rows = json.loads(text)["rows"]
        text = " ".join(map(text_of, rows))
    return code, text, err


# What --emit torch wrote in a context, by the key that was set, and what was simulated together.
WRITTEN, TOGETHER = {}, {}


def together(context, keys):
    """Simulates the rows of a context at once, each as a strategy of its own: most of a process is its start. What a file
    refuses there is left to simulated()."""
    e = {**EXPERIMENT, **CONTEXTS[context]}
    head = "".join(f"{k}: {json.dumps(v)}\n" for k, v in e.items()) + "strategies:\n  s: {}\n  again: {}\n"
    path = write(f"experiment/together-{context}.yaml", head + "".join(f"  k{i}: {{{key}: {value_of(key)}}}\n" for i, key in enumerate(keys)))
    code, text, err = tessera("compare", path, "--format", "json", "--emit", "torch", path + ".code")
    for row, key in zip(json.loads(text)["rows"] if code == 0 else [], [None, "again", *keys]):
        WRITTEN[context, key] = open(f"{path}.code/{row['strategy']}.py").read()
        TOGETHER[context, key] = 0, text_of(row), err
    if code == 0 and (TOGETHER[context, "again"] != TOGETHER[context, None] or code_of(context, "again") != code_of(context, None)):
        failures.append(f"experiment ({context}): a strategy that changes nothing has another row or other code")


def text_of(row):
    return json.dumps({k: v for k, v in row.items() if not k.endswith("_wall_s") and k not in ("strategy", "summary", "changes")})


def code_of(context, key):
    return re.sub(r"(?m)^#(?! PYTORCH).*\n", "", WRITTEN[context, key])


def check_written(context, key, value):
    """The code differs, or what stands above it names the key."""
    global checks
    if context not in CONTEXTS: # the key is not of simulations: it must be the user's in the code
        context = "f32" if key in ("optimizer.maximize", "optimizer.nesterov", "optimizer.amsgrad") else "fsdp"
        if simulated(context, key, value)[0]:
            return
    if (context, key) not in WRITTEN:
        return
    checks += 1
    if (context, None) not in WRITTEN:
        simulated(context, None, None)
    if code_of(context, None) == code_of(context, key) and not re.search(rf"[ :]{re.escape(key)}[=,.]", WRITTEN[context, key]):
        failures.append(f"experiment ({context}): --emit torch neither says {key} nor names it")


def executed(context, key, value):
    e = {"model": "tiny.json", "world": 1, "batch": 2, "seq": 8, **F32, "train": {"steps": 4, "lr": 0.01, "warmup": 1}, "strategies": {"s": {}}}
    if "sgd" in context:
        e["optimizer"] = {"name": "sgd"}
    if "clip" in context:
        e["clip"] = True
    if "often" in context:
        e["checkpoints"] = {"every": 1}
    if "data" in context:
        e["model"] = "bytes.json"
        e["data"] = {"train": f"{SOURCE}/{RECORDED}/train.bin", "val": f"{SOURCE}/{RECORDED}/val.bin"}
        e["eval"] = {"every": 2, "batches": 2}
    name = f"{context}-{key}-{value}".replace("/", "_").replace(" ", "_")[:80]
    path, out = write(f"experiment/{name}.yaml", e), os.path.join(TMP, "experiment", name + ".out")
    sets = ["--set", f"{key}={value}"] if key else []
    code, text, err = tessera("run", path, "--strategy", "s", "--on", "host", "--out", out, *sets)
    if code == 0:
        log = open(os.path.join(out, "metrics.jsonl")).read()
        text = str(re.findall(r'"(?:step|loss|grad_norm|lr|eval_loss)": [^,}]+', log)) + str(sorted(glob.glob("checkpoints/*", root_dir=out)))
        text += str(len(text.splitlines())) + str(len([x for x in err.splitlines() if x.startswith("step")]))
    shutil.rmtree(out, ignore_errors=True)
    return code, text, err


def months(context, key, value):
    e = {**EXPERIMENT, "goodput": {"days": 3, "runs": 3}, "strategies": {"s": {}}}
    path = write(f"experiment/goodput-{key}-{value}.yaml", e)
    sets = ["--set", f"{key}={value}"] if key else []
    return tessera("goodput", path, *sets)


def outcome(context, key=None, value=None):
    if (context, key) in TOGETHER:
        return TOGETHER[context, key]
    if context == "goodput":
        return months(context, key, value)
    return executed(context, key, value) if context.startswith("run") else simulated(context, key, value)


# Of every key: where it matters, and a value that changes results there. Paths are those of the source tree.
ROWS = {
    "model.tree": ("fsdp", "experiments/own-model/tree.yaml"), "model.trace": ("fsdp", "nowhere.trace"), "model.variant": ("fsdp", "b1-none"),
    "model.name": ("fsdp", "gpt2.json"), "model.layers": ("fsdp", "1"),
    "model.blocks": ("fsdp", "model.layers.1"), "model.positions": ("gpt2", "64"), "model.implementation": ("fsdp", "transformers"),
    "model.names": ("fsdp", "torchtitan"), "model.norm": ("fsdp", "hand"), "model.weights": ("run", "nowhere"),
    "stack": ("fsdp", "torchtitan-2024-12"),
    "cluster.name": ("fsdp", "dgx-a100-16"), "cluster.gpu": ("own", "a100-sxm4-80g"), "cluster.gpus": ("own", "8"),
    "cluster.nodes": ("own", "4"), "cluster.nvlink": ("own", "none"), "cluster.nics": ("own", "1"), "cluster.nic_gbit": ("own", "50"),
    "cluster.oversubscription": ("own", "8"), "cluster.leaf_nodes": ("leaves", "2"), "nodes": ("fsdp", "2"), "gpu": ("fsdp", "a100-sxm4-80g"), "model.packed": ("hf", "true"),
    "world": ("fsdp", "4"), "mesh.shape": ("fsdp", "[2, 4]"), "mesh.replicate": ("fsdp", "2"), "mesh.shard": ("fsdp", "2"),
    "batch": ("fsdp", "3"), "seq": ("fsdp", "16"), "accumulation.steps": ("fsdp", "2"), "accumulation.mode": ("steps", "no_reduce"),
    "iterations": ("fsdp", "4"), "phases": ("fsdp", "[init, step]"), "init": ("fsdp", "device"), "precision.master": ("fsdp", "bf16"),
    "precision.param": ("fsdp", "none"), "precision.reduce": ("fsdp", "none"), "precision.linear": ("fsdp", "fp8_delayed"),
    "precision.output": ("root", "f32"), "optimizer.name": ("fsdp", "sgd"), "optimizer.variant": ("fsdp", "fused"),
    "optimizer.state": ("fsdp", "bf16"), "clip": ("fsdp", "true"), "optimizer.momentum": ("sgd", "false"),
    "optimizer.nesterov": ("run sgd", "true"), "optimizer.maximize": ("run", "true"), "optimizer.amsgrad": ("run", "true"),
    "train.dampening": ("run sgd", "0.5"),
    "loss.kernel": ("fsdp", "flash_attn"), "loss.metrics": ("fsdp", "2"), "loss.read": ("fsdp", "true"), "loss.chunks": ("fsdp", "2"),
    "sync_each_step": ("fsdp", "loss"), "checkpoint.every": ("fsdp", "2"), "clip_variant": ("clip", "loop"),
    "checkpoint.first": ("checkpoint", "2"), "checkpoint.count": ("checkpoint", "1"), "checkpoint.share": ("checkpoint", "0.5"),
    "checkpoint.hooks": ("checkpoint", "outside"), "attention": ("f32", "eager"), "checkpoint.early_stop": ("checkpoint", "false"),
    "gqa_repeat": ("fsdp", "true"), "dialect": ("fsdp", "fused"), "compile.components": ("compile", "[model, loss]"), "tp": ("fsdp", "2"), "sequence_parallel": ("tp", "false"),
    "api": ("fsdp", "replicate"), "two_level_gather": ("fsdp", "true"), "separate_reduce_scatter_group": ("fsdp", "true"),
    "mirror": ("fsdp", "true"), "direct_gather": ("fsdp", "true"), "wrap": ("fsdp", "root"), "reshard_after_forward": ("fsdp", "2"),
    "reshard_after_backward": ("fsdp", "false"), "forward_prefetch": ("fsdp", "2"), "backward_prefetch": ("fsdp", "2"),
    "offload": ("fsdp", "cpu"), "ddp.bucket_cap_mb": ("ddp", "0.5"), "ddp.find_unused": ("ddp", "true"),
    "ddp.static_graph": ("ddp", "true"), "fsdp1.backward_prefetch": ("fsdp1", "post"), "fsdp1.forward_prefetch": ("fsdp1", "true"),
    "fsdp1.limit_all_gathers": ("fsdp1", "false"), "data.train": ("run", "tests/oracle/train/recorded/train.bin"),
    "data.val": ("run data", "nowhere"), "folded_scale": ("card", "true"), "data.order": ("run data", "sequential"), "data.host_gib": ("fsdp", "1"),
    "train.steps": ("run", "2"), "train.seed": ("run", "2"), "train.lr": ("run", "0.5"), "train.schedule": ("run", "constant"),
    "train.warmup": ("run", "2"), "train.min_lr": ("run", "0.5"), "train.decay": ("run", "all"), "train.weight_decay": ("run", "0.5"),
    "train.beta1": ("run", "0.5"), "train.beta2": ("run", "0.5"), "train.eps": ("run", "0.5"), "train.momentum": ("run sgd", "0.5"),
    "train.log_every": ("run", "2"), "eval.every": ("run data", "1"), "eval.batches": ("run data", "1"),
    "checkpoints.every": ("run", "2"), "train.max_norm": ("run clip", "0.5"), "checkpoints.last": ("run", "false"),
    "allocator.expandable_segments": ("fsdp", "true"), "allocator.roundup_power2_divisions": ("fsdp", "2"),
    "allocator.large_segment_mb": ("fsdp", "16"), "sim.host_launch_us": ("fsdp", "0.5"), "sim.host_compiled_us": ("compile", "0.5"),
    "sim.host_collective_us": ("fsdp", "0.5"), "sim.host_event_us": ("fsdp", "0.5"), "sim.host_alloc_us": ("fsdp", "0.5"),
    "sim.host_segment_us": ("fsdp", "0.5"), "sim.host_scale": ("fsdp", "0.5"), "sim.queue_depth": ("fsdp", "2"),
    "sim.cuda_device_max_connections": ("fsdp", "2"), "sim.latency_scale": ("fsdp", "0.5"), "sim.link_efficiency": ("fsdp", "0.5"),
    "sim.infinite_bandwidth": ("fsdp", "true"), "sim.protocol": ("fsdp", "ll128"), "sim.algorithm": ("fsdp", "nvls"),
    "sim.fold": ("fsdp", "false"), "sim.nccl_at_init": ("fsdp", "true"), "sim.host_region_us": ("compile", "0.5"), "sim.slow_factor": ("fsdp", "0.5"),
    "sim.attention_kernel": ("fsdp", "math"), "sim.norm_kernel": ("fsdp", "compiled"), "sim.tf32": ("f32", "true"),
    "sim.nic_bw": ("nodes", "1000"), "sim.intra_bw": ("fsdp", "1000"), "sim.faults": ("nodes", "nowhere.yaml"),
    "sim.traffic": ("nodes", "nowhere.csv"), "sim.background_port": ("fsdp", "0.5"), "sim.background_nic": ("nodes", "0.5"),
    "sim.jitter_kernel": ("fsdp", "0.5"), "sim.jitter_gpu": ("fsdp", "0.5"), "sim.seed": ("noise", "2"),
    "sim.calibration.matmul_sustained": ("fsdp", "0.5"), "sim.samples": ("noise", "2"),
    "sim.calibration.attention_sustained": ("long", "0.5"), "sim.calibration.backward_sustained": ("fsdp", "0.5"),
    "sim.calibration.memory_sustained": ("fsdp", "0.5"), "sim.calibration.host_scale": ("fsdp", "0.5"),
    "sim.calibration.comm_compute_slowdown": ("fsdp", "0.5"), "sim.calibration.intra_efficiency": ("fsdp", "0.5"),
    "sim.calibration.inter_efficiency": ("nodes", "0.5"), "sim.calibration.straggler_share": ("nodes", "0.5"),
    "sim.calibration.step_overhead_s": ("fsdp", "0.5"), "sim.calibration.collective_base_s": ("fsdp", "0.01"),
    "sim.calibration.collective_fill_s": ("ddp", "0.01"), "sim.calibration.collective_own": ("fsdp", "0.5"),
    "goodput.checkpoint_minutes": ("goodput", "0.5"), "goodput.node_mtbf_hours": ("goodput", "0.5"),
    "goodput.restart_minutes": ("goodput", "0.5"), "goodput.storage_gb_per_s": ("goodput", "0.5"), "goodput.days": ("goodput", "0.5"),
    "goodput.runs": ("goodput", "2"), "goodput.asynchronous": ("goodput", "true"), "attention_unpad": ("mpt", "false"),
    "checkpoints.keep": ("run often", "1"), "ddp.gradient_as_bucket_view": ("ddp f32", "true"), "load": ("phases", "full_rank0"),
    "load_optimizer": ("phases", "false"), "save": ("phases", "full_rank0"), "precision.fp8_gather": ("fp8", "true"),
    "sim.slow_rank": ("slow", "1000"), "allocator.max_split_mb": ("long", "21"),
    "sim.background_uplink": ("tiers", "0.5"), "sim.calibration.triton_sustained": ("triton", "0.3"),
}
# Values that are refused by what reads them.
BY_READER = {"model.tree", "model.trace", "model.variant", "model.weights", "phases", "data.train", "data.val", "sim.faults", "sim.traffic", "sim.slow_rank"}
# They need a card that is nearly full (conformance.allocator_replay, studies.oom), a SimGrid platform (sim.cluster_xml), inputs that
# are floats (rules.dtypes), or faults (studies.topologies), which have tests of their own.
ELSEWHERE = {"allocator.gc_threshold", "allocator.limit", "gpus_per_node", "precision.cast_inputs", "sim.reroute"}
# For people.
TEXTS = {"description"}


def value_of(key):
    value = ROWS[key][1]
    return f"{SOURCE}/{value}" if os.path.exists(f"{SOURCE}/{value}") else value


def experiment():
    write("experiment/model.json", {**LLAMA, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
                                    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 64})
    write("experiment/long.json", {**LLAMA, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8,
                                   "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 8192})
    write("experiment/gpt2.json", {**GPT2, "n_embd": 256, "n_layer": 2, "n_head": 4})
    write("experiment/mpt.json", {**MPT, "d_model": 256, "n_layers": 2, "n_heads": 4})
    write("experiment/tiny.json", LLAMA)
    write("experiment/bytes.json", {**LLAMA, "vocab_size": 256})
    keys = re.findall(r"^([a-z]\S*)\n    .*\n    default ", tessera("help", "keys")[1], re.M)
    for key in sorted(set(keys) - set(ROWS) - ELSEWHERE - TEXTS):
        failures.append(f"experiment: {key} has no row in tests/cli/keys.py")
    in_parallel([lambda c=c: together(c, [k for k in keys if k in ROWS and ROWS[k][0] == c and k not in BY_READER]) for c in CONTEXTS])
    bases = {context: outcome(context) for context in sorted({context for context, _ in ROWS.values()})}

    def one(key, written):
        context, value = ROWS[key][0], value_of(key)
        result = outcome(context, key, value)
        if key in BY_READER and result[0] == 2 and result[2].count("\n") == 1:
            result = (0, "read", "")
        verdict(f"experiment ({context})", key, bases[context], result, CHANGES)
        if written or context in CONTEXTS: # the others take a simulation more
            check_written(context, key, value)
    in_parallel([lambda key=key, i=i: one(key, THOROUGH or i % 6 == 0) for i, key in enumerate(k for k in keys if k in ROWS)])


PARTS = {"model": models, "tree": trees, "scenario": scenarios, "memory": memory, "card": cards, "experiment": experiment}


def main():
    try:
        for name in sys.argv[1:] or PARTS:
            PARTS[name]()
    finally:
        shutil.rmtree(TMP, ignore_errors=True)
    for failure in sorted(failures):
        print("FAILED:", failure)
    print(f"{checks} checks, {len(failures)} failed")
    return 1 if failures or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
