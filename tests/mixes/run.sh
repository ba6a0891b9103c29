#!/bin/sh
# Random mixes (README.md), many: tests/mixes/run.sh [MIXES] [SEED]
# 2,000 by default, from a seed that is printed, 100 in each process: about six minutes of one core. Status 1: one
# was wrong, or its process ended; its seed is printed. BUILD: the build folder (build).
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-$top/build}
left=${1:-2000} seed=${2:-$(date +%s)} bad=0
ninja -C "$build" mixes_test_mixes >/dev/null
while [ "$left" -gt 0 ]; do
    n=$((left < 100 ? left : 100))
    "$build/tests/mixes_test_mixes" "$n" "$seed" || {
        bad=1
        echo "seeds $seed to $((seed + n - 1)): status $?" >&2
    }
    left=$((left - n)) seed=$((seed + n))
done
exit $bad
