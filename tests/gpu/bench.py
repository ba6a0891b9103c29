"""bench: our run of a model beside PyTorch's, in one sitting: the same card, initial values, data, batch and recomputation.
20 steps of warm-up, 50 timed ones, losses of 200; then where the time goes, and each side at its best. After every check the
tables and targets are made anew of what is there.
"""
import glob, importlib.util, json, math, os, re, shutil, statistics, sys

import kinds, targets
from result import Clocks, Failed, Skipped, say
from runs import TOP, note_of, train
from targets import STEPS, TIMED, WARM, loss_difference

HERE = os.path.dirname(os.path.abspath(__file__))
PEAK = 989e12                                           # as in measure.py

# Model -> configuration of models.py, batch, sequence, as measure.py has them. The tiny ones show that all of this works.
MODELS = {
    "llama-3-8b-l8": dict(config="llama-8b-8L", batch=1, seq=8192),
    "llama-3.2-1b": dict(config="llama-1b", batch=4, seq=4096),
    "gpt2-124m": dict(config="gpt2-124M", batch=64, seq=1024),
    "gpt2-1558m": dict(config="gpt2-1558M", batch=16, seq=1024),
    "tiny-llama": dict(config="tiny-llama", batch=2, seq=64),
    "tiny-gpt2": dict(config="tiny-gpt2", batch=2, seq=64),
}
# Another batch that measure.py has a case for: with it each side may be at its best.
LARGER = {"llama-3-8b-l8": 2, "llama-3.2-1b": 8, "gpt2-124m": 128, "gpt2-1558m": 24}
# Models whose blocks measure.py also checkpoints.
FULL = ("llama-3-8b-l8",)
# What measure.py calls a case, and the strategies of experiments/h200 that are compared with it.
SIDES = {"fsdp": "none", "fsdp-full": "full", "fsdp-selective": "selective"}
SHORT = (5, 20)                                         # warm-up and timed steps of what is only timed


def fast_folder():
    """Where 15 GB go fast: memory, if there is that much of it; None: the usual place. What a run that was killed left there
    goes."""
    try:
        for old in glob.glob("/dev/shm/tessera-gpu-*"):
            pid = os.path.basename(old).split("-")[2]
            if not os.path.exists(f"/proc/{pid}"):
                shutil.rmtree(old, ignore_errors=True)
        return "/dev/shm" if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 20 << 30 else None
    except (OSError, IndexError):
        return None


def has_torch():
    return importlib.util.find_spec("torch") is not None


# ---- PyTorch -------------------------------------------------------------------------------------------------------

def reasons(got, text):
    """Why jobs of measure.py have no figures, by job; text: what it printed, where a job that did not begin says why."""
    said = [line for line in (text or "").split("\n") if re.match(r"\w*(Error|Exception)\b", line)]

    def why(j):
        found = j.get("error") or (j.get("errors") or [{}])[0].get("error") or j["status"]
        return f"{found}: {said[-1][:300]}" if found.startswith("exit status") and said else found
    return {n: why(j) for n, j in got["jobs"].items() if j["status"] not in ("ok", "partial")}


def keep(part, results, name):
    """PyTorch's results of a part, one file of all: as they come."""
    try:
        with open(results) as f:
            got = json.load(f)
    except (OSError, ValueError):
        return None
    path = os.path.join(part.out, os.path.basename(part.path).removesuffix(".json") + "-pytorch.json")
    with part.lock:
        part.pytorch = {**getattr(part, "pytorch", {}), name: got}
        with open(path + ".tmp", "w") as f:
            json.dump(part.pytorch, f)
        os.replace(path + ".tmp", path)
    return got


