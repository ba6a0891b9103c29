#!/usr/bin/env bash
# The layer rule of the tree: an arrow never points up. layers.tsv has the folders of each library,
# bottom-up; this checks every include and, with a build, every symbol that one folder takes from another.
# No object keeps state between calls but what tests/state.tsv lists with a reason.
# And no file is forgotten: each source is in a list of CMake's, each test is a test.
#
# Usage: check_layers.sh [BUILD]. With BUILD, a folder that CMake built into: its objects are read, and
# the engine's symbols from outside are checked against a whitelist. One line per violation; exit
# status 1 if there is any.
set -euo pipefail
build=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Every include: "FILE KIND NAME", kind " or <. The C of the Python package is a library of its own,
# which its setup.py builds, and takes nothing from here.
find engine sim exec experiments -path experiments/torch -prune -o \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cpp' \) -print |
    LC_ALL=C sort >"$work/files"
xargs awk '/^[ \t]*#[ \t]*include[ \t]*["<]/ {
    match($0, /["<][^">]+/)
    print FILENAME, substr($0, RSTART, 1), substr($0, RSTART + 1, RLENGTH - 1)
}' <"$work/files" >"$work/includes"

# Every symbol that an object of ours defines or takes: "SOURCE KIND SYMBOL".
: >"$work/symbols"
if [ -n "$build" ]; then
    # The objects that the build has now, none of files that are gone, none of tests in a program.
    sed -nE 's/.* -o ((engine|sim|exec|experiments)\/[^ ]*\.o) .*/\1/p' "$build/compile_commands.json" | grep -v /__/tests/ |
        while IFS= read -r object; do [ ! -e "$build/$object" ] || echo "$build/$object"; done |
        LC_ALL=C sort | xargs nm -A 2>/dev/null |
        sed -nE "s#^$build/(exec/cuda|sim/base|[a-z]+)/CMakeFiles/[a-z_-]*\.dir/([^:]*)\.o: *[0-9a-f]* *([A-Za-z]) (.*)#\1/\2 \3 \4#p" \
            >"$work/symbols"
    [ -s "$work/symbols" ] || {
        echo "layer rule: no objects in $build"
        exit 1
    }
fi

# Headers that are installed: "FILE". What one of them includes is one of them.
sed -nE 's/^ *((engine|sim|exec|experiments)\/[^ ]*\.h)\)?$/\1/p' CMakeLists.txt >"$work/installed"

# Sources that no CMakeLists.txt names: "FILE".
lists=$(cat engine/CMakeLists.txt sim/base/CMakeLists.txt sim/CMakeLists.txt exec/CMakeLists.txt exec/cuda/CMakeLists.txt \
    experiments/CMakeLists.txt CMakeLists.txt tests/CMakeLists.txt | tr -s ' ()\n' '\n' | sed 's|.*/||' | sort -u)
{
    grep -E '\.(c|cu|cpp)$' "$work/files" | sed 's|.*/||'
    find tests -name 'test_*.c' -not -path 'tests/golden*' | sed 's|.*/test_||; s|\.c$||'
} | sort -u | comm -23 - <(printf '%s\n' "$lists") >"$work/forgotten"

# Writable data that stays between calls: "SOURCE SYMBOL" of everything in .data, .bss, their
# thread-local forms and common blocks; constant pointers lie in .data.rel.ro. Names of static locals end in
# a number that changes with the compiler.
: >"$work/state"
if [ -n "$build" ]; then
    sed -nE 's/.* -o ((engine|sim|exec|experiments)\/[^ ]*\.c\.o) .*/\1/p' "$build/compile_commands.json" | grep -v /__/tests/ |
        while IFS= read -r object; do [ ! -e "$build/$object" ] || echo "$build/$object"; done |
        LC_ALL=C sort | xargs objdump -t |
        sed -nE "s#^$build/(exec/cuda|sim/base|[a-z]+)/CMakeFiles/[a-z_-]*\.dir/([^:]*)\.o: .*#FILE \1/\2#p
            /\.data\.rel\.ro/d
            s#^[0-9a-f]+ .*[ \t](\.t?data|\.t?bss|\*COM\*)[.a-zA-Z_0-9]*[ \t]+[0-9a-f]+ (\.hidden )?([a-zA-Z_][^. ]*)(\..*)?\$#SYMBOL \3#p" |
        awk '$1 == "FILE" { file = $2; next }
            $2 !~ /^__|^_?l?asan|^_?gcov/ { print file, $2 }' >"$work/state"
fi

# What the engine takes from outside: memory, strings, formatting, mathematics.
cat >"$work/whitelist" <<'WORDS'
abort bsearch calloc free malloc qsort realloc
memchr memcmp memcpy memmove memset strchr strcmp strcpy strcspn strlen strncmp strncpy strrchr
strspn strstr strtod strtol strtoll strtoul strtoull
fprintf fputs fwrite snprintf stderr vsnprintf
ceil exp exp2 fabs floor fmax fmin fmod frexp ldexp log log10 log2 lround llround pow round sqrt
trunc longjmp _setjmp __longjmp_chk __ctype_b_loc __errno_location
__stack_chk_fail __tls_get_addr _GLOBAL_OFFSET_TABLE_
WORDS

