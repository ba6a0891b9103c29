#!/usr/bin/env python3
"""table.py PUBLISHED.csv FOLDER: the predicted figures beside the published ones, as Markdown on stdout.

FOLDER has the results of `tessera compare --out` for each study. Every predicted figure is read from a summary.csv or a
snapshot.pickle there.
"""
import csv
import os
import pickle
import sys

UNITS = {"GiB": 1 << 30, "MiB": 1 << 20}


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


class Results:
    def __init__(self, folder):
        self.rows, self.folders = {}, {}
        for study in sorted(os.listdir(folder)):
            summary = os.path.join(folder, study, "summary.csv")
            for row in rows_of(summary) if os.path.exists(summary) else []:
                self.rows[row["strategy"]] = row
                self.folders[row["strategy"]] = os.path.join(folder, study, row["strategy"])

    def peak(self, strategy, kind):
        """Bytes of the fullest iteration, None if it was not simulated."""
        row = self.rows.get(strategy)
        if not row or not row["peak_%s_bytes" % kind]:
            return None
        return max(int(row["peak_%s_bytes" % kind]), int(row["first_peak_%s_bytes" % kind]))

    def most(self, strategy, category):
        """The most that was requested for an owner and alive at a time, in the whole history of snapshot.pickle."""
        if strategy not in self.folders:
            return None
        with open(os.path.join(self.folders[strategy], "snapshot.pickle"), "rb") as file:
            trace, = pickle.load(file)["device_traces"]
        alive, most, sizes = 0, 0, {}
        for event in trace:
            if event["action"] == "alloc" and event["frames"][0]["name"] == category:
                sizes[event["addr"]] = event["size"]
                alive += event["size"]
                most = max(most, alive)
            elif event["action"] == "free_completed":
                alive -= sizes.pop(event["addr"], 0)
        return most

    def verdict(self, strategy):
        row = self.rows.get(strategy)
        if not row:
            return None
        fits = {"yes": "fits", "retries": "fits, cached blocks are freed", "no": "does not fit"}.get(
            row["verdict"], "may fit, not all is known")
        peak = self.peak(strategy, "reserved")
        return fits if peak is None else "%s: %.1f of %.1f GiB" % (fits, peak / UNITS["GiB"],
                                                                  int(row["usable_bytes"]) / UNITS["GiB"])


OWNERS = {"parameters": "Sharded Param", "gradients": "Sharded Grad", "Adam m + v": "OptState"}


def predict(results, row):
    """(text, share of the published figure or None) of one row of published.csv."""
    what, strategy, unit = row["quantity"], row["strategy"], row["unit"]
    if what == "ran":
        return results.verdict(strategy), None
    if what == "peak reserved":
        value = results.peak(strategy, "reserved")
    elif what.endswith("falls by"):
        alone, shared = results.most("llmc13-f32", "OptState"), results.most(strategy, "OptState")
        return ("%.2f" % (alone / shared), alone / shared / float(row["value"])) if shared else (None, None)
    else:
        value = results.most(strategy, OWNERS[what]) if what in OWNERS else None
    if value is None:
        return None, None
    value /= UNITS[unit]
    return "%.1f" % value, value / float(row["value"])


def bounds(results, row):
    """The same run without and with full checkpointing, where only that could be simulated."""
    run = row["row"]
    texts = []
    for suffix, words in (("-full", "full checkpointing"), ("-none", "none")):
        stand_in = {"tt045-none": "tt043", "tt049-full": "tt047"}.get(run + suffix, run + suffix)
        peak = results.peak(stand_in, "reserved")
        if peak is not None:
            texts.append("%s: %.1f GiB" % (words, peak / UNITS["GiB"]))
    return "; ".join(texts)


def main(published, folder):
    results = Results(folder)
    print("<!-- written by run.sh -->")
    print("| row | quantity | published | predicted | difference | same run with other checkpointing, reserved |")
    print("|:----|:---------|----------:|----------:|-----------:|:--------------------------------------------|")
    for row in rows_of(published):
        text, share = predict(results, row)
        difference = "" if share is None else "%+.1f %%" % (round(100 * (share - 1), 1) + 0.0)  # no -0.0
        print("| %s | %s | %s | %s | %s | %s |" % (
            row["row"], row["quantity"], (row["value"] + " " + row["unit"]).strip(), text or "not modelled", difference,
            bounds(results, row) if row["row"].startswith("tt") else ""))


if __name__ == "__main__":
    main(*sys.argv[1:])
