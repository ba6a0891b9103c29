"""Runs of the program, and what they leave behind."""
import json, math, os

from result import Failed, Skipped

NOT_YET = (" has no kernel '", " is not executed", " has no code '")   # what the program says that it cannot do
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def metrics(folder):
    """The steps of a run in order."""
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        lines = [json.loads(line) for line in f]
    return [x for x in lines if "loss" in x]


def losses(folder):
    return [x["loss"] for x in metrics(folder)]


def note_of(folder):
    """What a run told beside its steps: the GPU, its memory at the end, why something was not as it could be."""
    try:
        with open(os.path.join(folder, "said.txt")) as f:
            return [line.strip()[9:] for line in f if line.startswith("tessera: ")]
    except OSError:
        return []


def train(part, file, folder, *options, seconds=120, on="cuda", env=None, tick=None, **settings):
    """tessera run into a folder; settings: a__b=v is --set a.b=v. Its steps. Failed: it failed, or lacks a step or a finite
    loss."""
    words = [part.program, "run", file, "--on", on, "--out", folder, "--set", "checkpoints.last=false", *options]
    for key, value in settings.items():
        words += ["--set", f"{key.replace('__', '.')}={value}"]
    if "--strategy" not in options:
        words += ["--strategy", "fsdp"]
    status, text = part.command(words, seconds, env=env, cwd=TOP, may_fail=True, tick=tick)
    if status == 2 and any(x in text for x in NOT_YET):
        raise Skipped(text.strip().split("\n")[-1])
    if status:
        raise Failed(f"status {status}: {text[-600:]}")
    with open(os.path.join(folder, "said.txt"), "w") as f:
        f.write(text)
    steps = metrics(folder)
    if not steps or not all(isinstance(x["loss"], float) and math.isfinite(x["loss"]) for x in steps):
        raise Failed(f"{folder}: {len(steps)} steps, or a loss that is no number")
    return steps


def farthest(a, b):
    """The largest relative difference of two lists of numbers."""
    if len(a) != len(b) or not a:
        raise Failed(f"{len(a)} steps against {len(b)}")
    return max(abs(x - y) / max(abs(y), 1e-30) for x, y in zip(a, b))


def agree(what, a, b, allowed):
    """Figures of a comparison; Failed if it is too far off."""
    off = farthest(a, b)
    if not off <= allowed:
        raise Failed(f"{what}: relative difference {off:.3g}; allowed: {allowed:g}")
    return dict(steps=len(a), difference=off, allowed=allowed, first=a[0], last=a[-1])
