#!/usr/bin/env python3
"""Property test of the closed forms of golden-memory/README.md (section "Closed forms that hold
exactly", its table and the exact ones among its remarks) over random scenarios.

    closed_forms.py --tessera PROGRAM [--keep DIR]

The program emits, allocation by allocation; the forms below are arithmetic on the scenario alone and
live nowhere else. A form says for which scenarios it holds (`when`) and yields pairs of an expected
and a found number. Standard library only; the seeds are fixed. Exit status 1: a form does not hold, or
was checked in fewer than 10 scenarios.
"""
import argparse
import concurrent.futures
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
FREE, ALLOC = 0, 1
LEAST = 10   # scenarios in which each form must have been checked

spec = importlib.util.spec_from_file_location("generate_mem", os.path.join(HERE, "..", "oracle", "mem", "generate_mem.py"))
sys.dont_write_bytecode = True
generate_mem = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate_mem)

MODELS = {
    "llama-tiny": dict(family="llama", hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
                       num_key_value_heads=4, vocab_size=1000, max_position_embeddings=512),
    "gpt2": dict(family="gpt2", hidden_size=768, num_hidden_layers=12, num_attention_heads=12, vocab_size=50257,
                 max_position_embeddings=1024, tie_word_embeddings=True),
}
DEFAULT = dict(rank=0, mesh=[8], kind="fsdp", wrap="block_root", reshard_after_forward=True, param_dtype="bf16", reduce_dtype="fp32",
               ac="none", optimizer="adamw_foreach", batch=1, seq=128, grad_accum=1, accum_mode="reduce_each", cpu_offload=None,
               fwd_prefetch=0, bwd_prefetch=0, device_bytes=1 << 40, expandable_segments=False, sdpa="flash", clip=False, iters=3)


