#!/usr/bin/env python3
"""Checks the snapshot.pickle of a strategy against its memory.csv, with Python's own pickle module alone.

    snapshot.py FOLDER [--oom]

The history must be one of a possible allocator (blocks inside held memory, none on another, times that do not run backwards),
the segments at the end must be what the history leaves, and the figures must be those of memory.csv: peaks and final levels of
requested and reserved bytes. With --oom the run ended in out of memory and oom.json has the figures instead.
"""
import bisect
import csv
import json
import os
import pickle
import sys

FAMILIES = {  # the viewer's colours -> columns of memory.csv
    "parameters": ("sharded_param", "buffer", "init"), "inputs": ("inputs",), "gradients": ("sharded_grad",),
    "gathered parameters": ("all_gather", "all_gather_input", "unsharded_param", "post_forward_shard"),
    "unsharded gradients": ("unsharded_grad", "unsharded_accumulated_grad"), "optimizer state": ("opt_state",),
    "reduction": ("reduce_scatter", "reduce_scatter_output", "partial_reduce_output"), "activations": ("activation",),
    "scratch": ("opt_temp", "temp", "workspace"),
}


class Held:
    """Memory that the allocator holds: disjoint [start, end), sorted."""

    def __init__(self):
        self.starts, self.ends = [], []

    def add(self, address, size):
        i = bisect.bisect_left(self.starts, address)
        assert (i == 0 or self.ends[i - 1] <= address) and (i == len(self.starts) or address + size <= self.starts[i]), \
            "held twice"
        self.starts.insert(i, address)
        self.ends.insert(i, address + size)
        for k in (i + 1, i):  # neighbours become one
            if 0 < k < len(self.starts) and self.ends[k - 1] == self.starts[k]:
                self.ends[k - 1] = self.ends.pop(k)
                self.starts.pop(k)

    def remove(self, address, size):
        i = bisect.bisect_right(self.starts, address) - 1
        assert i >= 0 and address + size <= self.ends[i], "released and not held"
        start, end = self.starts.pop(i), self.ends.pop(i)
        if address + size < end:
            self.starts.insert(i, address + size)
            self.ends.insert(i, end)
        if start < address:
            self.starts.insert(i, start)
            self.ends.insert(i, address)

    def has(self, address, size):
        i = bisect.bisect_right(self.starts, address) - 1
        return i >= 0 and address + size <= self.ends[i]

    def total(self):
        return sum(self.ends) - sum(self.starts)


class Live:
    """Allocated blocks by address; none reaches into the next."""

    def __init__(self):
        self.starts, self.events = [], {}

    def add(self, event):
        i = bisect.bisect_left(self.starts, event["addr"])
        end = event["addr"] + event["size"]
        assert event["addr"] not in self.events and (i == len(self.starts) or end <= self.starts[i]), "two on one place"
        assert i == 0 or self.starts[i - 1] + self.events[self.starts[i - 1]]["size"] <= event["addr"], "two on one place"
        self.starts.insert(i, event["addr"])
        self.events[event["addr"]] = event

    def remove(self, event):
        assert self.events.pop(event["addr"])["size"] == event["size"], "freed with another size"
        self.starts.pop(bisect.bisect_left(self.starts, event["addr"]))


def load(folder):
    with open(os.path.join(folder, "snapshot.pickle"), "rb") as file:
        return pickle.load(file)


def check_frames(event):
    for frame in event["frames"]:
        assert set(frame) == {"name", "filename", "line"}, frame
        assert isinstance(frame["name"], str) and isinstance(frame["filename"], str) and isinstance(frame["line"], int), frame
    files = [frame["filename"] for frame in event["frames"]]
    assert files[-2:] == ["phase", "step"], files
    if event["action"] == "alloc":
        assert files[0] == "category" and event["category"] in FAMILIES, event
    elif event["action"].startswith("segment"):
        assert event["category"] == "unknown"  # MemoryViz.js needs one as soon as there are others


def step_of(event):
    return event["frames"][-1]["line"]


def replay(trace):
    """Plays the history; levels[step] = [least and most requested, most held] while the step runs, then what is left."""
    live, held, requested, levels, before = Live(), Held(), 0, {}, 0
    pending = None
    for event in trace:
        if event["action"] == "oom":
            assert event is trace[-1] and "addr" not in event and event["device_free"] >= 0
            break
        check_frames(event)
        assert isinstance(event["stream"], int) and event["size"] > 0
        assert event.get("time_us", before) >= before, "time runs backwards"
        before = event.get("time_us", before)
        level = levels.setdefault(step_of(event), [requested, held.total()])
        assert (pending is None) == (event["action"] != "free_completed"), "a free is requested, then completed"
        if event["action"] == "alloc":
            assert held.has(event["addr"], event["size"]), "outside of what is held"
            live.add(event)
            requested += event["size"]
        elif event["action"] == "free_requested":
            pending = event["addr"]
        elif event["action"] == "free_completed":
            assert pending == event["addr"]
            pending = None
            live.remove(event)
            requested -= event["size"]
        elif event["action"] in ("segment_alloc", "segment_map"):
            held.add(event["addr"], event["size"])
        else:
            assert event["action"] in ("segment_free", "segment_unmap"), event["action"]
            held.remove(event["addr"], event["size"])
        level[0], level[1] = max(level[0], requested), max(level[1], held.total())
    return live, held, levels


