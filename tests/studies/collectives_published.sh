#!/usr/bin/env bash
# The published collectives are predicted as well as we say, and by the choice of algorithm: a model
# that knows rings with the Simple protocol only is refused by the same limits.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
table=$TSR_SOURCE_DIR/experiments/validation/nccl_busbw.csv

cat >"$tmp/judge.py" <<'END'
import json, sys
summary = json.load(open(sys.argv[1]))["summary"]
assert summary["quantity"] == "time" and summary["n"] > 300, summary["quantity"]
median = {one["class"]: one["median"] for one in summary["classes"]}
one, more = median["all, up to 8 GPUs"], median["all, more than 8 GPUs"]
print(f"one node {one:.3f}, several {more:.3f}")
sys.exit(0 if one <= 0.08 and more <= 0.15 else 3)
END
works validate "$table" --format json
cp "$out" "$tmp/auto.json"
checks=$((checks + 2))
python3 "$tmp/judge.py" "$tmp/auto.json" || complain "published collectives are missed"
works validate "$table" --format json --set sim.algorithm=ring --set sim.protocol=simple
cp "$out" "$tmp/ring.json"
python3 "$tmp/judge.py" "$tmp/ring.json" && complain "rings alone pass, too"
finish
