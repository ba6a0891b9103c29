#!/usr/bin/env python3
"""Simulates the jobs of this folder on one H100 and one H200: as `tessera run --on cuda` runs them, and as the baselines of
tests/gpu/measure.py do. Writes predicted.json, which tests/gpu/run.sh bench prints beside what it measures, and the table of README.md.

    predict.py [--program build/tessera] [--check]

--check writes nothing; exit status 1 and a line for each file that differs from what the program predicts today.
"""
import argparse, csv, json, os, re, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
CARDS = {"H200": "node-single-h200", "H100": "node-single-h100"}
JOBS = ("llama-3-8b-l8", "llama-3.2-1b", "gpt2-124m", "gpt2-1558m")
# What measure.py does instead of these jobs' own settings. It compiles the loss with the blocks.
PYTORCH = {"mirror": "false", "folded_scale": "false"}
SIDES = {"tessera": {}, "fsdp_compile": {**PYTORCH, "dialect": "compile", "compile.components": "[model, loss]"}, "fsdp_eager": {**PYTORCH, "dialect": "eager"}}
START, END = "<!-- predict.py -->\n", "<!-- end -->\n"


def simulated(program, job, cluster, settings):
    """Step time and memory of strategy fsdp."""
    words = [program, "compare", os.path.join(HERE, job + ".yaml"), "--only", "fsdp", "--format", "csv"]
    for key, value in {"cluster": cluster, **settings}.items():
        words += ["--set", f"{key}={value}"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        sys.exit(f"predict.py: {' '.join(words)}: {done.stderr.strip()}")
    row = next(csv.DictReader(line for line in done.stdout.splitlines() if not line.startswith("#")))
    tokens = int(row["tokens_per_gpu_and_step"])
    return dict(step_ms=round(float(row["step_time_s"]) * 1e3, 2), tokens_per_s=round(tokens / float(row["step_time_s"])),
                peak_allocated_gib=round(int(row["peak_allocated_bytes"]) / 2**30, 2), peak_reserved_gib=round(int(row["peak_reserved_bytes"]) / 2**30, 2))


def table(found):
    lines = ["| job | card | FSDP2 + compile | these jobs | ratio | reserved GiB, FSDP2 eager | + compile | these |", "| --- | --- | --: | --: | --: | --: | --: | --: |"]
    for job in JOBS:
        for card in CARDS:
            side = found[card][job]
            ours, compiled, eager = (side[s] for s in SIDES)
            lines.append(f"| {job} | {card} | {compiled['tokens_per_s']:,} | {ours['tokens_per_s']:,} | {ours['tokens_per_s'] / compiled['tokens_per_s']:.2f} | "
                         f"{eager['peak_reserved_gib']:.1f} | {compiled['peak_reserved_gib']:.1f} | {ours['peak_reserved_gib']:.1f} |")
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--program", default=os.path.join(HERE, "..", "..", "build", "tessera"))
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    found = {card: {job: {side: simulated(a.program, job, cluster, settings) for side, settings in SIDES.items()} for job in JOBS} for card, cluster in CARDS.items()}
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
        readme = f.read()
    texts = {"predicted.json": json.dumps(found, indent=1) + "\n", "README.md": re.sub(f"(?s){START}.*?{END}", lambda _: START + "\n" + table(found) + "\n" + END, readme)}
    differ = False
    for name, text in texts.items():
        path = os.path.join(HERE, name)
        if a.check:
            with open(path, encoding="utf-8") as f:
                if f.read() != text:
                    differ = True
                    print(f"experiments/h200/{name}: is not what the program predicts today; experiments/h200/predict.py writes it anew")
        else:
            with open(path + ".tmp", "w", encoding="utf-8") as f:
                f.write(text)
            os.replace(path + ".tmp", path)
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
