#!/usr/bin/env bash
# Tests and measurements on a GPU, a part at a time, each under 8 minutes. See README.md.
#
# Usage: tests/gpu/run.sh smoke|correct|sanitize|calibrate [OUT] [option...]
#        tests/gpu/run.sh bench MODEL [OUT] [option...]      MODEL: llama-3-8b-l8, llama-3.2-1b, gpt2-124m, gpt2-1558m
# OUT: folder of the results; $OUT, else ./out/gpu. Options: see parts.py --help.
# Environment: TESSERA_GPU_DIR: folder of programs (build-gpu, as tests/gpu/pack.sh leaves it; without it they are built
# here); TESSERA_PROGRAM: tessera-cuda of another place; PYTHON: a Python with PyTorch (python3).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}

usage() {
    echo "run.sh: $1; allowed: smoke, correct, sanitize, calibrate, bench MODEL" >&2
    exit 2
}

part=${1:-}
case $part in
smoke | correct | sanitize | calibrate) words=("$part") ;;
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

# Programs: packed, or built here where everything is there.
programs=${TESSERA_GPU_DIR:-$top/build-gpu}
if [ -z "${TESSERA_PROGRAM:-}" ]; then
    if [ ! -x "$programs/tessera-cuda" ] && [ ! -e "$programs/pack.tar.xz" ]; then
        "$here/pack.sh" --arch native "$programs" >&2
    fi
    if [ "$programs/pack.tar.xz" -nt "$programs/unpacked/done" ]; then
        "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
            "$programs/pack.tar.xz" "$programs/unpacked" 2>/dev/null
        touch "$programs/unpacked/done"
    fi
    [ ! -d "$programs/unpacked" ] || programs=$programs/unpacked
fi
tests=$programs
[ -z "${TESSERA_TESTS:-}" ] || tests=$TESSERA_TESTS
program=${TESSERA_PROGRAM:-$programs/tessera-cuda}

# CUDA's libraries, where the loader does not find them: beside nvcc, and in the packages of PyTorch.
lacks() {
    ldd "$program" 2>/dev/null | awk '/not found/ { print $1 }'
}
if [ -n "$(lacks)" ]; then
    nvcc=$(command -v nvcc || true)
    places=$("$python" -c 'import glob, sys
for p in sys.path: print("\n".join(glob.glob(p + "/nvidia/*/lib")))' 2>/dev/null | grep . || true)
    for folder in ${nvcc:+"$(dirname "$(dirname "$(readlink -f "$nvcc")")")/lib64"} $places; do
        [ -d "$folder" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
    export LD_LIBRARY_PATH
    missing=$(lacks | tr '\n' ' ')
    if [ -n "$missing" ]; then
        echo "run.sh: $program: not found: $missing" >&2
        exit 1
    fi
fi
exec "$python" "$here/parts.py" "${words[@]}" "$out" --program "$program" --tests "$tests" "$@"
