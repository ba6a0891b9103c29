#!/usr/bin/env bash
# Where programs and shared objects look for libraries (RPATH, RUNPATH): absolute folders, and $ORIGIN. An empty or a relative
# part is the current folder, and a library that lies there would run. SimGrid, which takes ten times as long to load as
# all else, is loaded by what simulates only; one that does not suit is a line. Reads the build folder and an installation, or the
# FOLDERs that are given. Exit status 77: no readelf.
set -euo pipefail
command -v readelf >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ $# = 0 ]; then
    cmake --install "$TSR_BUILD_DIR" --prefix "$work/prefix" >"$work/log"
    set -- "$TSR_BUILD_DIR" "$work/prefix"
    # The same by a library that would be loaded: it is in the current folder, and leaves a mark.
    if [ -n "${TESSERA:-}" ]; then
        mkdir "$work/here"
        echo '#include <stdio.h>
        __attribute__((constructor)) static void mark(void) { fclose(fopen("mark", "w")); }' >"$work/planted.c"
        for library in $(readelf -d "$TESSERA" | sed -nE 's/.*\(NEEDED\).*\[(lib[^]]*)\]/\1/p'); do
            [ -e "$work/planted.so" ] || cc -shared -fPIC -o "$work/planted.so" "$work/planted.c"
            cp "$work/planted.so" "$work/here/$library"
        done
        for program in "$TESSERA" "$work/prefix/bin/tessera"; do
            if ! (cd "$work/here" && "$program" --version >"$work/log" 2>&1) || [ -e "$work/here/mark" ]; then
                echo "$program loads libraries from the current folder"
                exit 1
            fi
        done
        simgrid=$(grep -aoE 'libsimgrid[.]so[.0-9]+' "$TESSERA" | sed -n 1p || true) # none: it is static, or left out
        if [ -n "$simgrid" ]; then
            mkdir "$work/other"
            mv "$work/planted.so" "$work/other/$simgrid"
            status=0
            LD_LIBRARY_PATH=$work/other "$TESSERA" compare "$TSR_SOURCE_DIR/experiments/small/llama.yaml" >"$work/out" 2>"$work/log" || status=$?
            if [ $status != 1 ] || [ -s "$work/out" ] || [ "$(grep -c 'SimGrid cannot be loaded: its library has no simgrid_init$' "$work/log")" != "$(wc -l <"$work/log")" ]; then
                echo "status $status: $(cat "$work/log")"
                exit 1
            fi
            if LD_DEBUG=libs "$TESSERA" inspect "$TSR_SOURCE_DIR/experiments/small/llama.yaml" 2>&1 | grep simgrid >"$work/log"; then
                echo "$TESSERA loads SimGrid without a need"
                exit 1
            fi
        fi
    fi
fi

# "FILE: PATH" of each.
{ find "$@" -type f \( -perm -u+x -o -name '*.so*' \) -not -path '*/CMakeFiles/*' -exec readelf -d /dev/null {} + 2>/dev/null || true; } | # other files are no ELF
    sed -nE '/^File: /{s///; h;}; /\((RPATH|RUNPATH)\)/{s/.*\[(.*)\]$/\1/; H; x; s/\n/: /p; s/: .*//; x;}' >"$work/paths"
[ $# = 1 ] || [ -s "$work/paths" ] # tests of a build have one
bad=$(awk -F': ' '{
    n = split($2 ":x", part, ":")
    for (i = 1; i < n; i++)
        if (part[i] !~ /^(\/|[$]ORIGIN|[$]\{ORIGIN\})/) {
            print $1 ": looks for libraries in \"" $2 "\""
            break
        }
}' "$work/paths")
[ -z "$bad" ] || {
    echo "$bad"
    exit 1
}
echo "$(wc -l <"$work/paths") paths of libraries have no part that depends on the current folder"
