#!/usr/bin/env python3
"""Compares `tessera memory` with recorded scenarios: figures, and time lines event by event.

    against.py --tessera PROGRAM --recorded DIR [--only NAME,...] [--every N] [--jobs N] [--keep DIR] [--list]

Every NAME.json of DIR gives its scenario to `tessera memory SCENARIO.json -o RESULT.json --timeline
FILE`, with `--trace NAME.trace` if there is one. The result is compared with ../../golden-memory/compare.py, the time line as compare_timelines()
says. A NAME.error in which PyTorch ran out of memory must end with exit status 3 and report the same
request, any other one with exit status 2 and the words in which PyTorch refuses it. Standard library only. Exit status 0: everything agrees.
"""
import argparse
import concurrent.futures
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "golden-memory"))
from compare import compare  # noqa: E402: the folder is no package
SKIPPED = ("name", "timeline")
REQUIRED = ("groups", "allocator", "categories", "snapshot_columns", "snapshots")
FREE, ALLOC, SEGMENT = range(3)
MIB = 1 << 20


def load(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as f:
        return json.load(f)


# ---- time lines ------------------------------------------------------------------------------

def steps(line):
    """Events in a form that does not depend on tables, ids and the order inside a burst of frees:
    (what counts, indexes of module and operator). Frees between two other events of one phase are sorted."""
    t = line["tables"]
    name = lambda table, i: t[table][i]
    out, burst, number = [], [], {}

    def flush():
        out.extend(sorted(burst))
        burst.clear()

    for e in line["events"]:
        if e[0] == ALLOC:
            flush()
            number[e[1]] = len(number)
            out.append((("alloc", e[2], e[3], name("stream", e[4]), name("category", e[5]), e[6], name("phase", e[7])), e[8:10]))
        elif e[0] == FREE:
            item = (("free", number[e[1]], e[2], name("phase", e[3])), e[4:6])
            if burst and burst[-1][0][2:] != item[0][2:]:   # another phase: another burst
                flush()
            burst.append(item)
        else:
            flush()
            out.append((("segment", name("segment_action", e[1]), e[2], e[3], name("stream", e[4]), e[5], name("phase", e[6])), e[7:9]))
    flush()
    return out


def where(tables, indexes):
    return " ".join(tables[k][i] for k, i in zip(("module", "op"), indexes) if i < len(tables.get(k, []))).strip() or "-"


def compare_timelines(gold, ours):
    """(events, equal ones before the first difference, its text). Compared: order, bytes, addresses,
    streams, categories, iterations, phases, and device allocations; not: module and operator."""
    a, b = steps(gold), steps(ours)
    for i, (x, y) in enumerate(zip(a, b)):
        if x[0] != y[0]:
            return len(a), i, f"event {i}: recorded {x[0]} in {where(gold['tables'], x[1])}, ours {y[0]} in {where(ours['tables'], y[1])}"
    if len(a) != len(b):
        i = min(len(a), len(b))
        return len(a), i, f"event {i}: recorded {a[i] if i < len(a) else 'nothing'}, ours {b[i] if i < len(b) else 'nothing'}"
    return len(a), len(a), None


# ---- one scenario ----------------------------------------------------------------------------

def tessera(program, scenario, name, folder, trace=None):
    """Exit status, standard error, and the paths of result and time line."""
    paths = [os.path.join(folder, name + e) for e in (".scenario.json", ".result.json", ".timeline.json")]
    with open(paths[0], "w") as f:
        json.dump(dict(name=name, scenario={k: v for k, v in scenario.items() if k not in SKIPPED}), f)
    traced = []
    if trace and os.path.exists(trace):   # decompressed: the program may have been built without zlib
        traced = ["--trace", os.path.join(folder, name + ".trace")]
        with gzip.open(trace) as packed, open(traced[1], "wb") as plain:
            plain.write(packed.read())
    run = subprocess.run([program, "memory", paths[0], "-o", paths[1], "--timeline", paths[2], *traced], capture_output=True, text=True, timeout=600)
    return run.returncode, run.stderr.strip(), paths[1], paths[2]


def one(program, recorded, name, folder):
    """A dict: name, keys {key: [exact, all, first]}, or failed."""
    gold_path = os.path.join(recorded, name + ".json")
    gold = load(gold_path)
    status, err, result, line = tessera(program, gold["scenario"], name, folder, os.path.join(recorded, name + ".trace"))
    if status != 0:
        return dict(name=name, failed=f"exit status {status}: {err[-300:]}")
    ours = load(result)
    lacks = [k for k in REQUIRED if k not in ours]
    if lacks:
        return dict(name=name, failed="the result lacks " + ", ".join(lacks))
    keys = {k: [t.ok, t.n, t.first] for k, t in compare(gold, ours).items()}
    timeline = os.path.join(recorded, name + ".timeline.json.gz")
    if os.path.exists(timeline):
        n, same, first = compare_timelines(load(timeline), load(line))
        keys["timeline"] = [same, n, first]
    return dict(name=name, keys=keys)


UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}
STATES = {   # what PyTorch's text says of the device, and ours
    "free": (r"of which ([\d.]+) (\w+) is free", r"free are [\d.]+ GiB \((\d+) bytes\)"),
    "allocated": (r"Of the allocated memory ([\d.]+) (\w+) is", r"of them allocated [\d.]+ GiB \((\d+) bytes\)"),
}


