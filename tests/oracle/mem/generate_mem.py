#!/usr/bin/env python3
"""Random mixes of options for the memory recorder; a seed always gives the same scenario.

    generate_mem.py FIRST COUNT          prints the scenarios of seeds FIRST, FIRST + 1, ... as JSON, one a line

`record.py` imports scenario(). Every scenario starts from one focus (something that the scenarios of
golden-memory do not exercise, or nothing in particular) and draws the rest freely. What
operators.md, section 15, calls "not covered" is never drawn.

A scenario may carry `device_fraction` f: the recorder then measures the peaks on an unlimited device
and sets `device_bytes` to allocated + f (reserved - allocated), which makes retries likely.
"""
import json
import random
import sys

FOCUS = ["splits", "head dim", "wide heads", "one kv head", "math batch", "math ac", "hand fp32", "hand ac", "gpt2 wrap",
         "gpt2 selective", "offload world 1", "offload hsdp", "offload reshard", "clip empty", "hf", "sort", "device",
         "device expandable", "expandable", "accumulate", "tied", "replicate", "reshard", "free", "free", "free", "free"]


def pick(r, *weighted):
    """One of the (value, weight) pairs."""
    values, weights = zip(*weighted)
    return r.choices(values, weights)[0]


def heads(r, sc, focus, family):
    """Numbers of heads and the head dimension."""
    d = pick(r, (16, 2), (32, 3), (64, 4), (80, 1), (96, 1), (128, 2))
    if focus == "head dim" or r.random() < 0.08:
        d = r.choice([4, 10, 12, 20, 36, 50, 60, 68, 100, 108, 130, 150, 196, 252])
        if family == "gpt2" and r.random() < 0.3:
            d += 1
    if focus == "wide heads" or r.random() < 0.06:
        d = r.choice([136, 144, 160, 192, 200, 224, 248, 256])
    h = r.choice([1, 2, 2, 3, 4, 4, 6, 8]) if d > 64 else r.choice([1, 2, 3, 4, 6, 8, 8, 12])
    if focus == "splits":
        h = r.choice([1, 1, 2, 3, 4])
    k = r.choice([x for x in range(1, h + 1) if h % x == 0])
    if focus == "one kv head":
        h, k = max(h, 2), 1
    elif r.random() < 0.25:
        k = h
    return h, k, d


def model(r, sc, focus):
    gpt2 = focus in ("gpt2 wrap", "gpt2 selective") or (focus not in ("one kv head", "hand fp32", "hand ac") and r.random() < 0.28)
    family = "gpt2" if gpt2 else "llama"
    h, k, d = heads(r, sc, focus, family)
    o = dict(hidden_size=h * d, num_attention_heads=h, num_hidden_layers=r.choice([1, 2, 2, 3, 4]),
             vocab_size=r.choice([97, 500, 1000, 1003, 4096, 10000, 32000, 50257]))
    sc["model"] = "gpt2" if gpt2 else "llama-tiny"
    if not gpt2:
        o["num_key_value_heads"] = k
        o["intermediate_size"] = r.choice([100, 256, 344, 688, 1000, 1376, 2048, 3001])
        if focus in ("hand fp32", "hand ac") or r.random() < 0.3:
            o["norm"] = r.choice(["hand", "hand", "nn"]) if focus[:4] != "hand" else "hand"
        if r.random() < 0.35:
            o["gqa"] = "repeat"
        if focus == "tied" or r.random() < 0.2:
            o["tie_word_embeddings"] = True
    elif r.random() < 0.3:
        o["tie_word_embeddings"] = False
    if focus == "hf" or r.random() < 0.05:
        o["impl"] = "hf"
        if gpt2:   # transformers ties GPT-2's weights, and shares them with its own loader only
            o.pop("tie_word_embeddings", None)
    sc["model_overrides"] = o
    return family


def tokens(r, sc, focus, overrides):
    sc["batch"] = r.choice([1, 1, 2, 3, 4])
    sc["seq"] = r.choice([16, 33, 64, 100, 128, 200, 256, 384, 512, 777, 1000, 1024])
    if focus == "splits":
        sc["batch"], sc["seq"] = 1, r.choice([300, 512, 1000, 1024, 2048, 3000, 4096])
    if focus == "sort" or r.random() < 0.1:
        sc["batch"] = r.choice([1, 2, 3, 4])
        sc["seq"] = r.choice([x for x in (800, 1024, 1025, 1537, 2048, 3073, 4096) if x * sc["batch"] > 3072])
    if focus == "math batch":
        sc["batch"] = r.choice([2, 3, 4])
    overrides["max_position_embeddings"] = r.choice([sc["seq"], max(512, sc["seq"]), max(2048, sc["seq"])])


def mesh(r, sc, focus):
    one = r.choice([1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 8, 12, 16, 16, 24, 32, 48, 64])
    sc["mesh"] = [one]
    if focus == "offload world 1":
        sc["mesh"] = r.choice([[1], [1], [2, 1]])
    elif focus == "offload hsdp" or (focus != "offload reshard" and r.random() < 0.22):
        sc["mesh"] = r.choice([[2, 1], [2, 2], [2, 3], [3, 2], [2, 4], [4, 2], [2, 8], [4, 4], [8, 8], [4, 16]])
    elif focus in ("offload reshard", "reshard"):
        sc["mesh"] = [r.choice([4, 6, 8, 12, 16, 64])]
    elif focus == "clip empty":
        sc["mesh"] = [r.choice([32, 48, 64])]
    if focus == "replicate" or (focus not in ("offload world 1", "offload hsdp", "offload reshard", "reshard", "clip empty", "gpt2 wrap") and r.random() < 0.06):
        sc["kind"], sc["mesh"] = "replicate", [one]
    world = sc["mesh"][0] * (sc["mesh"][1] if len(sc["mesh"]) > 1 else 1)
    sc["rank"] = 0 if r.random() < 0.4 else r.choice([world - 1, r.randrange(world)])


