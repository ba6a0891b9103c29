"""Makes a scenario smaller while it still differs."""
import copy


def without(items, i):
    return items[:i] + items[i + 1:]


def drops(sc, path, key):
    """The scenario without one entry of the list at path.key, for each entry."""
    place = sc
    for p in path:
        place = place.get(p, {})
    for i in range(len(place.get(key, []))):
        new = copy.deepcopy(sc)
        target = new
        for p in path:
            target = target[p]
        target[key] = without(target[key], i)
        if not target[key]:
            del target[key]
        yield new


def nodes(children, path=()):
    for i, node in enumerate(children):
        yield (*path, i)
        yield from nodes(node.get("children", []), (*path, i))


def without_node(sc, path):
    new = copy.deepcopy(sc)
    holder, children = new["model"], new["model"]["modules"]
    for i in path[:-1]:
        holder = children[i]
        children = holder["children"]
    name = children.pop(path[-1])["name"]
    if holder.get("type") == "list" and any(c["name"] != str(i) for i, c in enumerate(children)):
        return sc  # a list counts its modules: only the last one can go
    for key in ("run",):
        if key in holder:
            holder[key] = [n for n in holder[key] if n != name]
    for i, order in holder.get("run_at", {}).items():
        holder["run_at"][i] = [n for n in order if n != name]
    return new


def smaller_trees(sc):
    model = sc["model"]
    if model["kind"] != "tree":
        for key in ("num_hidden_layers", "n_layer"):
            if model["config"].get(key, 1) > 1:
                new = copy.deepcopy(sc)
                new["model"]["config"][key] -= 1
                yield new
        return
    for path in reversed(list(nodes(model["modules"]))):
        yield without_node(sc, path)
    for path in nodes(model["modules"]):
        for key in ("run", "run_at", "residual"):
            new = copy.deepcopy(sc)
            node = new["model"]["modules"][path[0]]
            for i in path[1:]:
                node = node["children"][i]
            if node.pop(key, None):
                yield new


def smaller_wraps(sc):
    for i, entry in enumerate(sc["wrap"]):
        for key in ("mp", "offload", "shard_dim", "ignored", "group", "reshard_after_forward"):
            if key in entry:
                new = copy.deepcopy(sc)
                del new["wrap"][i][key]
                yield new
        for key in entry.get("mp", {}):
            new = copy.deepcopy(sc)
            del new["wrap"][i]["mp"][key]
            yield new
        if len(entry["modules"]) > 1:
            for j in range(len(entry["modules"])):
                new = copy.deepcopy(sc)
                new["wrap"][i]["modules"] = without(entry["modules"], j)
                yield new


def smaller_runs(sc):
    train = sc.get("train", {})
    for key in ("schedule", "no_grad_iters", "entry_at"):
        if key in train:
            new = copy.deepcopy(sc)
            del new["train"][key]
            yield new
    for key in ("iters", "micro", "batch"):
        if train.get(key, 1) > 1:
            new = copy.deepcopy(sc)
            new["train"][key] -= 1
            if key == "micro":
                new["train"].pop("schedule", None)
            yield new
    for i, call in enumerate(sc.get("calls", [])):
        for j in range(len(call["args"].get("modules", []))):
            new = copy.deepcopy(sc)
            new["calls"][i]["args"]["modules"] = without(call["args"]["modules"], j)
            yield new


def smaller_meshes(sc):
    shape, names = sc["mesh"]["shape"], sc["mesh"]["dim_names"]
    for new_shape in ([2], [4], [2, 2]):
        if new_shape != shape and len(new_shape) <= len(shape) and sum(new_shape) < sum(shape):
            new = copy.deepcopy(sc)
            new["mesh"] = {"shape": new_shape, "dim_names": names[-len(new_shape):]}
            yield new


def candidates(sc):
    for key in ("calls", "ac"):
        yield from drops(sc, (), key)
    yield from drops(sc, (), "wrap")
    for key in ("tie", "frozen", "param_dtypes"):
        yield from drops(sc, ("model",), key)
    yield from smaller_runs(sc)
    yield from smaller_trees(sc)
    yield from smaller_wraps(sc)
    yield from smaller_meshes(sc)


def valid(sc):
    if sc["model"]["kind"] == "tree" and not sc["model"]["modules"]:
        return False
    return sc.get("wrap", []) != [] or sc["kind"] == "ddp"


def shrink(sc, still_differs, tries=400):
    """Takes the first smaller scenario that still differs, again and again."""
    changed = True
    while changed and tries > 0:
        changed = False
        for new in candidates(sc):
            if new == sc or "wrap" not in new or not valid(new):
                continue
            tries -= 1
            if still_differs(new):
                sc, changed = new, True
                break
            if tries <= 0:
                break
    return sc
