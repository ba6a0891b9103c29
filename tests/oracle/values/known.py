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


def has(model, kind):
    """Whether a module of that type is in a tree."""
    return model.get("type") == kind or any(has(m, kind) for m in model.get("modules", []) + model.get("children", []))


def of_first_loss(sc):
    """Of a first loss in 16 bits that differs though no sum decides it; None: it should not.

    transformers multiplies with rotary tables that are rounded to 16 bits, and rounds both products; a tree's RMSNorm rounds after
    each of its operations. Here both are computed in f32 and rounded once."""
    if sc["model"]["kind"] == "llama":
        return "rotary embedding in f32"
    return "RMSNorm in f32" if has(sc["model"], "rmsnorm") else None


NAMES = [("Q1: PyTorch divides twice", divided_twice)]


def name(sc):
    """Of the difference that a scenario may have; None: it should have none."""
    for text, holds in NAMES:
        if holds(sc):
            return text
    return None
