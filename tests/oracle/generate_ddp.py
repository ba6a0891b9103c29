"""Random scenarios of kind `ddp` from a seed: the DDP-based `replicate` on the root."""
import random

import random_models


def options(rng):
    ddp = {}
    if rng.random() < 0.8:
        ddp["bucket_cap_mb"] = rng.choice([0.0001, 0.0003, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01])
    pick = rng.random()
    if pick < 0.35:
        ddp["find_unused_parameters"] = True
    elif pick < 0.55:
        ddp["static_graph"] = True
    if rng.random() < 0.25:
        ddp["gradient_as_bucket_view"] = True
    if "static_graph" in ddp and rng.random() < 0.3:
        ddp["find_unused_parameters"] = True  # changes nothing
    if len(ddp.keys() & {"static_graph", "find_unused_parameters"}) and rng.random() < 0.25:
        ddp["skip_all_reduce_unused_params"] = True
    return ddp


def leave_out(rng, children):
    """Containers run some of their children only, so that parameters are unused in every iteration."""
    for node in children:
        inner = node.get("children", [])
        if node.get("type") == "seq" and len(inner) > 1 and all(c.get("in") == c.get("out") for c in inner) and rng.random() < 0.7:
            node["run"] = [c["name"] for c in inner if rng.random() < 0.6] or [inner[0]["name"]]
        leave_out(rng, inner)


def drop_orders(children, keys):
    for node in children:
        for key in keys:
            node.pop(key, None)
        drop_orders(node.get("children", []), keys)


def scenario(seed):
    rng = random.Random(seed)
    iters = rng.choice([2, 3, 3, 4])
    model, root = random_models.random_model(rng, iters)
    ddp = options(rng)
    if model["kind"] == "tree" and ddp.get("static_graph"):
        drop_orders(model["modules"], ("run_at",))  # a graph that changes is an error
        leave_out(rng, model["modules"])
    elif model["kind"] == "tree" and not ddp.get("find_unused_parameters"):
        drop_orders(model["modules"], ("run", "run_at"))  # a parameter that is not used would be an error
    if rng.random() < 0.1:
        model["param_dtypes"] = [["**", rng.choice(["bf16", "f16"])]] if "in_dim" not in model else []
        if not model["param_dtypes"]:
            del model["param_dtypes"]
    train = {"iters": iters, "micro": rng.choice([1, 1, 2, 3]), "batch": 2, "seed": 0, "data_seed": 0,
             "optimizer": {"name": "sgd", "lr": 0.1}}
    if model["kind"] != "tree" or "tokens" in model:
        train["seq"] = 4
    if rng.random() < 0.1:
        train["no_grad_iters"] = [rng.randrange(iters)]
    calls = []
    if ddp.get("static_graph"):
        pass  # 2.11 fails an internal check when a static graph's first backward is not synced
    elif train["micro"] > 1 and rng.random() < 0.6:
        last = train["micro"] - 1
        calls = [{"at": {"when": "before_forward", "micro": m}, "fn": "set_requires_gradient_sync", "module": "",
                  "args": {"value": v}} for m, v in ((0, False), (last, True))]
    elif rng.random() < 0.1:
        calls = [{"at": {"when": "before_forward", "iter": i}, "fn": "set_requires_gradient_sync", "module": "",
                  "args": {"value": v}} for i, v in ((0, False), (1, True))]
    mesh = {"shape": [rng.choice([1, 2, 2, 3, 4, 8])], "dim_names": ["replicate"]}
    return {"name": f"rnd-ddp-{seed}", "kind": "ddp", "mesh": mesh, "model": model, "wrap": [], "ddp": ddp, "train": train,
            "calls": calls}
