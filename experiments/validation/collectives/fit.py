#!/usr/bin/env python3
"""Fits the collectives' numbers of GPU types and network adapters to published nccl-tests tables.

    fit.py TESSERA [--table nccl_busbw.csv] [--only GROUP,...] [--write]

Every prediction is a simulation (`tessera collectives`). A group is one GPU type with the machines
that were measured; its numbers go to the device file ("calibration") and to the node files
("nics"). No number belongs to a row, a size or a count of GPUs. Prints the residuals before
(defaults), after, and with each size left out of the fit in turn. --write changes the files.
"""
import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTERS = os.path.join(HERE, "..", "..", "clusters")
SMALLEST = 65536
# Rows without a size report the plateau of large ones.
PLATEAU = 1 << 34
# Errors count up to this: rows out of line must not pull the others.
CAP = 0.3

# Which machine a row was measured on, by the words of its gpu and interconnect columns.
MACHINES = [
    ("H200", "", "dgx-h200"),
    ("B200", "", "dgx-b200"),
    ("A100 80GB (2x p4de", "", "p4de-128"),
    ("A100", "", "dgx-a100-80g"),
    ("H100 (2x p5", "", "p5-128"),
    ("H100 80GB (2x GCP a3-mega", "", "a3mega-128"),
    ("H100", "", "dgx-h100-128"),
    ("GH200 (Alps", "", "alps-gh200-64"),
    ("sm_90", "", "sm90-xla"),
]

EFFICIENCY = [x / 100 for x in range(55, 101)]
MICROSECONDS = [x * 1e-6 for x in (0, 2, 4, 6, 8, 10, 13, 16, 20, 24, 28, 32, 36, 40, 50, 60, 80, 100,
                                   130, 160, 200, 250, 300, 400, 500, 600, 700, 800, 1000, 1300)]
GRIDS = {
    "intra_efficiency": EFFICIENCY,
    "inter_efficiency": EFFICIENCY,
    "collective_base_s": [x for x in MICROSECONDS if x <= 60e-6],
    "collective_fill_s": [x for x in MICROSECONDS if x <= 400e-6],
    "collective_own": [x / 20 for x in range(0, 31)],
    "latency_s": [x for x in MICROSECONDS if x <= 130e-6],
    "fill_s": MICROSECONDS,
}
DEFAULTS = {"intra_efficiency": 0.80, "inter_efficiency": 0.80}
# A second place to start from: descent along one number at a time may stop short.
TYPICAL = {"intra_efficiency": 0.78, "inter_efficiency": 0.90, "collective_base_s": 28e-6,
           "collective_fill_s": 100e-6, "fill_s": 300e-6}
INSIDE = ("intra_efficiency", "collective_base_s", "collective_fill_s")
ADAPTER = ("latency_s", "fill_s")


def group(gpu, nodes=(), own=False):
    """Numbers of a GPU type, as (file, key)."""
    keys = INSIDE + (("inter_efficiency",) if nodes else ()) + (("collective_own",) if own else ())
    out = [("gpu-" + gpu, key) for key in keys]
    return out + [("node-" + node, key) for node in nodes for key in ADAPTER]


GROUPS = {
    "h200": (("dgx-h200",), group("h200-sxm")),
    "b200": (("dgx-b200",), group("b200-sxm")),
    "a100": (("dgx-a100-80g", "p4de-128"), group("a100-sxm4-80g", ("p4de-a100",))),
    "h100": (("p5-128", "a3mega-128", "dgx-h100-128"),
             group("h100-sxm5-80g", ("p5-h100", "a3mega-h100", "dgx-h100"))),
    "gh200": (("alps-gh200-64",), group("gh200-96g", ("alps-gh200",))),
    "sm90-xla": (("sm90-xla",), group("sm90-xla", own=True)),
}


# Cards and nodes without a measurement of their own take the numbers of these, and say so: the same
# links, or the same adapters.
LIKE = {
    "gpu-a100-sxm4-40g": "gpu-a100-sxm4-80g",
    "gpu-h100-sxm5-96g-500w": "gpu-h100-sxm5-80g",
    "gpu-gb200": "gpu-b200-sxm",
    "node-dgx-h200": "node-dgx-h100",
    "node-dgx-b200": "node-dgx-h100",
    "node-grand-teton-h100": "node-dgx-h100",
    "node-grand-teton-h100-96g": "node-dgx-h100",
    "node-p5en-h200": "node-p5-h100",
}


def machine_of(row):
    for gpu, wire, cluster in MACHINES:
        if row["gpu"].startswith(gpu) and wire in row["interconnect"]:
            return cluster
    return None


def time_of(row, size):
    """Microseconds of a row that has its bus bandwidth only."""
    ranks = int(row["n_gpus"])
    factor = (2 if row["collective"] == "all_reduce" else 1) * (ranks - 1) / ranks
    return size * factor / float(row["busbw_GBps"]) / 1e3