def check_segments(snapshot, live, held):
    """The segments are what the history leaves: same memory, same blocks, same owners."""
    sums = {"allocated": 0, "requested": 0, "reserved": 0}
    active = 0
    for segment in snapshot["segments"]:
        at = segment["address"]
        allocated = requested = 0
        before = None
        assert held.has(at, segment["total_size"]) and segment["segment_type"] in ("small", "large"), segment
        for block in segment["blocks"]:
            assert block["address"] == at and block["state"] in ("active_allocated", "inactive"), block
            assert not (before == block["state"] == "inactive"), "two free neighbours"
            before = block["state"]
            at += block["size"]
            if before == "inactive":
                continue
            active += 1
            allocated += block["size"]
            requested += block["requested_size"]
            event = live.events[block["address"]]
            assert block["requested_size"] == event["size"] and block["frames"] == event["frames"], block
        assert at == segment["address"] + segment["total_size"], "blocks do not fill their segment"
        assert segment["allocated_size"] == segment["active_size"] == allocated and segment["requested_size"] == requested
        for key, value in (("allocated", allocated), ("requested", requested), ("reserved", segment["total_size"])):
            sums[key] += value
    assert active == len(live.events), "blocks are missing"
    assert sums["reserved"] == held.total()
    return sums


def memory_rows(folder):
    with open(os.path.join(folder, "memory.csv"), encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return [{key: float(value) if key == "time_s" else int(value) for key, value in row.items()} for row in rows]


def check_annotations(snapshot):
    open_stages = []
    for note in snapshot["external_annotations"]:
        if note["stage"] == "START":
            open_stages.append(note)
        else:
            assert note["stage"] == "END" and open_stages[-1]["name"] == note["name"], note
            assert open_stages.pop()["time_us"] <= note["time_us"], note
    assert not open_stages


def check_figures(folder, snapshot, live, levels, sums):
    rows = memory_rows(folder)
    last = rows[-1]
    steady = levels[max(levels)]
    assert sums["allocated"] == last["total_bytes"], (sums, last)
    assert sums["requested"] == last["requested_bytes"], (sums, last)
    assert sums["reserved"] == last["reserved_bytes"], (sums, last)
    peak = max(row["requested_bytes"] for row in rows)
    assert steady[0] == peak, (steady, peak)
    assert steady[1] == max(row["reserved_bytes"] for row in rows), steady
    owners = {name: 0 for name in FAMILIES}
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                owners[live.events[block["address"]]["category"]] += block["size"]
    for name, columns in FAMILIES.items():
        assert owners[name] == sum(last.get(column + "_bytes", 0) for column in columns), name
    assert max(row["in_use_bytes"] for row in rows) <= max(row["reserved_bytes"] for row in rows)
    return "peak requested %d, peak reserved %d, at the end %d" % (*steady, sums["allocated"])


def check_oom(folder, trace, sums):
    with open(os.path.join(folder, "oom.json"), encoding="utf-8") as file:
        oom = json.load(file)
    assert trace[-1]["action"] == "oom" and trace[-1]["size"] == oom["requested_bytes"]
    assert trace[-1]["device_free"] == oom["device_free_bytes"] == oom["device_bytes"] - oom["reserved_bytes"]
    assert sums["allocated"] == oom["allocated_bytes"] == sum(oom["by_category"].values()), (sums, oom)
    assert sums["reserved"] == oom["reserved_bytes"], (sums, oom)
    assert oom["cached_bytes"] == oom["reserved_bytes"] - oom["allocated_bytes"]
    assert oom["largest_free_block_bytes"] <= oom["cached_bytes"]
    assert oom["owners"] == sorted(oom["owners"], key=lambda owner: -owner["bytes"]) and oom["remedy"]
    return "%d requested, %d free" % (oom["requested_bytes"], oom["device_free_bytes"])


def check(folder, oom=False):
    """Raises AssertionError; returns the snapshot and what was compared in words."""
    snapshot = load(folder)
    assert set(snapshot) == {"segments", "device_traces", "allocator_settings", "external_annotations"}, set(snapshot)
    trace, = snapshot["device_traces"]
    live, held, levels = replay(trace)
    sums = check_segments(snapshot, live, held)
    check_annotations(snapshot)
    if oom:
        return snapshot, check_oom(folder, trace, sums)
    return snapshot, check_figures(folder, snapshot, live, levels, sums)


if __name__ == "__main__":
    print(check(sys.argv[1], "--oom" in sys.argv[2:])[1])
