#!/bin/sh
# Plants the defects of mutations.tsv, one at a time, into a copy of the engine and requires that
# the rule tests or, if they do not notice, the comparison with the recorded scenarios fails. Defects
# of section "mem" concern allocations alone: a full device, then recorded memory (without python3
# those are left out). Sections F1 to F30 are rules of engine/fsdp1/FSDP1.md: its own tests must fail.
#
# Usage: tests/mutation/run.sh [NAME...]     only these defects
# Output: a line per defect, "defect | section | caught by". Status 1: a defect was not noticed;
# 2: the tests fail without a defect, or a text of mutations.tsv is not in the source exactly once.
# Environment: TSR_JOBS, parallel compilations (2).
set -u
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
jobs=${TSR_JOBS:-2}
work=$(mktemp -d "${TMPDIR:-/tmp}/tessera-mutation-XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM

stop() {
    printf 'mutation: %s\n' "$*" >&2
    exit 2
}

# The sources that are built; the recorded scenarios are only read.
mkdir "$work/src"
for part in CMakeLists.txt cmake engine exec sim experiments tests plots \
    LICENSE README.md CITATION.cff; do
    [ -e "$top/$part" ] && [ "$part" != tests ] && cp -R "$top/$part" "$work/src/"
done
mkdir "$work/src/tests"
cp "$top/tests/CMakeLists.txt" "$top/tests/check_layers.sh" "$work/src/tests/"
for part in "$top"/tests/*/; do
    part=$(basename "$part")
    case $part in
    golden*) ln -s "$top/tests/$part" "$work/src/tests/$part" ;;
    oracle) ;;
    *) cp -R "$top/tests/$part" "$work/src/tests/" ;;
    esac
done

cmake -S "$work/src" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=None -DTESSERA_CUDA=OFF \
    -DCMAKE_C_FLAGS="-O0 -w" >"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    stop "cmake failed"
}
# the tests of one release last: they notice much that is not theirs
rules=$(cd "$work/src/tests/rules" && printf '%s\n' test_[a-z]*.c test_[0-9]*.c |
    sed 's/\.c$//; s/^/rules_/')
scenarios=conformance_test_golden
full_device=engine_test_device_full
flat="engine_test_fsdp1 conformance_test_fsdp1"
# Recorded memory: small scenarios, one of a real size, random mixes of options.
against=$top/tests/oracle/mem/against.py
recorded=$(cd "$top/tests/golden-memory" && printf '%s\n' tiny-*.json gpt2-xl-8ranks.json | sed 's/\.json$//' |
    grep -v timeline | paste -s -d ,)
# shellcheck disable=SC2086
build() { ninja -j "$jobs" -C "$work/build" "$@" >"$work/log" 2>&1; }

# Says which test function fails first: "test:function"; nothing if none does.
first_failure() {
    for test in "$@"; do
        TESSERA=$work/build/tessera TSR_SOURCE_DIR=$work/src timeout 60 \
            "$work/build/tests/$test" >"$work/out" 2>&1 && continue
        name=$(sed -n 's/^\[  FAILED  \] \([a-z0-9_]*\)$/\1/p' "$work/out" | head -n 1)
        [ -n "$name" ] || name=$(sed -n 's/^\[ RUN      \] //p' "$work/out" | tail -n 1)
        printf '%s:%s\n' "$test" "$name"
        return
    done
}

# Says which recorded memory differs first.
first_difference() {
    for folder in golden-memory/random golden-memory; do
        only=
        [ $folder = golden-memory ] && only=--only=$recorded
        python3 "$against" --tessera "$work/build/tessera" --recorded "$top/tests/$folder" \
            --jobs "$jobs" --list $only >"$work/out" 2>&1 && continue
        printf 'memory:%s\n' "$(sed -n 's/^  \([a-z0-9-]*\): .*/\1/p' "$work/out" | head -n 1)"
        return
    done
}

# shellcheck disable=SC2086
build $rules $scenarios $full_device $flat tessera || {
    tail -n 20 "$work/log" >&2
    stop "the engine does not build"
}
# shellcheck disable=SC2086
healthy=$(first_failure $rules $scenarios $full_device $flat)
with_memory=false
if command -v python3 >/dev/null; then
    with_memory=true
    [ -n "$healthy" ] || healthy=$(first_difference)
fi
[ -z "$healthy" ] || stop "without a defect, $healthy fails"

# plant FILE OLD NEW: \n in the texts is a new line; OLD must be there exactly once.
plant() {
    OLD=$2 NEW=$3 perl -0777 -pi -e '
        my ($old, $new) = map { s/\\n/\n/gr } @ENV{"OLD", "NEW"};
        my $n = () = /\Q$old\E/g;
        if ($n != 1) { print STDERR "the text is there $n times\n"; $bad = 1; }
        else { s/\Q$old\E/$new/; }
        END { $? = 1 if $bad; }' "$1"
}

n=0
survived=0
tab=$(printf '\t')
grep -v '^#' "$here/mutations.tsv" | grep . >"$work/list"
printf '%-32s | %-4s | %s\n' defect sec. 'caught by'
while IFS=$tab read -r name section file old new; do
    case " $* " in "  " | *" $name "*) ;; *) continue ;; esac
    of_memory=false
    [ "$section" != mem ] || of_memory=true
    if $of_memory && ! $with_memory; then
        printf '%-32s | %-4s | %s\n' "$name" "$section" 'left out: no python3'
        continue
    fi
    source=$work/src/$file
    cp "$source" "$work/saved" || stop "$name: there is no $file"
    plant "$source" "$old" "$new" || stop "$name: $file has changed; mend mutations.tsv"
    tests=$rules
    ! $of_memory || tests=$full_device
    of_fsdp1=false
    case $section in F*) of_fsdp1=true tests=$flat ;; esac
    # shellcheck disable=SC2086
    build $tests || {
        grep error "$work/log" >&2
        stop "$name: the defect does not compile"
    }
    # shellcheck disable=SC2086
    by=$(first_failure $tests)
    if [ -z "$by" ] && $of_memory; then
        build tessera || stop "$name: the program does not link"
        by=$(first_difference)
    elif [ -z "$by" ] && ! $of_fsdp1; then
        build tessera || stop "$name: the program does not link"
        by=$(first_failure $scenarios)
    fi
    cp "$work/saved" "$source"
    n=$((n + 1))
    [ -n "$by" ] || survived=$((survived + 1))
    printf '%-32s | %-4s | %s\n' "$name" "$section" "${by:-NOTHING}"
done <"$work/list"
printf '%d defects planted, %d caught\n' "$n" $((n - survived))
[ "$n" -gt 0 ] || stop "no defect has such a name"
[ "$survived" -eq 0 ]