def read_rows(path):
    """Rows that can be fitted: a known machine, not reported as a problem."""
    rows = []
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            size = int(row["size_bytes"] or PLATEAU)
            if "problem" in row["note"] or machine_of(row) is None or size < SMALLEST:
                continue
            algorithm = row["algo"].lower() if row["algo"] in ("Ring", "NVLS", "Tree") else "auto"
            rows.append({"cluster": machine_of(row), "kind": row["collective"],
                         "ranks": int(row["n_gpus"]), "nodes": int(row["n_nodes"]),
                         "bytes": size, "algorithm": algorithm, "gpu": row["gpu"],
                         "us": float(row["time_us"] or time_of(row, size))})
    return rows


class Simulator:
    """Predicts rows with changed device and node files; remembers what it has simulated."""

    def __init__(self, program, folder):
        self.program, self.folder, self.known = program, folder, {}
        for name in os.listdir(CLUSTERS):
            shutil.copy(os.path.join(CLUSTERS, name), folder)

    def change(self, values):
        files = {}
        for (name, key), value in values.items():
            path = os.path.join(self.folder, name + ".json")
            if path not in files:
                with open(path, encoding="utf-8") as file:
                    files[path] = json.load(file)
            if name.startswith("gpu-"):
                one = {"value": value, "source": "fit"}
                files[path].setdefault("calibration", {})[key] = one
            else:
                files[path]["nics"][key] = value
        for path, content in files.items():
            with open(path, "w", encoding="utf-8") as file:
                json.dump(content, file)

    def path(self, cluster):
        name = os.path.join(self.folder, "cluster-" + cluster + ".json")
        return name if os.path.exists(name) else os.path.join(self.folder,
                                                              "node-" + cluster + ".json")

    def node(self, cluster):
        with open(self.path(cluster), encoding="utf-8") as file:
            content = json.load(file)
        return "node-" + content.get("node", content["name"])

    def predict(self, rows, values):
        """Microseconds of every row."""
        calls, changed = {}, False
        for i, row in enumerate(rows):
            calls.setdefault((row["cluster"], row["ranks"], row["algorithm"]), []).append(i)
        out = [0.0] * len(rows)
        for (cluster, ranks, algorithm), members in calls.items():
            mine = tuple(item for item in sorted(values.items())
                         if item[0][0].startswith("gpu-") or item[0][0] == self.node(cluster))
            key = (cluster, ranks, algorithm, mine)
            if key not in self.known:
                if not changed:
                    self.change(values)
                changed = True
                self.known[key] = self.run(cluster, ranks, algorithm, [rows[i] for i in members])
            for i in members:
                out[i] = self.known[key][rows[i]["kind"], rows[i]["bytes"]]
        return out

    def run(self, cluster, ranks, algorithm, rows):
        """Microseconds by kind and size."""
        command = [self.program, "collectives", self.path(cluster), "--format", "csv",
                   "--only", ",".join(sorted({row["kind"] for row in rows})),
                   "--ranks", str(ranks), "--set", "sim.algorithm=" + algorithm,
                   "--sizes", ",".join(str(size) for size in sorted({row["bytes"] for row in rows}))]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return {(line["collective"], int(line["size_bytes"])): float(line["time_us"])
                for line in csv.DictReader(text.splitlines())}


