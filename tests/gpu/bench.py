"""bench: our run of a model beside PyTorch's, in one sitting: the same card, initial values, data, batch and recomputation.
20 steps of warm-up, 50 timed ones, losses of 200.
"""
import json, math, os, shutil, statistics, sys

from result import Failed, Skipped
from runs import TOP, train

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, WARM, TIMED, ROOM = 200, 20, 50, 1e-2
PEAK = 989e12                                           # as in measure.py

# Model -> configuration of models.py, batch, sequence; measure.py has a case for all but the tiny ones.
MODELS = {
    "llama-3-8b-l8": dict(config="llama-8b-8L", batch=1, seq=8192),
    "llama-3.2-1b": dict(config="llama-1b", batch=4, seq=4096),
    "gpt2-124m": dict(config="gpt2-124M", batch=64, seq=1024),
    "gpt2-1558m": dict(config="gpt2-1558M", batch=16, seq=1024),
    "tiny-llama": dict(config="tiny-llama", batch=2, seq=64),
    "tiny-gpt2": dict(config="tiny-gpt2", batch=2, seq=64),
}
# Another batch that measure.py has a case for: with it each side may be at its best.
LARGER = {"llama-3-8b-l8": 2}
# What measure.py calls a case, and the strategies of experiments/h200 that are compared with it.
SIDES = {"fsdp": "", "fsdp-full": "-full", "fsdp-selective": "-selective"}


def fast_folder():
    """Where 30 GB go fast: memory, if there is that much of it; None: the usual place."""
    try:
        return "/dev/shm" if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 40 << 30 else None
    except OSError:
        return None


def has_torch():
    import importlib.util
    return importlib.util.find_spec("torch") is not None


def measure(part, args, scratch, name, options, seconds):
    """measure.py with options; its results.json goes to OUT, its training rows are returned."""
    if not has_torch():
        raise Skipped("this Python has no PyTorch")
    folder = os.path.join(scratch, name)
    status, text = part.command([sys.executable, os.path.join(HERE, "measure.py"), folder, "--seconds", f"{seconds:.0f}", *options], seconds + 10, may_fail=True)
    results = os.path.join(folder, "results.json")
    if not os.path.exists(results):
        raise Failed(f"measure.py: status {status}: {text[-600:]}")
    with open(results) as f:
        got = json.load(f)
    shutil.copy(results, os.path.join(args.out, f"{name}-pytorch.json"))
    bad = {n: j.get("error") or (j.get("errors") or [{}])[0].get("error", j["status"]) for n, j in got["jobs"].items() if j["status"] not in ("ok", "partial")}
    if bad and not got["rows"]:
        raise Failed(json.dumps(bad)[:1000])
    part.result["versions"].update(got["versions"])
    return dict(jobs={n: j["status"] for n, j in got["jobs"].items()}, not_ok=bad, rows=got["rows"].get("training", []))


def p90(times):
    return sorted(times)[math.ceil(0.9 * len(times)) - 1]


def flop_per_token(model):
    """6 N + 12 L d S, as models.py's flops_per_token(), from the model's file."""
    with open(os.path.join(TOP, "experiments", "h200", model + ".json")) as f:
        c = json.load(f)
    if c["model_type"] == "gpt2":
        d, layers = c["n_embd"], c["n_layer"]
        n = layers * (12 * d * d + 13 * d) + 2 * d      # biases and norms count, too: they are not tables
    else:
        d, layers = c["hidden_size"], c["num_hidden_layers"]
        kv = d // c["num_attention_heads"] * c["num_key_value_heads"]
        n = layers * (2 * d * d + 2 * d * kv + 3 * d * c["intermediate_size"] + 2 * d) + d
    n += c["vocab_size"] * d                            # the head, also when it is the table
    return 6 * n + 12 * layers * d * MODELS[model]["seq"]


