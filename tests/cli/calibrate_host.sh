#!/usr/bin/env bash
# calibrate --on host: the files that it makes predict a run on this machine within a factor of four beside other tests, and of
# two where nothing else runs (calibrate_alone.sh, which sets TSR_ALONE). The short form measures four steps of a run, the least
# of which counts, the long one fourteen.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
study=$TSR_SOURCE_DIR/experiments/small/llama.yaml
no_pictures
factor=4
[ -z "${TSR_ALONE:-}" ] || factor=2
steps=(--set train.steps=$(thorough && echo 16 || echo 6) --set train.warmup=2 --set eval.every=0 --set data.train=null --set data.val=null)

# predicted RANKS, measured RANKS: seconds of a step, in $tmp/seconds; of measured steps the
# least, as of all repetitions: what else the machine does meanwhile is no property of it.
predicted() {
    works compare "$study" --only fsdp --set "cluster=$tmp/cal/cluster-host.json" --set "world=$1" --format json
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["rows"][0]["step_time_s"])' "$out" >"$tmp/seconds"
}
measured() {
    rm -rf "$tmp/run"
    works run "$study" --strategy fsdp --on host --ranks "$1" --out "$tmp/run" "${steps[@]}" --profile
    python3 - "$tmp/run/metrics.jsonl" >"$tmp/seconds" <<'END'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print(min(row["step_s"] for row in rows if row.get("step", 0) > 2))
END
}

# For each number of ranks one of four attempts has to agree: other programs are no property of the machine.
agreed=
for attempt in 1 2 3 4; do
    works calibrate --on host --out "$tmp/cal" --ranks 2
    for ranks in 1 2; do
        case $agreed in *$ranks*) continue ;; esac
        measured $ranks
        took=$(cat "$tmp/seconds")
        predicted $ranks
        echo "attempt $attempt, $ranks ranks: predicted $(cat "$tmp/seconds") s, measured $took s"
        python3 -c 'import sys; a, b, c = map(float, sys.argv[1:]); sys.exit(not 1 / c < a / b < c)' \
            "$(cat "$tmp/seconds")" "$took" $factor && agreed=$agreed$ranks
    done
    [ ${#agreed} -eq 2 ] && break
done
[ ${#agreed} -eq 2 ] || complain "no prediction is within a factor of $factor"

checks=$((checks + 1))
python3 "$TSR_SOURCE_DIR/tests/cli/calibrated.py" "$tmp/cal" host 0.01 mm mm_weight_grad mm_input_grad flash_attention rms_norm \
    layer_norm fused_swiglu fused_adamw nll_loss embedding chunk_cat split_with_sizes_copy || complain "the files are wrong"
python3 - "$tmp/cal" <<'END' || complain "the cores are wrong"
import json, sys
host = json.load(open(f"{sys.argv[1]}/node-host.json"))["host"]
assert 1 <= host["cores"] <= host["processor_cores"]
END
works inspect "$study" --only fsdp --set "cluster=$tmp/cal/cluster-host.json" --set world=2
has "$out" "by name: table host"
# The guide's sequence: the run stands beside the simulation of its machine, and neither beside a card.
works compare "$study" --only fsdp --set "cluster=$tmp/cal/cluster-host.json" --measured "$tmp/run" \
    --set "world=$(sed -n 's/^ "world_size": \([0-9]*\),*$/\1/p' "$tmp/run/measured/summary.json")"
has "$out" "| fsdp-measured |" "| ran " "x host" "Simulated, not run" "$tmp/cal/gpu-host.json,"
fails 2 "allowed: the machine of the run" -- compare "$study" --only fsdp --measured "$tmp/run"
works collectives "$tmp/cal/cluster-host.json" --sizes 65536
has "$out" all_gather

# Mistakes.
fails 2 "--on: found gpu; allowed: host" -- calibrate --on gpu --out "$tmp/cal"
fails 2 "--on: found no --out" -- calibrate --on host
fails 2 "--ranks: found 99; allowed: 1 to 10" -- calibrate --on host --out "$tmp/cal" --ranks 99
fails 2 "found --on and --nccl-log" -- calibrate --on host --nccl-log x.log --out "$tmp/cal"
fails 2 "world: found 4; allowed: 1 to 2" -- compare "$study" --set "cluster=$tmp/cal/cluster-host.json"
finish