def median(values):
    values = sorted(values)
    n = len(values)
    return (values[n // 2] + values[(n - 1) // 2]) / 2 if n else float("nan")


def errors(rows, predicted):
    return [us / row["us"] - 1 for row, us in zip(rows, predicted)]


def loss(rows, predicted, left_out):
    each = [min(abs(error), CAP) for row, error in zip(rows, errors(rows, predicted))
            if row["bytes"] != left_out]
    return sum(each) / len(each)


def descend(simulator, rows, start, left_out=None, reach=None):
    """Coordinate descent over the grids; `reach`: so many steps of the grid around `start`."""
    values = dict(start)
    best = loss(rows, simulator.predict(rows, values), left_out)
    while True:
        before = best
        for number in start:
            grid = GRIDS[number[1]]
            at = min(range(len(grid)), key=lambda i: abs(grid[i] - values[number]))
            if reach:
                grid = grid[max(0, at - reach):at + reach + 1]
            else:  # coarse, then fine
                grid = grid[::4] + grid[max(0, at - 4):at + 5]
            for candidate in grid:
                trial = dict(values)
                trial[number] = candidate
                now = loss(rows, simulator.predict(rows, trial), left_out)
                if now < best - 1e-9:
                    best, values = now, trial
        if before - best < 1e-4:
            return values


def in_files(number):
    name, key = number
    with open(os.path.join(CLUSTERS, name + ".json"), encoding="utf-8") as file:
        content = json.load(file)
    if name.startswith("gpu-"):
        one = content.get("calibration", {}).get(key)
        return one["value"] if one else DEFAULTS.get(key, 0.0)
    return content["nics"].get(key, 0.0)


def fit(simulator, rows, numbers, near):
    if near:
        return descend(simulator, rows, {number: in_files(number) for number in numbers}, reach=2)
    starts = [{number: values.get(number[1], 0.0) for number in numbers}
              for values in (DEFAULTS, TYPICAL)]
    return min((descend(simulator, rows, values) for values in starts),
               key=lambda values: loss(rows, simulator.predict(rows, values), None))


def leave_out_sizes(simulator, rows, fitted):
    out = [0.0] * len(rows)
    for size in sorted({row["bytes"] for row in rows}):
        values = descend(simulator, rows, fitted, left_out=size, reach=2)
        for i, us in enumerate(simulator.predict(rows, values)):
            if rows[i]["bytes"] == size:
                out[i] = us
    return out


def report(name, rows, before, after, held):
    print(f"{name}: {len(rows)} rows")
    print("| collective | gpu | GPUs | algorithm | rows | before | after | size left out | bias |")
    print("|---|---|---:|---|---:|---:|---:|---:|---:|")
    sets = {}
    for i, row in enumerate(rows):
        key = (row["kind"], row["gpu"], row["ranks"], row["algorithm"])
        sets.setdefault(key, []).append(i)
    for (kind, gpu, ranks, algorithm), members in sets.items():
        mine = [rows[i] for i in members]
        columns = [errors(mine, [x[i] for i in members]) for x in (before, after, held)]
        medians = " | ".join(f"{100 * median([abs(e) for e in c]):.1f} %" for c in columns)
        print(f"| {kind} | {gpu} | {ranks} | {algorithm} | {len(mine)} | {medians} | "
              f"{100 * median(columns[1]):+.1f} % |")
    print()


def change_file(name, change):
    path = os.path.join(CLUSTERS, name + ".json")
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    change(content)
    text = json.dumps(content, indent=2, ensure_ascii=False)
    short = re.sub(r'\[\s+("[\w-]+"(?:,\s+"[\w-]+")*)\s+\]',
                   lambda found: "[" + re.sub(r"\s+", " ", found.group(1)) + "]", text)
    with open(path, "w", encoding="utf-8") as file:
        file.write(short + "\n")


def write(values, rows):
    """Puts the numbers into the device and node files, and into those that take them over."""
    machines = ", ".join(sorted({row["gpu"] for row in rows}))
    data = f"nccl_busbw.csv, {len(rows)} rows from 64 KiB: {machines}"[:250]
    for (name, key), value in values.items():
        value = float(f"{value:.6g}")
        for target in [name] + [other for other, like in LIKE.items() if like == name]:
            source = "fitted: experiments/validation/collectives/fit.py"
            if target != name:
                source = f"as {name}, {source}"

            def change(content, value=value, key=key, source=source):
                if name.startswith("gpu-"):
                    one = {"value": value, "source": source, "data": data}
                    content.setdefault("calibration", {})[key] = one
                else:
                    content["nics"][key] = value
                    content["nics"]["fitted"] = f"latency_s, fill_s: {source}"

            change_file(target, change)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--table", default=os.path.join(HERE, "..", "nccl_busbw.csv"))
    parser.add_argument("--only", default=",".join(GROUPS))
    parser.add_argument("--near", action="store_true",
                        help="start from the numbers in the files and look near them only")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    table = read_rows(args.table)
    totals = {"one node": ([], [], []), "several nodes": ([], [], [])}
    for name in args.only.split(","):
        clusters, numbers = GROUPS[name]
        rows = [row for row in table if row["cluster"] in clusters]
        with tempfile.TemporaryDirectory() as folder:
            simulator = Simulator(args.program, folder)
            start = {number: DEFAULTS.get(number[1], 0.0) for number in numbers}
            before = simulator.predict(rows, start)
            fitted = fit(simulator, rows, numbers, args.near)
            after = simulator.predict(rows, fitted)
            held = leave_out_sizes(simulator, rows, fitted)
        report(name, rows, before, after, held)
        for (file, key), value in fitted.items():
            print(f"{file} {key} = {value:.6g}")
        print(flush=True)
        for i, row in enumerate(rows):
            for column, x in zip(totals["one node" if row["nodes"] == 1 else "several nodes"],
                                 (before, after, held)):
                column.append(abs(x[i] / row["us"] - 1))
        if args.write:
            write(fitted, rows)
    for name, columns in totals.items():
        if columns[0]:
            print(f"{name}: {len(columns[0])} rows, median error before "
                  f"{100 * median(columns[0]):.1f} %, after {100 * median(columns[1]):.1f} %, "
                  f"each size left out in turn {100 * median(columns[2]):.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