def wrapping(r, sc, focus):
    replicate = sc.get("kind") == "replicate"
    sc["wrap"] = pick(r, ("block_root", 6), ("embed_block_tail_root", 0 if replicate else 3), ("root", 2))
    if focus == "gpt2 wrap":
        sc["wrap"] = r.choice(["embed_block_tail_root", "embed_block_tail_root", "root"])
    w = sc["mesh"][-1]
    divisors = [x for x in range(2, w) if w % x == 0]
    sc["reshard_after_forward"] = pick(r, (True, 6), (False, 2), (None, 1), ("n", 2))
    if focus in ("offload reshard", "reshard"):
        sc["reshard_after_forward"] = "n"
        if sc["wrap"] == "root" and r.random() < 0.7:
            sc["wrap"] = "block_root"
    if sc["reshard_after_forward"] == "n":
        sc["reshard_after_forward"] = r.choice(divisors) if divisors and not replicate else True
    sc["ac"] = pick(r, ("none", 5), ("full", 3), ("every2", 1), ("selective_op", 2))
    if focus in ("math ac", "hand ac"):
        sc["ac"] = pick(r, ("full", 3), ("every2", 1), ("selective_op", 2))
    if focus == "gpt2 selective":
        sc["ac"] = "selective_op"
    if sc["wrap"] != "root" and (focus == "reshard" or r.random() < 0.25):   # prefetch needs wrapped blocks
        sc["fwd_prefetch"], sc["bwd_prefetch"] = r.choice([0, 1, 2, 3]), r.choice([0, 1, 2, 3])


def dim0(sc, family):
    """First dimensions of all parameters."""
    o = sc["model_overrides"]
    d, h = o["hidden_size"], o["num_attention_heads"]
    rows = {d, o["vocab_size"]}
    if family == "gpt2":
        return rows | {3 * d, 4 * d, o["max_position_embeddings"]}
    return rows | {o["num_key_value_heads"] * (d // h), o["intermediate_size"]}


def dtypes(r, sc, focus, family):
    sc["param_dtype"], sc["reduce_dtype"] = pick(r, (("bf16", "fp32"), 8), (("bf16", "bf16"), 2), (("bf16", None), 2),
                                                 ((None, None), 3), ((None, "fp32"), 1), ((None, "bf16"), 2), (("fp32", "fp32"), 0.3), (("fp32", None), 0.3))
    if focus in ("splits", "head dim") and r.random() < 0.85:
        sc["param_dtype"] = "bf16"
    if focus == "hand fp32":
        sc["param_dtype"], sc["reduce_dtype"] = None, r.choice([None, "fp32", "bf16"])
    w = 1 if sc.get("kind") == "replicate" else sc["mesh"][-1]
    if sc["param_dtype"] != "bf16" and sc["reduce_dtype"] == "bf16" and any(n % w for n in dim0(sc, family)):
        sc["reduce_dtype"] = r.choice([None, "fp32"])   # uneven shards: not covered


def rest(r, sc, focus):
    sc["optimizer"] = pick(r, ("adamw_foreach", 6), ("adamw_fused", 2), ("adamw_loop", 2), ("sgd", 1), ("sgd_momentum", 1), ("none", 0.5))
    sc["clip"] = focus == "clip empty" or r.random() < 0.25
    if focus == "accumulate" or r.random() < 0.3:
        sc["grad_accum"] = r.choice([2, 2, 3])
        modes = ["reduce_each", "no_reduce", "no_reduce_no_reshard"] + (["no_all_reduce"] * 2 if len(sc["mesh"]) > 1 else [])
        sc["accum_mode"] = r.choice(modes)
    if sc.get("kind") != "replicate" and (focus[:7] == "offload" or r.random() < 0.08):
        sc["cpu_offload"] = r.choice(["pageable", "pinned"])
    sc["sdpa"] = pick(r, ("flash", 6), ("efficient", 2), ("math", 2))
    if focus in ("math batch", "math ac"):
        sc["sdpa"] = "math"
    elif focus == "splits" or (focus in ("head dim", "wide heads") and r.random() < 0.6):
        sc["sdpa"] = "flash"
    sc["expandable_segments"] = focus in ("expandable", "device expandable") or r.random() < 0.06
    sc["device_bytes"] = r.choice([1 << 40, 80 << 30, 24 << 30])
    if focus[:6] == "device" or r.random() < 0.1:
        sc["device_fraction"] = r.choice([0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98])


def scenario(seed):
    r = random.Random(seed)
    focus = FOCUS[seed % len(FOCUS)]
    sc = dict(name=f"rnd-{seed:04d}")
    family = model(r, sc, focus)
    tokens(r, sc, focus, sc["model_overrides"])
    mesh(r, sc, focus)
    wrapping(r, sc, focus)
    dtypes(r, sc, focus, family)
    rest(r, sc, focus)
    return sc


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + count):
        print(json.dumps(scenario(seed)))
