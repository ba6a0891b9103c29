#!/bin/sh
# Plants defects at random in programs of random strategies and says who finds them
# (check_test_planted, whose short form is in the suite): study/planted.sh [MUTANTS] [SEED]
# 10,000 mutants by default, from a seed that is printed: about two minutes of one core. Status 1: one is
# neither found nor explained. BUILD: the build folder (build).
set -eu
top=$(cd "$(dirname "$0")/../../.." && pwd)
build=${BUILD:-$top/build}
seed=${2:-$(date +%s)}
ninja -C "$build" check_test_planted >/dev/null
echo "seed $seed"
exec "$build/tests/check_test_planted" "${1:-10000}" "$seed"
