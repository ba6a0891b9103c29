"""Random models: trees of small modules, and tiny configurations of llama and gpt2."""
import modules

NORMS = ("rmsnorm", "layernorm")


class TreeMaker:
    """Makes a tree whose blocks keep the width, so that any order and any choice of them runs."""

    def __init__(self, rng, width):
        self.rng, self.width, self.done = rng, width, []

    def leaf(self, name):
        r, d = self.rng, self.width
        kind = r.choices(["linear", "rmsnorm", "layernorm", "scale", "act"], [5, 2, 2, 2, 2])[0]
        if kind == "linear":
            return {"name": name, "type": "linear", "in": d, "out": d, "bias": r.random() < 0.5}
        if kind in NORMS:
            return {"name": name, "type": kind, "dim": d}
        if kind == "scale":
            shape = [r.choice([1, 2, 3, 4, 5, 8]) for _ in range(r.randint(1, 4))]
            return {"name": name, "type": "scale", "shape": shape}
        return {"name": name, "type": r.choice(["relu", "silu"])}

    def mlp(self, name):
        r, d = self.rng, self.width
        inner = r.choice([3, 8, 10, 12, 16])
        children = [{"name": "up", "type": "linear", "in": d, "out": inner, "bias": r.random() < 0.6},
                    {"name": "act", "type": r.choice(["silu", "relu"])},
                    {"name": "down", "type": "linear", "in": inner, "out": d, "bias": r.random() < 0.3}]
        if r.random() < 0.7:
            children.insert(0, {"name": "norm", "type": r.choice(NORMS), "dim": d})
        return {"name": name, "type": "seq", "residual": r.random() < 0.7, "children": children}

    def order(self, node, iters):
        """Gives a container another order of its children, perhaps only in one iteration."""
        r = self.rng
        names = [c["name"] for c in node["children"]]
        if r.random() < 0.15:
            node["run"] = [r.choice(names) for _ in range(r.randint(1, len(names) + 1))]
        if r.random() < 0.15:
            node["run_at"] = {str(r.randrange(iters)): [r.choice(names) for _ in range(r.randint(1, len(names) + 1))]}

    def container(self, name, path, depth, iters, in_list):
        r = self.rng
        kind = "list" if r.random() < 0.3 and not in_list else "seq"
        children = [self.block(str(i), path, depth + 1, iters, kind == "list") for i in range(r.randint(1, 3))]
        node = {"name": name, "type": kind, "children": children}
        if kind == "seq":
            if r.random() < 0.3:
                node["residual"] = True
            self.order(node, iters)
        return node

    def block(self, name, parent, depth, iters, in_list=False):
        r, path = self.rng, modules.join(parent, name)
        pick = r.random()
        if self.done and pick < 0.07:
            return {"name": name, "ref": r.choice(self.done)}
        if pick < 0.45:
            node = self.mlp(name)
        elif pick < 0.62 and depth < 3:
            node = self.container(name, path, depth, iters, in_list)
        else:
            node = self.leaf(name)
        if node["type"] != "list":
            self.done.append(path)
        return node


def tree(rng, iters):
    r = rng
    width = r.choice([4, 6, 8, 8, 8, 12, 5, 9])
    maker = TreeMaker(r, width)
    model = {"kind": "tree"}
    head = []
    loss = r.choice(["ce", "mse"])
    if r.random() < 0.65:
        model["tokens"] = r.choice([16, 10, 7])
        head.append({"name": "emb", "type": "embedding", "num": model["tokens"], "dim": width})
    else:
        model["in_dim"] = r.choice([width, 6, 3])
        if model["in_dim"] != width:
            head.append({"name": "first", "type": "linear", "in": model["in_dim"], "out": width, "bias": r.random() < 0.5})
    body = []
    if r.random() < 0.5:
        n = r.randint(2, 4)
        same = r.random() < 0.6
        kind = "seq" if r.random() < 0.7 else "list"
        layers = [maker.mlp(str(i)) if same else maker.block(str(i), "layers", 1, iters, kind == "list") for i in range(n)]
        node = {"name": "layers", "type": kind, "children": layers}
        if node["type"] == "seq":
            maker.order(node, iters)
        body.append(node)
    body += [maker.block(f"b{i}", "", 0, iters) for i in range(r.randint(0 if body else 1, 3))]
    tail = [{"name": "norm", "type": r.choice(NORMS), "dim": width}] if r.random() < 0.5 else []
    model["out_dim"] = model["tokens"] if "tokens" in model and r.random() < 0.6 else r.choice([3, 4, 7, 16])
    tail.append({"name": "out", "type": "linear", "in": width, "out": model["out_dim"], "bias": r.random() < 0.4})
    model["loss"] = loss
    model["modules"] = head + body + tail
    return model


def llama(rng):
    heads = rng.choice([2, 4])
    return {"kind": "llama", "config": {
        "hidden_size": rng.choice([8, 16]), "intermediate_size": rng.choice([12, 24]),
        "num_hidden_layers": rng.choice([1, 2, 2, 3]), "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([1, 2]), "vocab_size": rng.choice([32, 18]), "max_position_embeddings": 32,
        "tie_word_embeddings": rng.random() < 0.4, "rms_norm_eps": 1e-05, "attention_dropout": 0.0,
        "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}}


def gpt2(rng):
    return {"kind": "gpt2", "config": {
        "n_embd": rng.choice([8, 12]), "n_layer": rng.choice([1, 2, 2, 3]), "n_head": 2, "vocab_size": rng.choice([32, 18]),
        "n_positions": 16, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None,
        "eos_token_id": None}}


def ties(rng, root):
    """Pairs [later, earlier] of parameters of one shape in different modules."""
    named = modules.params(root)
    pairs = [[b, a] for i, (a, sa) in enumerate(named) for b, sb in named[i + 1:]
             if sa == sb and a.rsplit(".", 1)[0] != b.rsplit(".", 1)[0]]
    if not pairs:
        return []
    chosen, used = [], set()
    for pair in rng.sample(pairs, min(len(pairs), rng.choice([1, 1, 2]))):
        if not used & set(pair):
            chosen.append(pair)
            used |= set(pair)
    return chosen


def frozen(rng, root):
    named = [n for n, _ in modules.params(root)]
    pick = rng.random()
    if pick < 0.4:
        return [rng.choice([m.fqn for m in root.walk() if m.fqn]) + ".**"]
    if pick < 0.7:  # all of a prefix, then weights: products of which one factor takes a gradient, or only the bias
        first = rng.randrange(len(named))
        return [n for i, n in enumerate(named[:-2]) if i < first or (n.endswith("weight") and rng.random() < 0.5)]
    return rng.sample(named, min(len(named) - 1, rng.randint(1, 3)))


def random_model(rng, iters):
    """(model, root module); flags of parameters are set by the caller."""
    pick = rng.random()
    model = tree(rng, iters) if pick < 0.8 else llama(rng) if pick < 0.9 else gpt2(rng)
    root, _ = modules.build(model)
    if model["kind"] == "tree" and rng.random() < 0.15:
        pairs = ties(rng, root)
        if pairs:
            model["tie"] = pairs
    if rng.random() < 0.2:
        names = frozen(rng, root)
        if names:
            model["frozen"] = names
    return model, root
