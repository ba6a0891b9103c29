# What wheel.sh and wheel_bare.sh share: a Python that builds wheels, and how a wheel is used.
# shellcheck shell=bash
here=$TSR_SOURCE_DIR/tests/install

wheel_skip() {
    echo "skipped: $*"
    exit 77
}

# Sets `python` to the first of TESSERA_TORCH, .cache/torch and python3 that builds wheels and makes environments.
wheel_python() {
    for python in "${TESSERA_TORCH:-}" "$TSR_SOURCE_DIR/.cache/torch/bin/python" python3; do
        if "$python" -c 'import setuptools, pip, wheel, venv, ensurepip, sys
sys.exit(sys.version_info < (3, 10) or int(setuptools.__version__.split(".")[0]) < 61)' 2>/dev/null; then
            return 0
        fi
    done
    wheel_skip "no Python of 3.10 or later with pip, setuptools of 61 or later, wheel and venv"
}

# wheel_uses FOLDER: puts there what wheel_user.py reads.
wheel_uses() {
    cp "$here/wheel_user.py" "$TSR_SOURCE_DIR/tests/golden-bridge/front-4ranks-reshard2.trace" "$1/"
    printf 'model: llama-3.2-1b\ncluster: dgx-h100-1\nseq: 128\n' >"$1/mine.yaml"
    printf 'def make():\n    return None\n' >"$1/train.py"
}
