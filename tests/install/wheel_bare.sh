#!/usr/bin/env bash
# The wheel of experiments/portable.sh where nothing else is: in a tree of a Python, its standard library and the libraries that
# these load, pip makes an environment and installs it; no compiler, no SimGrid, no gnuplot, not even a shell. The symbols of glibc
# that it needs are no newer than its name says.
# With TSR_MAKE_WHEEL a wheel that is not there is made first, which takes two cores six minutes, and the network.
# Environment: TSR_PORTABLE, the folder where it lies; TSR_TREE, another tree with a Python of 3.10 or later in it, which is changed.
# Exit status 77: there is no wheel of these sources, or no tree may be entered.
set -euo pipefail
. "$(dirname "$0")/_wheel.sh"
wheel_python
script=$TSR_SOURCE_DIR/experiments/portable.sh
out=${TSR_PORTABLE:-$TSR_SOURCE_DIR/build-portable}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Sets `wheel`; fails if there is none, or it was made of other sources.
find_wheel() {
    wheel=$(echo "$out"/tessera-*.whl)
    [ -f "$wheel" ] && "$python" - "$wheel" "$("$script" --digest)" <<'END'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as z:
    sys.exit(z.read("tessera/native/share/doc/tessera/SOURCES").decode().strip() != sys.argv[2])
END
}

tree=${TSR_TREE:-$work/tree}
enter=(env -i PATH=/venv/bin HOME=/user "$(command -v unshare || echo unshare)" -rmpf --mount-proc "--root=$tree" -w /user)
mkdir -p "$tree/proc" "$tree/user" "$tree/tmp"

# Copies a Python, its library and what they load, by the paths that they have.
grow() {
    local prefix
    prefix=$("$python" -c 'import sys, os; print(os.path.realpath(sys.executable)); print(os.path.dirname(os.__file__))')
    local program=${prefix%%$'\n'*} library=${prefix##*$'\n'}
    { printf '%s\n' "$program" && find "$library" -type f -not -path '*/site-packages/*' -not -path '*/dist-packages/*' \
        -not -path '*/test/*' -not -path '*/config-*' -not -name '*.pyc' -not -name '*.a'; } >"$work/files"
    { grep -E '\.so$' "$work/files" || true; printf '%s\n' "$program"; } | xargs ldd 2>/dev/null |
        sed -nE 's/.*=> (\/[^ ]+) .*/\1/p; s/^\t(\/[^ ]+) .*/\1/p' | sort -u >"$work/libraries"
    while read -r file; do
        [ -e "$tree$file" ] || install -D "$file" "$tree$file"
    done < <(cat "$work/files" "$work/libraries")
    mkdir -p "$tree/dev"
    : >"$tree/dev/null"
    bare=$program
}

if [ -n "${TSR_TREE:-}" ]; then
    bare=/usr/bin/python3
else
    grow
fi
"${enter[@]}" "$bare" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || wheel_skip "no tree may be entered here (unshare), or its Python is too old"
find_wheel || {
    [ -n "${TSR_MAKE_WHEEL:-}" ] || wheel_skip "no wheel of these sources in $out; experiments/portable.sh --wheel makes it"
    PYTHON=$python "$script" --wheel --out "$out" >"$work/log" 2>&1 || wheel_skip "no wheel can be made: $(tail -n 1 "$work/log")"
    find_wheel
}

# The name says which glibc is needed.
said=${wheel##*manylinux_2_}
said=${said%%_*}
"$python" -m zipfile -e "$wheel" "$work/content"
for file in tessera/_standin.so tessera/native/bin/tessera; do
    newest=$(objdump -p "$work/content/$file" | sed -nE 's/.* GLIBC_2\.([0-9]+).*/\1/p' | sort -n | tail -n 1)
    [ "${newest:-0}" -le "$said" ] || {
        echo "$file needs glibc 2.$newest, the wheel is called ${wheel##*/}"
        exit 1
    }
done
[ "$(stat -c %s "$wheel")" -lt 20000000 ]

wheel_uses "$tree/user"
pip=$("$python" -c 'import ensurepip, glob, os, sys
print(*glob.glob(os.path.join(os.path.dirname(ensurepip.__file__), "_bundled", "pip-*.whl")), *glob.glob("/usr/share/python-wheels/pip-*.whl"))')
pip=${pip%% *}
[ -f "$pip" ] || wheel_skip "the Python has no pip of its own"
cp "$pip" "$wheel" "$tree/tmp/"
"${enter[@]}" "$bare" -m venv --without-pip /venv
"${enter[@]}" /venv/bin/python "/tmp/${pip##*/}/pip" --disable-pip-version-check install -q --no-index "/tmp/${wheel##*/}"
version=$(sed -n 's/^project(tessera VERSION \([0-9.]*\).*/\1/p' "$TSR_SOURCE_DIR/CMakeLists.txt")
"${enter[@]}" /venv/bin/python wheel_user.py "tessera $version" | tail -n 1

# Without gnuplot one line says that there are no pictures, and all else is there.
"${enter[@]}" /venv/bin/tessera compare mine.yaml --no-traces --out pictures >"$work/said" 2>&1
[ "$(grep -c gnuplot "$work/said")" = 1 ] && [ -s "$tree/user/pictures/report.html" ] || {
    cat "$work/said"
    exit 1
}
echo "${wheel##*/} serves where nothing else is, with glibc 2.$said or later"
