#!/usr/bin/env bash
# tests/gpu/run.sh with the stand-in in the place of a GPU: its parts run and say what they found, failures and lack of
# time are noticed, and partial results survive. A job that is larger than the GPU is refused with what asked for the
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

tests=/bin/true
part 0 smoke "$tmp" --small
if command -v nvidia-smi >/dev/null; then
    same "$tmp/smoke.json" 'passed passed=3'
else
    same "$tmp/smoke.json" 'passed passed=2 skipped=1'
fi
part 0 correct "$tmp" --small --at-once 1 # at once they would all time the same products
same "$tmp/correct.json" 'passed passed=5'
part 0 bench tiny-llama "$tmp" --small
has "$tmp/bench-tiny-llama.json" '"tokens_per_s"' '"losses"'
find "$tmp" -name checkpoints | grep -q . && complain "a checkpoint was saved"

# A test that fails, one that is late, words that are wrong.
tests=/bin/false
part 1 correct "$tmp/failed" --small --seconds 0.3 --at-once 1
has "$tmp/failed/correct.json" '"failed"' '"not run"'
tests=$tmp/none
part 1 correct "$tmp/none" --small --seconds 0
has "$tmp/none/correct.json" '"not run"'
part 2 walk
part 2 bench
part 2 bench gpt2-125m "$tmp"
has "$err" 'gpt2-124m'

# Out of memory.
export TSR_STANDIN=memory=30000000000
fails 3 'out of memory: rank 0' 'forward, model.layers.' 'All Gather Input' 'predicted are' 'GPU 0' 'would fit' \
    -- run "$jobs/llama-3-8b-l8.yaml" --strategy fsdp --on cuda --set batch=2 --set mirror=false
fails 3 'lm_head' 'batch 2 would fit' -- run "$jobs/llama-3.2-1b.yaml" --strategy fsdp --on cuda --set mirror=false
export TSR_STANDIN=memory=90000000
checks=$((checks + 1))
"$TESSERA" run "$jobs/tiny-llama.yaml" --strategy fsdp --on cuda >"$out" 2>"$err" </dev/null
got=$?
[ "$got" = 3 ] || complain "out of memory while running: exit status $got, not 3"
has "$err" 'rank 0: ' "CUDA says 'out of memory'" 'in phase ' 'module ' 'predicted were'
finish
