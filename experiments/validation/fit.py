#!/usr/bin/env python3
"""fit.py: fits the calibration numbers of GPU types on rows of at most 8 GPUs.

    experiments/validation/fit.py --gpu a100-sxm4-80g [--write]

Rows come from the tables of this folder; rows on more than 8 GPUs are never read. Each row is
simulated by `tessera validate` with sim.calibration.NAME set; Gauss-Newton with numeric derivatives
and Huber weights finds the values (errors are logarithms of predicted over measured). Rows in
outliers.csv count a fifth: their neighbours tell another story. With --write the values go into the
device file, each with its source and the data used.

Needs the program (build/tessera, or TESSERA) and nothing but Python's standard library.
"""
import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TESSERA = os.environ.get("TESSERA", os.path.join(ROOT, "build", "tessera"))

# name: first value, bounds, step of the derivative, typical distance from the first value (a weak
# prior: what the rows do not say stays near it)
NUMBERS = {
    "matmul_sustained": (0.93, (0.5, 1.1), 0.02, 0.2),
    "attention_sustained": (1.0, (0.5, 1.3), 0.02, 0.05),
    "triton_sustained": (1.2, (0.5, 1.8), 0.02, 0.3),
    "backward_sustained": (0.95, (0.5, 1.2), 0.02, 0.1),
    "memory_sustained": (0.95, (0.5, 1.2), 0.02, 0.2),
    "comm_compute_slowdown": (0.1, (0.0, 0.6), 0.03, 0.15),
    "step_overhead_s": (0.0, (0.0, 0.2), 0.004, 0.03),
}
HUBER = 0.03
LONGEST = 0.5  # of a step, in typical distances: slopes hold nearby


def outliers():
    with open(os.path.join(HERE, "outliers.csv"), newline="") as stream:
        return {row["row_id"] for row in csv.DictReader(l for l in stream if l[0] != "#")}


def gpus(row):
    return int(row["n_gpus"].split("-")[-1])


