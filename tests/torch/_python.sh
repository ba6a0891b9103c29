# Which Python has PyTorch for the tests: TESSERA_TORCH names it, else the one that environment.sh makes.
# shellcheck shell=bash
torch_cache=${TSR_SOURCE_DIR:?}/.cache/torch

torch_skip() {
    echo "skipped: $*"
    exit 77
}

# Sets `python`; fails where it has no CUDA build of torch, transformers, or what builds packages.
torch_python() {
    python=${TESSERA_TORCH:-install}
    [ "$python" != install ] || python=$torch_cache/bin/python
    "$python" -c 'import torch, transformers, setuptools, wheel, yaml
assert torch.__version__ >= "2.11" and torch.version.cuda' 2>/dev/null
}
