#!/usr/bin/env python3
"""errors.py: the error of every class of configurations, for the lines under `tessera compare`.

    experiments/validation/errors.py [--write] [TABLE.csv...]

Predicts the rows of the tables (default: llm_foundry, torchtitan, other_training) with `tessera
validate` and sums their errors up by class: API, type of GPU, one node or more, stack. The main
figure of a row counts, which is its time in one form or another; memory does not. Beside the errors
stand what the rows of the class have: families of models, numbers of GPUs and of parameters, keys
that they set otherwise than their stack. Rows that are not modelled have no class; they are counted. --write puts
the result into errors.json, which the program reads; else it goes to stdout.

Needs the program (build/tessera, or TESSERA) and nothing but Python's standard library.
"""
import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TESSERA = os.environ.get("TESSERA", os.path.join(ROOT, "build", "tessera"))
TABLES = ("llm_foundry.csv", "torchtitan.csv", "other_training.csv")


def quantile(values, q):
    """Linear between the nearest ranks, as `tessera validate` has it."""
    at = q * (len(values) - 1)
    below = int(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (at - below) * (values[above] - values[below])


def rows_of(table):
    run = subprocess.run([TESSERA, "validate", table, "--format", "json"],
                         stdout=subprocess.PIPE, check=True)
    for row in json.loads(run.stdout)["rows"]:
        if row["error"] is not None and not row["duplicate"] and not row["beside"]:
            yield row


def united(lists):
    """All words of some lists "a, b", sorted."""
    return sorted({word for text in lists for word in text.split(", ") if word})


def summary(name, key, rows, sources):
    api, gpu, nodes, stack = key
    errors = sorted(row["error"] for row in rows)
    gpus, params = [row["n_gpus"] for row in rows], [row["parameters"] for row in rows]
    return {"class": name, "api": api, "gpu": gpu, "nodes": nodes, "stack": stack,
            "models": united(row["model"] for row in rows),
            "varied": united(row["varied"] for row in rows),
            "gpus": [min(gpus), max(gpus)], "parameters": [min(params), max(params)],
            "rows": len(errors),
            "median": round(quantile(errors, 0.5), 5), "p90": round(quantile(errors, 0.9), 5),
            "max": round(errors[-1], 5), "source": ", ".join(sources)}


def main():
    parser = argparse.ArgumentParser(description="the error of every class of configurations")
    parser.add_argument("--write", action="store_true", help="into errors.json")
    parser.add_argument("tables", nargs="*", default=[os.path.join(HERE, t) for t in TABLES])
    args = parser.parse_args()
    rows, sources, not_modelled = {}, {}, 0
    for table in args.tables:
        for row in rows_of(table):
            if row["status"] != "predicted":
                not_modelled += 1
                continue
            key = (row["api"], row["gpu"], row["nodes"], row["stack"])
            rows.setdefault(key, []).append(row)
            name = os.path.basename(table)
            if name not in sources.setdefault(key, []):
                sources[key].append(name)
    words = {"one": "one node", "many": "more than one node"}
    classes = [summary(f"{k[0]} on {k[1]}, {words[k[2]]}, {k[3]}", k, rows[k], sources[k])
               for k in sorted(rows, key=lambda k: [part or "" for part in k])]
    text = json.dumps({"made_by": "experiments/validation/errors.py", "not_modelled": not_modelled,
                       "classes": classes}, indent=1) + "\n"
    if not args.write:
        sys.stdout.write(text)
        return
    with open(os.path.join(HERE, "errors.json"), "w", encoding="utf-8") as out:
        out.write(text)


if __name__ == "__main__":
    main()
