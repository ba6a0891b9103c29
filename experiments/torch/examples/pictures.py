"""Draws each example's memory over a steady iteration, fully_shard on eight H100s, beside this file, and prints the table of the README:
python pictures.py [--check]. --check: draws nothing; exit status 1 if the README has other figures."""

import os
import shutil
import sys
import tempfile

import tessera

HERE = os.path.dirname(os.path.abspath(__file__))
# how a model is traced, and its strategies
EXAMPLES = {
    "llama": ({}, {"fsdp": {}, "replicate": {"api": "replicate"}}),
    "vit": ({}, {"fsdp": {}, "replicate": {"api": "replicate"}}),
    "unet_lora": ({"dtype": "autocast-bf16"}, {"fsdp": {"precision": {"param": "none"}}, "ddp": {"api": "ddp", "precision": {"param": "none"}}}),
    "lora_peft": ({}, {"fsdp": {}, "replicate": {"api": "replicate"}}),
}


def table():
    """Lines of the README, and the first row of each example."""
    lines, drawn = ["| example | strategy | step ms | peak GiB |", "| --- | --- | --: | --: |"], {}
    for name, (options, strategies) in EXAMPLES.items():
        trace = tessera.trace(os.path.join(HERE, name + ".py") + ":make", **options)
        rows = trace.compare(cluster="dgx-h100-1", strategies=strategies)
        drawn[name] = rows[0]
        lines += [f"| `{name}.py` | {row.strategy} | {1e3 * row.step_time_s:.1f} | {row.peak_allocated_bytes / 2 ** 30:.2f} |" for row in rows]
    return lines, drawn


def main():
    lines, drawn = table()
    if "--check" in sys.argv:
        with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
            stated = f.read().splitlines()
        missing = [line for line in lines if line not in stated]
        print("\n".join(f"README.md: does not say {line}" for line in missing))
        return 1 if missing else 0
    for name, row in drawn.items():
        with tempfile.TemporaryDirectory() as folder:
            row.report(folder)
            found = [os.path.join(at, "memory.png") for at, _, names in os.walk(folder) if "memory.png" in names]
            shutil.copyfile(found[0], os.path.join(HERE, name + ".png"))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
