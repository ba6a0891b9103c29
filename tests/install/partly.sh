#!/usr/bin/env bash
# A build folder in which only the target `tessera` was built (experiments/quickstart.sh) is installed as it is. One that
# lacks a library is refused before the first file is installed.
set -euo pipefail
[ -n "${TESSERA:-}" ] || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A build folder of copies of what `cmake --build build --target tessera` makes, with installation scripts that read it.
build=$work/build
mkdir "$build"
for file in tessera libtsr_base.a libtsr_engine.a libtsr_sim.a libtsr_study.a libtsr_exec.a share tessera-config.cmake \
    tessera-config-version.cmake tessera.pc tessera-study.pc; do
    [ ! -e "$TSR_BUILD_DIR/$file" ] || cp -r "$TSR_BUILD_DIR/$file" "$build/"
done
mkdir "$build/CMakeFiles"
cp -r "$TSR_BUILD_DIR/CMakeFiles/Export" "$build/CMakeFiles/"
(cd "$TSR_BUILD_DIR" && find . -name cmake_install.cmake -not -path './_*') | while read -r script; do
    mkdir -p "$build/$(dirname "$script")"
    sed "s|\"$TSR_BUILD_DIR/|\"$build/|g" "$TSR_BUILD_DIR/$script" >"$build/$script"
done

install() {
    cmake -DCMAKE_INSTALL_PREFIX="$work/prefix" -P "$build/cmake_install.cmake" >"$work/log" 2>&1
}
install || {
    tail -n 5 "$work/log"
    exit 1
}
for file in bin/tessera share/man/man1/tessera.1 share/bash-completion/completions/tessera share/zsh/site-functions/_tessera \
    share/fish/vendor_completions.d/tessera.fish share/tessera/models include/tessera/engine/tessera.h; do
    [ -e "$work/prefix/$file" ] || {
        echo "FAILED: $file was not installed"
        exit 1
    }
done
[ ! -e "$work/prefix/bin/tessera-cuda" ]

rm -rf "$work/prefix" "$build/libtsr_sim.a"
if install; then
    echo "FAILED: an installation without a library ended with status 0"
    exit 1
fi
[[ $(tr -s ' \n' ' ' <"$work/log") == *"libtsr_sim.a is not built, nothing was installed; run: cmake --build "* ]] || {
    tail -n 5 "$work/log"
    exit 1
}
[ ! -e "$work/prefix" ] || {
    echo "FAILED: half an installation was left: $(find "$work/prefix" -type f | wc -l) files"
    exit 1
}
echo "what the quickstart builds is installed; what lacks a library is not begun"
