#!/usr/bin/env bash
# Every strategy of the flagship as written code, run by the real FSDP2 with two of the model's 32 layers: the bytes
# that are predicted. Not in ctest: ten seconds each. PYTHON has the package; TESSERA names the program.
set -euo pipefail
: "${PYTHON:=python3}" "${TESSERA:?names the program}"
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for name in dgx-h100-8 h100-128; do
    sed 's/names: hf}/names: hf, layers: 2}/' "$here/../../experiments/flagship/$name.yaml" >"$work/$name.yaml"
    "$TESSERA" compare "$work/$name.yaml" --no-traces --emit torch "$work/$name" >/dev/null
    for file in "$work/$name"/*.py; do
        if grep -q DistributedDataParallel "$file"; then
            echo "$(basename "$file"): DDP reduces in a real process group alone: left out"
            continue
        fi
        "$PYTHON" -m tessera check "$file" "$here/llama.py:llama_8b_2_layers" --experiment "$work/$name.yaml" || failed=1
    done
done
exit $failed
