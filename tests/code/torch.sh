#!/bin/sh
# What --emit torch writes, run by PyTorch (against_torch.py). Exit 77: no Python here has torch 2.9 or newer and transformers;
# TESSERA_TORCH names one, else .cache/torch (python3 -m venv .cache/torch; .cache/torch/bin/pip install torch transformers).
[ "$TESSERA_TORCH" != install ] || TESSERA_TORCH= # tests/torch/environment.sh has made it
for python in "$TESSERA_TORCH" "$TSR_SOURCE_DIR/.cache/torch/bin/python" python3; do
    if [ -n "$python" ] && "$python" -c 'import torch, transformers, yaml; assert torch.__version__ >= "2.9"' 2>/dev/null; then
        exec "$python" "$TSR_SOURCE_DIR/tests/code/against_torch.py"
    fi
done
echo "skipped: no Python with torch >= 2.9 and transformers (TESSERA_TORCH, .cache/torch)"
exit 77