def measure(part, args, scratch, name, options, seconds):
    """measure.py with options: what its jobs came to, and its training rows. Failed: it has no figure."""
    if not has_torch():
        raise Skipped("this Python has no PyTorch")
    if seconds < 30:
        raise TimeoutError
    folder, clocks = os.path.join(scratch, name), Clocks()
    results = os.path.join(folder, "results.json")
    words = [sys.executable, os.path.join(HERE, "measure.py"), folder, "--seconds", f"{seconds:.0f}", *options, *args.measure.split()]
    late = status = text = None
    try:
        status, text = part.command(words, seconds + 8, may_fail=True, tick=lambda: (clocks(), keep(part, results, name)))
    except TimeoutError as e:                           # what it had counts
        late = e
    got = keep(part, results, name)
    if not got:
        raise late or Failed(f"measure.py: status {status}: {text[-600:]}")
    bad = reasons(got, text)
    if not any(got["rows"].values()):
        raise late or Failed(json.dumps(bad)[:1000] if got["jobs"] else f"measure.py: no job is {' '.join(options)}")
    part.result["versions"].update(got["versions"])
    return dict(jobs={n: j["status"] for n, j in got["jobs"].items()}, not_ok=bad, late=bool(late), clocks=clocks.figures(), rows=got["rows"].get("training", []),
                kinds=pytorch_kinds(folder, got))


def pytorch_kinds(folder, got):
    """By case: milliseconds of a step by kind of kernel."""
    out = {}
    for row in got["rows"].get("training", []):
        found = kinds.of_kernels(os.path.join(folder, "kernels.csv"), row["case"], row.get("step_ms"))
        if found:
            out[row["case"]] = found
    return out


# ---- ours ----------------------------------------------------------------------------------------------------------

def predicted(model, device):
    """What the simulator said of this model on this card, from experiments/h200/predicted.json: the card's name there, and by side
    (tessera, fsdp_compile, fsdp_eager) the figures. (None, {}): it said nothing."""
    with open(os.path.join(TOP, "experiments", "h200", "predicted.json")) as f:
        known = json.load(f)
    card = next((name for name in known if device and name in device[0].get("name", "")), None)
    return card, known.get(card, {}).get(model, {})


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


def figures(model, steps, warm, timed, batch):
    """Figures of one run of ours, in the names of measure.py's rows."""
    some = steps[warm:warm + timed]
    times = [x["step_s"] * 1e3 for x in some]
    ms, tokens = statistics.median(times), batch * MODELS[model]["seq"]
    return dict(steps=len(steps), timed_steps=len(times), step_ms=ms, step_ms_p90=p90(times), step_ms_min=min(times), tokens_per_s=tokens / ms * 1e3,
                mfu=flop_per_token(model) * tokens / ms * 1e3 / PEAK, host_ms=targets.median([x.get("host_s") and x["host_s"] * 1e3 for x in some]),
                host_share=targets.median([x.get("host_s") and x["host_s"] / x["step_s"] for x in some]), peak_allocated=max(x["memory_allocated_bytes"] or 0 for x in steps),
                peak_reserved=max(x["memory_reserved_bytes"] or 0 for x in steps), losses=[x["loss"] for x in steps])


def start_of(part, model, folder, steps):
    """Settings of a run that begins as PyTorch's does."""
    of = MODELS[model]
    part.command([sys.executable, os.path.join(HERE, "initial.py"), of["config"], folder, "--batch", str(of["batch"]), "--seq", str(of["seq"]), "--steps", str(steps)], 150)
    return dict(model__weights=os.path.join(folder, "model.safetensors"), data__train=os.path.join(folder, "train.bin"))


# ---- tables --------------------------------------------------------------------------------------------------------

def side_by_side(ours, theirs, busy=None, room=targets.ROOM):
    """One row of the table. The ratio is void where the losses part, or the card was not ours alone."""
    n, off = loss_difference(ours, theirs)
    row = dict(case=theirs["case"], steps=n, loss_difference=off, tokens_per_s=[ours["tokens_per_s"], theirs["tokens_per_s"]], step_ms=[ours["step_ms"], theirs["step_ms"]],
               step_ms_p90=[ours["step_ms_p90"], theirs["step_ms_p90"]], mfu=[ours["mfu"], theirs["mfu"]], peak_allocated=[ours["peak_allocated"], theirs["peak_allocated"]],
               peak_reserved=[ours["peak_reserved"], theirs["peak_reserved"]], ratio=ours["tokens_per_s"] / theirs["tokens_per_s"])
    if busy:
        row.update(ratio=None, void=busy)
    if off is None or not off <= room:
        row.update(ratio=None, void="no losses to compare" if off is None else f"losses differ by {off:.3g}; allowed: {room:g}")
    return row


