#!/usr/bin/env python3
"""Compares random scenarios with the real engine, shrinks what differs, and counts what was covered.

    VENV/bin/python run.py --tessera PATH [--kind train|ddp|tp_layout] [--first SEED] [--count N] [--out FOLDER]

Exit status 0 if nothing differs. Shrunk scenarios and the recorded results are left in the folder, in the format of
tests/golden.
"""
import argparse
import collections
import importlib
import json
import os
import sys
import time

import against
import coverage
import recorder
import shrink

GENERATORS = {"train": "generate", "ddp": "generate_ddp", "tp_layout": "generate_tp"}


def sort_of(difference):
    """What must stay the same while a scenario shrinks: the key that differs, or the words of the refusal."""
    if difference.startswith("real: "):
        return against.shape_of(difference)[:60]
    return difference.split("[")[0].split(":")[0].split(".")[0]


class Driver:
    def __init__(self, options):
        self.options = options
        self.seen, self.skipped = collections.Counter(), collections.Counter()
        self.coverage = coverage.Coverage()
        self.different = collections.defaultdict(list)
        self.errors = collections.Counter()

    def differences(self, sc, real):
        """Texts; None: not compared."""
        if real.get("recorder"):
            print(f"{sc['name']}: {real['error']['message'][:300]}")
            self.skipped["the recorder: " + real["error"]["message"][:80]] += 1
            return None
        if "error" in real:
            why = "refused" if sc["kind"] != "train" else against.excuse(sc, real["error"])
            if why:
                self.skipped[why] += 1
                return None
        return against.compare(self.options.tessera, sc, real)

    def take(self, sc, real):
        found = self.differences(sc, real)
        if found is None:
            return
        self.seen["refused by both" if "error" in real else "run by both"] += 1
        if "error" in real:
            self.errors[real["error"]["class"] + " " + real["error"]["message"][:50]] += 1
        elif sc["kind"] == "train":
            self.coverage.add(sc)
        if found:
            self.different[against.shape_of(found[0])].append((sc, found[0]))
            if self.options.verbose:
                print(f"{sc['name']}: {found[0]}", flush=True)

    def shrink(self, sc, difference):
        """Smaller, with a difference of the same sort (an error on one side stays one)."""
        sort = sort_of(difference)

        def still(new):
            real = next(iter(recorder.record_all([new])))
            if real.get("recorder") or ("error" in real and against.excuse(new, real["error"])):
                return False
            found = against.compare(self.options.tessera, new, real)
            return bool(found) and sort_of(found[0]) == sort
        small = shrink.shrink(sc, still, self.options.tries)
        return small, next(iter(recorder.record_all([small])))

    def store(self, sc, real):
        """A case in the golden format; one that the real engine refuses becomes an `error` scenario."""
        if "error" in real:
            sc = {**sc, "kind": "error"}
            real = {"name": sc["name"], "kind": "error", "error": {**real["error"], "mention": [
                w for w in against.WORDS if w in real["error"]["message"]]}}
        for folder, value in (("scenarios", sc), ("results", real)):
            os.makedirs(os.path.join(self.options.out, folder), exist_ok=True)
            with open(os.path.join(self.options.out, folder, sc["name"] + ".json"), "w") as f:
                f.write(recorder_dump(value))

    def finish(self, seconds):
        for key, cases in sorted(self.different.items(), key=lambda kv: -len(kv[1])):
            sc, text = min(cases, key=lambda case: len(json.dumps(case[0])))
            print(f"\n=== {len(cases)} scenarios ({', '.join(c[0]['name'] for c in cases[:6])})\n{text}")
            if self.options.out:
                small, real = self.shrink(sc, text)
                self.store(small, real)
                found = against.compare(self.options.tessera, small, real)
                print(f"--- shrunk {small['name']}: {json.dumps({k: v for k, v in small.items() if k != 'name'})}")
                print(found[0] if found else "(agrees now)", flush=True)
        if self.options.kind == "train":
            print(self.coverage.report())
        for name, n in self.errors.most_common(30):
            print(f"refused: {n:5} {name}")
        for name, n in self.skipped.most_common():
            print(f"not compared: {n:5} {name}")
        print(f"compared: {dict(self.seen)}, differ: {sum(len(v) for v in self.different.values())}, {seconds:.0f} s")


def recorder_dump(value):
    from fsdp_oracle import golden
    return golden.dump(value)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tessera", default=os.environ.get("TESSERA", "tessera"))
    ap.add_argument("--kind", choices=GENERATORS, default="train")
    ap.add_argument("--first", type=int, default=1)
    ap.add_argument("--count", type=int, default=200)
    ap.add_argument("--out", default="", help="shrink each sort of difference and store it here")
    ap.add_argument("--tries", type=int, default=250, help="attempts to shrink one case")
    ap.add_argument("--all-ranks", action="store_true", help="one thread per rank, slower")
    ap.add_argument("--scenario", nargs="*", help="compare these files instead of random ones")
    ap.add_argument("--verbose", action="store_true")
    options = ap.parse_args()
    recorder.load()
    if options.scenario:
        scenarios = [json.load(open(p)) for p in options.scenario]
    else:
        make = importlib.import_module(GENERATORS[options.kind]).scenario
        scenarios = [make(s) for s in range(options.first, options.first + options.count)]
    driver, start = Driver(options), time.time()
    for sc, real in zip(scenarios, recorder.record_all(scenarios, options.all_ranks)):
        driver.take(sc, real)
    driver.finish(time.time() - start)
    sys.exit(1 if driver.different else 0)


if __name__ == "__main__":
    main()
