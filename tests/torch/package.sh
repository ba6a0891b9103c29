#!/usr/bin/env bash
# The Python package of experiments/torch, built and installed from a copy. Exit status 77: no PyTorch (environment.sh).
# Usage: package.sh [MODULE...]: tests of this folder (default: all but test_check, which check.sh runs beside them).
set -euo pipefail
. "$(dirname "$0")/_python.sh"
torch_python || torch_skip "$python has no torch 2.11 with CUDA, transformers, yaml, setuptools, wheel"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$TSR_SOURCE_DIR/experiments/torch" "$work/source"
rm -rf "$work/source/build" "$work"/source/tessera/*.so
"$python" -m pip install -q --no-deps --no-build-isolation --no-index --target "$work/site" "$work/source" \
    >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
"$TSR_SOURCE_DIR/tests/install/run_paths.sh" "$work/site"
cd "$TSR_SOURCE_DIR/tests/torch"
export PYTHONPATH=$work/site PYTHONDONTWRITEBYTECODE=1
[ $# -gt 0 ] || set -- test_configs test_examples test_families test_launchers test_measured test_operators test_pitfalls test_printed test_times test_trace
"$python" -m unittest -q "$@"
echo "the package traces, and refuses what FSDP2 refuses"
