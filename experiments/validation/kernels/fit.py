#!/usr/bin/env python3
"""Fits the constants of the kernel models (constants.json) and prints residuals before and after.

Every trial writes kernel tables with its constants into a folder of its own and asks `tessera
kernels` for the errors: the model that is fitted is the simulator's, not a copy of it. What is made
small is the error of points that are left out of the tables, and half of the error of the model
without any table, which is what other cards have: median plus 90 % quantile of each.

    fit.py [--tessera PATH] [--trials N] [--seed N] [--write]

With --write the constants go to constants.json; tables.py then makes the tables.
"""
import argparse
import copy
import csv
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile

import tables

HERE = os.path.dirname(os.path.abspath(__file__))


class Bench:
    """A folder with clusters/ and the rows that are asked for."""

    def __init__(self, tessera):
        self.tessera = tessera
        self.folder = tempfile.mkdtemp(prefix="kernels-fit-")
        shutil.copytree(tables.CLUSTERS, os.path.join(self.folder, "clusters"))

    def close(self):
        shutil.rmtree(self.folder)

    def rows(self, name, column, value):
        """A copy of the rows of a table with one value in a column."""
        path = os.path.join(self.folder, f"{value}-{name}")
        rows = [r for r in tables.rows_of(name) if r[column] == value]
        rows = [r for r in rows if "sm_90" in r["gpu"] or "H200" in r["gpu"]]
        with open(path, "w", newline="") as file:
            out = csv.DictWriter(file, rows[0].keys())
            out.writeheader()
            out.writerows(rows)
        return path

    def put(self, made):
        for name, table in made.items():
            with open(os.path.join(self.folder, "clusters", f"kernels-{name}.json"), "w") as file:
                file.write(tables.text_of(table))

    def errors(self, path, *options):
        run = subprocess.run([self.tessera, "kernels", path, "--format", "json", *options],
                             capture_output=True, text=True, check=True)
        return json.loads(run.stdout)["summary"]


def without_points(made):
    """The same constants without measured points: the model alone."""
    out = copy.deepcopy(made)
    for grid in out["sm90"]["matmul"]:
        grid["tflops"] = [None] * len(grid["tflops"])
    for norm in out["h200"]["norms"]:
        for key in ("rows", "columns", "us"):
            del norm[key]
    return out


def residuals(bench, made, path):
    bench.put(made)
    left_out = bench.errors(path, "--leave-one-out")["in_table"]
    return left_out


def alone(bench, made, path):
    bench.put(without_points(made))
    both = bench.errors(path)
    n = sum(s["points"] for s in both.values())
    return {k: sum((s[k] or 0.0) * s["points"] for s in both.values()) / n
            for k in ("median", "p90")}


def score(bench, base, table, key, value, path, grid):
    """Puts constants into the tables and sums the errors up."""
    made = copy.deepcopy(base)
    for item in made[table][grid]:
        if all(item[k] == v for k, v in key.items()):
            item.update(value)
    a, b = residuals(bench, made, path), alone(bench, made, path)
    return a["median"] + a["p90"] + 0.5 * (b["median"] + b["p90"]), a, b


def nudge(value, scale, rng):
    """Constants near `value`: each moves with probability 0.4."""
    def move(x):
        return x * math.exp(rng.gauss(0.0, scale)) if rng.random() < 0.4 else x
    out = {k: move(v) for k, v in value.items() if k != "tiles"}
    for k in ("peak_share", "memory_share"):
        if k in out:
            out[k] = min(out[k], 0.92)
    if "tiles" in value:
        out["tiles"] = [[m, n, min(1.0, move(share))] for m, n, share in value["tiles"]]
    return rounded(out)



def rounded(value):
    def three(x):
        return float(f"{x:.3g}")
    out = {k: three(v) for k, v in value.items() if k != "tiles"}
    if "tiles" in value:
        out["tiles"] = [[m, n, three(share)] for m, n, share in value["tiles"]]
    return out


def show(name, a, b):
    print(f"  {name:8} left out: median {a['median']:.1%}, p90 {a['p90']:.1%}, largest "
          f"{a['max']:.1%}; model alone: median {b['median']:.1%}, p90 {b['p90']:.1%}")


def fit(bench, base, table, key, start, path, grid, trials, rng):
    best = dict(start)
    least, a, b = score(bench, base, table, key, best, path, grid)
    print(f"{grid} {key}: {a['points']} points")
    show("before", a, b)
    for trial in range(trials):
        candidate = nudge(best, rng.choice((0.03, 0.1, 0.3)), rng)
        found, fa, fb = score(bench, base, table, key, candidate, path, grid)
        if found < least:
            least, best, a, b = found, candidate, fa, fb
    show("after", a, b)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tessera", default="tessera")
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rng, constants = random.Random(args.seed), tables.constants()
    base, bench = tables.tables(constants), Bench(args.tessera)
    try:
        for dtype, column in (("bf16", "bf16"), ("tf32", "f32")):
            path = bench.rows("gemm.csv", "dtype", column)
            constants["matmul"][dtype] = fit(bench, base, "sm90", {"dtype": dtype},
                                             constants["matmul"][dtype], path, "matmul",
                                             args.trials, rng)
        for backend, column in (("eager", "pytorch"), ("compiled", "torch_compile"),
                                ("cudnn", "cudnn")):
            path = bench.rows("norms_h200.csv", "backend", column)
            for word in ("forward", "backward"):
                name = f"{backend} {word}"
                constants["norms"][name] = fit(bench, base, "h200",
                                               {"backend": backend, "pass": word},
                                               constants["norms"][name], path, "norms",
                                               args.trials // 3, rng)
                base = tables.tables(constants)
    finally:
        bench.close()
    if args.write:
        with open(os.path.join(HERE, "constants.json"), "w") as file:
            json.dump(constants, file, indent=1)
            file.write("\n")
        print("wrote constants.json; tables.py makes the tables")
    return 0


if __name__ == "__main__":
    sys.exit(main())