def select(table, wanted):
    """A table of the rows that may calibrate."""
    with open(os.path.join(HERE, table), newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [r for r in rows if gpus(r) <= 8 and r.get("duplicate_of_head") != "yes" and wanted(r)]


def write_table(rows, path):
    with open(path, "w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def run(path, values, sets=()):
    """{row_id: log(predicted / measured)} of the main figures of a table."""
    command = [TESSERA, "validate", path, "--format", "json", "--conditions",
               os.path.join(HERE, "conditions.yaml")]
    for name, value in values.items():
        command += ["--set", f"sim.calibration.{name}={value:.6g}"]
    for item in sets:
        command += ["--set", item]
    out = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {r["row_id"]: math.log(r["predicted"] / r["measured"]) for r in out["rows"]
            if r["status"] == "predicted" and r["measured"] and r["unit"] != "GiB"}


def solve(matrix, vector):
    """Gaussian elimination with pivoting."""
    n = len(vector)
    a = [row[:] + [vector[i]] for i, row in enumerate(matrix)]
    for i in range(n):
        p = max(range(i, n), key=lambda k: abs(a[k][i]))
        a[i], a[p] = a[p], a[i]
        for k in range(i + 1, n):
            f = a[k][i] / a[i][i]
            for j in range(i, n + 1):
                a[k][j] -= f * a[i][j]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (a[i][n] - sum(a[i][j] * x[j] for j in range(i + 1, n))) / a[i][i]
    return x


def quantile(values, q):
    values = sorted(values)
    at = q * (len(values) - 1)
    low = int(at)
    return values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def show(what, errors):
    sizes = [abs(math.exp(e) - 1) for e in errors.values()]
    print(f"{what}: {len(sizes)} rows, median {quantile(sizes, .5):.2%}, "
          f"90 % {quantile(sizes, .9):.2%}, max {max(sizes):.2%}, "
          f"bias {quantile([math.exp(e) - 1 for e in errors.values()], .5):+.2%}", flush=True)


def step(errors, slopes, names, values, weight):
    """One Gauss-Newton step with the prior; stays inside the bounds."""
    free = list(names)
    delta = {name: 0.0 for name in names}
    while free:
        rows = [(weight[r] * (1 if abs(e) < HUBER else HUBER / abs(e)), e,
                 [slopes[n][r] for n in free]) for r, e in errors.items()]
        matrix = [[sum(w * s[i] * s[j] for w, _, s in rows) for j in range(len(free))]
                  for i in range(len(free))]
        vector = [-sum(w * s[i] * e for w, e, s in rows) for i in range(len(free))]
        for i, n in enumerate(free):
            prior = (HUBER / NUMBERS[n][3]) ** 2
            matrix[i][i] += prior
            vector[i] += prior * (NUMBERS[n][0] - values[n])
        moves = dict(zip(free, solve(matrix, vector)))
        beyond = [n for n in free
                  if not NUMBERS[n][1][0] <= values[n] + moves[n] <= NUMBERS[n][1][1]]
        if not beyond:
            delta.update(moves)
            return delta
        n = beyond[0]  # stop at the bound, and solve for the others with that known
        delta[n] = min(max(values[n] + moves[n], NUMBERS[n][1][0]), NUMBERS[n][1][1]) - values[n]
        errors = {r: e + slopes[n][r] * delta[n] for r, e in errors.items()}
        free.remove(n)
    return delta


def first_values(gpu, names):
    """Those of the device file, where it has them."""
    with open(os.path.join(ROOT, "experiments", "clusters", f"gpu-{gpu}.json")) as stream:
        known = json.load(stream).get("calibration") or {}
    return {n: known[n]["value"] if n in known else NUMBERS[n][0] for n in names}


def leave_out(errors, slopes, names, values, weight, model_of):
    """Errors of each model's rows by numbers that were fitted without them (one linear step)."""
    out = {}
    for model in sorted(set(model_of.values())):
        kept = {r: e for r, e in errors.items() if model_of[r] != model}
        if not kept:
            continue
        delta = step(kept, slopes, names, values, weight)
        for r in errors:
            if model_of[r] == model:
                out[r] = errors[r] + sum(slopes[n][r] * delta[n] for n in names)
    return out


def fit(path, values, rounds, sets, model_of):
    odd = outliers()
    names = list(values)
    for k in range(rounds):
        errors = run(path, values, sets)
        show(f"round {k}", errors)
        weight = {r: 0.2 if r in odd else 1.0 for r in errors}
        slopes = {}
        for n in names:
            moved = run(path, {**values, n: values[n] + NUMBERS[n][2]}, sets)
            slopes[n] = {r: (moved[r] - errors[r]) / NUMBERS[n][2] for r in errors}
        left = leave_out(errors, slopes, names, values, weight, model_of)
        delta = step(errors, slopes, names, values, weight)
        most = max(abs(delta[n]) / NUMBERS[n][3] for n in names)
        delta = {n: d / max(1.0, most / LONGEST) for n, d in delta.items()}
        values = {n: values[n] + delta[n] for n in names}
        print("  " + ", ".join(f"{n} {v:.4g}" for n, v in values.items()), flush=True)
    errors = run(path, values, sets)
    show("fitted", errors)
    if left:
        show("leave one model out", left)
    return values, errors


def write_device(gpu, values, source, data):
    path = os.path.join(ROOT, "experiments", "clusters", f"gpu-{gpu}.json")
    with open(path) as stream:
        device = json.load(stream)
    block = device.setdefault("calibration", {})
    for name, value in values.items():
        block[name] = {"value": float(f"{value:.4g}"), "source": source, "data": data}
    with open(path + ".new", "w") as stream:
        json.dump(device, stream, indent=2)
        stream.write("\n")
    os.replace(path + ".new", path)


# Which rows say something about which device file, and about which numbers of it.
EAGER = ("matmul_sustained", "triton_sustained", "backward_sustained", "memory_sustained",
         "comm_compute_slowdown", "step_overhead_s")
DATA = {
    "a100-sxm4-40g": ("llm_foundry.csv", lambda r: r["gpu"] == "a100_40gb", EAGER),
    "a100-sxm4-80g": ("llm_foundry.csv", lambda r: r["gpu"] == "a100_80gb", EAGER),
    "h100-sxm5-80g": ("llm_foundry.csv", lambda r: r["gpu"] == "h100_80gb", EAGER),
    "h100-sxm5-96g-500w": ("torchtitan.csv", lambda r: "500W" in r["gpu"], ("matmul_sustained",)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpu", required=True, choices=sorted(DATA))
    parser.add_argument("--numbers", help="which, by commas; default: those that its rows tell")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="only every N-th row: quicker")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of every row")
    parser.add_argument("--write", action="store_true", help="put the values into the device file")
    args = parser.parse_args()
    names = args.numbers.split(",") if args.numbers else DATA[args.gpu][2]
    for name in names:
        if name not in NUMBERS:
            sys.exit(f"--numbers: found {name}; allowed: {', '.join(NUMBERS)}")
    table, wanted, _ = DATA[args.gpu]
    rows = select(table, wanted)[:: args.every]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, table)
        write_table(rows, path)
        values, errors = fit(path, first_values(args.gpu, names), args.rounds, args.set,
                             {r["row_id"]: r["model"] for r in rows})
    for row in sorted(errors, key=lambda r: -abs(errors[r]))[:12]:
        print(f"  {row}: {math.exp(errors[row]) - 1:+.1%}")
    if args.write:
        write_device(args.gpu, values, "fitted by experiments/validation/fit.py",
                     f"{len(errors)} rows of {table} on 8 GPUs")


if __name__ == "__main__":
    main()
