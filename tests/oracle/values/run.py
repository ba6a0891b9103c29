#!/usr/bin/env python3
"""Random scenarios computed by PyTorch and by tessera's host executor: every value must be the same.

    run.py --tessera PATH [N [SEED]] [--minutes M] [--out FOLDER]
    run.py --tessera PATH --scenario FILE.json ...

A Python with torch: this one, or the one that TESSERA_TORCH names; without any the exit status is 77. 0: nothing differs.
"""
import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
SKIPPED = 77
MOVE, FINE = 3e-4, 1e-6
BF16 = 2 ** -8


def find_torch():
    """Goes on in a Python that has torch."""
    try:
        import torch  # noqa: F401
        return
    except ImportError:
        other = os.environ.pop("TESSERA_TORCH", "")
    if other:
        os.execv(other, [other, *sys.argv])
    print("skipped: no torch in this Python; TESSERA_TORCH names another")
    sys.exit(SKIPPED)


class Ours:
    """What `tessera trace --executor host` computes."""

    def __init__(self, tessera):
        self.tessera = tessera

    def compute(self, path, folder):
        """(values, None) or (None, message)"""
        import torch
        from safetensors.torch import load_file
        out = os.path.join(folder, "result.json")
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run([self.tessera, "trace", path, "--executor", "host", "-o", out], capture_output=True,
                              text=True, timeout=120, env=env)
        if done.returncode != 0:
            return None, f"ours: status {done.returncode}: {done.stderr.strip()[-400:]}"
        with open(out) as f:
            result = json.load(f)
        number = lambda v: float("nan" if v is None else v)  # noqa: E731: JSON has no other NaN than a text
        values = {}
        for i, row in enumerate(result["loss_per_rank"]):
            each = [number(row[m][r]) for r in range(len(row[0])) for m in range(len(row))]
            values[f"loss.{i}"] = torch.tensor(each, dtype=torch.float64)
        for i, norms in enumerate(result["grad_norm"]):
            values[f"norm.{i}"] = torch.tensor([number(norms[n]) for n in sorted(norms)], dtype=torch.float64)
        for n, t in load_file(os.path.join(folder, result["tensors"]["final"])).items():
            values[n] = t.double().flatten()
        return values, None


def is_low(sc):
    """Something is computed with less than float32."""
    mps = [w.get("mp") or {} for w in sc["wrap"]]
    types = [mp.get(k) for mp in mps for k in ("param", "reduce", "output")] + [
        d for _, d in sc["model"].get("param_dtypes", [])]
    return any(t in ("bf16", "f16") for t in types)