awk -v work="$work" '
function complain(text) {
    if (!said[text]++) {
        print text
        bad++
    }
}
function folder_of(path) {
    sub(/\/[^\/]*$/, "", path)
    return path
}
# May `from` use what lies in `to`? Both are folders of the table.
function allowed(from, to,    a, b) {
    if (from == to)
        return 1
    a = library_of[from]
    b = library_of[to]
    return a == b ? rank[to] < rank[from] : index(" " uses[a] " ", " " b " ") > 0
}
# May a library include <NAME>?
function system_allowed(library, name,    n, i, words, pattern) {
    if (name in c11)
        return 1
    n = split(systems[library], words, " ")
    for (i = 1; i <= n; i++) {
        pattern = words[i]
        if (pattern == "posix") {
            if (!(name in fenced) && name !~ /^(simgrid|xbt|cuda|nccl|cudnn|cublas)/)
                return 1
            continue
        }
        gsub(/\./, "\\.", pattern)
        gsub(/\*/, ".*", pattern)
        if (name ~ "^" pattern "$")
            return 1
    }
    return 0
}
BEGIN {
    n = split("assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal" \
              " stdalign stdarg stdbool stddef stdint stdio stdlib stdnoreturn string tgmath time" \
              " uchar wchar wctype", names, " ")
    for (i = 1; i <= n; i++)
        c11[names[i] ".h"] = 1
    n = split("jansson.h expat.h libfyaml.h mpi.h", names, " ") # others need a word in the table
    for (i = 1; i <= n; i++)
        fenced[names[i]] = 1
    while ((getline line < "tests/layers.tsv") > 0) {
        split(line, f, "\t")
        if (f[1] == "library") {
            library = f[2]
            uses[f[2]] = f[3]
            systems[f[2]] = f[4]
        } else if (f[1] == "folder") {
            rank[f[2]] = ++folders
            library_of[f[2]] = library
        }
    }
    while ((getline line < (work "/files")) > 0)
        if (!(folder_of(line) in rank))
            complain(line ": its folder is not in tests/layers.tsv")
    while ((getline line < (work "/forgotten")) > 0)
        complain(line ": no CMakeLists.txt names it")
    while ((getline line < (work "/installed")) > 0)
        installed[line] = 1
    while ((getline line < (work "/includes")) > 0) {
        split(line, f, " ")
        if (f[1] in installed && f[2] == "\"" && !(f[3] in installed))
            complain(f[1] ": is installed, and \"" f[3] "\", which it includes, is not")
        from = folder_of(f[1])
        if (f[2] == "<") {
            if (!system_allowed(library_of[from], f[3]))
                complain(f[1] ": library " library_of[from] " may not include <" f[3] ">")
            continue
        }
        to = folder_of(f[3])
        if (!(to in rank))
            complain(f[1] ": \"" f[3] "\" is not named from the root of the tree")
        else if (!allowed(from, to))
            complain(f[1] ": " from " may not include \"" f[3] "\"")
    }
    while ((getline line < (work "/symbols")) > 0) {
        split(line, f, " ")
        if (f[2] != "U" && f[2] ~ /[A-Z]/)
            home[f[3]] = home[f[3]] " " f[1]
    }
    close(work "/symbols")
    while ((getline line < "tests/state.tsv") > 0) {
        split(line, f, "\t")
        if (line !~ /^#/)
            keeps[f[1] " " f[2]] = 1
    }
    while ((getline line < (work "/state")) > 0) {
        found++
        if (line in keeps)
            keeps[line] = 0
        else
            complain(line ": state that outlives a call; tests/state.tsv has what may be kept, and why")
    }
    for (entry in keeps)
        if (found && keeps[entry])
            complain(entry ": is in tests/state.tsv, but no object has it")
    while ((getline line < (work "/whitelist")) > 0) {
        n = split(line, f, " ")
        for (i = 1; i <= n; i++)
            libc[f[i]] = 1
    }
    while ((getline line < (work "/symbols")) > 0) {
        split(line, f, " ")
        if (f[2] != "U")
            continue
        from = folder_of(f[1])
        if (!(f[3] in home)) {
            if (from ~ /^engine/ && !(f[3] in libc) &&
                f[3] !~ /^__.*_chk$|^__(asan|ubsan|tsan|sanitizer|gcov)_/)
                complain(f[1] ": uses " f[3] ", which is not on the whitelist")
            continue
        }
        n = split(home[f[3]], homes, " ")
        ok = 0
        for (i = 1; i <= n; i++)
            ok += allowed(from, folder_of(homes[i]))
        if (!ok)
            complain(f[1] ": " from " may not use " f[3] " of " homes[1])
    }
    if (bad) {
        print "layer rule: " bad " violation(s)"
        exit 1
    }
    print "layer rule: holds for " folders " folders"
}' </dev/null
