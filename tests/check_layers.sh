#!/usr/bin/env bash
# The layer rule of the tree: an arrow never points up.
#
#   engine/       its own headers and libc (no threads, no files of the system)
#   sim/          engine, SimGrid, jansson, expat, POSIX
#   exec/         engine; never sim
#   experiments/  engine, sim, exec, libfyaml, jansson
#
# Usage: check_layers.sh [libtsr_engine.a]. With the library, the symbols that it takes from outside
# are checked against a whitelist, too. One line per violation; exit status 1 if there is any.
set -euo pipefail
cd "$(dirname "$0")/.."
violations=0

complain() {
    printf '%s\n' "$1"
    violations=$((violations + 1))
}

c11='assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign
stdarg stdbool stddef stdint stdio stdlib stdnoreturn string tgmath time uchar wchar wctype'

# allowed_system LAYER HEADER: may this layer include <HEADER>?
allowed_system() {
    local layer=$1 header=$2 name
    for name in $c11; do
        [ "$header" = "$name.h" ] && return 0
    done
    case $layer:$header in
    engine:*) return 1 ;;
    sim:simgrid/* | sim:xbt/* | sim:jansson.h | sim:expat.h) return 0 ;;
    exec:simgrid/* | exec:xbt/* | experiments:simgrid/* | experiments:xbt/*) return 1 ;;
    *:libfyaml.h) [ "$layer" = experiments ] ;;
    sim:cuda* | sim:nccl* | sim:mpi.h) return 1 ;;
    *) return 0 ;; # POSIX, and what the layer links by CMake
    esac
}

# allowed_own LAYER TARGET-LAYER
allowed_own() {
    case $1:$2 in
    engine:engine | sim:sim | sim:engine | exec:exec | exec:engine) return 0 ;;
    experiments:engine | experiments:sim | experiments:exec | experiments:experiments) return 0 ;;
    *) return 1 ;;
    esac
}

scan_file() {
    local layer=$1 file=$2 line kind name path target
    while read -r line; do
        kind=${line%% *}
        name=${line#* }
        if [ "$kind" = '<' ]; then
            allowed_system "$layer" "$name" || complain "$file: $layer/ may not include <$name>"
            continue
        fi
        path=$(dirname "$file")/$name
        [ -e "$path" ] || path=$name        # from the top of the tree
        [ -e "$path" ] || path=engine/$name # as the example includes it
        path=$(realpath -m --relative-to=. "$path")
        target=${path%%/*}
        allowed_own "$layer" "$target" || complain "$file: $layer/ may not include \"$name\""
    done < <(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*([<"])([^>"]+)[>"].*/\1 \2/p' "$file")
}

for layer in engine sim exec experiments; do
    while IFS= read -r file; do
        scan_file "$layer" "$file"
    done < <(find "$layer" \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) 2>/dev/null | sort)
done

# What the engine takes from outside: memory, strings, formatting, mathematics.
symbols='abort bsearch calloc free malloc qsort realloc
memchr memcmp memcpy memmove memset strchr strcmp strcpy strcspn strlen strncmp strncpy strrchr
strspn strstr strtod strtol strtoll strtoul strtoull
fprintf fputs fwrite snprintf stderr vsnprintf
ceil exp exp2 fabs floor fmax fmin fmod frexp ldexp log log10 log2 lround llround pow round sqrt
trunc longjmp _setjmp __longjmp_chk __ctype_b_loc __errno_location
__stack_chk_fail __tls_get_addr _GLOBAL_OFFSET_TABLE_'

if [ $# -gt 0 ]; then
    listing=$(nm "$1" 2>/dev/null)
    defined=$(awk 'NF == 3 && $2 != "U" { print $3 }' <<<"$listing" | sort -u)
    undefined=$(awk '$1 == "U" { print $2 }' <<<"$listing" | sort -u)
    allowed=$(tr -s ' \n' '\n' <<<"$symbols" | sort -u)
    while IFS= read -r symbol; do
        case $symbol in
        # Checked variants of the same functions, and what sanitizers and coverage put in.
        '' | __*_chk | __asan_* | __ubsan_* | __tsan_* | __sanitizer_* | __gcov_*) ;;
        *) complain "$(basename "$1"): uses $symbol, which is not on the whitelist" ;;
        esac
    done < <(comm -23 <(comm -23 <(printf '%s\n' "$undefined") <(printf '%s\n' "$defined")) \
        <(printf '%s\n' "$allowed"))
fi

if [ "$violations" -gt 0 ]; then
    echo "layer rule: $violations violation(s)"
    exit 1
fi
echo "layer rule: holds"