def table(rows):
    lines = ["| case | tokens/s: ours | PyTorch | ratio | step ms (p90) | PyTorch | MFU % | PyTorch | peak GiB | PyTorch | losses differ by | of steps |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for r in rows:
        pair = [[f"{x:.0f}" for x in r["tokens_per_s"]], [f"{a:.2f} ({b:.2f})" for a, b in zip(r["step_ms"], r["step_ms_p90"])],
                [f"{100 * x:.1f}" for x in r["mfu"]], [f"{x / 2**30:.2f}" for x in r["peak_allocated"]]]
        ratio = f"{r['ratio']:.3f}" if r["ratio"] else "void"
        off = "?" if r["loss_difference"] is None else f"{r['loss_difference']:.2g}"
        lines.append(f"| {r['case']} | {pair[0][0]} | {pair[0][1]} | {ratio} | " + " | ".join(f"{a} | {b}" for a, b in pair[1:]) + f" | {off} | {r['steps']} |")
    return "\n".join(lines) + "\n"


class Findings:
    """What the runs of a bench came to, and what is made of it."""

    def __init__(self, part, model, small):
        self.part, self.model, self.small, self.batch = part, model, small, MODELS[model]["batch"]
        self.mine, self.theirs, self.kinds, self.profile = {}, [], {}, None

    def rows(self):
        """Every row of PyTorch's beside ours with the same recomputation and batch, best first."""
        rows = []
        for row in self.theirs:
            mine = self.mine.get(next(s for s, ac in SIDES.items() if ac == row["ac"]))
            if mine and row["batch"] == self.batch and row.get("tokens_per_s"):
                rows.append(side_by_side(mine, row, self.part.result["busy"]))
        return sorted(rows, key=lambda r: -r["tokens_per_s"][1])

    def best(self):
        """The fastest run of each side, whatever its batch and recomputation."""
        theirs = [r for r in self.theirs if r.get("tokens_per_s")]
        if not self.mine or not theirs:
            return None
        name, ours = max(self.mine.items(), key=lambda x: x[1]["tokens_per_s"])
        row = max(theirs, key=lambda x: x["tokens_per_s"])
        return dict(ours=name, pytorch=row["case"], tokens_per_s=[ours["tokens_per_s"], row["tokens_per_s"]], mfu=[ours["mfu"], row["mfu"]],
                    peak_allocated=[ours["peak_allocated"], row["peak_allocated"]], ratio=ours["tokens_per_s"] / row["tokens_per_s"])

    def gap(self):
        """By kind, against the fastest of PyTorch's that was profiled at this batch."""
        rows = [r for r in self.theirs if r["case"] in self.kinds and r["batch"] == self.batch and r["ac"] == "none" and r.get("tokens_per_s")]
        row = max(rows, key=lambda x: x["tokens_per_s"], default=None)
        return row and self.profile and dict(pytorch=row["case"], rows=kinds.gap(self.profile, self.kinds[row["case"]]))

    def summary(self):
        """Into the result, and OUT/bench-MODEL.md."""
        result = self.part.result
        card, said = predicted(self.model, result["device"]) if self.batch == MODELS[self.model]["batch"] else (None, {})
        result.update(table=self.rows(), best=self.best(), gap=self.gap(), ours=self.mine, profile=self.profile, batch=self.batch, card=card,
                      targets=targets.of_bench(self.model, self.mine, self.theirs, result["busy"], self.batch, self.small, card, said))
        path = os.path.join(self.part.out, f"bench-{self.model}.md")
        with open(path + ".tmp", "w") as f:
            f.write(self.text())
        os.replace(path + ".tmp", path)

    def text(self):
        result = self.part.result
        card = ", ".join(f"{k} {v}" for d in result["device"][:1] for k, v in d.items() if k != "uuid")
        text = f"# {self.model}, batch {self.batch}\n\n{result['date']}; {card or 'no GPU'}; attention: {result['built'].get('attention', '?')}\n\n"
        text += f"**Void: {result['busy']}**\n\n" if result["busy"] else ""
        text += table(result["table"]) + "\n" + targets.table(result["targets"])
        text += "".join(f"\n- {line}" for line in self.mine.get("fsdp", {}).get("said", [])) + "\n"
        if result["best"]:
            found = result["best"]
            text += "\n| best | tokens/s | MFU % | peak GiB |\n| --- | --- | --- | --- |\n"
            for i, side in enumerate(("ours", "pytorch")):
                text += f"| {side}: {found[side]} | {found['tokens_per_s'][i]:.0f} | {100 * found['mfu'][i]:.1f} | {found['peak_allocated'][i] / 2**30:.2f} |\n"
            text += f"| ratio | {found['ratio']:.3f} | | |\n"
        if result["gap"]:
            text += f"\nMilliseconds of a step by kind, beside {result['gap']['pytorch']}; the largest gap first\n\n| kind | ours | PyTorch | gap |\n| --- | --: | --: | --: |\n"
            text += "".join(f"| {r['kind']} | {r['ours_ms']:.3f} | {r['pytorch_ms']:.3f} | {r['gap_ms']:+.3f} |\n" for r in result["gap"]["rows"])
        elif self.profile:
            text += "\nMilliseconds of a step by kind\n\n| kind | ours |\n| --- | --: |\n" + "".join(f"| {k} | {v:.3f} |\n" for k, v in self.profile["ms"].items())
        return text


# ---- the part ------------------------------------------------------------------------------------------------------

class Bench:
    """Its checks."""

    def __init__(self, part, args, scratch):
        self.part, self.args, self.scratch, self.model = part, args, scratch, args.model
        self.of, self.start = dict(MODELS[args.model]), {}
        self.steps, self.warm, self.timed = (6, 2, 4) if args.small else (STEPS, WARM, TIMED)
        self.found = Findings(part, args.model, args.small)

    def halve(self):
        """Halves the batch for both sides. True: it could be, as nothing has been measured with the whole one yet."""
        if self.of["batch"] % 2 or self.found.mine or any(r.get("tokens_per_s") for r in self.found.theirs):
            return False
        self.of["batch"] //= 2
        self.found.batch = self.of["batch"]
        return True

    def pytorch(self, kind, n, warm, timed, batch=None, ac=""):
        def run():
            try:
                return once()
            except Failed as e:
                if not re.search("out ?of ?memory", str(e), re.IGNORECASE) or batch or not self.halve():
                    raise
                say(f"PyTorch's batch does not fit: both sides go on with {self.of['batch']}")
                return once()

        def once():
            case = f"{self.of['config']}-b{batch or self.of['batch']}{ac}"
            options = ["--only", f"^{kind}/{case}$", "--steps", str(n), "--warm", str(warm), "--timed", str(timed), "--budget", str(240 if kind == "fsdp_compile" else 120)]
            got = measure(self.part, self.args, self.scratch, f"{kind}-{case}", options, min(self.part.left() - 12, 280))
            self.found.kinds.update(got.pop("kinds"))
            self.found.theirs += got["rows"]
            if not any(r.get("tokens_per_s") for r in got["rows"]):
                raise Failed(json.dumps(got["not_ok"])[:1000])
            return got
        return run

    def if_whole(self, check):
        """A check of a larger batch, which has no sense where not even the usual one fits."""
        def run():
            if self.of["batch"] < MODELS[self.model]["batch"]:
                raise Skipped(f"PyTorch's batch was halved to {self.of['batch']}")
            return check()
        return run

    def files(self):
        if not has_torch():
            raise Skipped("this Python has no PyTorch: our own values and random tokens")
        self.start.update(start_of(self.part, self.model, os.path.join(self.scratch, "start"), self.steps))

    def settings(self, n, more):
        whole = {} if self.of["batch"] == MODELS[self.model]["batch"] else {"batch": self.of["batch"]}
        return {"train.steps": n, **whole, **{k.replace("__", "."): v for k, v in more.items()}}

    def run(self, strategy, name, n, *options, **more):
        """A run of ours: its steps and its folder."""
        folder, clocks = os.path.join(self.scratch, re.sub(r"\W+", "-", name)), Clocks()
        steps = train(self.part, os.path.join(TOP, "experiments", "h200", self.model + ".yaml"), folder, "--strategy", strategy, *options, seconds=240,
                      on=self.args.on, tick=clocks, **self.start, **{k.replace(".", "__"): v for k, v in self.settings(n, more).items()})
        return steps, folder, clocks

    def ours(self, strategy, warm, timed, n=None, name=None, **more):
        """Into `mine`, with what tests/gpu/predicted.py needs to simulate it."""
        def run():
            steps, folder, clocks = self.run(strategy, name or strategy, n or warm + timed, **more)
            got = figures(self.model, steps, warm, timed, more.get("batch") or self.of["batch"])
            got.update(job=dict(file=f"experiments/h200/{self.model}.yaml", strategy=strategy, set={k: v for k, v in self.settings(0, more).items() if k != "train.steps"}),
                       clocks=clocks.figures(), said=note_of(folder))
            self.found.mine[name or strategy] = got
            shutil.rmtree(folder, ignore_errors=True)
            return {k: v for k, v in got.items() if k != "losses"}
        return run

    def profile(self):
        """Where our time goes: a few steps with two events around each kernel, without graphs."""
        _, folder, _ = self.run("fsdp", "profile", 6, "--profile")
        traces = glob.glob(os.path.join(folder, "measured", "*", "trace.json"))
        if not traces:
            raise Failed("--profile left no trace.json")
        timed = self.found.mine.get("fsdp")
        self.found.profile = kinds.of_trace(traces[0], timed and timed["step_ms"])
        shutil.rmtree(folder, ignore_errors=True)
        return self.found.profile

    def verdict(self):
        """Failed where the losses of the two sides part: a ratio would be void."""
        rows = self.part.result["table"] if "table" in self.part.result else []
        if not rows:
            raise Skipped("only one side has run")
        void = [f"{r['case']}: {r['void']}" for r in rows if r.get("void")]
        if void:
            raise Failed("; ".join(void))
        return dict(rows=len(rows))

    def checks(self):
        few, larger = SHORT if not self.args.small else (2, 4), LARGER.get(self.model)
        todo = [("initial values and data", self.files), ("pytorch fsdp_compile", self.pytorch("fsdp_compile", self.steps, self.warm, self.timed)),
                ("tessera fsdp", self.ours("fsdp", self.warm, self.timed, self.steps)), ("tessera profile", self.profile),
                ("pytorch fsdp_eager", self.pytorch("fsdp_eager", self.warm + self.timed, self.warm, self.timed)),
                ("tessera chunks", self.ours("chunks", *few)), ("tessera fsdp-full", self.ours("fsdp-full", *few))]
        if larger:
            todo += [(f"tessera fsdp, batch {larger}", self.if_whole(self.ours("fsdp", *few, name=f"fsdp, batch {larger}", batch=larger))),
                     (f"pytorch fsdp_compile, batch {larger}", self.if_whole(self.pytorch("fsdp_compile", sum(few), *few, batch=larger)))]
        if self.model in FULL:
            todo += [("pytorch fsdp_compile, full", self.pytorch("fsdp_compile", sum(few), *few, ac="-full"))]
        wanted = [c for c in todo if re.search(self.args.only, c[0]) or (c[1] == self.files and self.args.only)]
        return wanted + [("comparison", self.verdict, True)]


def bench(part, args, scratch):
    b = Bench(part, args, scratch)
    part.on_save = b.found.summary
    part.run(b.checks())
    say(b.found.text())
