#!/usr/bin/env bash
# An installed tessera serves a program of somebody else, found by CMake and by pkg-config.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
example=$TSR_SOURCE_DIR/tests/install/example.c

prefix=${TSR_PREFIX:-$work/prefix} # another one: it was installed in another way (deb.sh)
[ -n "${TSR_PREFIX:-}" ] || cmake --install "$TSR_BUILD_DIR" --prefix "$prefix" >"$work/log"

# Every header stands alone, with what is installed beside it; in the short form a quarter of those of the package (deb.sh),
# which are those of install.sh.
every=1
[ -z "${TSR_PREFIX:-}" ] || [ -n "${TSR_THOROUGH:-}" ] || every=4
include=$prefix/include/tessera
n=0
while read -r header; do
    echo "#include \"$header\"" >"$work/alone.c"
    cc -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$include" "$work/alone.c"
    n=$((n + 1))
done < <(cd "$include" && find . -name '*.h' -printf '%P\n' | LC_ALL=C sort | awk -v n="$every" 'NR % n == 0')
[ $((n * every)) -ge 30 ]

export PKG_CONFIG_PATH=
read -ra flags <<<"$(pkg-config --cflags --libs "$(find "$prefix" -name tessera.pc)")"
cc -std=c11 -Wall -Werror "$example" "${flags[@]}" -o "$work/by-pkg-config"
"$work/by-pkg-config"

# The engine's API is C++, too, where there is a compiler for it.
if command -v c++ >/dev/null; then
    cat >"$work/api.cpp" <<'END'
extern "C" {
#include "engine/tessera.h"
}
int main()
{
    return tsr_dtype_bytes(TSR_BF16) == 2 ? 0 : 1;
}
END
    c++ -std=c++17 -Wall -Wextra -Werror "$work/api.cpp" "${flags[@]}" -o "$work/by-cxx"
    "$work/by-cxx"
fi

mkdir "$work/project"
cp "$example" "$work/project/example.c"
cat >"$work/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(tessera 0.1 REQUIRED)
add_executable(example example.c)
target_link_libraries(example PRIVATE tessera::tsr_engine)
END
cmake -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$prefix" >>"$work/log"
cmake --build "$work/project/build" >>"$work/log"
"$work/project/build/example"

# The program finds its own data: models, clusters and stacks are installed beside it.
for folder in models clusters stacks validation/rows; do
    diff -r "$TSR_SOURCE_DIR/experiments/$folder" "$prefix/share/tessera/$folder"
done
if [ -n "${TESSERA:-}" ]; then
    "$prefix/bin/tessera" --version
    for file in man/man1/tessera.1 bash-completion/completions/tessera zsh/site-functions/_tessera \
        fish/vendor_completions.d/tessera.fish; do
        [ -s "$prefix/share/$file" ]
    done
fi
echo "installed, found by pkg-config and by CMake; $n headers stand alone"
