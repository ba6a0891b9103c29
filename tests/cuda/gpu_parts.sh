#!/usr/bin/env bash
# tests/gpu/run.sh with the stand-in in the place of a GPU: its parts run and say what they found; failures, hanging programs,
# a busy card and lack of time are noticed, and partial results survive. A job that is larger than the GPU is refused with what asked for the
# memory, what was predicted, what would fit. Exit 77: skipped, there is no python3.
command -v python3 >/dev/null || exit 77
: "${TSR_SOURCE_DIR:?the source tree}" "${TESSERA_STANDIN:?the program with the stand-ins}"
TESSERA=$TESSERA_STANDIN
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh" || exit 1
: "${tmp:?a folder of our own}" "${out:?}" "${err:?}"
export XDG_CACHE_HOME=$tmp/cache
jobs=$TSR_SOURCE_DIR/experiments/h200

# part STATUS WORD...: runs tests/gpu/run.sh with the stand-in.
part() {
    want=$1
    shift
    checks=$((checks + 1))
    TESSERA_PROGRAM=$TESSERA_STANDIN TESSERA_TESTS=$tests "$TSR_SOURCE_DIR/tests/gpu/run.sh" "$@" >"$out" 2>"$err" </dev/null
    got=$?
    [ "$got" = "$want" ] || complain "run.sh $*: exit status $got, not $want"
}

# states FILE: how often each state is in a result file.
states() {
    python3 -c 'import collections, json, sys
of = json.load(open(sys.argv[1]))
n = collections.Counter(c["status"] for c in of["checks"])
print(of["status"], *(f"{k}={n[k]}" for k in sorted(n)))' "$1"
}

same() { # FILE WHAT
    checks=$((checks + 1))
    got=$(states "$1")
    [ "$got" = "$2" ] || complain "$1: $got, not $2"
}

# nvidia-smi of a card; BUSY: what else runs on it. PyTorch: none.
fakes=$tmp/fakes
mkdir -p "$fakes/torch"
cat >"$fakes/nvidia-smi" <<'END'
#!/bin/sh
case $1 in
--query-compute-apps=*) [ -z "$BUSY" ] || echo "$BUSY" ;;
*) echo "${1#*=}" | sed 's/[a-z_.]*/1/g' ;;
esac
END
chmod +x "$fakes/nvidia-smi"
export PATH=$fakes:$PATH
if python3 -c 'import torch' 2>/dev/null; then
    finds=passed
else
    finds=skipped
fi

tests=/bin/true
part 0 smoke "$tmp" --small
if [ $finds = passed ]; then
    same "$tmp/smoke.json" 'passed passed=5'
else
    same "$tmp/smoke.json" 'passed passed=4 skipped=1'
fi
has "$tmp/smoke.json" '"clocks.sm": "1"' '"busy": null' '"cores"'
part 0 correct "$tmp" --small --at-once 1 # at once they would all time the same products
same "$tmp/correct.json" 'passed passed=5'
part 0 bench tiny-llama "$tmp" --small --only 'tessera (fsdp|profile)$'
has "$tmp/bench-tiny-llama.json" '"tokens_per_s"' '"losses"' '"host_share"' '"gemm"' '"reached": true'
has "$tmp/bench-tiny-llama.md" '| timed steps | 4 | >= 4 | yes |' '| gemm |'
cat >"$fakes/compute-sanitizer" <<'END'
#!/bin/sh
echo "$*" >>"$(dirname "$0")/sanitized"
END
chmod +x "$fakes/compute-sanitizer"
part 0 sanitize "$tmp/sanitize"
same "$tmp/sanitize/sanitize.json" 'passed passed=9'
checks=$((checks + 1))
[ "$(grep -c -- '--kernel-regex kns=tsr_cuda ' "$fakes/sanitized")" = 9 ] || complain "sanitize looks at the kernels of libraries, too"
checks=$((checks + 1))
[ "$(find "$tmp" -maxdepth 3 -path '*bench-*' -type f | wc -l)" -le 8 ] || complain "bench: more than 8 files"
find "$tmp" -name checkpoints | grep -q . && complain "a checkpoint was saved"