def figures(model, steps, warm, timed, batch=None):
    """Of one run of ours, in the names of measure.py's rows. batch: if it is not the model's."""
    of, times = MODELS[model], [x["step_s"] * 1e3 for x in steps[warm:warm + timed]]
    ms, tokens = statistics.median(times), (batch or of["batch"]) * of["seq"]
    return dict(steps=len(steps), timed_steps=len(times), step_ms=ms, step_ms_p90=p90(times), tokens_per_s=tokens / ms * 1e3,
                mfu=flop_per_token(model) * tokens / ms * 1e3 / PEAK, peak_allocated=max(x["memory_allocated_bytes"] or 0 for x in steps),
                peak_reserved=max(x["memory_reserved_bytes"] or 0 for x in steps), losses=[x["loss"] for x in steps])


def start_of(part, model, folder, steps):
    """Settings of a run that begins as PyTorch's does."""
    of = MODELS[model]
    part.command([sys.executable, os.path.join(HERE, "initial.py"), of["config"], folder, "--batch", str(of["batch"]), "--seq", str(of["seq"]), "--steps", str(steps)], 150)
    return dict(model__weights=os.path.join(folder, "model.safetensors"), data__train=os.path.join(folder, "train.bin"))


def side_by_side(ours, theirs, room=ROOM):
    """One row of the table. The ratio is void where the losses part."""
    n = min(len(ours["losses"]), len(theirs["losses"]))
    off = max(abs(a - b) / abs(b) for a, b in zip(ours["losses"][:n], theirs["losses"][:n]))
    row = dict(case=theirs["case"], steps=n, loss_difference=off, tokens_per_s=[ours["tokens_per_s"], theirs["tokens_per_s"]], step_ms=[ours["step_ms"], theirs["step_ms"]],
               step_ms_p90=[ours["step_ms_p90"], theirs["step_ms_p90"]], mfu=[ours["mfu"], theirs["mfu"]], peak_allocated=[ours["peak_allocated"], theirs["peak_allocated"]],
               peak_reserved=[ours["peak_reserved"], theirs["peak_reserved"]], ratio=ours["tokens_per_s"] / theirs["tokens_per_s"])
    if not off <= room:
        row.update(ratio=None, void=f"losses differ by {off:.3g}; allowed: {room:g}")
    return row


