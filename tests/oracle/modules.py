"""What a scenario's model consists of, without torch: modules and parameters in module order."""
import re


class Module:
    """One module: name, whether it has a forward of its own, its parameters [(name, shape)], its children."""

    def __init__(self, fqn, forward=True, params=(), keeps_width=True):
        self.fqn, self.forward, self.params, self.keeps_width = fqn, forward, list(params), keeps_width
        self.children = []

    def walk(self):
        """This module and all below it, in module order."""
        yield self
        for child in self.children:
            yield from child.walk()


def join(*parts):
    return ".".join(p for p in parts if p)


def tree_node(node, path, index):
    kind = node["type"]
    params, width = [], True
    if kind == "linear":
        params = [("weight", [node["out"], node["in"]])]
        if node.get("bias", True):
            params.append(("bias", [node["out"]]))
        width = node["out"] == node["in"]
    elif kind == "embedding":
        params, width = [("weight", [node["num"], node["dim"]])], False
    elif kind == "rmsnorm":
        params = [("weight", [node["dim"]])]
    elif kind == "layernorm":
        params = [("weight", [node["dim"]]), ("bias", [node["dim"]])]
    elif kind == "scale":
        params = [("weight", node["shape"])]
    module = Module(path, kind != "list", params, width)
    index[path] = module
    for child in node.get("children", []):
        if "ref" not in child:  # a shared module is known by its first name
            module.children.append(tree_node(child, join(path, child["name"]), index))
    if kind in ("seq", "list"):
        module.keeps_width = node.get("_keeps", True)
    return module


def llama(config):
    h, f, kv = config["hidden_size"], config["intermediate_size"], config["num_key_value_heads"]
    hd = config.get("head_dim", h // config["num_attention_heads"])
    q = hd * config["num_attention_heads"]
    shapes = {"self_attn.q_proj": [q, h], "self_attn.k_proj": [hd * kv, h], "self_attn.v_proj": [hd * kv, h],
              "self_attn.o_proj": [h, q], "mlp.gate_proj": [f, h], "mlp.up_proj": [f, h], "mlp.down_proj": [h, f],
              "input_layernorm": [h], "post_attention_layernorm": [h]}
    root, model = Module(""), Module("model")
    layers = Module("model.layers", forward=False)
    vocab = [("weight", [config["vocab_size"], h])]
    model.children = [Module("model.embed_tokens", params=vocab), layers, Module("model.norm", params=[("weight", [h])])]
    root.children = [model, Module("lm_head", params=[] if config.get("tie_word_embeddings") else vocab)]
    for i in range(config["num_hidden_layers"]):
        layers.children.append(nest(f"model.layers.{i}", {k: [("weight", v)] for k, v in shapes.items()}))
    return root


def gpt2(config):
    h = config["n_embd"]

    def both(shape):
        return [("weight", shape), ("bias", [shape[-1]])]
    parts = {"ln_1": both([h]), "attn.c_attn": both([h, 3 * h]), "attn.c_proj": both([h, h]), "ln_2": both([h]),
             "mlp.c_fc": both([h, 4 * h]), "mlp.c_proj": both([4 * h, h])}
    root, body = Module(""), Module("transformer")
    blocks = Module("transformer.h", forward=False)
    body.children = [Module("transformer.wte", params=[("weight", [config["vocab_size"], h])]),
                     Module("transformer.wpe", params=[("weight", [config["n_positions"], h])]), blocks,
                     Module("transformer.ln_f", params=both([h]))]
    root.children = [body, Module("lm_head")]
    for i in range(config["n_layer"]):
        blocks.children.append(nest(f"transformer.h.{i}", parts))
    return root


def nest(prefix, parts):
    """A module with the parts' names below it, one level of containers where a name has a dot."""
    top, inner = Module(prefix), {}
    for name, params in parts.items():
        parent = top
        if "." in name:
            head = name.split(".")[0]
            if head not in inner:
                inner[head] = Module(f"{prefix}.{head}")
                top.children.append(inner[head])
            parent = inner[head]
        parent.children.append(Module(f"{prefix}.{name}", params=params))
    return top


def build(model):
    """(root module, {name: module})"""
    if model["kind"] == "tree":
        index = {}
        root = tree_node({"type": "seq", "children": model["modules"], "_keeps": False}, "", index)
        return root, index
    root = (llama if model["kind"] == "llama" else gpt2)(model["config"])
    return root, {m.fqn: m for m in root.walk()}


def params(root):
    """[(name, shape)] in module order; names of tied parameters are still there."""
    return [(join(m.fqn, name), shape) for m in root.walk() for name, shape in m.params]


def glob(pattern):
    """The regular expression of a scenario's pattern."""
    parts = re.split(r"(\*\*|\*)", pattern)
    return re.compile("".join({"**": ".*", "*": "[^.]*"}.get(p, re.escape(p)) for p in parts) + r"\Z")


def inside(name, of):
    """Whether module `name` lies below module `of`."""
    return name != of and (of == "" or name.startswith(of + "."))