def says(value, unit, n):
    """Whether n bytes print as PyTorch printed them."""
    return f"{n / UNITS[unit]:.2f}" == f"{float(value):.2f}"


def refused(program, scenario, text, name, folder):
    """A scenario that PyTorch refuses, for another reason than memory."""
    said = text.strip().splitlines()[-1].split(": ", 1)[-1].split(", but got")[0]
    status, err, _, _ = tessera(program, scenario, name, folder)
    same = status == 2 and said in err
    first = None if same else f"exit status {status} where PyTorch says {said!r}: {err[-200:]}"
    return dict(name=name, keys={"refused": [int(same), 1, first]})


def error(program, recorded, name, folder):
    """A scenario that PyTorch did not finish."""
    with open(os.path.join(recorded, name + ".error")) as f:
        scenario, text = json.loads(f.readline()), f.read()
    asked = re.search(r"OutOfMemoryError.*Tried to allocate ([\d.]+) (\w+)\.", text)
    if not asked:
        return refused(program, scenario, text, name, folder)
    status, err, _, _ = tessera(program, scenario, name, folder)
    want = f"{asked[1]} {asked[2]}"
    first = None if status == 3 else f"exit status {status} where PyTorch runs out of memory at {want}: {err[-200:]}"
    keys = {"out of memory: exit status": [int(status == 3), 1, first]}
    ours = re.search(r"\((\d+) bytes\)", err)
    if status == 3 and ours:   # PyTorch names the device allocation, we the request
        n = int(ours[1])
        sizes = [n, -(-n // (2 * MIB)) * 2 * MIB] + [20 * MIB] * (n < 10 * MIB) + [2 * MIB] * (n <= MIB)
        same = any(says(asked[1], asked[2], s) for s in sizes)
        keys["out of memory: request"] = [int(same), 1, None if same else f"recorded {want}, ours {n} bytes"]
    for what, (theirs, ours) in STATES.items():
        x, y = re.search(theirs, text), re.search(ours, err)
        if x and y:
            same = says(x[1], x[2], int(y[1]))
            keys["out of memory: " + what] = [int(same), 1, None if same else f"recorded {x[1]} {x[2]}, ours {y[1]} bytes"]
    return dict(name=name, keys=keys)


# ---- all ------------------------------------------------------------------------------------

def report(results, listed):
    totals, bad = {}, []
    for r in results:
        if "failed" in r:
            bad.append((r["name"], r["failed"]))
            continue
        for k, (exact, n, first) in r["keys"].items():
            t = totals.setdefault(k, [0, 0, 0, 0, None])   # scenarios exact, scenarios, figures exact, figures, first
            t[0] += exact == n
            t[1] += 1
            t[2] += exact
            t[3] += n
            if exact < n:
                t[4] = t[4] or (r["name"], first)
        different = {k: first for k, (exact, n, first) in r["keys"].items() if exact < n}
        if different:
            key = "timeline" if "timeline" in different else next(iter(different))
            bad.append((r["name"], f"{len(different)} keys; {key}: {different[key]}"))
    for k, (ok, n, figures, all_figures, first) in totals.items():
        print(f"{k}: {ok}/{n} scenarios, {figures}/{all_figures} figures exact" + (f"; first: {first[0]}: {first[1]}" if first else ""))
    if listed:
        for name, text in bad:
            print(f"  {name}: {text}")
    failed = sum("failed" in r for r in results)
    print(f"{len(results) - len(bad)} of {len(results)} scenarios agree in everything, {failed} failed")
    return 1 if bad or not results else 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tessera", required=True)
    ap.add_argument("--recorded", required=True)
    ap.add_argument("--only")
    ap.add_argument("--jobs", type=int, default=1)
    ap.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth scenario")
    ap.add_argument("--keep")
    ap.add_argument("--list", action="store_true", help="name every scenario that differs")
    a = ap.parse_args()
    files = sorted(os.listdir(a.recorded))
    wanted = lambda n: not a.only or n in a.only.split(",")
    names = [f[:-5] for f in files if f.endswith(".json") and not f.endswith(".timeline.json") and f != "index.json" and wanted(f[:-5])][::a.every]
    errors = [f[:-6] for f in files if f.endswith(".error") and wanted(f[:-6])]
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        folder = a.keep or scratch
        os.makedirs(folder, exist_ok=True)
        jobs = [pool.submit(one, a.tessera, a.recorded, n, folder) for n in names]
        jobs += [pool.submit(error, a.tessera, a.recorded, n, folder) for n in errors]
        results = [j.result() for j in jobs]
    sys.exit(report(results, a.list))


if __name__ == "__main__":
    main()
