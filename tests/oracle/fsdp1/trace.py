"""The models of record.py's scenarios, traced: ../../golden-fsdp1/traces/.

    VENV/bin/python trace.py OUT_FOLDER     # torch 2.11.0 with CUDA libraries, and the package of experiments/torch

Scenarios that differ in what FSDP1 does alone have one trace, which `name_of` names."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def name_of(s):
    if "model" in s:
        return f"{s['model']}-{s['param'] or 'f32'}"
    parts = [f"{s['blocks']}x{s['width']}", s["param"] or "f32"]
    return "-".join(parts + ["tied"] * s["tied"] + ["checkpoint"] * bool(s["checkpoint"]))


def make():
    import others
    import record
    import torch
    import torch.nn.functional as F
    s = json.loads(os.environ["SCENARIO"])
    if "model" in s:
        model, _, batch, loss = others.MODELS[s["model"]]()
        return model, batch, loss
    ids = torch.empty(s["batch"], s["seq"], dtype=torch.int64)
    return (record.Model(s), {"ids": ids},
            lambda logits, batch: F.cross_entropy(logits.float().flatten(0, 1), batch["ids"].flatten()))


def options(s):
    """What is hooked: what every scenario of the model wraps."""
    if "model" in s:
        import others
        return [word for name in [*others.MODELS[s["model"]]()[1], ""] for word in ("--wrap", name or "root")]
    return ["--blocks", "b*", "--checkpoint", "full" if s["checkpoint"] else "none"]


def main():
    import others
    import record
    for name in [*record.SCENARIOS, *others.SCENARIOS]:
        s = record.scenario(name)
        path = os.path.join(sys.argv[1], name_of(s) + ".trace")
        if os.path.exists(path):
            continue
        line = ["trace", f"{os.path.abspath(__file__)}:make", "--dtype", s["param"] or "none", *options(s), "-o", path]
        subprocess.run([sys.executable, "-m", "tessera", *line], check=True, env={**os.environ, "SCENARIO": json.dumps(s)})


if __name__ == "__main__":
    main()
