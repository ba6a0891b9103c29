#!/usr/bin/env python3
"""scaling.py: how predicted and measured speed change with the number of GPUs.

    experiments/validation/scaling.py [validate.csv]

Reads llm_foundry.csv of this folder and what `tessera validate` says of it (the file that its
--out wrote; without one the program is run: build/tessera, or TESSERA). Prints, for rows that
differ in the number of GPUs (and in how the batch is cut), the loss per doubling, predicted and
measured; and the errors of carrying the 8-GPU row over, beside those of the prediction.
"""
import csv
import math
import os
import subprocess
import sys
from collections import defaultdict

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def quantile(values, q):
    values = sorted(values)
    at = q * (len(values) - 1)
    low = int(at)
    return values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def predictions(path):
    if path:
        with open(path, newline="") as stream:
            return list(csv.DictReader(stream))
    tessera = os.environ.get("TESSERA", os.path.join(ROOT, "build", "tessera"))
    out = subprocess.run([tessera, "validate", os.path.join(HERE, "llm_foundry.csv"), "--format",
                          "csv"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return list(csv.DictReader(out.splitlines()))


def families(rows):
    """(model, sequence, GPU, precision) -> {GPUs: (measured, predicted)}."""
    with open(os.path.join(HERE, "llm_foundry.csv"), newline="") as stream:
        table = {r["row_id"]: r for r in csv.DictReader(stream)}
    out = defaultdict(dict)
    for row in rows:
        if row["status"] != "predicted" or row["duplicate"] == "1" or not row["measured"]:
            continue
        t = table[row["row_id"]]
        key = tuple(t[c] for c in ("model", "seq_len", "gpu", "precision", "fsdp_mixed_precision",
                                   "activation_checkpointing"))
        out[key][int(row["n_gpus"])] = (float(row["measured"]), float(row["predicted"]))
    return {k: v for k, v in out.items() if len(v) > 1}


def show(what, values, unit):
    print(f"{what}: {len(values)} values, median {quantile(values, .5):.2f} {unit}, "
          f"90 % {quantile(values, .9):.2f}, max {max(values):.2f}")


def main():
    found = families(predictions(sys.argv[1] if len(sys.argv) > 1 else None))
    points, carried, predicted = [], [], []
    print("| configuration | GPUs | measured loss per doubling | predicted |\n|:--|--:|--:|--:|")
    for key, rows in sorted(found.items()):
        counts = sorted(rows)
        for a, b in zip(counts, counts[1:]):
            doublings = math.log2(b / a)
            loss = [100 * (1 - rows[b][k] / rows[a][k]) / doublings for k in (0, 1)]
            points.append(abs(loss[0] - loss[1]))
            print(f"| {' '.join(key[:3])} | {a} to {b} | {loss[0]:.1f} % | {loss[1]:.1f} % |")
        if 8 in rows:
            for n in counts[1:]:
                carried.append(100 * abs(rows[8][0] / rows[n][0] - 1))
                predicted.append(100 * abs(rows[n][1] / rows[n][0] - 1))
    print()
    show("loss per doubling, predicted less measured", points, "points")
    print(f"within 1.5 points: {sum(p <= 1.5 for p in points)} of {len(points)}")
    show("carrying the 8-GPU row over", carried, "%")
    show("the same rows predicted", predicted, "%")


if __name__ == "__main__":
    main()
