#!/usr/bin/env bash
# Studies of an installed tessera, in a program of somebody else: found by CMake and by pkg-config. It opens
# an experiment from a string, and a mistake in it has a line.
set -euo pipefail
[ -n "${TESSERA:-}" ] || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
example=$TSR_SOURCE_DIR/tests/install/study.c

cmake --install "$TSR_BUILD_DIR" --prefix "$work/prefix" >"$work/log"

PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name tessera-study.pc)")
export PKG_CONFIG_PATH
read -ra flags <<<"$(pkg-config --cflags --libs tessera-study)"
cc -std=c11 -Wall -Werror "$example" "${flags[@]}" -o "$work/by-pkg-config"
"$work/by-pkg-config" "$TSR_SOURCE_DIR/experiments/h200"

mkdir "$work/project"
cp "$example" "$work/project/study.c"
cat >"$work/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(tessera 0.1 REQUIRED)
add_executable(study study.c)
target_link_libraries(study PRIVATE tessera::tsr_study)
END
cmake -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$work/prefix" >>"$work/log"
cmake --build "$work/project/build" >>"$work/log"
"$work/project/build/study" "$TSR_SOURCE_DIR/experiments/h200"
echo "studies, found by pkg-config and by CMake"
