#!/usr/bin/env python3
"""Opens the snapshots of a comparison with PyTorch's own functions (torch.cuda._memory_viz) and compares their figures.

    VENV/bin/python snapshot_check.py FOLDER ...        folders of strategies: tessera compare FILE --out DIR, then DIR/STRATEGY

No GPU and no network: `flamegraph.pl` is not fetched, its input is taken instead. Exit status 0: every snapshot opens and every
figure agrees.
"""
import base64
import collections
import contextlib
import io
import json
import os
import pickle
import re
import sys

from torch.cuda import _memory_viz as viz

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import snapshot as plain  # noqa: E402


def alive_and_peak(trace):
    """As MemoryViz.js draws the active memory: a free_completed ends what an alloc began."""
    sizes, alive, peak = {}, 0, 0
    for event in trace:
        if event["action"] == "alloc":
            sizes[event["addr"]] = event["size"]
            alive += event["size"]
            peak = max(peak, alive)
        elif event["action"] == "free_completed":
            alive -= sizes.pop(event["addr"])
    return alive, peak


def flamegraph_sums(text):
    """Bytes by state from the input of flamegraph.pl; every line ends with a whole number."""
    sums = collections.Counter()
    for line in text.splitlines():
        stack, size = line.rsplit(" ", 1)
        sums[next(part for part in stack.split(";") if part in ("active_allocated", "inactive"))] += int(size)
    return sums


def check_flamegraphs(snapshot):
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    allocated = sum(segment["allocated_size"] for segment in snapshot["segments"])
    for draw in (viz.memory, viz.segments):
        text = draw(snapshot, format_flamegraph=lambda lines: lines)
        sums = flamegraph_sums(text)
        assert sums["active_allocated"] == allocated and sum(sums.values()) == reserved, (sums, allocated, reserved)
        assert "module:0:" in text and "category:0:" in text and "phase:0:" in text
    with contextlib.redirect_stdout(io.StringIO()):
        compared = viz.compare(snapshot["segments"][:1], snapshot["segments"], format_flamegraph=lambda lines: lines)
    assert "only_before" not in compared


def check_texts(snapshot):
    summary = viz.segsum(snapshot)  # it checks sums itself
    assert "segments: %d\n" % len(snapshot["segments"]) in summary
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    assert "total_reserved: %s\n" % viz.Bytes(reserved) in summary
    trace, = snapshot["device_traces"]
    listing = viz.trace(snapshot)
    count = collections.Counter(event["action"] for event in trace)
    assert listing.startswith("Device 0 ----------------\n%d entries\n" % len(trace))
    assert listing.count("\ndel ") == count["free_requested"]
    assert listing.count(" = cudaMalloc(") == count["segment_alloc"] and listing.count("cudaFree(") == count["segment_free"]
    assert listing.count("OutOfMemoryError") == count["oom"]
    if not count["segment_map"]:  # torch's listing knows no mapped memory
        assert "MEM[" not in listing, "an allocation outside of every segment"


def check_plots(snapshot):
    before = pickle.dumps(snapshot)
    for html in (viz.trace_plot(snapshot), viz.trace_plot(snapshot, plot_segments=True), viz.segment_plot(snapshot)):
        files, = re.findall(r"const local_files = (.*)", html)
        again = pickle.loads(base64.b64decode(json.loads(files)[0]["base64"]))
        assert pickle.dumps(again) == before or again == snapshot
    kept = viz.filter_alloc_free_pairs(pickle.loads(before))["device_traces"][0]
    live = sum(event["size"] for event in kept if event["action"] == "alloc")
    assert live == sum(segment["requested_size"] for segment in snapshot["segments"])


def check(folder):
    oom = not os.path.exists(os.path.join(folder, "memory.csv"))
    snapshot, words = plain.check(folder, oom)
    trace, = snapshot["device_traces"]
    alive, peak = alive_and_peak(trace)
    assert alive == sum(segment["requested_size"] for segment in snapshot["segments"])
    if not oom:
        rows = plain.memory_rows(folder)
        assert alive == rows[-1]["requested_bytes"]
        # The steady step may be lower than the first one or the initialisation, never higher.
        assert peak >= max(row["requested_bytes"] for row in rows)
    check_texts(snapshot)
    check_flamegraphs(snapshot)
    check_plots(snapshot)
    return "%d events, alive %d, %s" % (len(trace), alive, words)


def main(folders):
    bad = 0
    for folder in folders:
        try:
            print("%s: %s" % (folder, check(folder)))
        except AssertionError as error:
            bad += 1
            print("%s: DIFFERS: %s" % (folder, error))
    return 1 if bad or not folders else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