def r(n):
    """What an allocation of n bytes counts."""
    return -(-n // 512) * 512


def product(shape):
    n = 1
    for x in shape:
        n *= x
    return n


# ---- scenarios -------------------------------------------------------------------------------

def complete(model, overrides, **keys):
    return {**DEFAULT, **keys, "model_config": {**MODELS[model], **overrides}}


def free_one(seed):
    """Whatever the generator of the recorder draws."""
    sc = generate_mem.scenario(seed)
    for key in ("name", "device_fraction", "device_bytes"):
        sc.pop(key, None)
    return complete(sc.pop("model"), sc.pop("model_overrides"), **sc)


def llama(x, vocabulary, **keys):
    d, h = x.choice([32, 64, 128]), x.choice([2, 4])
    return complete("llama-tiny", dict(hidden_size=h * d, num_attention_heads=h, num_key_value_heads=x.choice([1, 2, h]),
                                       intermediate_size=x.choice([256, 344, 512]), num_hidden_layers=x.choice([2, 3, 4, 5]),
                                       vocab_size=vocabulary, max_position_embeddings=4096), **keys)


def plain_blocks(seed):
    """Wrapped block by block, resharded: what is unsharded at each hook can be told."""
    x = random.Random(f"blocks {seed}")
    w = x.choice([2, 3, 4, 8, 12, 16])
    keys = dict(mesh=x.choice([[w], [w], [2, w]]), batch=x.choice([1, 2, 3]), seq=x.choice([64, 100, 256, 512]),
                rank=x.randrange(w), ac=x.choice(["none", "none", "full", "every2"]), clip=x.random() < 0.3,
                optimizer=x.choice(["adamw_foreach", "adamw_fused", "adamw_loop"]),
                reshard_after_forward=x.choice([True, True, None] + [n for n in (2, 4) if w % n == 0 and n < w]))
    keys["param_dtype"], keys["reduce_dtype"] = x.choice([("bf16", "fp32"), ("bf16", "bf16"), (None, None)])
    if x.random() < 0.3:
        keys.update(grad_accum=2, accum_mode=x.choice(["reduce_each", "no_reduce"]))
    if x.random() < 0.4:
        h, d = x.choice([2, 4]), x.choice([32, 64])
        return complete("gpt2", dict(hidden_size=h * d, num_attention_heads=h, num_hidden_layers=x.choice([2, 3, 4]), vocab_size=1000), **keys)
    return llama(x, x.choice([500, 1000, 1003]), **keys)


def long_loss(seed):
    """A long sequence and a large vocabulary: the peak is at the loss."""
    x = random.Random(f"loss {seed}")
    w = x.choice([1, 2, 4, 8, 16])
    return llama(x, x.choice([32000, 32001, 50257]), mesh=x.choice([[w], [2, w]]), rank=x.randrange(w), batch=x.choice([1, 2, 4]),
                 seq=x.choice([512, 1000, 1024, 2048]), ac=x.choice(["none", "full"]), reduce_dtype=x.choice(["fp32", "bf16"]),
                 wrap=x.choice(["block_root", "embed_block_tail_root"]), reshard_after_forward=x.choice([True, True, False]),
                 optimizer=x.choice(["adamw_foreach", "adamw_fused", "adamw_loop"]), fwd_prefetch=x.choice([0, 1, 2]),
                 bwd_prefetch=x.choice([0, 1, 2]))


def hsdp_pair(seed):
    """The same shards, without and with replicas."""
    x = random.Random(f"pair {seed}")
    w = x.choice([2, 3, 4, 8])
    rank, replica = x.randrange(w), x.choice([1, 2])
    sc = llama(x, 1000, mesh=[w], rank=rank, seq=x.choice([64, 128, 200]), ac=x.choice(["none", "full"]),
               wrap=x.choice(["block_root", "embed_block_tail_root", "root"]), clip=x.random() < 0.5,
               reshard_after_forward=x.choice([True, False]))
    return sc, {**sc, "mesh": [replica + 1, w], "rank": replica * w + rank}


# ---- one run ---------------------------------------------------------------------------------

class Run:
    """A scenario, what its forms need of it, and what the program answered."""

    def __init__(self, sc, result, timeline):
        self.sc, self.result, self.timeline = sc, result, timeline
        c = self.c = sc["model_config"]
        self.e = 2 if sc["param_dtype"] == "bf16" else 4
        self.g = {"bf16": 2, "fp32": 4, None: self.e}[sc["reduce_dtype"]]
        self.w = 1 if sc["kind"] == "replicate" else sc["mesh"][-1]
        self.d, self.h = c["hidden_size"], c["num_attention_heads"]
        self.k = c.get("num_key_value_heads", self.h)
        self.t, self.l = sc["batch"] * sc["seq"], c["num_hidden_layers"]
        self.gpt2, self.own = c["family"] == "gpt2", c.get("impl", "own") == "own"
        self.groups = result["groups"]
        self.padded = [[product(p["padded_sharded"]) for p in g["params"]] for g in self.groups]
        self.local = [product(p["sharded"]) for g in self.groups for p in g["params"]]
        self.group_of = {g["fqn"] or "(root)": i for i, g in enumerate(self.groups)}
        self.blocks = [i for i, g in enumerate(self.groups) if g["fqn"].rsplit(".", 1)[-1].isdigit()]
        columns = result["snapshot_columns"]
        self.rows = [dict(zip(columns, row)) for row in result["snapshots"]]

    # Of the scenario: what a group takes.
    def gathered(self, i):
        return r(self.e * self.w * sum(self.padded[i]))

    def unsharded(self, i):
        return sum(r(self.e * self.w * n) for n in self.padded[i])

    def scattered(self, i):
        return r(self.g * self.w * sum(self.padded[i]))

    def states(self):
        """Optimizer states of all parameters."""
        if self.sc["cpu_offload"]:
            return 0
        once = sum(r(4 * n) for n in self.local if n)
        return {"adamw_fused": 2 * once + 512 * len(self.local), "sgd_momentum": once, "sgd": 0, "none": 0}.get(self.sc["optimizer"], 2 * once)

    def resharding(self):
        return self.sc["kind"] == "fsdp" and self.sc["reshard_after_forward"] is not False

    def block_root(self):
        return self.sc["wrap"] == "block_root" and self.resharding() and self.w > 1 and self.sc["accum_mode"] != "no_reduce_no_reshard"

    # Of the answer.
    def at(self, *names, iterations=(0, 1)):
        return [row for row in self.rows if row["at"] in names and row["iter"] in iterations]

    def micro_batches(self, iteration):
        """The rows of an iteration, cut where a forward starts."""
        parts = []
        for row in self.rows:
            if row["iter"] == iteration:
                if row["at"] == "phase" and row["name"].startswith("forward"):
                    parts.append([])
                if parts:
                    parts[-1].append(row)
        return parts

    def allocations(self, category, iteration):
        t = self.timeline["tables"]
        return [r(e[2]) for e in self.timeline["events"] if e[0] == ALLOC and e[6] == iteration and t["category"][e[5]] == category]

    def peak(self, iteration, phase=None):
        entries = self.result["categories"]["phases" if phase else "iterations"]
        return next(p for p in entries if p["iter"] == iteration and (not phase or p["phase"] == phase))


# ---- the forms -------------------------------------------------------------------------------

FORMS = []


def form(name, when=lambda run: True):
    """Registers a function that yields (where, expected, found)."""
    def register(function):
        FORMS.append((name, when, function))
        return function
    return register


on_device = lambda run: not run.sc["cpu_offload"]


@form("Sharded Param", on_device)
def sharded_param(run):
    want = sum(r(4 * n) for group in run.padded for n in group)
    for row in run.rows:
        yield row["at"], want, row["Sharded Param"]


def opt_state(run):
    for row in run.at("phase", iterations=[1]):
        yield row["name"], run.states(), row.get("OptState", 0)


form("OptState of AdamW (foreach, loop)", lambda run: run.sc["optimizer"] in ("adamw_foreach", "adamw_loop"))(opt_state)
form("OptState of fused AdamW", lambda run: run.sc["optimizer"] == "adamw_fused")(opt_state)
form("OptState of SGD", lambda run: run.sc["optimizer"][:3] == "sgd")(opt_state)


@form("Sharded Grad after backward", on_device)
def sharded_grad(run):
    want = sum(r(4 * sum(group)) for group in run.padded)
    for iteration in (0, 1):
        after = [row for row in run.micro_batches(iteration)[-1] if row["at"] == "phase" and row["name"] in ("clip", "optimizer", "end")]
        yield f"iteration {iteration}: phases after backward", True, len(after) > 0
        for row in after:
            yield row["name"], want, row["Sharded Grad"]


@form("All Gather of a group", lambda run: run.w > 1)
def all_gather(run):
    for iteration in (0, 1):
        first = run.allocations("All Gather", iteration)[:len(run.groups)]
        yield f"iteration {iteration}", [run.gathered(i) for i in range(len(run.groups))], first


@form("Unsharded Param of a group")
def unsharded_param(run):
    for iteration in (0, 1):
        before = {}
        for row in run.micro_batches(iteration)[0]:
            if row["at"] == "before_pre_forward":
                before[row["name"]] = row.get("Unsharded Param", 0)
            elif row["at"] == "after_pre_forward" and row["name"] in run.group_of:
                yield row["name"], run.unsharded(run.group_of[row["name"]]), row["Unsharded Param"] - before[row["name"]]


@form("Reduce Scatter of a group")
def reduce_scatter(run):
    times = run.sc["grad_accum"] if run.sc["accum_mode"] in ("reduce_each", "no_all_reduce") else 1
    for iteration in (0, 1):
        want = sorted(run.scattered(i) for i in range(len(run.groups)))
        yield f"iteration {iteration}", sorted(want * times), sorted(run.allocations("Reduce Scatter", iteration))


@form("after a block's pre_forward", lambda run: run.block_root() and not run.sc["fwd_prefetch"])
def after_pre_forward(run):
    for row in run.at("after_pre_forward"):
        i = run.group_of[row["name"]]
        if i in run.blocks:
            yield row["name"] + ": Unsharded Param", run.unsharded(0) + run.unsharded(i), row["Unsharded Param"]
            yield row["name"] + ": All Gather", run.gathered(i), row["All Gather"]


@form("after a block's post_backward", lambda run: run.block_root() and not run.sc["bwd_prefetch"])
def after_post_backward(run):
    for iteration in (0, 1):
        parts = run.micro_batches(iteration)
        for part in parts if run.sc["accum_mode"] in ("reduce_each", "no_all_reduce") else parts[-1:]:
            rows = [row for row in part if row["at"] == "after_post_backward"]
            for row in rows[:len(run.blocks)]:
                i = run.group_of[row["name"]]
                following = run.gathered(i - 1) if i - 1 in run.blocks else 0
                yield row["name"] + ": Reduce Scatter", run.scattered(i), row["Reduce Scatter"]
                yield row["name"] + ": All Gather", following, row["All Gather"]
                yield row["name"] + ": Unsharded Param", run.unsharded(0), row["Unsharded Param"]


@form("block_root: the root is reduced last", lambda run: run.sc["wrap"] == "block_root")
def root_last(run):
    for iteration in (0, 1):
        yield f"iteration {iteration}", run.scattered(0), run.allocations("Reduce Scatter", iteration)[-1]


@form("OptTemp of foreach AdamW", lambda run: run.sc["optimizer"] == "adamw_foreach" and on_device(run))
def opt_temp(run):
    want = sum(r(4 * n) for n in run.local if n)
    for iteration in (0, 1):
        yield f"iteration {iteration}", want, run.peak(iteration, "optimizer")["by_category"].get("OptTemp", 0)


# ---- activations -----------------------------------------------------------------------------

def attention(run):
    grouped = run.k < run.h and run.c.get("gqa") != "repeat"
    if run.sc["sdpa"] == "flash" and run.e == 2:
        return "flash"
    return "efficient" if run.sc["sdpa"] != "math" and not grouped else "math"


def attention_kept(run, qkv):
    """q, k and v (`qkv` bytes as they come from the projections), output, and what is beside them."""
    b, s, out = run.sc["batch"], run.sc["seq"], r(run.e * run.t * run.d)
    rows = 4 * b * run.h
    kind = attention(run)
    if kind == "flash":
        return qkv + out + r(rows * s) + 2 * 512
    if kind == "efficient":
        return qkv + out + r(rows * (-(-s // 32) * 32))
    return 3 * r(4 * run.t * run.d) + r(rows * s * s) + out


def hand(run):
    return not run.gpt2 and run.c.get("norm") == "hand"


def llama_block(run):
    """Without the block's input: activations.md, summary."""
    t, e, td = run.t, run.e, r(run.e * run.t * run.d)
    kv = r(e * t * (run.h if run.c.get("gqa") == "repeat" else run.k) * (run.d // run.h))
    norm = r(4 * t)
    if hand(run):   # the scaled rows; in bf16 also the input as fp32
        norm += td + (r(4 * t * run.d) if e == 2 else 0)
    second_input = 0 if hand(run) and e == 2 else td
    return 2 * (norm + td) + attention_kept(run, td + 2 * kv) + second_input + 4 * r(e * t * run.c["intermediate_size"])


def gpt2_block(run):
    t, e, td = run.t, run.e, r(run.e * run.t * run.d)
    return 3 * td + 4 * r(4 * t) + attention_kept(run, r(3 * e * t * run.d)) + 2 * r(4 * e * t * run.d)


def has_block_form(run):
    d = run.d // run.h
    return (run.own and run.sc["wrap"] != "root" and run.sc["ac"] != "selective_op"
            and not (attention(run) != "math" and d % 8)                         # padded copies, other kernels
            and not (run.k == 1 < run.h and run.c.get("gqa") == "repeat")        # repeated as a view
            and not (run.gpt2 and attention(run) == "math" and run.e == 4))      # v is a view of the projection


def block_growth(run, checkpointed):
    """Activations at the next block's start less those at this one's: what was kept, input included."""
    own, keeps_input = (gpt2_block if run.gpt2 else llama_block)(run), not (hand(run) and run.e == 2)
    td = r(run.e * run.t * run.d)
    for iteration in (0, 1):
        rows = [row for row in run.micro_batches(iteration)[0] if row["at"] == "before_pre_forward" and run.group_of[row["name"]] in run.blocks]
        for i, (this, following) in enumerate(zip(rows, rows[1:])):
            is_checkpointed = run.sc["ac"] == "full" or (run.sc["ac"] == "every2" and i % 2 == 0)
            if is_checkpointed == checkpointed:
                want = td if checkpointed else own + (td if keeps_input else 0)
                yield this["name"], want, following["Activation"] - this.get("Activation", 0)


@form("activations kept by a Llama block", lambda run: has_block_form(run) and not run.gpt2)
def of_llama(run):
    return block_growth(run, False)


@form("activations kept by a GPT-2 block", lambda run: has_block_form(run) and run.gpt2)
def of_gpt2(run):
    return block_growth(run, False)


@form("activations kept by a checkpointed block", lambda run: run.own and run.sc["wrap"] != "root")
def of_checkpoint(run):
    if run.sc["ac"] in ("full", "every2"):
        yield from block_growth(run, True)


# ---- peaks -----------------------------------------------------------------------------------

@form("peak at the loss", lambda run: "loss" in run.sc.get("made for", ""))
def loss_peak(run):
    t, c = run.t, run.c
    td, row = r(2 * t * run.d), [row for row in run.rows if row["iter"] == 1][0]
    stays = [i for i in range(len(run.groups)) if run.sc["reshard_after_forward"] is False
             or run.groups[i]["fqn"] in ("", "norm, output")]
    want = (sum(r(4 * n) for group in run.padded for n in group) + run.states()
            + r(8 * c["max_position_embeddings"] * (run.d // run.h // 2)) + 2 * r(8 * t) + 64 * MIB
            + sum(run.unsharded(i) for i in stays) + (run.l + 1) * td
            + (run.l * llama_block(run) if run.sc["ac"] == "none" else 0) + td + r(4 * t) + 3 * r(4 * t * c["vocab_size"]) + 1024)
    yield "iteration 1", want, run.peak(1)["peak_bytes"]
    yield "Buffer", r(8 * c["max_position_embeddings"] * (run.d // run.h // 2)), row["Buffer"]


@form("iteration 0 peaks lower by at most the states and a workspace")
def first_peak(run):
    more = run.peak(1)["peak_bytes"] - run.peak(0)["peak_bytes"]
    library = 33 * MIB if run.gpt2 else 32 * MIB   # biased layers have a second workspace
    yield f"{more} more in iteration 1", True, 0 <= more <= run.states() + library


def compare_pair(plain, replicated):
    """HSDP takes what FSDP with as many shards takes, if the reduction is not in bf16."""
    for key in ("groups", "allocator", "categories", "snapshot_columns", "snapshots"):
        yield key, plain.result[key], replicated.result[key]


PAIR = "HSDP takes what FSDP of as many shards takes"


# ---- running and checking --------------------------------------------------------------------

def answer(program, folder, name, sc):
    paths = [os.path.join(folder, name + ending) for ending in (".json", ".result.json", ".timeline.json")]
    with open(paths[0], "w") as f:
        json.dump({k: v for k, v in sc.items() if k != "made for"}, f)
    done = subprocess.run([program, "memory", paths[0], "-o", paths[1], "--timeline", paths[2]], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{name}: exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    with open(paths[1]) as result, open(paths[2]) as timeline:
        return Run(sc, json.load(result), json.load(timeline))


def check(checks):
    """(number of figures, the first wrong one or None)."""
    n = 0
    for where, want, found in checks:
        n += 1
        if want != found:
            return n, f"{where}: expected {str(want)[:120]}, found {str(found)[:120]}"
    return n, None


def one(program, folder, name, scenarios):
    """[(form, figures, first wrong)] of a scenario or a pair of them."""
    runs = [answer(program, folder, f"{name}-{i}", sc) for i, sc in enumerate(scenarios)]
    found = [(title, *check(function(run))) for run in runs for title, when, function in FORMS if when(run)]
    if len(runs) == 2:
        found.append((PAIR, *check(compare_pair(*runs))))
    return [f for f in found if f[1]]


def all_scenarios():
    """name -> one scenario, or two that are compared."""
    yield from ((f"free-{i}", [free_one(i)]) for i in range(5000, 5081))
    yield from ((f"blocks-{i}", [plain_blocks(i)]) for i in range(30))
    yield from ((f"loss-{i}", [{**long_loss(i), "made for": "the peak at the loss"}]) for i in range(20))
    yield from ((f"pair-{i}", list(hsdp_pair(i))) for i in range(12))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tessera", required=True)
    ap.add_argument("--keep", help="folder for scenarios and results")
    a = ap.parse_args()
    tally = {title: [0, 0, 0] for title in [f[0] for f in FORMS] + [PAIR]}   # scenarios, figures, wrong
    wrong = []
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        folder = a.keep or scratch
        os.makedirs(folder, exist_ok=True)
        jobs = [(name, pool.submit(one, a.tessera, folder, name, scenarios)) for name, scenarios in all_scenarios()]
        for name, job in jobs:
            for title, figures, first in job.result():
                tally[title][0] += 1
                tally[title][1] += figures
                if first:
                    tally[title][2] += 1
                    wrong.append(f"{name}: {title}: {first}")
    for title, (scenarios, figures, failed) in tally.items():
        print(f"{title}: {scenarios} scenarios, {figures} figures" + (f", {failed} scenarios WRONG" if failed else ""))
    rare = [title for title, (scenarios, _, _) in tally.items() if scenarios < LEAST]
    for line in wrong[:20] + [f"{title}: checked fewer than {LEAST} times" for title in rare]:
        print("FAILED:", line)
    print(f"{len(jobs)} scenarios, {len(tally)} forms, {len(wrong)} wrong")
    sys.exit(1 if wrong or rare else 0)


if __name__ == "__main__":
    main()
