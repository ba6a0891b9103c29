#!/usr/bin/env python3
"""Random valid scenarios of kind `train` from a seed.

    generate.py SEED [COUNT]        one JSON object a line

A few of them turn out to be refused by the real engine; the driver then compares the errors instead.
"""
import json
import random
import sys

import modules
import random_calls
import random_models
import random_wraps


def schedule(rng, micro):
    """Operations of one iteration: every forward, then its backward sooner or later."""
    forwards, pending, ops = list(range(micro)), [], []
    while forwards or pending:
        if forwards and (not pending or rng.random() < 0.6):
            m = forwards.pop(0)
            ops.append(f"F{m}")
            pending.append(m)
        elif len(pending) > 1 and rng.random() < 0.4:
            ops.append("BS")
            pending = []
        else:
            ops.append(f"B{pending.pop(rng.randrange(len(pending)))}")
    return ops


def train_options(rng, model, iters):
    train = {"iters": iters, "micro": rng.choices([1, 2, 3], [5, 4, 1])[0], "batch": rng.choice([1, 2, 2, 3]), "seed": 0,
             "data_seed": 0, "optimizer": {"name": "sgd", "lr": 0.1}}
    if model["kind"] != "tree" or "tokens" in model:
        train["seq"] = rng.choice([2, 4, 6])
    if train["micro"] > 1 and rng.random() < 0.4:
        train["schedule"] = schedule(rng, train["micro"])
    if iters > 1 and rng.random() < 0.12:
        train["no_grad_iters"] = [rng.randrange(iters)]
    return train


def entries(rng, model, root, train):
    """entry_at: modules that take the plain input."""
    if model["kind"] != "tree" or rng.random() > 0.08:
        return {}
    names = [m.fqn for m in root.walk() if m.forward and m.fqn]
    if "tokens" in model:
        fits = ["emb"]
    else:
        fits = [n for n in names if n == "first" or (n.startswith(("b", "layers")) and model["modules"][0]["name"] != "first")]
        fits = [n for n in fits if not n.endswith(("up", "down", "act", "norm"))]
    return {str(rng.randrange(train["iters"])): rng.choice(fits)} if fits else {}


def dtypes(rng, model, root):
    """param_dtypes: all parameters, or frozen or elementwise ones only, so that products still work."""
    if rng.random() > 0.15:
        return None
    if rng.random() < 0.6:
        return [["**", rng.choice(["bf16", "f16", "f64", "bf16"])]]
    if model["kind"] != "tree":
        return None
    names = [modules.join(m.fqn, n) for m in root.walk() for n, s in m.params if "norm" in m.fqn or len(s) > 2]
    if not names:
        return None
    return [[n, rng.choice(["bf16", "f16", "f64"])] for n in rng.sample(names, min(len(names), 2))]


def checkpointing(rng, root, shared):
    if rng.random() > 0.28:
        return []
    parents = [m for m in root.walk() if len([c for c in m.children if c.forward]) > 1]
    if parents and rng.random() < 0.6:
        chosen = [c for c in rng.choice(parents).children if c.forward]
    else:
        chosen = [m for m in root.walk() if m.forward and m.fqn and m.children] or [m for m in root.walk() if m.forward and m.fqn]
        chosen = rng.sample(chosen, min(len(chosen), rng.randint(1, 2)))
    names = [m.fqn for m in chosen]
    names = [n for n in names if not any(modules.inside(n, o) for o in names)]  # one inside another is not supported
    if shared:
        names = names[:1]  # a shared module may bring one inside another
    entry = {"modules": names, "where": rng.choice(["inside", "outside"])}
    if rng.random() < 0.4:
        entry["early_stop"] = False
    return [entry]


def with_calls(sc, rng, root, counts, draw_checkpointing=checkpointing):
    """Checkpointing, and calls of the API, as many as one of `counts`."""
    wrap = sc["wrap"]
    ac = draw_checkpointing(rng, root, '"ref"' in json.dumps(sc["model"]))
    if ac:
        sc["ac"] = ac
    caller = random_calls.Caller(rng, random_wraps.wrapped(wrap, root), root, sc["mesh"], sc["train"],
                                 any(w["api"] == "replicate" for w in wrap))
    caller.smaller = any(type(w.get("reshard_after_forward")) is int for w in wrap)
    for _ in range(rng.choice(counts)):
        caller.one()
    if caller.calls:
        sc["calls"] = caller.calls
    return sc


def scenario(seed):
    rng = random.Random(seed)
    iters = rng.choices([1, 2, 3], [2, 6, 2])[0]
    model, root = random_models.random_model(rng, iters)
    mesh = random_wraps.mesh(rng)
    train = train_options(rng, model, iters)
    at = entries(rng, model, root, train)
    if at:
        train["entry_at"] = at
    types = dtypes(rng, model, root)
    if types:
        model["param_dtypes"] = types
        if len(types) > 1 or types[0][0] != "**":
            if rng.random() < 0.7:
                model["frozen"] = sorted(set(model.get("frozen", []) + [n for n, _ in types]))
    wrap = random_wraps.Wrapper(rng, root, mesh, model["kind"] == "tree").entries()
    if all(w["api"] == "replicate" for w in wrap):
        mesh["dim_names"] = ["replicate"]
    sc = {"name": f"rnd-{seed}", "kind": "train", "mesh": mesh, "model": model, "wrap": wrap, "train": train}
    return with_calls(sc, rng, root, [0, 0, 1, 1, 2, 2, 3, 4, 5, 7])


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int((sys.argv[2:] or ["1"])[0])
    for s in range(first, first + count):
        print(json.dumps(scenario(s)))
