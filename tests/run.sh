#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test: first the engine's under the
# address, undefined-behaviour and thread sanitizers, then the whole suite, whose closing lines are
# the last output.
#
# Usage: tests/run.sh [--no-sanitizers]
# Environment: TSR_WERROR=ON makes warnings errors; TSR_JOBS limits parallel jobs.
set -euo pipefail
# shellcheck source=experiments/setup.sh
. "$(dirname "$0")/../experiments/setup.sh"

sanitizers='asan tsan'
for option in "$@"; do
    case $option in
    --no-sanitizers) sanitizers= ;;
    *)
        echo "run.sh: unknown option $option; allowed: --no-sanitizers" >&2
        exit 2
        ;;
    esac
done
werror=-DTESSERA_WERROR=${TSR_WERROR:-OFF}

run_ctest() { # BUILD-FOLDER [option...]
    local folder=$1
    shift
    (cd "$TSR_TOP" && ctest --test-dir "$folder" -j "$TSR_JOBS" --no-tests=error \
        --output-on-failure "$@" </dev/null)
}

tsr_setup
tsr_say "building into build/"
tsr_configure release "$werror"
tsr_build build

for kind in $sanitizers; do
    tsr_say "building and testing the engine with $kind into build-$kind/"
    tsr_configure "$kind" "$werror" >/dev/null
    tsr_build "build-$kind" core_tests
    run_ctest "build-$kind" --quiet -L '^(unit|engine|conformance)$' --output-log \
        "$TSR_TOP/build-$kind/tests.log" || {
        tail -n 60 "$TSR_TOP/build-$kind/tests.log"
        tsr_say "$kind: FAILED"
        exit 1
    }
    tsr_say "$kind: tested, $(grep 'tests passed' "$TSR_TOP/build-$kind/tests.log")"
done

tsr_say "running the whole suite"
run_ctest build
