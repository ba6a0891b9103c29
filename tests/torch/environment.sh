#!/usr/bin/env bash
# PyTorch for the tests that need it, where TESSERA_TORCH=install asks for it: an environment in .cache/torch, made once
# (5 GB: the CUDA build, without a GPU; nobody is to load that unasked). Exit status 77: there is none.
set -euo pipefail
cd "$(dirname "$0")"
. ./_python.sh
versions="torch==2.11.0 transformers==5.23.0 accelerate==1.15.0 peft==0.21.2 numpy pyyaml setuptools<82 wheel"

if torch_python; then
    echo "$python has what the tests need"
    exit 0
fi
[ "${TESSERA_TORCH:-}" = install ] ||
    torch_skip "no PyTorch: TESSERA_TORCH=install makes .cache/torch (5 GB), TESSERA_TORCH=PYTHON takes one that has it"
[ "$(uname -sm)" = "Linux x86_64" ] || torch_skip "the stand-in is for Linux on x86-64"
python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    torch_skip "no Python 3.10 with venv"
mkdir -p "$torch_cache"
[ "$(df --output=avail -k "$torch_cache" | tail -n 1)" -gt 10000000 ] || torch_skip "less than 10 GB of disk left"
python3 -m venv "$torch_cache"
# shellcheck disable=SC2086
timeout 700 "$torch_cache/bin/python" -m pip install -q --no-cache-dir --retries 1 $versions >"$torch_cache/log" 2>&1 ||
    torch_skip "packages cannot be installed: $(tail -n 1 "$torch_cache/log")"
torch_python # what PyPI gave must do
