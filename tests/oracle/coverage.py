"""Counts what the compared scenarios contain: calls and pairs of calls, options, dtypes, mesh kinds."""
import collections
import itertools


def mesh_kind(sc):
    return "mesh " + "x".join(str(n) for n in sc["mesh"]["shape"])


def wrap_features(entry):
    yield "api " + entry["api"]
    if entry.get("group"):
        yield "option group"
    reshard = entry.get("reshard_after_forward", "absent")
    yield "reshard_after_forward " + ("int" if isinstance(reshard, int) and not isinstance(reshard, bool) else str(reshard).lower())
    for key in ("shard_dim", "ignored"):
        if key in entry:
            yield "option " + key
    if "offload" in entry:
        yield "offload " + entry["offload"]
    for key, value in entry.get("mp", {}).items():
        yield f"mp.{key} {str(value).lower()}"


def model_features(model):
    yield "model " + model["kind"]
    for key in ("tie", "frozen", "param_dtypes", "tokens", "in_dim"):
        if key in model:
            yield "model." + key
    for _, dtype in model.get("param_dtypes", []):
        yield "param_dtypes " + dtype

    def nodes(children):
        for node in children:
            yield "node " + node.get("type", "ref")
            for key in ("residual", "run", "run_at"):
                if node.get(key):
                    yield "node." + key
            yield from nodes(node.get("children", []))
    yield from nodes(model.get("modules", []))
    if model.get("config", {}).get("tie_word_embeddings"):
        yield "tie_word_embeddings"


def features(sc):
    yield mesh_kind(sc)
    yield from model_features(sc["model"])
    for entry in sc["wrap"]:
        yield from wrap_features(entry)
    apis = {e["api"] for e in sc["wrap"]}
    if len(apis) > 1:
        yield "api both"
    for ac in sc.get("ac", []):
        yield f"ac {ac['where']}" + ("" if ac.get("early_stop", True) else " no early stop")
    train = sc["train"]
    for key in ("schedule", "no_grad_iters", "entry_at"):
        if key in train:
            yield "train." + key
    if "BS" in train.get("schedule", []):
        yield "schedule BS"
    if train["micro"] > 1:
        yield "accumulation"
    for call in sc.get("calls", []):
        yield "call " + call["fn"]
        yield "when " + call["at"]["when"]


class Coverage:
    def __init__(self):
        self.counts, self.pairs = collections.Counter(), collections.Counter()

    def add(self, sc):
        self.counts.update(set(features(sc)))
        fns = sorted({c["fn"] for c in sc.get("calls", [])})
        self.pairs.update(itertools.combinations(fns, 2))

    def report(self, low=40, low_pairs=5):
        lines = [f"{n:6} {name}{'' if n >= low else '   < ' + str(low)}" for name, n in sorted(self.counts.items())]
        fns = sorted(k[5:] for k in self.counts if k.startswith("call "))
        few = [(a, b, self.pairs[a, b]) for a, b in itertools.combinations(fns, 2) if self.pairs[a, b] < low_pairs]
        lines.append(f"pairs of calls: {len(self.pairs)} of {len(fns) * (len(fns) - 1) // 2}, "
                     f"smallest count {min((self.pairs[p] for p in itertools.combinations(fns, 2)), default=0)}")
        lines += [f"  {n} {a} + {b}   < {low_pairs}" for a, b, n in few]
        return "\n".join(lines)
