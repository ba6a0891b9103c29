"""`python -m tessera check`: written code run by the real FSDP2, FSDP1 or DDP, its memory held against what the program
predicts for the strategy that it was written from."""

import json
import os
import re
import tempfile

from . import api, program, start
from .errors import Refused, Unchecked

# Settings under which written code is not all that PyTorch would run, or not on a fake process group.
NEEDED = {"api": ("fully_shard", "replicate", "ddp", "fsdp1"), "init": ("meta",), "precision.master": ("f32",),
          "optimizer.state": ("master", "f32"), "tp": ("1",), "dialect": ("eager",), "loss.read": ("false",),
          "clip_variant": ("foreach",), "sync_each_step": ("none",)}
WHY = {("dialect", "compile"): "the stand-in device runs no compiled kernels"}
WROTE = re.compile(r"strategy (?P<name>.+?) of (?P<file>\S+)(?: with (?P<with>.+?))?, written by tessera ")
FIGURES = [(when, what) for when in ("peak", "end") for what in ("allocated", "requested", "reserved")]


def origin(path):
    """What the comment at the top says the file was written from: strategy, experiment, changed keys."""
    try:
        with open(path, encoding="utf-8") as f:
            lines = f.read(1 << 20).splitlines()
    except UnicodeDecodeError:
        raise Refused(f"{path}: is no Python file") from None
    comment = []
    for line in lines:
        if not line.startswith("#"):
            break
        comment.append(line[1:].strip())
    found = WROTE.search(" ".join(comment))
    if not found:
        raise Refused(f"{path}: its first comment does not say which strategy of which file it is; written by "
                      "`tessera compare FILE --emit torch DIR` it does")
    return found["name"], found["file"], changes(found["with"] or "")


def changes(text):
    """`a=1, b=[2, 3]` as separate settings: commas inside brackets belong to a value."""
    found, depth = [""], 0
    for c in text:
        depth += (c in "[{") - (c in "]}")
        if c == "," and depth == 0:
            found.append("")
        else:
            found[-1] += c
    return [x.strip() for x in found if x.strip()]


def experiment(path, name, named):
    """The experiment file: as named, beside the written file, or where we stand."""
    tried = [named] if named else [os.path.join(os.path.dirname(path), name), name]
    for candidate in tried:
        if os.path.isfile(candidate):
            return candidate
    raise Refused(f"{path}: was written from {name}, which is not here; name it with --experiment")


def predict(path, strategy, sets, rank):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "result.json")
        line = ["memory", path, "--strategy", strategy, "--rank", str(rank), "-o", out]
        program.run(line + [word for x in sets for word in ("--set", x)])
        with open(out, encoding="utf-8") as f:
            return json.load(f)


def optimizer(settings):
    name, variant = settings["optimizer.name"], settings["optimizer.variant"]
    if name == "none":
        return name
    if variant in ("foreach", "fused", "loop"):
        return f"{name}_momentum_{variant}" if name == "sgd" and settings["optimizer.momentum"] == "true" else f"{name}_{variant}"
    raise Unchecked(f"optimizer.variant: {variant} of {name} is not PyTorch's own: it cannot be checked")


def optimizer_options(settings):
    """What torch.optim is given besides; `maximize` negates gradients, which takes memory, too."""
    return {option: True for option in ("amsgrad", "maximize", "nesterov") if settings["optimizer." + option] == "true"}


def recipe(predicted):
    settings = predicted["settings"]
    for key, allowed in NEEDED.items():
        if settings[key] not in allowed:
            why = WHY.get((key, settings[key]))
            raise Unchecked(f"strategy {predicted['strategy']}: {key}: {settings[key]} cannot be checked"
                          + (f" ({why})" if why else "") + "; can be: " + ", ".join(allowed))
    found = {"world": predicted["world"], "rank": predicted["rank"], "api": settings["api"],
             "batch": int(settings["batch"]), "seq": int(settings["seq"]), "micro_batches": int(settings["accumulation.steps"]),
             "optimizer": optimizer(settings), "optimizer_options": optimizer_options(settings),
             "weight_decay": float(settings["train.weight_decay"]), "decay": settings["train.decay"], "clip": settings["clip"] == "true",
             "offload": settings["offload"] != "none", "param_dtype": settings["precision.param"],
             "sdpa": settings["attention"], "autocast": None, "output": None}
    return found | traced(predicted) if "trace" in predicted else found


def traced(predicted):
    """What a traced program ran under is what the trace says."""
    variant = next(v for v in api.load(predicted["trace"]).content["variants"] if v["name"] == predicted["variant"])
    conditions = variant["conditions"]
    return {"seq": variant["seq"], "sdpa": conditions["sdpa"], "autocast": conditions["autocast"],
            "output": conditions.get("output_dtype")}


def check(path, target, world=None, rank=0, named=None):
    """(what was predicted, figures that differ as (iteration, phase, figure, real, predicted))."""
    strategy, file, sets = origin(path)
    file = experiment(path, file, named)
    predicted = predict(file, strategy, sets + ([f"world={world}"] if world else []), rank)
    request = {"strategy": os.path.abspath(path), "target": target, "world_given": bool(world), **recipe(predicted)}
    real = json.loads(start.child({"check": request}))
    return predicted, differences(real, predicted["allocator"]["phases"])


def differences(real, predicted):
    """[(iteration, phase, figure, real, predicted), ...]; a phase that one side lacks is one, too."""
    left, right = ({(p["iter"], p["phase"]): p for p in phases} for phases in (real, predicted))
    found = [(*key, "phase", int(key in left), int(key in right)) for key in sorted(left.keys() ^ right.keys())]
    for key in left.keys() & right.keys():
        found += [(*key, f"{when} {what}", left[key][f"{when}_{what}"], right[key][f"{when}_{what}"])
                  for when, what in FIGURES if left[key][f"{when}_{what}"] != right[key][f"{when}_{what}"]]
    order = {key: i for i, key in enumerate(left)}
    return sorted(found, key=lambda x: order.get(x[:2], len(order)))


def report(path, predicted, found):
    """The lines that say how it went."""
    phases = predicted["allocator"]["phases"]
    where = f"{path}: rank {predicted['rank']} of {predicted['world']}"
    if not found:
        peak = {what: max(p[f"peak_{what}"] for p in phases) for what in ("allocated", "reserved")}
        return [f"{where}: the {len(phases) * len(FIGURES)} figures of iterations 0 and 1 are those predicted: at "
                f"the peak {peak['allocated']} bytes allocated, {peak['reserved']} reserved"]
    return [f"{where}: {len(found)} figures differ from those predicted"] + [
        f"  iteration {i}, {phase}: {figure}: {real}, predicted {guess} ({real - guess:+d})"
        for i, phase, figure, real, guess in found]
