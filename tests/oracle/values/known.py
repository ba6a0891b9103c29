"""Differences that are meant, by name: what PyTorch 2.11 does there is in ../README.md and in engine/SEMANTICS.md."""


def calls(sc, fn):
    return [c for c in sc.get("calls", []) if c["fn"] == fn]


def divided_twice(sc):
    """Q1: one shard rank, a factor, and a sum in place of a mean."""
    replicated = any(w["api"] == "replicate" for w in sc["wrap"])
    risky = any((w.get("mp") or {}).get(k) in ("f16", "f64") for w in sc["wrap"] for k in ("param", "reduce"))
    risky = risky or any(d in ("f16", "f64") for _, d in sc["model"].get("param_dtypes", []))
    return (sc["mesh"]["shape"][-1] == 1 or replicated) and bool(calls(sc, "set_gradient_divide_factor")) and (
        risky or bool(calls(sc, "set_force_sum_reduction_for_comms")))


NAMES = [("Q1: PyTorch divides twice", divided_twice)]


def name(sc):
    """Of the difference that a scenario may have; None: it should have none."""
    for text, holds in NAMES:
        if holds(sc):
            return text
    return None
