#!/usr/bin/env bash
# snapshot.pickle of real programs, read by Python: the history is one of a possible allocator, and
# its figures are those of memory.csv. The trace is JSON. Exit 77: skipped, there is no python3.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
command -v python3 >/dev/null || exit 77
cat >"$tmp/e.yaml" <<'Y'
model: llama-3.2-1b
cluster: dgx-h100-1
seq: 512
strategies:
  fsdp: {}
  hsdp: {mesh: {replicate: 2, shard: 4}, checkpoint: full}
  ddp: {api: ddp}
  expandable: {allocator: {expandable_segments: true}}
  accumulated: {accumulation: {steps: 2, mode: no_reduce}, optimizer: {variant: foreach}, clip: true}
Y

checked() { # checked FOLDER [--oom]
    checks=$((checks + 1))
    python3 "$TSR_SOURCE_DIR/tests/cli/snapshot.py" "$@" >"$tmp/said" 2>&1 ||
        complain "$*: $(tail -n 1 "$tmp/said")"
}

works compare "$tmp/e.yaml" --out "$tmp/out" --traces --pictures none
for strategy in fsdp hsdp ddp expandable accumulated; do
    checked "$tmp/out/$strategy"
done
checks=$((checks + 1))
python3 -c '
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
names = {e["name"] for e in events if e["ph"] == "C"}
assert names == {n + " (bytes)" for n in ("memory", "allocated", "requested", "reserved", "in use on the device")}, names
steps = [e for e in events if e["name"].startswith("ProfilerStep")]
end = max(e["ts"] + e["dur"] for e in steps)
assert all(0 <= e["ts"] <= end + 1 for e in events if e["ph"] == "C")
# microseconds: the steady step of the table
row = json.load(open(sys.argv[2]))["rows"][0]
assert abs(steps[-1]["dur"] * 1e-6 - row["step_time_s"]) < 1e-6, (steps[-1], row["step_time_s"])
' "$tmp/out/fsdp/trace.json" "$tmp/out/summary.json" >"$err" 2>&1 || complain "trace.json"

# The table has the same peak.
python3 "$TSR_SOURCE_DIR/tests/cli/snapshot.py" "$tmp/out/fsdp" >"$tmp/said"
reserved=$(sed -n 's/.*peak reserved \([0-9]*\),.*/\1/p' "$tmp/said")
has "$tmp/out/summary.json" "\"peak_reserved_bytes\": ${reserved:-none}"

# A check that cannot fail would be none: damaged histories are found.
for damage in 't[0]["device_traces"][0].pop(0)' \
    '[e for e in t[0]["device_traces"][0] if e["action"] == "alloc"][7].update(size=1 << 40)' \
    't[0]["segments"][0]["blocks"][0].update(size=512)' \
    '[e for e in t[0]["device_traces"][0] if e["action"] == "alloc"][-1]["frames"].pop()'; do
    mkdir -p "$tmp/damaged"
    cp "$tmp/out/fsdp/memory.csv" "$tmp/damaged"
    python3 -c '
import pickle, sys
t = [pickle.load(open(sys.argv[1], "rb"))]
exec(sys.argv[3])
pickle.dump(t[0], open(sys.argv[2], "wb"))' "$tmp/out/fsdp/snapshot.pickle" "$tmp/damaged/snapshot.pickle" "$damage"
    checks=$((checks + 1))
    python3 "$TSR_SOURCE_DIR/tests/cli/snapshot.py" "$tmp/damaged" >/dev/null 2>&1 && complain "not found: $damage"
done

# The first event is the first device allocation, at time 0 of the process; no --out, no file.
works sim "$tmp/e.yaml" --strategy fsdp
[ -z "$(find "$tmp" -name snapshot.pickle -newer "$tmp/damaged/snapshot.pickle")" ] || complain "a snapshot without --out"

# Out of memory: the state at the request that failed.
"$TESSERA" sim "$tmp/e.yaml" --strategy fsdp --set allocator.limit=card --set batch=64 --set seq=4096 \
    --out "$tmp/full" >"$out" 2>"$err"
checked "$tmp/full/fsdp" --oom
"$TESSERA" sim "$tmp/e.yaml" --strategy expandable --set allocator.limit=card --set batch=64 \
    --set seq=4096 --out "$tmp/full" >"$out" 2>"$err"
checked "$tmp/full/expandable" --oom
finish
