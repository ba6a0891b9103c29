#!/usr/bin/env python3
"""Measured runs of `run.sh bench` against the simulator, on a machine that has it: time of a step on the cluster that `run.sh
calibrate` wrote, at most 5 % off in at least 6 configurations, and peak memory, equal to the byte.

    predicted.py [--program build/tessera] [--cluster CALIBRATE/cluster-NAME.json] [--out FOLDER] bench-MODEL.json...

Without --cluster: calibrate/cluster-*.json beside the first file; without that, memory only. Writes FOLDER/predicted.json and
.md (beside the first file). Exit status 0: all that could be compared is within its bounds, and there is enough of it.
"""
import argparse, csv, glob, json, os, shutil, subprocess, sys, tempfile

from runs import TOP
from targets import median

MOST_OFF, LEAST = 0.05, 6


def simulated(program, job, cluster, folder):
    """The row of `tessera compare` for a run: a dict of its columns. RuntimeError: it was refused."""
    words = [program, "compare", os.path.join(TOP, job["file"]), "--only", job["strategy"], "--out", folder, "--set", "loss.read=true"]
    for key, value in {**job["set"], **({"cluster": cluster} if cluster else {})}.items():
        words += ["--set", f"{key}={value}"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=TOP)
    if not os.path.exists(os.path.join(folder, "summary.csv")):
        raise RuntimeError(done.stderr.strip().split("\n")[-1] or f"status {done.returncode}")
    with open(os.path.join(folder, "summary.csv"), newline="") as f:
        return next(csv.DictReader(line for line in f if not line.startswith("#")))


def compared(program, model, name, run, cluster, scratch):
    row = dict(model=model, run=name, measured_ms=run["step_ms"], measured_allocated=run["peak_allocated"], measured_reserved=run["peak_reserved"])
    try:
        got = simulated(program, run["job"], cluster, os.path.join(scratch, f"{model}-{name}".replace(" ", "-")))
    except (RuntimeError, OSError, StopIteration) as e:
        return dict(row, reason=str(e) or type(e).__name__)
    most = {k: max(int(got[f"{k}_bytes"]), int(got[f"first_{k}_bytes"])) for k in ("peak_allocated", "peak_reserved")}
    row.update(predicted_allocated=most["peak_allocated"], predicted_reserved=most["peak_reserved"], same_memory=most["peak_allocated"] == row["measured_allocated"]
               and most["peak_reserved"] == row["measured_reserved"])
    if cluster:
        row.update(predicted_ms=float(got["step_time_s"]) * 1e3)
        row.update(off=row["predicted_ms"] / row["measured_ms"] - 1)
    return row


def table(rows):
    lines = ["| model | run | measured ms | predicted | off | allocated GiB | predicted | reserved GiB | predicted | equal |",
             "| --- | --- | --: | --: | --: | --: | --: | --: | --: | --- |"]
    for r in rows:
        ms = f"{r['predicted_ms']:.2f} | {100 * r['off']:+.1f} %" if "off" in r else "? | ?"
        gib = {k: f"{r[k] / 2**30:.3f}" if k in r else "?" for k in ("measured_allocated", "predicted_allocated", "measured_reserved", "predicted_reserved")}
        same = r.get("reason") or ("yes" if r["same_memory"] else "NO")
        lines.append(f"| {r['model']} | {r['run']} | {r['measured_ms']:.2f} | {ms} | {gib['measured_allocated']} | {gib['predicted_allocated']} | "
                     f"{gib['measured_reserved']} | {gib['predicted_reserved']} | {same} |")
    return "\n".join(lines) + "\n"


def verdict(rows):
    offs, memory = [abs(r["off"]) for r in rows if "off" in r], [r["same_memory"] for r in rows if "same_memory" in r]
    return dict(configurations=len(offs), within=sum(x <= MOST_OFF for x in offs), allowed=MOST_OFF, least=LEAST, median_off=median(offs), largest_off=max(offs, default=None),
                memory_compared=len(memory), memory_equal=sum(memory), reached=len(offs) >= LEAST and max(offs, default=1) <= MOST_OFF and all(memory))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("files", nargs="+")
    p.add_argument("--program", default=os.path.join(TOP, "build", "tessera"))
    p.add_argument("--cluster")
    p.add_argument("--out")
    a = p.parse_args()
    beside = os.path.dirname(os.path.abspath(a.files[0]))
    cluster = a.cluster or next(iter(sorted(glob.glob(os.path.join(beside, "calibrate", "cluster-*.json")))), None)
    out, scratch, rows = a.out or beside, tempfile.mkdtemp(), []
    for file in a.files:
        with open(file) as f:
            result = json.load(f)
        rows += [compared(a.program, result["part"].removeprefix("bench-"), name, run, cluster and os.path.abspath(cluster), scratch) for name, run in result.get("ours", {}).items()]
    shutil.rmtree(scratch)
    found = verdict(rows)
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "predicted.json"), "w") as f:
        json.dump(dict(cluster=cluster, verdict=found, rows=rows), f, indent=1)
    with open(os.path.join(out, "predicted.md"), "w") as f:
        f.write(table(rows) + "\n" + json.dumps(found) + "\n")
    print(table(rows) + json.dumps(found))
    return 0 if found["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