def table(rows):
    lines = ["| case | tokens/s: ours | PyTorch | ratio | step ms (p90) | PyTorch | MFU % | PyTorch | peak GiB | PyTorch | losses differ by |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for r in rows:
        pair = [[f"{x:.0f}" for x in r["tokens_per_s"]], [f"{a:.2f} ({b:.2f})" for a, b in zip(r["step_ms"], r["step_ms_p90"])],
                [f"{100 * x:.1f}" for x in r["mfu"]], [f"{x / 2**30:.2f}" for x in r["peak_allocated"]]]
        ratio = f"{r['ratio']:.3f}" if r["ratio"] else "void"
        lines.append(f"| {r['case']} | {pair[0][0]} | {pair[0][1]} | {ratio} | " + " | ".join(f"{a} | {b}" for a, b in pair[1:]) + f" | {r['loss_difference']:.2g} |")
    return "\n".join(lines) + "\n"


def compare(part, args, mine, theirs):
    """Every row of PyTorch's beside ours with the same recomputation, best first."""
    rows = []
    for row in theirs:
        policy = next(s for s, end in SIDES.items() if end == {"none": "", "full": "-full", "selective": "-selective"}[row["ac"]])
        if row.get("losses") and policy in mine:
            rows.append(side_by_side(mine[policy], row))
    if not rows:
        raise Skipped("only one side has run")
    rows.sort(key=lambda r: -r["tokens_per_s"][1])
    text = table(rows)
    with open(os.path.join(args.out, f"bench-{args.model}.md"), "w") as f:
        f.write(text)
    part.note(text)
    print(text, end="")
    part.result["table"] = rows
    void = [r["void"] for r in rows if r.get("void")]
    if void:
        raise Failed("; ".join(void))
    return dict(rows=len(rows))


def best(part, args, mine, theirs):
    """The second table: the fastest run of each side, whatever its batch and recomputation."""
    if not mine or not theirs:
        raise Skipped("only one side has run")
    name, ours = max(mine.items(), key=lambda x: x[1]["tokens_per_s"])
    row = max(theirs, key=lambda x: x["tokens_per_s"])
    found = dict(ours=name, pytorch=row["case"], tokens_per_s=[ours["tokens_per_s"], row["tokens_per_s"]], mfu=[ours["mfu"], row["mfu"]],
                 peak_allocated=[ours["peak_allocated"], row["peak_allocated"]], ratio=ours["tokens_per_s"] / row["tokens_per_s"])
    gib = [x / 2**30 for x in found["peak_allocated"]]
    text = ("| best | tokens/s | MFU % | peak GiB |\n| --- | --- | --- | --- |\n"
            f"| ours: {name} | {ours['tokens_per_s']:.0f} | {100 * ours['mfu']:.1f} | {gib[0]:.2f} |\n"
            f"| PyTorch: {row['case']} | {row['tokens_per_s']:.0f} | {100 * row['mfu']:.1f} | {gib[1]:.2f} |\n"
            f"| ratio | {found['ratio']:.3f} | | |\n")
    with open(os.path.join(args.out, f"bench-{args.model}.md"), "a") as f:
        f.write("\n" + text)
    print(text, end="")
    part.result["best"] = found
    return found


def bench(part, args, scratch):
    model, steps, warm, timed = args.model, *((6, 2, 4) if args.small else (STEPS, WARM, TIMED))
    of, mine, theirs, start = MODELS[model], {}, [], {}
    case = f"{of['config']}-b{of['batch']}"

    def pytorch(kind, n, what=case, into=theirs):
        def run():
            if model.startswith("tiny"):
                raise Skipped("measure.py has no case of this size")
            options = ["--only", f"^{kind}/{what}$", "--steps", str(n), "--warm", str(warm), "--timed", str(timed), "--budget", str(240 if kind == "fsdp_compile" else 120)]
            got = measure(part, args, scratch, f"bench-{what}-{kind}", options, min(part.left() - 5, 280))
            into.extend(got["rows"])
            return got
        return run

    def files():
        if not has_torch():
            raise Skipped("this Python has no PyTorch: our own values and random tokens")
        start.update(start_of(part, model, os.path.join(scratch, "start"), steps))

    def ours(strategy, n, name=None, into=mine, **more):
        def run():
            got = train(part, os.path.join(TOP, "experiments", "h200", model + ".yaml"), os.path.join(scratch, name or strategy), "--strategy", strategy, seconds=240,
                        train__steps=n, **start, **more, **(dict(model__layers=1) if args.small else {}))
            into[name or strategy] = figures(model, got, warm, timed, more.get("batch"))
            return into[name or strategy]
        return run
    fewer, larger = warm + timed, LARGER.get(model)
    others, their_others = {}, []
    todo = [("pytorch fsdp_compile", pytorch("fsdp_compile", steps)), ("initial values and data", files), ("tessera fsdp", ours("fsdp", steps)),
            ("pytorch fsdp_eager", pytorch("fsdp_eager", fewer)), ("comparison", lambda: compare(part, args, mine, theirs))]
    if larger:
        name = f"{of['config']}-b{larger}"
        todo += [(f"pytorch fsdp_compile, batch {larger}", pytorch("fsdp_compile", fewer, name, their_others)),
                 (f"tessera fsdp, batch {larger}", ours("fsdp", fewer, f"fsdp, batch {larger}", others, batch=larger))]
    todo += [("tessera chunks", ours("chunks", fewer, None, others)), ("best of each", lambda: best(part, args, {**mine, **others}, theirs + their_others))]
    part.run(todo)
