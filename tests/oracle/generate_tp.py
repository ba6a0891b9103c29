"""Random scenarios of kind `tp_layout` from a seed: FSDP over tensor-parallel parameters of a tree."""
import random

import modules
import random_models

MESHES = [([2, 2], ["dp", "tp"]), ([4, 2], ["dp", "tp"]), ([2, 4], ["dp", "tp"]), ([3, 2], ["dp", "tp"]),
          ([2, 3], ["dp", "tp"]), ([1, 2], ["dp", "tp"]), ([2, 1], ["dp", "tp"]), ([2, 2, 2], ["replicate", "shard", "tp"]),
          ([1, 3, 2], ["replicate", "shard", "tp"]), ([2, 1, 2], ["replicate", "shard", "tp"])]


def nodes(children, path=""):
    for node in children:
        if "ref" not in node:
            full = modules.join(path, node["name"])
            yield full, node
            yield from nodes(node.get("children", []), full)


def styles(rng, model):
    """A style for some of the linears, embeddings and norms."""
    out = []
    for name, node in nodes(model["modules"]):
        kind = node["type"]
        if kind in ("linear", "embedding") and rng.random() < 0.6:
            out.append([name, rng.choice(["colwise", "rowwise"])])
        elif kind in ("rmsnorm", "layernorm") and rng.random() < 0.3:
            out.append([name, "sequence"])
    return out


def entries(rng, model, root, dims, api):
    """Some modules, children first, then the root; shard dims where they may fit."""
    inner = [m for m in root.walk() if m.forward and m.fqn and rng.random() < 0.3]
    inner.sort(key=lambda m: -m.fqn.count("."))
    out = []
    shard_dim = None
    if api == "fully_shard" and rng.random() < 0.4:
        shard_dim = [[n, rng.choice([len(s) - 1, -1])] for n, s in modules.params(root) if len(s) > 1 and rng.random() < 0.5]
    for m in [*inner, root]:
        entry = {"modules": [m.fqn], "api": api, "mesh_dims": dims}
        if shard_dim:
            entry["shard_dim"] = shard_dim
        out.append(entry)
    return out


def strip(children):
    """No shared modules, no other orders: nothing runs here."""
    children[:] = [c for c in children if "ref" not in c]
    for node in children:
        node.pop("run", None)
        node.pop("run_at", None)
        strip(node.get("children", []))
        if node["type"] == "list":
            for i, child in enumerate(node["children"]):
                child["name"] = str(i)  # a list counts its modules
    children[:] = [c for c in children if c["type"] not in ("seq", "list") or c["children"]]


def scenario(seed):
    rng = random.Random(seed)
    model = random_models.tree(rng, 1)
    strip(model["modules"])
    root, _ = modules.build(model)
    shape, names = rng.choice(MESHES)
    api = "replicate" if len(shape) == 2 and rng.random() < 0.2 else "fully_shard"
    return {"name": f"rnd-tp-{seed}", "kind": "tp_layout", "mesh": {"shape": shape, "dim_names": names}, "model": model,
            "tp": styles(rng, model), "wrap": entries(rng, model, root, names[:-1], api)}
