#!/usr/bin/env bash
# The four verdicts of whether a strategy fits: the same in every command, and what they rest on.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
python=$(command -v python3) || exit 77
flagship=$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml

rows() { # rows FILE ARGUMENT...
    file=$1
    shift
    works compare "$flagship" --format json "$@"
    cp "$out" "$tmp/$file.json"
}

# As it is; without a limit; on a card that ends.
rows as --only fsdp,fsdp-reshard-4,ddp
rows none --only fsdp-reshard-4 --set allocator.limit=none
rows card --only fsdp-reshard-4 --set allocator.limit=card
# Tensors that need what may be taken by what is not known.
rows unknown --only hsdp-2x4 --set allocator.expandable_segments=true --set seq=8064
# A card of which nobody knows how much a process sees of it, and one whose channels are not known.
rows blind --only fsdp --set cluster=alps-gh200-64 --set world=8 --set seq=512
rows bounds --only fsdp --set cluster=dgx-b200-128 --set world=8 --set seq=512
# An older NCCL takes everything at once.
rows old --only fsdp --set sim.nccl_at_init=true
checks=$((checks + 1))
"$python" - "$tmp" <<'P' >"$tmp/said" || complain "a verdict is wrong: $(cat "$tmp/said")"
import json, sys

def row(file, strategy):
    return next(r for r in json.load(open(f"{sys.argv[1]}/{file}.json"))["rows"] if r["strategy"] == strategy)

def check(what, holds):
    if not holds:
        print(what)
        sys.exit(1)

MIB = 1 << 20
fits, tight, full = (row("as", s) for s in ("fsdp", "fsdp-reshard-4", "ddp"))
free, card, unknown, blind = row("none", "fsdp-reshard-4"), row("card", "fsdp-reshard-4"), row("unknown", "hsdp-2x4"), row("blind", "fsdp")
for r in (fits, tight, full):
    left = r["usable_bytes"] - r["context_bytes"] - r["nccl_bytes"]
    check("left: what is not known to be taken", r["left_to_allocator_bytes"] == left)
    check("surely: less 2 GiB of context and libraries", r["left_surely_bytes"] == left - (2048 * MIB - r["context_bytes"]))
check("yes", fits["verdict"] == "yes" and fits["fits"] is True and fits["wanted_bytes"] <= fits["left_surely_bytes"])
check("no", full["verdict"] == "no" and full["fits"] is False and full["short_of_bytes"] == full["wanted_bytes"] - full["left_to_allocator_bytes"])
# The allocator would like more than there is, and does with what is surely there.
check("retries", tight["verdict"] == "retries" and tight["fits"] is True and tight["alloc_retries_per_step"] >= 1)
check("retries: memory", tight["most_reserved_bytes"] <= tight["left_surely_bytes"] < tight["wanted_bytes"] == free["most_reserved_bytes"])
# They cost what the step takes longer, and say nothing where they were not simulated.
check("retries: time", abs(tight["step_time_s"] - free["step_time_s"] - tight["alloc_retry_s"]) < 1e-9 and tight["alloc_retry_s"] > 0.01)
check("no limit", free["verdict"] == "retries" and free["alloc_retry_s"] is None)
# With what is only known to be left it settles after the first steps.
check("card", card["most_reserved_bytes"] <= card["left_to_allocator_bytes"] and card["verdict"] == "retries" and card["alloc_retries_per_step"] == 0)
check("unknown", unknown["verdict"] == "unknown" and unknown["fits"] is None and
      0 < unknown["short_of_bytes"] <= unknown["left_to_allocator_bytes"] - unknown["left_surely_bytes"])
check("unknown: it runs with what is known", unknown["left_surely_bytes"] < unknown["most_reserved_bytes"] <= unknown["left_to_allocator_bytes"])
check("no card", blind["verdict"] == "unknown" and blind["left_to_allocator_bytes"] is None)
check("bounds", row("bounds", "fsdp")["nccl_at_most_bytes"] > row("bounds", "fsdp")["nccl_bytes"] > 0)
# cuDNN's sums of the queries' gradient: 4 bytes of 32 heads, 8192 words, 128 features.
check("workspaces", all(r["run_workspace_bytes"] == 4 * 32 * 8192 * 128 for r in (fits, tight, full)))
check("workspaces, deterministic", all(r["run_workspace_deterministic_bytes"] == 2 * 32 * 8192 * 8192 for r in (fits, tight, full)))
# Rings and trees of 24 channels, NVLS of 8 members and 16 channels, the shared buffer of messages.
check("at init", row("old", "fsdp")["nccl_bytes"] == (24 * 24 + 256 + 256) * MIB)
P

# The table says it, and what the word means once.
works compare "$flagship" --only fsdp,fsdp-reshard-4 --wide
has "$out" "| yes, retries |" "frees what it has cached and asks again: fsdp-reshard-4" "x a step, +"
[ "$(grep -c 'asks again' "$out")" = 1 ] || complain "retries are not explained once"
works compare "$flagship" --only fsdp
grep -q 'asks again\|fits: ?' "$out" && complain "a verdict is explained that nobody has"
works compare "$flagship" --only hsdp-2x4 --set allocator.expandable_segments=true --set seq=8064
has "$out" "| ?    |" 'may be more than what is left: hsdp-2x4 up to'
works compare "$flagship" --only fsdp --set cluster=alps-gh200-64 --set world=8 --set seq=512
has "$out" 'does not say how much of the card is usable'
works compare "$flagship" --only fsdp --set cluster=dgx-b200-128 --set world=8 --set seq=512 --notes
grep -q '| *>[0-9.]* |' "$out" || complain "the least of NCCL is not marked"

# What a run of our own keeps beside it, of a job that it can train.
works compare "$flagship" --only fsdp --set data.train=README.md
has "$out" "keeps 0.12 GiB more for cuBLASLt and cuDNN, 4.00 with" "--deterministic"

# Every command has the same verdict.
works explain "$flagship" --strategy fsdp-reshard-4 --no-what-if --format json
has "$out" '"verdict": "retries"'
works explain "$flagship" --strategy fsdp-reshard-4 --no-what-if
has "$out" "the allocator frees its cache and asks again"
works plan "$flagship" --strategy fsdp-reshard-4 --set 'plan.space={batch: [1]}' --format csv
has "$out" ",retries,"
# A run on processor cores says nothing about the card of the file.
if "$TESSERA" run "$TSR_SOURCE_DIR/experiments/small/llama.yaml" --on host --ranks 2 --strategy fsdp --set world=2 --set batch=1 \
    --set seq=32 --set data.train=null --set data.val=null --set eval.every=0 --set train.warmup=0 \
    --set train.steps=3 --profile --out "$tmp/run" >"$out" 2>"$err"; then
    has "$tmp/run/measured/summary.json" '"verdict": "unknown"'
fi
works sim "$flagship" --strategy fsdp-reshard-4 --wide
has "$out" "| yes, retries |"
finish
