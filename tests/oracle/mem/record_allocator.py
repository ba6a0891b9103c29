#!/usr/bin/env python3
"""Random requests to PyTorch's own caching allocator, with every option of it that is modelled.

    LD_PRELOAD=$PWD/libfakecuda.so PYTHON record_allocator.py --out DIR [--seeds N] [--steps N] [--only NAME]

Writes NAME-SEED.json (`scenario`: the options) and NAME-SEED.timeline.json.gz: the format of
tests/golden-memory, with two more kinds of events:
    [3, bytes, stream]    a request that was refused: out of memory (its segment events come before it)
    [4]                   empty_cache() (its segment events follow it)
    [5, allocated, requested, reserved, inactive split, retries, out of memory]   statistics here
"""
import argparse
import gzip
import json
import os
import random
import sys

MIB = 1 << 20
# name, PYTORCH_CUDA_ALLOC_CONF, device bytes, memory fraction (None: not set), what tessera calls the options.
# Garbage collection runs only with a fraction below 1.
CASES = [
    ("plain", "", 1 << 40, None, {}),
    ("full", "", 256 * MIB, None, {}),
    ("split", "max_split_size_mb:32", 400 * MIB, None, {"max_split_bytes": 32 * MIB}),
    ("split-rounding", "max_split_size_mb:24,max_non_split_rounding_mb:40", 400 * MIB, None,
     {"max_split_bytes": 24 * MIB, "max_non_split_rounding_bytes": 40 * MIB}),
    ("roundup", "roundup_power2_divisions:4", 400 * MIB, None, {"roundup_power2_divisions": 4}),
    ("roundup-classes", "roundup_power2_divisions:[2:1,8:2,32:8,>:16]", 400 * MIB, None,
     {"roundup_classes": [1, 1, 0, 2, 0, 8, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16]}),
    ("gc", "garbage_collection_threshold:0.6", 800 * MIB, 0.5, {"gc_threshold": 0.6, "device_bytes": 400 * MIB}),
    ("gc-split", "garbage_collection_threshold:0.5,max_split_size_mb:40", 800 * MIB, 0.5,
     {"gc_threshold": 0.5, "max_split_bytes": 40 * MIB, "device_bytes": 400 * MIB}),
    ("large-segment", "large_segment_size_mb:32", 400 * MIB, None, {"large_segment_bytes": 32 * MIB}),
    ("large-segment-split", "large_segment_size_mb:32,max_split_size_mb:48", 400 * MIB, None,
     {"large_segment_bytes": 32 * MIB, "max_split_bytes": 48 * MIB}),
    ("expandable", "expandable_segments:True", 1 << 40, None, {"expandable_segments": True}),
    ("expandable-full", "expandable_segments:True", 300 * MIB, None, {"expandable_segments": True}),
    ("expandable-split", "expandable_segments:True,max_split_size_mb:32", 300 * MIB, None,
     {"expandable_segments": True, "max_split_bytes": 32 * MIB}),
    ("expandable-roundup", "expandable_segments:True,roundup_power2_divisions:2", 300 * MIB, None,
     {"expandable_segments": True, "roundup_power2_divisions": 2}),
    ("expandable-large-segment", "expandable_segments:True,large_segment_size_mb:32", 400 * MIB, None,
     {"expandable_segments": True, "large_segment_bytes": 32 * MIB}),
]


def size(r):
    """Sizes over all magnitudes; often the same few, as in a model."""
    kind = r.random()
    if kind < 0.25:
        return r.choice([1, 512, 4096, 100000, MIB, 3 * MIB, 9 * MIB, 12 * MIB, 25 * MIB, 40 * MIB])
    if kind < 0.6:
        return 1 + int(2 ** r.uniform(0, 20))
    if kind < 0.97:
        return 1 + int(2 ** r.uniform(20, 25.2))
    return 1 + int(2 ** r.uniform(25, 27))


