"""Random scenarios whose values are compared: those of `generate.py`, and what only numbers can tell apart.

    mixes.py SEED [COUNT]        one JSON object a line

AdamW and SGD, worlds 1 to 16, options per group, several activation checkpoints, up to 5 micro-batches, forwards without
a backward.
"""
import json
import math
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import generate  # noqa: E402
import modules  # noqa: E402
import random_models  # noqa: E402
import random_wraps  # noqa: E402

MESHES = [[n] for n in range(1, 17)] + [[r, s] for r in range(1, 9) for s in range(1, 9) if 1 < r * s <= 16]
SMALL = [m for m in MESHES if math.prod(m) <= 5]


class Wrapper(random_wraps.Wrapper):
    """Offload and ignored parameters are drawn for each group."""

    def __init__(self, rng, root, mesh, tree):
        super().__init__(rng, root, mesh, tree)
        self.each = rng.random() < 0.4
        if self.each:
            self.offload = self.ignored = None

    def options(self, is_root=False):
        entry = super().options(is_root)
        if self.each and self.rng.random() < 0.35:
            entry["offload"] = self.rng.choice(["cpu", "cpu_pinned"])
        if self.each and self.rng.random() < 0.25:
            entry["ignored"] = self.some_params(0.3)
        return entry


def schedule(rng, micro):
    """Forwards and backwards in any order; some forwards have no backward at all."""
    drops = rng.random() < 0.35
    if not drops:
        return generate.schedule(rng, micro) if rng.random() < 0.5 else None
    kept = sorted(rng.sample(range(micro), rng.randint(1, micro)))
    ops, pending = [], []
    for m in range(micro):
        ops.append(f"F{m}")
        pending += [m] if m in kept else []
        while pending and rng.random() < 0.5:
            ops.append(f"B{pending.pop(rng.randrange(len(pending)))}")
    rng.shuffle(pending)
    return ops + [f"B{m}" for m in pending]


def optimizer(rng):
    if rng.random() < 0.4:
        spec = {"name": "sgd", "lr": rng.choice([0.1, 0.05])}
        if rng.random() < 0.5:
            spec["momentum"] = rng.choice([0.9, 0.5])
            extra = rng.choice([{}, {"nesterov": True}, {"dampening": 0.3}])
            spec.update(extra)
        if rng.random() < 0.25:
            spec["weight_decay"] = rng.choice([0.1, 0.01])
        if rng.random() < 0.15:
            spec["maximize"] = True
        return spec
    spec = {"name": "adamw", "lr": rng.choice([0.01, 0.003, 0.001])}
    if rng.random() < 0.4:
        spec["betas"] = rng.choice([[0.9, 0.95], [0.8, 0.99], [0.5, 0.9]])
    if rng.random() < 0.3:
        spec["eps"] = rng.choice([1e-6, 1e-5])
    if rng.random() < 0.4:
        spec["weight_decay"] = rng.choice([0.0, 0.1, 0.3])
    if rng.random() < 0.15:
        spec["maximize"] = True
    if rng.random() < 0.2:
        spec["amsgrad"] = True
    return spec


def train_options(rng, model, iters, seed):
    train = generate.train_options(rng, model, iters)
    train["micro"] = rng.choices([1, 2, 3, 4, 5], [5, 4, 2, 1, 1])[0]
    train.pop("schedule", None)
    ops = schedule(rng, train["micro"])
    if ops:
        train["schedule"] = ops
    train.update(seed=seed, data_seed=seed, optimizer=optimizer(rng))
    return train


def checkpointing(rng, root, shared):
    """Up to three entries with settings of their own, none inside another."""
    out, names = [], []
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        for entry in generate.checkpointing(rng, root, shared):
            apart = [n for n in entry["modules"]
                     if not any(n == o or modules.inside(n, o) or modules.inside(o, n) for o in names)]
            if apart and not (shared and out):
                out.append({**entry, "modules": apart})
                names += apart
    return out


def scenario(seed):
    rng = random.Random(f"values {seed}")
    iters = rng.choices([1, 2, 3, 4], [2, 6, 3, 1])[0]
    model, root = random_models.random_model(rng, iters)
    shape = rng.choice(SMALL if rng.random() < 0.7 else MESHES)
    mesh = {"shape": shape, "dim_names": ["shard"] if len(shape) == 1 else ["replicate", "shard"]}
    train = train_options(rng, model, iters, seed)
    at = generate.entries(rng, model, root, train)
    if at:
        train["entry_at"] = at
    types = generate.dtypes(rng, model, root)
    if types:
        model["param_dtypes"] = types
    wrap = Wrapper(rng, root, mesh, model["kind"] == "tree").entries()
    if all(w["api"] == "replicate" for w in wrap):
        mesh["dim_names"] = ["replicate"]
    sc = {"name": f"values-{seed}", "kind": "train", "mesh": mesh, "model": model, "wrap": wrap, "train": train}
    return generate.with_calls(sc, rng, root, [0, 0, 0, 1, 1, 2, 3, 5], checkpointing)


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int((sys.argv[2:] or ["1"])[0])
    for s in range(first, first + count):
        print(json.dumps(scenario(s)))
