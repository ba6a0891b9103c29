#!/usr/bin/env python3
"""Records random scenarios (generate_mem.py) with the memory recorder, one after the other.

    LD_PRELOAD=$PWD/libfakecuda.so PYTHON record.py --out DIR [--first SEED] [--count N]

Writes NAME.json and NAME.timeline.json.gz for every scenario (formats: tests/golden-memory/README.md,
without `tracker`). What PyTorch refuses goes to NAME.error: the scenario as one line of JSON, then
PyTorch's text. Scenarios that have a result are skipped, so a run can be continued.
"""
import argparse
import json
import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import generate_mem
import memgold

LIMIT_S = 300   # of one child
MIB = 1 << 20


def limited(run):
    """run() in a child that is ended after LIMIT_S, without PyTorch's own tracker."""
    def f(sc, mode):
        if mode == "tracker":
            raise RuntimeError("not recorded")
        signal.alarm(LIMIT_S)
        return run(sc, mode)
    return f


def peaks(sc):
    """Allocated and reserved bytes at their maxima, on a device without limit."""
    os.environ["FAKECUDA_BYTES"] = str(1 << 40)
    os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if sc["expandable_segments"]:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    phases = memgold.in_child(memgold.run, dict(sc), "plain")["phases"]
    return [max(p[k] for p in phases) for k in ("peak_allocated", "peak_reserved")]


def between(low, high, fraction):
    return -(-int(low + fraction * (high - low)) // MIB) * MIB


def record(sc, out):
    """False if PyTorch refused it."""
    try:
        memgold.scenario(sc, out)
        return True
    except Exception as e:
        config = {**memgold.models.LLAMA[sc["model"]], **sc["model_overrides"]}
        scenario = {k: v for k, v in sc.items() if k != "timeline"}
        with open(os.path.join(out, sc["name"] + ".error"), "w") as f:
            text = re.sub(r'File "[^"]*/', 'File "', str(e))   # no paths of this machine
            f.write(json.dumps(dict(scenario, model_config=config)) + "\n" + text)
        print("refused", sc["name"], str(e).strip().splitlines()[-1], flush=True)
        return False


def full(sc):
    return {**memgold.DEFAULT, **sc}


def one(seed, out):
    sc = generate_mem.scenario(seed)
    done = [os.path.join(out, sc["name"] + e) for e in (".json", ".error")]
    if any(os.path.exists(p) for p in done):
        return
    fraction = sc.pop("device_fraction", None)
    if fraction is None:
        record(full(sc), out)
        return
    try:
        low, high = peaks(full(sc))
    except Exception:
        record(full(sc), out)
        return
    sc["device_bytes"] = between(low, high, fraction)
    if not record(full(sc), out):   # did not fit: once more with half of the shortage
        again = dict(sc, name=sc["name"] + "b", device_bytes=between(low, high, (1 + fraction) / 2))
        record(full(again), out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--first", type=int, default=1)
    ap.add_argument("--count", type=int, default=250)
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    memgold.torch.set_num_threads(1)
    memgold.patch()
    memgold.run = limited(memgold.run)
    import transformers  # noqa: F401  imported once, before any fork
    for seed in range(a.first, a.first + a.count):
        one(seed, a.out)


main()
