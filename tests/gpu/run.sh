#!/usr/bin/env bash
# Tests and measurements on a GPU, a part at a time, each under 8 minutes. See README.md.
#
# Usage: tests/gpu/run.sh smoke|correct|sanitize|calibrate|pairing [OUT] [option...]
#        tests/gpu/run.sh bench MODEL [OUT] [option...]      MODEL: llama-3-8b-l8, llama-3.2-1b, gpt2-124m, gpt2-1558m
# OUT: folder of the results; $OUT, else ./out/gpu. Options: see parts.py --help.
# Environment: TESSERA_GPU_DIR: folder of programs (build-gpu, as tests/gpu/pack.sh leaves it; without it they are built
# here); TESSERA_PROGRAM: tessera-cuda of another place; PYTHON: a Python with PyTorch (python3).
set -euo pipefail
started=$(date +%s)
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}

usage() {
    echo "run.sh: $1; allowed: smoke, correct, sanitize, calibrate, pairing, bench MODEL" >&2
    exit 2
}

part=${1:-}
case $part in
smoke | correct | sanitize | calibrate | pairing) words=("$part") ;;
bench)
    [ $# -ge 2 ] || usage "bench: found no MODEL"
    words=("$part" "$2")
    shift
    ;;
*) usage "found part '$part'" ;;
esac
shift
out=${OUT:-$top/out/gpu}
case ${1:-} in
'' | -*) ;;
*)
    out=$1
    shift
    ;;
esac
command -v "$python" >/dev/null || {
    echo "run.sh: found no $python; allowed: a Python 3.11 or later (PYTHON names it)" >&2
    exit 1
}

# Programs: packed, or built here where everything is there. What this says is kept: OUT is all that comes back.
mkdir -p "$out"
programs=${TESSERA_GPU_DIR:-$top/build-gpu}
prepare() {
    if [ ! -x "$programs/tessera-cuda" ] && [ ! -e "$programs/pack.tar.xz" ]; then
        "$here/pack.sh" --arch native "$programs" || return 1
    fi
    if [ "$programs/pack.tar.xz" -nt "$programs/unpacked/done" ]; then
        "$python" -W ignore -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
            "$programs/pack.tar.xz" "$programs/unpacked" || return 1
        touch "$programs/unpacked/done"
    fi
}
if [ -z "${TESSERA_PROGRAM:-}" ]; then
    if ! prepare 2>&1 | tee "$out/prepare.log" >&2; then
        echo "run.sh: $programs: no programs; tests/gpu/pack.sh makes them where our libraries are" >&2
        exit 1
    fi
    [ -s "$out/prepare.log" ] || rm -f "$out/prepare.log"
    [ ! -d "$programs/unpacked" ] || programs=$programs/unpacked
fi
tests=$programs
[ -z "${TESSERA_TESTS:-}" ] || tests=$TESSERA_TESTS
program=${TESSERA_PROGRAM:-$programs/tessera-cuda}
[ -x "$program" ] || {
    echo "run.sh: $program: no program there; tests/gpu/pack.sh makes it" | tee -a "$out/prepare.log" >&2
    exit 1
}

# shellcheck source=tests/gpu/env.sh
. "$here/env.sh"
tsr_find_cuda "$program"
missing=$(tsr_lacks "$program" | tr '\n' ' ')
if [ -n "$missing" ]; then
    echo "run.sh: $program: not found: $missing" | tee -a "$out/prepare.log" >&2
    exit 1
fi
echo "programs: $tests"
exec "$python" "$here/parts.py" "${words[@]}" "$out" --program "$program" --tests "$tests" --started "$started" "$@"
