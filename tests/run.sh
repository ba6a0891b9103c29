#!/usr/bin/env bash
# Installs what is missing, builds everything in build/, which experiments/quickstart.sh also uses, and runs the whole test
# suite. ctest's closing lines are the last output.
#
# Usage: tests/run.sh [--thorough]
#   --thorough: the tests run in their long forms (TSR_THOROUGH), after the tests under the address and
#   undefined-behaviour sanitizers, those of engine and execution under the thread sanitizer, and 5 s of fuzzing of each parser
# Environment: TSR_WERROR=ON makes warnings errors; TSR_JOBS limits parallel jobs.
set -euo pipefail
# shellcheck source=experiments/setup.sh
. "$(dirname "$0")/../experiments/setup.sh"

thorough=false
for option in "$@"; do
    case $option in
    --thorough) thorough=true ;;
    *)
        echo "run.sh: unknown option $option; allowed: --thorough" >&2
        exit 2
        ;;
    esac
done
unset TSR_THOROUGH # sanitizers run the short forms
werror=-DTESSERA_WERROR=${TSR_WERROR:-OFF}

# Tests make and remove some ten thousand small files: in memory, where there is room and programs may run, they take less time.
# Sets TMPDIR to a folder there, which goes when this script ends.
use_memory() {
    local kib
    kib=$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1) || return 0
    [[ -z ${TMPDIR:-} && $kib =~ ^\ *[0-9]+$ && $kib -gt $((4 << 20)) ]] || return 0
    TMPDIR=$(mktemp -d /dev/shm/tsr-XXXX 2>/dev/null) || return 0
    trap 'rm -rf "$TMPDIR"' EXIT
    printf '#!/bin/sh\n' >"$TMPDIR/program"
    chmod 755 "$TMPDIR" "$TMPDIR/program" # tests that give up privileges read there, too
    if "$TMPDIR/program" 2>/dev/null; then
        export TMPDIR
    else
        rm -rf "$TMPDIR"
        unset TMPDIR
        trap - EXIT
    fi
}

run_ctest() { # BUILD-FOLDER [option...]
    local folder=$1
    shift
    # two more than cores: streams that sleep now and then, processes that wait for each other
    # Tests send signals, which nohup and shells without job control have their children ignore.
    local defaults=(env --default-signal=HUP,INT,TERM)
    "${defaults[@]}" true 2>/dev/null || defaults=()
    (cd "$TSR_TOP" && ${defaults[@]+"${defaults[@]}"} ctest --test-dir "$folder" -j $((TSR_JOBS + 2)) --no-tests=error \
        --output-on-failure "$@" </dev/null)
}

use_memory
tsr_setup
tsr_say "building into build/"
tsr_configure release "$werror"
tsr_build build

# sanitize KIND TARGET [ctest option...]: build TARGET and run tests under a sanitizer.
sanitize() {
    local kind=$1 target=$2 log=$TSR_TOP/build-$1/tests.log
    shift 2
    local groups=$*
    groups=${groups//[!(]/}
    if [ "${#groups}" -gt 9 ]; then
        tsr_say "$kind: FAILED, the expression has ${#groups} groups; ctest takes nine and ignores one with more"
        exit 1
    fi
    tsr_say "building and testing with $kind into build-$kind/"
    tsr_configure "$kind" "$werror" >/dev/null
    tsr_build "build-$kind" "$target"
    run_ctest "build-$kind" --quiet --output-log "$log" "$@" || {
        # what the failed tests printed, then the list
        awk '/Test +#[0-9]+:/ { failed = /\*\*\*/ } failed' "$log" | tail -n 200
        tail -n 12 "$log"
        tsr_say "$kind: FAILED, see $log"
        exit 1
    }
    tsr_say "$kind: tested, $(grep 'tests passed' "$log")"
}

if $thorough; then
    tsr_cuobjdump
    # Left out: what starts, emits or simulates the same hundreds of times over, long trainings, what
    # compares times, and PyTorch. (ctest takes nine groups in an expression, and without a word no tenth.)
    sanitize asan all -E \
        '^(attack\..*|docs\..*|torch\..*|unchanged\..*|code\.(shipped|torch)|cli\.(calibrate_alone|calibrate_host|clusters|dialects|keys|limits|memory|own_trees|stacks|wide)|conformance\.golden_host|exec\.(exact_(hashes|memory|operands)|replay)|report\.page|report\.plots|report\.names|studies\.(diff|explain|findings|fits|questions|plan|plan_spaces|rows|published_peaks|rankings|collectives_published|keys_read|overlap|parts|phases|validate|validated)|check\.mutation|check\.scenarios|physics\.(published|baselines|overlap|bounds)|conformance\.closed_forms|train\.curves_.*|jobs\.(bigram|kill|fused|exported)|exec\.exact_save|cuda\.(gpu_.*|kernel_table|runbook|golden|exact_.*|calibrate|async_save|processes))$'
    # Left out: what has one thread, long trainings, jobs that end by signals or by faults of files.
    sanitize tsan threaded_tests -L '^(exec|world|files|train|jobs|cuda|race)$' \
        -E '^(train\.curves_.*|jobs\.(kill|fused|bigram|exported|faults_.*|attack_files)|exec\.exact_save|cuda\.(gpus|gpu_.*|kernel_table|runbook|golden|exact_.*|kernels_.*|blas.*|failures|calibrate|processes.*|async_save))$'
    tsr_say "fuzzing every parser for 5 s into build-fuzz/"
    fuzzed=0
    TSR_JOBS=$((TSR_JOBS + 1)) "$TSR_TOP/tests/fuzz/run.sh" --each 5 || fuzzed=$?
    if [ "$fuzzed" -eq 77 ]; then
        tsr_say "fuzzing: left out, no clang with libFuzzer (package clang)"
    elif [ "$fuzzed" -ne 0 ]; then
        tsr_say "fuzzing: FAILED, see build-fuzz/logs/ and build-fuzz/broken/"
        exit 1
    fi
fi

if $thorough; then
    export TSR_THOROUGH=1
    tsr_say "running the whole suite in its long forms"
else
    tsr_say "running the whole suite"
fi
run_ctest build
