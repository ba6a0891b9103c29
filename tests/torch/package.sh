#!/usr/bin/env bash
# The Python package of experiments/torch in an environment of its own, which TESSERA_TORCH=install makes once, in
# .cache/torch (5 GiB: PyTorch's CUDA build, without a GPU; nobody is to load that unasked). Exit status 77: there is none.
set -euo pipefail
versions="torch==2.11.0 transformers==5.23.0 numpy setuptools<82 wheel"
cache=$TSR_SOURCE_DIR/.cache/torch

skip() {
    echo "skipped: $*"
    exit 77
}

usable() { # PYTHON
    "$1" -c 'import torch, transformers, setuptools, wheel
assert torch.__version__ >= "2.11" and torch.version.cuda' 2>/dev/null
}

asked=${TESSERA_TORCH:-}
[ "$asked" = install ] && asked=
python=${asked:-$cache/bin/python}
if ! usable "$python"; then
    [ -z "$asked" ] || skip "$asked has no torch 2.11 with CUDA, transformers, setuptools, wheel"
    [ "$(uname -sm)" = "Linux x86_64" ] || skip "the stand-in is for Linux on x86-64"
    python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
        skip "no Python 3.10 with venv"
    [ "${TESSERA_TORCH:-}" = install ] ||
        skip "no PyTorch: TESSERA_TORCH=install makes .cache/torch (5 GB), TESSERA_TORCH=PYTHON takes one that has it"
    mkdir -p "$cache"
    [ "$(df --output=avail -k "$cache" | tail -n 1)" -gt 10000000 ] || skip "less than 10 GB of disk left"
    python3 -m venv "$cache"
    # shellcheck disable=SC2086
    timeout 700 "$python" -m pip install -q --retries 1 $versions >"$cache/log" 2>&1 ||
        skip "packages cannot be installed: $(tail -n 1 "$cache/log")"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$TSR_SOURCE_DIR/experiments/torch" "$work/source"
rm -rf "$work/source/build" "$work"/source/tessera/*.so
"$python" -m pip install -q --no-deps --no-build-isolation --no-index --target "$work/site" "$work/source" \
    >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
cd "$TSR_SOURCE_DIR/tests/torch"
export PYTHONPATH=$work/site PYTHONDONTWRITEBYTECODE=1
"$python" -m unittest -q test_check test_pitfalls test_trace
echo "the package traces, and refuses what FSDP2 refuses"