# The simulator beside what was measured: memory to the byte, times of a card that this is not.
if "$TESSERA" compare "$jobs/tiny-llama.yaml" --only fsdp --out "$tmp/simulates" >"$out" 2>&1; then
    checks=$((checks + 1))
    python3 "$TSR_SOURCE_DIR/tests/gpu/predicted.py" --program "$TESSERA" --cluster "$TSR_SOURCE_DIR/experiments/clusters/node-single-h200.json" \
        "$tmp/bench-tiny-llama.json" >"$out" 2>"$err" </dev/null
    got=$?
    [ "$got" = 1 ] || complain "predicted.py: exit status $got, not 1"
    has "$tmp/predicted.json" '"configurations": 1,' '"within": 0,' '"memory_compared": 1,' '"memory_equal": 1,' '"reached": false'
fi

# Every job of `correct` is accepted: on the host, where it takes a moment.
checks=$((checks + 1))
python3 - "$TSR_SOURCE_DIR/tests/gpu" "$tmp/jobs" "$TESSERA" >"$out" 2>"$err" <<'END' || complain "a job of correct is refused"
import os, sys
sys.path.insert(0, sys.argv[1])
import parts, result
part = result.Part("jobs", sys.argv[2], 200, sys.argv[3])
parts.SMALL.update(train__steps=2, batch=1, seq=16, model__layers=1)
jobs = [(f"{m} {n}", lambda m=m, n=n: dict(losses=parts.job(part, sys.argv[2], m, n, "host"))) for m in parts.MODELS for n in parts.JOBS]
part.run(jobs if os.environ.get("TSR_THOROUGH") else jobs[::4]) # of seven, so each of the two models has others
sys.exit(part.finish())
END

# A test that fails, one that is late, words that are wrong.
tests=/bin/false
part 1 correct "$tmp/failed" --small --seconds 0.3 --at-once 1
has "$tmp/failed/correct.json" '"failed"' '"not run"'
tests=$tmp/none
part 1 correct "$tmp/none" --small --seconds 0
has "$tmp/none/correct.json" '"not run"'

# A PyTorch that breaks, on a card that others use: ours counts, ratios are void.
echo 'raise ImportError("no CUDA here")' >"$fakes/torch/__init__.py"
BUSY='7, somebody, 1000' PYTHONPATH=$fakes part 1 bench tiny-llama "$tmp/broken" --small --seconds 59 --only 'compile$|tessera fsdp$'
same "$tmp/broken/bench-tiny-llama.json" 'failed failed=2 passed=1 skipped=1'
has "$tmp/broken/bench-tiny-llama.json" 'no CUDA here' '"busy": "other programs on the GPU: somebody' '"tokens_per_s"'
has "$tmp/broken/bench-tiny-llama.md" 'Void: other programs'
rm -rf "$fakes/torch"

# A program that hangs, hears no signal, and leaves somebody behind who holds its output: the part ends in its time.
cat >"$tmp/hangs" <<'END'
#!/bin/sh
trap '' TERM
[ "$1" = run ] || exit 0
setsid sleep 90 &
echo 'going to hang'
while :; do sleep 1; done
END
chmod +x "$tmp/hangs"
begin=$(date +%s)
TESSERA_STANDIN=$tmp/hangs part 1 smoke "$tmp/late" --small --seconds 6
checks=$((checks + 1))
[ $(($(date +%s) - begin)) -lt 60 ] || complain "a part of 6 s took $(($(date +%s) - begin)) s"
has "$tmp/late/smoke.json" '"timeout"' 'going to hang' '"not run"'

# A part that is told to end says what it had.
TESSERA_PROGRAM=$tmp/hangs TESSERA_TESTS=$tests "$TSR_SOURCE_DIR/tests/gpu/run.sh" smoke "$tmp/stopped" --small >"$out" 2>"$err" </dev/null &
for _ in $(seq 100); do
    grep -q '"small"' "$tmp/stopped/smoke.json" 2>/dev/null && break
    sleep 0.2
done
sleep 0.5
kill -TERM $!
wait $!
has "$tmp/stopped/smoke.json" '"status": "stopped"' '"timeout"' '"version"'

