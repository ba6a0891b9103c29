"""What the bench must reach, and whether it did: every figure with its target, from the runs that are there."""
import math, statistics

STEPS, WARM, TIMED, ROOM = 200, 20, 50, 1e-2            # of the fairness rules: losses of 200 steps, 20 + 50 for the time
# Tokens/s against PyTorch compiled, by card: what launches and bytes of both sides give, counted by hand (4 % either way).
COMPILED = {"H200": {"llama-3-8b-l8": 1.10, "llama-3.2-1b": 1.05, "gpt2-124m": 1.06, "gpt2-1558m": 1.04},
            "H100": {"llama-3-8b-l8": 1.13, "llama-3.2-1b": 1.07, "gpt2-124m": 1.07, "gpt2-1558m": 1.05}}
EAGER, HOST_SHARE = 1.3, 0.01

# Tokens/s of one GPU as published, on other cards than ours: per-GPU share of eight.
LLMC = {
    "gpt2-124m": [(463e3, "llm.c, 8 x H100: 10e9 tokens in 45 minutes (README of KellerJordan/modded-nanogpt)"),
                  (218e3, "llm.c, 8 x A100: about 300 ms for 524,288 tokens (karpathy/llm.c, scripts/run_gpt2_124M.sh)")],
    "gpt2-1558m": [(46.8e3, "llm.c, 8 x H100: 2.80 s for 1,048,576 tokens (karpathy/llm.c, scripts/run_gpt2_1558M.sh, discussion 677)")],
}


def target(what, value, allowed=None, least=True, note=None):
    """A figure; value None: it was not measured, and nobody knows whether it is reached. allowed None: told only."""
    reached = None if value is None or allowed is None else bool(value >= allowed if least else value <= allowed)
    row = dict(what=what, value=value, target=None if allowed is None else f"{'>=' if least else '<='} {allowed:g}", reached=reached)
    return dict(row, note=note) if note else row


def best_row(rows, kind, ac="none", batch=None):
    """PyTorch's fastest row of a kind with this recomputation and batch; None."""
    found = [r for r in rows if r["case"].startswith(kind + "/") and r["ac"] == ac and batch in (None, r["batch"]) and r.get("tokens_per_s")]
    return max(found, key=lambda r: r["tokens_per_s"], default=None)


def loss_difference(ours, theirs):
    """Steps that both have, and the largest relative difference of their losses: None without any, infinite for what is no
    number."""
    n = min(len(ours["losses"]), len(theirs.get("losses") or []))
    pairs = list(zip(ours["losses"][:n], theirs["losses"][:n]))
    if not all(math.isfinite(x) for pair in pairs for x in pair):
        return n, math.inf
    return n, max((abs(a - b) / max(abs(b), 1e-30) for a, b in pairs), default=None)


def against(what, ours, row, least, busy):
    """The ratio of tokens/s, void where it means nothing; and the memory."""
    if not ours or not row:
        return [target(what, None, least, note="one side has not run")]
    n, off = loss_difference(ours, row)
    void = busy or ("no losses to compare" if off is None else None if off <= ROOM else f"losses differ by {off:.3g} within {n} steps")
    ratio = ours["tokens_per_s"] / row["tokens_per_s"]
    return [target(what, None if void else ratio, least, note=f"void: {void}; it would be {ratio:.3f}" if void else None),
            target(f"{what}: peak allocated, ours/PyTorch", ours["peak_allocated"] / row["peak_allocated"], 1.0, least=False),
            target(f"{what}: peak reserved, ours/PyTorch", ours["peak_reserved"] / row["peak_reserved"]),
            target(f"{what}: losses differ by", off, ROOM, least=False, note=f"{n} steps of {STEPS}")]


def off_prediction(side, row, said, card):
    """Measured step time over the one that was simulated for this card; None: one of them is missing."""
    value = row["step_ms"] / said["step_ms"] if row and said else None
    return target(f"step time of {side}, measured/simulated", value, note=f"simulated for {card}: {said['step_ms']:.2f} ms" if said else "not simulated for this card and batch")


def of_bench(model, mine, theirs, busy, batch, small=False, card=None, said=None):
    """All targets of a model. mine: runs of ours by name; theirs: PyTorch's rows; said: what the simulator predicted for the card."""
    said = said or {}
    ours = mine.get("fsdp")
    compiled, eager = best_row(theirs, "fsdp_compile", batch=batch), best_row(theirs, "fsdp_eager", batch=batch)
    rows = against("tokens/s, ours/compiled FSDP2", ours, compiled, COMPILED.get(card, {}).get(model), busy) + against("tokens/s, ours/eager FSDP2", ours, eager, EAGER, busy)
    rows += [off_prediction(side, row, said.get(key), card) for side, row, key in
             (("ours", ours, "tessera"), ("compiled FSDP2", compiled, "fsdp_compile"), ("eager FSDP2", eager, "fsdp_eager"))]
    full = best_row(theirs, "fsdp_compile", ac="full", batch=batch)
    if full and "fsdp-full" in mine:
        rows += against("full checkpointing: tokens/s, ours/compiled FSDP2", mine["fsdp-full"], full, None, busy)
    steps = len(compiled["losses"]) if ours and compiled and compiled.get("losses") else None
    rows.append(target("steps whose losses are compared", None if steps is None else min(steps, ours["steps"]), STEPS))
    rows.append(target("MFU, ours", ours and ours["mfu"]))
    rows.append(target("MFU, compiled FSDP2", compiled and compiled["mfu"]))
    rows.append(target("host time of a step, share", ours and ours.get("host_share"), HOST_SHARE, least=False))
    rows.append(target("timed steps", ours and ours["timed_steps"], 4 if small else TIMED))
    for figure, source in LLMC.get(model, []):
        rows.append(target("tokens/s, ours/llm.c's published figure for a GPU", ours and ours["tokens_per_s"] / figure, 1.0, note=f"{figure:.0f}: {source}"))
    return rows


def table(rows):
    """As Markdown."""
    lines = ["| figure | value | target | reached | |", "| --- | --: | --: | --- | --- |"]
    word = {True: "yes", False: "NO", None: "?"}
    for r in rows:
        value = "?" if r["value"] is None else f"{r['value']:.5g}"
        lines.append(f"| {r['what']} | {value} | {r['target'] or ''} | {word[r['reached']] if r['target'] else ''} | {r.get('note', '')} |")
    return "\n".join(lines) + "\n"


def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None
