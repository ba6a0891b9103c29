#!/usr/bin/env bash
# The Python package as a wheel that carries the program: with the build's program in it, installed by pip into a fresh
# environment, it gives `tessera` and `import tessera`. A wheel without the program has no such command. Exit status 77: no
# Python builds wheels here.
set -euo pipefail
[ -n "${TESSERA:-}" ] && [[ $("$TESSERA" help) == *"  compare "* ]] || exit 77
. "$(dirname "$0")/_wheel.sh"
wheel_python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# build NATIVE OUT: a wheel of a copy of the package.
build() {
    rm -rf "$work/source"
    cp -r "$TSR_SOURCE_DIR/experiments/torch" "$work/source"
    rm -rf "$work/source/build" "$work"/source/*.egg-info
    TESSERA_NATIVE=$1 "$python" -m pip wheel -q --no-deps --no-build-isolation --no-index -w "$2" "$work/source" >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
    wheel=$(echo "$2"/tessera-*.whl)
}

# files: what lies in the wheel.
files() {
    "$python" -m zipfile -l "$wheel"
}

build "" "$work/plain"
[[ $wheel == *-py3-none-manylinux_2_17_x86_64.whl && $(files) == *tessera/_standin.so* && $(files) != *native* && $(files) != *entry_points* ]] || {
    echo "without the program: $wheel: $(files)"
    exit 1
}

cmake --install "$TSR_BUILD_DIR" --prefix "$work/prefix" >"$work/log"
build "$work/prefix" "$work/whole"
[[ $wheel == *-py3-none-linux_x86_64.whl ]] || { # the build's program needs shared libraries of this machine
    echo "$wheel says that it runs on other machines"
    exit 1
}
needed=$("$python" -m pip --disable-pip-version-check install --dry-run --no-index --ignore-installed "$wheel" 2>&1) || {
    echo "it needs other packages: $needed"
    exit 1
}

mkdir "$work/user"
wheel_uses "$work/user"
cd "$work/user"
unset PYTHONPATH
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check install -q --no-index "$wheel"
version=$("$TESSERA" --version)
env -u TESSERA "$work/venv/bin/python" wheel_user.py "$version"