# What becomes of rows: void ratios, targets, the order of the gaps.
checks=$((checks + 1))
python3 - "$TSR_SOURCE_DIR/tests/gpu" >"$out" 2>"$err" <<'END' || complain "targets, gaps"
import math, sys
sys.path.insert(0, sys.argv[1])
import bench, kinds, targets
ours = dict(tokens_per_s=120.0, step_ms=1.0, step_ms_p90=1.0, mfu=0.5, peak_allocated=9, peak_reserved=10, losses=[2.0, 1.0], steps=2, timed_steps=50, host_share=0.02)
theirs = dict(ours, case="fsdp_compile/x", ac="none", batch=1, tokens_per_s=100.0, peak_allocated=10, losses=[2.0, 1.001])
def of(**changed):
    return {r["what"]: r for r in targets.of_bench("llama-3-8b-l8", dict(fsdp=ours), [dict(theirs, **changed)], changed.get("busy"), 1, False, *bench.predicted("llama-3-8b-l8", [dict(name="NVIDIA H200")]))}
ratio, memory = "tokens/s, ours/compiled FSDP2", "tokens/s, ours/compiled FSDP2: peak allocated, ours/PyTorch"
assert of()[ratio]["reached"] is True and of()[ratio]["value"] == 1.2
assert of(tokens_per_s=110.0)[ratio]["reached"] is False
assert of()[memory]["reached"] is True and of(peak_allocated=8)[memory]["reached"] is False
for bad in (dict(losses=[2.0, 1.02]), dict(losses=[2.0, math.nan]), dict(losses=[]), dict(busy="somebody")):
    assert of(**bad)[ratio]["reached"] is None and "void" in of(**bad)[ratio]["note"], bad
    assert bench.side_by_side(ours, dict(theirs, **bad), bad.get("busy"))["ratio"] is None, bad
simulated = of()["step time of compiled FSDP2, measured/simulated"]
assert 0 < simulated["value"] < 1 and "H200" in simulated["note"], simulated
assert bench.predicted("gpt2-124m", [dict(name="NVIDIA H100 80GB HBM3")])[0] == "H100" and bench.predicted("gpt2-124m", [dict(name="another")]) == (None, {})
assert targets.COMPILED.keys() == {"H100", "H200"} and all(bench.predicted(m, [dict(name=c)])[1] for c in targets.COMPILED for m in targets.COMPILED[c])
# The recorded scenarios are all run, with time for all of them; a test of kernels has less.
import parts
given = []
class Asked:
    program = "tessera-cuda"
    def command(self, words, seconds, env):
        given.append((seconds, env.get("TSR_THOROUGH")))
        return 0, "[       OK ] all\none: as recorded, 3 s\ntwo: as recorded, 4 s\n"
assert parts.test_program(Asked(), "pack/gpu_test_golden") == dict(tests=1, as_recorded=2)
assert parts.test_program(Asked(), "pack/gpu_test_kernels_loss") == dict(tests=1)
assert given == [(400, "1"), (200, None)], given
# PyTorch's batch does not fit: half of it, for both sides; a second time, or after a figure, it is a failure.
class Part:
    result, left = dict(device=[], busy=None), lambda self: 500
fits, asked = 32, []
def measure(part, args, scratch, name, options, seconds):
    asked.append(int(name.rsplit("-b", 1)[1]))
    row = dict(theirs, case=name, batch=asked[-1])
    return dict(kinds={}, rows=[row], not_ok={}) if asked[-1] <= fits else dict(kinds={}, rows=[], not_ok={name: "OutOfMemoryError: CUDA out of memory"})
bench.measure = measure
args = type("args", (), dict(model="gpt2-124m", small=False))
b = bench.Bench(Part(), args, "/nowhere")
b.pytorch("fsdp_compile", 20, 5, 15)()
assert asked == [64, 32] and b.found.batch == 32 and b.settings(3, {}) == {"train.steps": 3, "batch": 32}, (asked, b.settings(3, {}))
fits = 0
for name, again in (("gpt2-124m", [64, 32]), ("llama-3-8b-l8", [1])):
    asked.clear()
    args.model = name
    try:
        bench.Bench(Part(), args, "/nowhere").pytorch("fsdp_compile", 20, 5, 15)()
        raise SystemExit("a batch that does not fit has passed")
    except bench.Failed as e:
        assert "OutOfMemory" in str(e) and asked == again, asked