class Run:
    def __init__(self, torch, seed, device_bytes):
        self.t, self.r = torch, random.Random(seed)
        self.streams = [0] + sorted(torch.cuda.Stream().cuda_stream for _ in range(2))
        self.live, self.notes, self.n = [], [], 0   # notes: (allocator events before it, event)
        self.high = min(device_bytes, 600 * MIB)

    def events(self):
        s = self.t._C._cuda_memoryStats(0)["allocation"]["all"]
        return s["allocated"] + s["freed"]

    def step(self):
        r = self.r
        full = sum(b for _, b in self.live) > self.high * r.choice([0.3, 0.6, 0.9])
        if r.random() < 0.004:
            self.notes.append((self.events(), [4]))
            self.t._C._cuda_emptyCache()
        elif self.live and (full or r.random() < 0.45):
            address, _ = self.live.pop(r.randrange(len(self.live)))
            self.t.cuda.caching_allocator_delete(address)
        else:
            n, stream = size(r), r.choice([0, 0, 0, 1, 2])
            try:
                self.live.append((self.t.cuda.caching_allocator_alloc(n, 0, self.streams[stream]), n))
            except self.t.OutOfMemoryError:
                self.notes.append((self.events(), [3, n, stream]))
        if r.random() < 0.05:
            self.note_stats()

    def note_stats(self):
        s = self.t._C._cuda_memoryStats(0)
        cur = [s[k]["all"]["current"] for k in ("allocated_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes")]
        self.notes.append((self.events(), [5] + cur + [s["num_alloc_retries"], s["num_ooms"]]))


def timeline(run, trace):
    """The allocator's own history, with the notes at their places."""
    actions = ["segment_alloc", "segment_free", "segment_map", "segment_unmap"]
    index = {h: i for i, h in enumerate(run.streams)}
    base = min(e["addr"] for e in trace if e["action"] == "alloc")
    notes, out, ids, k, n = list(run.notes), [], {}, 0, 0
    pending = []
    for e in trace:
        a = e["action"]
        if a in actions:
            pending.append([2, actions.index(a), e["size"], e["addr"] - base, index[e["stream"]]])
            continue
        if a == "oom":   # its note is placed when the next event comes
            pending.append(None)
            continue
        if a not in ("alloc", "free_requested"):
            continue
        k, notes, pending = flush(out, notes, pending, k)
        out += pending
        pending = []
        if a == "alloc":
            ids[e["addr"]] = n
            out.append([1, n, e["size"], e["addr"] - base, index[e["stream"]]])
            n += 1
        else:
            out.append([0, ids.pop(e["addr"])])
        k += 1
    _, notes, pending = flush(out, notes, pending, k)
    return dict(tables=dict(stream=["default", "first", "second"], segment_action=actions), events=out + pending)


def flush(out, notes, pending, k):
    """Places the notes that were made after k allocator events."""
    while notes and notes[0][0] <= k:
        note = notes.pop(0)[1]
        if note[0] == 3:      # everything up to the failure belongs to it
            cut = pending.index(None)
            out += pending[:cut]
            pending = pending[cut + 1:]
            out.append(note)
        elif note[0] == 4:    # releases of empty_cache: the run of frees that follows
            out.append(note)
            cut = 0
            while cut < len(pending) and pending[cut] and pending[cut][1] in (1, 3):
                cut += 1
            out += pending[:cut]
            pending = pending[cut:]
        else:
            out.append(note)
    return k, notes, pending


def record(case, seed, steps, out):
    name, conf, device, fraction, options = case
    os.environ["FAKECUDA_BYTES"] = str(device)
    if conf:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = conf
    import torch
    torch.cuda.init()
    if fraction is not None:
        torch.cuda.set_per_process_memory_fraction(fraction)
    torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=10_000_000)
    run = Run(torch, seed, device)
    for _ in range(steps):
        run.step()
    run.note_stats()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    scenario = dict({"device_bytes": device, "expandable_segments": False}, **options)
    name = f"{name}-{seed}"
    with open(os.path.join(out, name + ".json"), "w") as f:
        json.dump(dict(name=name, scenario=scenario, conf=conf, torch=torch.__version__), f)
        f.write("\n")
    text = json.dumps(dict(name=name, **timeline(run, trace)), separators=(",", ":"))
    with open(os.path.join(out, name + ".timeline.json.gz"), "wb") as f:
        with gzip.GzipFile(filename="", mode="wb", fileobj=f, compresslevel=9, mtime=0) as g:
            g.write(text.encode())
    print(name, len(trace), "events", run.notes[-1], flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--seeds", type=int, default=1)
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("--only")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    for case in CASES:
        for seed in range(1, a.seeds + 1):
            if a.only and a.only != case[0]:
                continue
            if os.fork() == 0:   # a process each: the options are read once
                record(case, seed, a.steps, a.out)
                os._exit(0)
            if os.wait()[1]:
                sys.exit(f"{case[0]}: failed")


main()
