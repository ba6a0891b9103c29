#!/usr/bin/env bash
# An installed tessera serves a program of somebody else, found by CMake and by pkg-config.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
example=$TSR_SOURCE_DIR/tests/install/example.c

cmake --install "$TSR_BUILD_DIR" --prefix "$work/prefix" >"$work/log"

# The prefix of the test is not that of the configuration: pkg-config is told.
export PKG_CONFIG_PATH=
pc=$(find "$work/prefix" -name tessera.pc)
libdir=$(dirname "$(dirname "$pc")")
read -ra flags <<<"$(pkg-config --define-variable=prefix="$work/prefix" \
    --define-variable=libdir="$libdir" --define-variable=includedir="$work/prefix/include/tessera" \
    --cflags --libs "$pc")"
cc -std=c11 -Wall -Werror "$example" "${flags[@]}" -o "$work/by-pkg-config"
"$work/by-pkg-config"

mkdir "$work/project"
cp "$example" "$work/project/example.c"
cat >"$work/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(tessera 0.1 REQUIRED)
add_executable(example example.c)
target_link_libraries(example PRIVATE tessera::tsr_engine)
END
cmake -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$work/prefix" >>"$work/log"
cmake --build "$work/project/build" >>"$work/log"
"$work/project/build/example"

# The program finds its own data: models and clusters are installed beside it.
[ -d "$work/prefix/share/tessera/models" ]
[ -d "$work/prefix/share/tessera/clusters" ]
if [ -n "${TESSERA:-}" ]; then
    "$work/prefix/bin/tessera" --version
fi
echo "installed, found by pkg-config and by CMake"