class Judge:
    """One scenario: PyTorch's values, ours, and, where they differ, how far PyTorch is from itself."""

    def __init__(self, tessera):
        self.ours = Ours(tessera)

    def spreads(self, sc, init, data):
        """(name, a set of values), finest first."""
        import real
        def moved(by, seed):
            return f"moved by {by:g}", lambda: real.compute(sc, real.moved(init, by, seed), data)
        double = "float64", lambda: real.compute_double(sc, init, data)
        exact = "sums rounded once", lambda: real.compute_exact(sc, init, data)
        moves = [moved(MOVE, s) for s in range(8)]
        if is_low(sc):
            steps = moves[:2] + [exact, double] + moves[2:]
        else:
            steps = [double] + [moved(FINE, s) for s in range(3)] + [exact] + moves
        for name, run in steps:
            yield name, run()

    def judge(self, sc):
        import known
        import measure
        import real
        init, data = real.initial(sc)
        theirs = real.compute(sc, init, data)
        folder = tempfile.mkdtemp(prefix="tessera-values-")
        try:
            mine, failure = self.ours.compute(real.write(sc, init, data, folder), folder)
        finally:
            shutil.rmtree(folder)
        if failure and "overlapping meshes" in failure and set(sc["mesh"]["shape"]) == {1}:
            return {"verdict": "refused by tessera: a parameter of two groups, which PyTorch takes on one rank"}
        wrong = [failure] if failure else measure.shapes(theirs, mine)
        if wrong:
            return {"verdict": "differs", "text": wrong[0]}
        text = is_low(sc) and self.first_loss(sc, init, data, theirs, mine)
        if text:
            name = known.of_first_loss(sc)
            return {"verdict": f"known, {name}" if name else "differs", "text": text}
        found, runs = measure.outside(theirs, mine, [], sc["train"]), []
        if not found:
            return {"verdict": "equal"}
        for name, values in self.spreads(sc, init, data):
            runs.append(values)
            left = measure.outside(theirs, mine, runs, sc["train"])
            if not left:
                return {"verdict": name, "low": is_low(sc)}
            found = left
        name = known.name(sc) or self.explain(sc, theirs, mine, runs)
        return {"verdict": f"known, {name}" if name else "differs", "text": "; ".join(t for _, t in found[:3])}

    def first_loss(self, sc, init, data, theirs, mine):
        """What differs in the first losses, which no spread excuses where PyTorch's own do not depend on how sums are
        rounded; None: nothing, or a sum lies so near to a tie that its order decides."""
        import measure
        import real
        a, b = theirs["loss.0"], mine["loss.0"]
        if not a.numel() or not measure.first_differs(a, b):
            return None
        exact = real.first_loss_exactly(sc, init, data)
        if exact.shape != a.shape or measure.first_differs(a, exact):
            return None
        return f"first losses: PyTorch {a.tolist()}, with exact sums the same; ours {b.tolist()}"

    def explain(self, sc, theirs, mine, runs):
        """What the samples of PyTorch's spread did not show, though it is there."""
        import measure
        # gradients that are stored in bf16 are rounded for each of several uses; others once, on their way
        times = 3 if any(d == "bf16" for _, d in sc["model"].get("param_dtypes", [])) else 1
        rounding = times * BF16 * is_low(sc)
        if rounding and not measure.outside(theirs, mine, runs, sc["train"], rounding=rounding):
            return "one rounding of bf16" if times == 1 else "up to three roundings of bf16, which stores the parameters"
        step = measure.chaotic_from(theirs, runs, sc["train"])
        if step is not None and not measure.outside(theirs, mine, runs, sc["train"], rounding=rounding, before=step):
            return "PyTorch's own losses move by more than 2 % from a step on, the same before"
        return None

    def __call__(self, sc):
        import recorder
        from fsdp_oracle import run
        try:
            return self.judge(sc)
        except run.StageError as error:  # PyTorch refuses it; anything else is a failure of this program
            return recorder.describe(error)


def names_crash(tessera, sc):
    """PyTorch ended on this scenario. tessera refuses it, since memory that was freed would be read?"""
    with tempfile.TemporaryDirectory(prefix="tessera-values-") as folder:
        path = os.path.join(folder, "scenario.json")
        with open(path, "w") as f:
            json.dump(sc, f)
        done = subprocess.run([tessera, "trace", path, "-o", os.path.join(folder, "o.json")], capture_output=True, text=True,
                              timeout=120)
    return done.returncode != 0 and "uses memory that was freed" in done.stderr


def refusal(tessera, sc, got):
    """(why a scenario that PyTorch refuses counts as compared, None) or (None, what differs): tessera refuses it, too, or the
    reason is one that ../README.md names. What only the comparison cannot do is a failure."""
    import against
    error = got["error"]
    said = f"{error['class']} at {error['stage']}: {error['message'][:60]!r}"
    why = against.excuse(sc, error)
    if why:
        return f"{said}: {why}", None
    found = against.compare_error(tessera, {k: v for k, v in sc.items() if k != "tensors"}, error)
    return (None, found[0]) if found else (f"{said}: by both", None)