assert of()["host time of a step, share"]["reached"] is False
assert of()["steps whose losses are compared"]["reached"] is False
assert of()["tokens/s, ours/eager FSDP2"]["reached"] is None
def profile(gemm, copy):
    return kinds.by_kind([("sm90_xmma_gemm_bf16", "forward", "kernel", 0, gemm), ("cudnn_sdpa_flash_cutlass", "forward", "kernel", 50, 10), ("vectorized", "optimizer", "kernel", 60, 5),
                          ("ncclDevKernel_AllGather", "forward", "kernel", 55, 25), ("Memcpy DtoD", "forward", "gpu_memcpy", 100, copy)], 0.2)
gap = kinds.gap(profile(40, 7), profile(30, 9))
assert [gap[0]["kind"], gap[0]["gap_ms"], gap[-1]["kind"]] == ["gemm", 0.01, "host"], gap
assert profile(40, 7)["ms"]["exposed communication"] == 0.015 and profile(40, 7)["ms"]["optimizer"] == 0.005
assert abs(profile(40, 7)["ms"]["host"] - 0.123) < 1e-9
END
part 2 walk
part 2 bench
part 2 bench gpt2-125m "$tmp"
has "$err" 'gpt2-124m'

# The test of recorded scenarios tells each as it ends, so that one that is cut off has said what it found.
golden=$TSR_BUILD_DIR/tests/cuda_test_golden
if [ -x "$golden" ]; then
    checks=$((checks + 1))
    if [ -n "${TSR_THOROUGH:-}" ]; then
        TESSERA=$TESSERA_STANDIN "$golden" >"$out" 2>"$err" </dev/null || complain "$golden: status $?"
        [ "$(grep -cE '^[^ ]+: as recorded, [0-9]+ s$' "$out")" -ge 20 ] || complain "$golden tells of too few scenarios"
    else
        set -m # a group of its own, as it starts processes
        TESSERA=$TESSERA_STANDIN "$golden" >"$out" 2>"$err" </dev/null &
        set +m
        for _ in $(seq 300); do
            [ "$(grep -cE '^[^ ]+: as recorded, [0-9]+ s$' "$out")" -lt 3 ] || break
            sleep 0.2
        done
        [ "$(grep -cE '^[^ ]+: as recorded, [0-9]+ s$' "$out")" -ge 3 ] || complain "$golden tells of no scenario before its end"
        kill -TERM -- -$! || complain "$golden ended before it was stopped"
        wait $! 2>/dev/null
    fi
fi

# Out of memory.
export TSR_STANDIN=memory=30000000000
fails 3 'out of memory: rank 0' 'forward, model.layers.' 'for Activation do not fit' 'predicted are' 'GPU 0' 'would fit' \
    -- run "$jobs/llama-3-8b-l8.yaml" --strategy fsdp --on cuda --set batch=2 --set mirror=false
fails 3 'lm_head' 'batch 2 would fit' -- run "$jobs/llama-3.2-1b.yaml" --strategy fsdp --on cuda --set mirror=false
fails 3 'out of memory: rank 0' 'GiB reserved and 4.00 for cuBLASLt and cuDNN' \
    -- run "$jobs/llama-3-8b-l8.yaml" --strategy fsdp --on cuda --set mirror=false --deterministic
export TSR_STANDIN=fail=cuMemCreate:3:2
checks=$((checks + 1))
"$TESSERA" run "$jobs/tiny-llama.yaml" --strategy fsdp --on cuda >"$out" 2>"$err" </dev/null
got=$?
[ "$got" = 3 ] || complain "out of memory while running: exit status $got, not 3"
has "$err" 'rank 0: ' "CUDA says 'out of memory'" 'in phase ' 'module ' 'predicted were'
finish