class Counts:
    """How often each option was in a scenario that both computed."""

    def __init__(self):
        self.seen = collections.Counter()

    def add(self, sc):
        world = 1
        for n in sc["mesh"]["shape"]:
            world *= n
        marks = {f"world {world}", f"mesh of {len(sc['mesh']['shape'])}", f"optimizer {sc['train']['optimizer']['name']}",
                 f"micro-batches {sc['train']['micro']}", f"checkpoints {len(sc.get('ac', []))}"}
        marks |= {w["api"] for w in sc["wrap"]} | {f"call {c['fn']}" for c in sc.get("calls", [])}
        for w in sc["wrap"]:
            marks |= {f"{k} {v}" for k, v in (w.get("mp") or {}).items()} | {k for k in ("ignored", "shard_dim") if k in w}
            marks |= {f"offload {w['offload']}"} if "offload" in w else set()
        marks |= {"offload of some groups"} if len({w.get("offload") for w in sc["wrap"]}) > 1 else set()
        marks |= {f"parameters {d}" for _, d in sc["model"].get("param_dtypes", [])}
        ops = sc["train"].get("schedule", [])
        backward = {op[1:] for op in ops if op[0] == "B"}
        if ops and "S" not in backward and len(backward) < sc["train"]["micro"]:
            marks.add("forward without backward")
        self.seen.update(marks)

    def report(self):
        return "computed by both: " + ", ".join(f"{k} {n}" for k, n in sorted(self.seen.items()))


def scenarios_of(options):
    import mixes
    if options.scenario:
        for path in options.scenario:
            with open(path) as f:
                yield json.load(f)
        return
    end = time.time() + 60 * options.minutes if options.minutes else None
    seed = options.seed
    while time.time() < end if end else seed < options.seed + options.n:
        yield mixes.scenario(seed)
        seed += 1


def batches(scenarios, size):
    batch = []
    for sc in scenarios:
        batch.append(sc)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("n", type=int, nargs="?", default=200)
    ap.add_argument("seed", type=int, nargs="?", default=1)
    ap.add_argument("--tessera", default=os.environ.get("TESSERA", "tessera"))
    ap.add_argument("--minutes", type=float, help="as many as fit instead of N")
    ap.add_argument("--core", type=int, help="all on this core")
    ap.add_argument("--out", default="", help="scenarios that differ are left here")
    ap.add_argument("--scenario", nargs="*", help="these files instead of random ones")
    return ap.parse_args()


def main():
    options = parse()
    find_torch()
    import real
    import recorder
    recorder.load()
    recorder.LIMIT_S = 200
    real.load()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    print(f"seed {options.seed}", flush=True)
    verdicts, refused, counts, start = collections.Counter(), collections.Counter(), Counts(), time.time()
    for batch in batches(scenarios_of(options), recorder.BATCH):
        for sc, got in zip(batch, recorder.record_all(batch, work=Judge(os.path.abspath(options.tessera)))):
            if got.get("recorder") and names_crash(options.tessera, sc):
                refused["PyTorch crashes; tessera: uses memory that was freed"] += 1
                continue
            if got.get("recorder"):
                got = {"verdict": "differs", "text": f"the comparison failed: {got['error']['message'][:300]}"}
            if "error" in got:
                why, text = refusal(options.tessera, sc, got)
                if not text:
                    refused[why] += 1
                    continue
                got = {"verdict": "differs", "text": text}
            counts.add(sc)
            verdicts[got["verdict"] + (" (float32)" if got.get("low") is False else "")] += 1
            if got["verdict"] == "differs":
                print(f"{sc['name']}: {got['text']}", flush=True)
                if options.out:
                    os.makedirs(options.out, exist_ok=True)
                    with open(os.path.join(options.out, sc["name"] + ".json"), "w") as f:
                        json.dump(sc, f)
        print(f"up to {batch[-1]['name']}: {dict(verdicts)}, refused {sum(refused.values())}, {time.time() - start:.0f} s",
              flush=True)
    print(counts.report())
    for text, n in refused.most_common():
        print(f"refused: {n:5} {text}")
    for verdict, n in verdicts.most_common():
        print(f"{n:6} {verdict}")
    print(f"computed by both: {sum(verdicts.values())} in {time.time() - start:.0f} s, differ: {verdicts['differs']}")
    sys.exit(1 if verdicts["differs"] else 0)


if __name__ == "__main__":
    main()
