#!/usr/bin/env bash
# Fuzzes the parsers with libFuzzer: every target, or those that are named, in build-fuzz/. New inputs that
# reach something stay in build-fuzz/corpus/TARGET and are where the next run begins; what breaks a target
# (a crash, a leak, a second of the processor, 256 MB) is kept as build-fuzz/broken/TARGET-..., and is the
# exit status. At the end a table: executions, per second, edges covered.
#
# Usage: tests/fuzz/run.sh [--list | --each SECONDS | MINUTES] [TARGET...]
#   MINUTES: of all targets together (default 10); --each: of every target
# Environment: TSR_JOBS targets at a time (default: the cores).
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
here=$top/tests/fuzz build=$top/build-fuzz
jobs=${TSR_JOBS:-$(nproc)}
cd "$top"

minutes=10 each='' list=false
case ${1:-} in
--list) list=true && shift ;;
--each) each=$2 && shift 2 ;;
[0-9]*) minutes=$1 && shift ;;
esac

if ! command -v clang >/dev/null 2>&1 ||
    ! echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return !d && n; }' |
        clang -x c -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null; then
    echo "fuzz: left out: no clang with libFuzzer (package clang)" >&2
    exit 77
fi
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz -j "$jobs" >"$build/build.log" 2>&1 || {
    tail -n 30 "$build/build.log" >&2
    exit 1
}
if $list; then
    exec "$build/tests/fuzz_replay" --list
fi

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    mapfile -t targets < <("$build/tests/fuzz_replay" --list | cut -d' ' -f1)
fi
[ -n "$each" ] || each=$(awk "BEGIN { print int($minutes * 60 * $jobs / ${#targets[@]}) + 1 }")

program=$top/build/tessera
[ -x "$program" ] || program=$build/tessera
rm -rf "$build/seeds"
"$here/corpus.py" "$build/seeds" "$program" 2>/dev/null
mkdir -p "$build/broken" "$build/logs"
TSR_FUZZ_DIR=$(mktemp -d "$( [ -w /dev/shm ] && echo /dev/shm || echo /tmp)/tessera-fuzz.XXXXXX")
trap 'rm -rf "$TSR_FUZZ_DIR"' EXIT
export TSR_FUZZ_DIR
# the small quarantine: rss_limit_mb is of the parser, its sanitizer and libFuzzer together
export ASAN_OPTIONS=quarantine_size_mb=16:detect_leaks=1:allocator_may_return_null=1
export LSAN_OPTIONS=suppressions=$here/leaks.txt:print_suppressions=0

one() { # TARGET
    local target=$1 words
    words=$("$build/tests/fuzz_replay" --list | awk -v t="$target" '$1 == t { print $2 }')
    [ -n "$words" ] || {
        echo "fuzz: $target: no such target; allowed: those of --list" >&2
        return 2
    }
    mkdir -p "$build/corpus/$target"
    local rss=2048
    [ "$target" != platform ] || rss=0 # it forks: a thread that watches memory could hold a lock then
    TSR_FUZZ_TARGET=$target "$build/tests/fuzz_libfuzzer" -max_total_time="$each" -timeout=60 \
        -rss_limit_mb=$rss -malloc_limit_mb=256 -max_len=16384 -print_final_stats=1 \
        -dict="$here/dictionary/$words" -artifact_prefix="$build/broken/$target-" \
        "$build/corpus/$target" "$build/seeds/$target" $(find "$here/found" -maxdepth 1 -type d -name "$target") \
        >"$build/logs/$target" 2>&1 || return 1
}
export -f one
export top here build each
status=0
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'one {}' || status=1

printf '%-16s %12s %9s %7s %7s\n' target executions 'per s' edges inputs
for target in "${targets[@]}"; do
    awk -v target="$target" '
        / cov: / { for (i = 1; i < NF; i++) { if ($i == "cov:") cov = $(i + 1); if ($i == "corp:") n = $(i + 1) } }
        /number_of_executed_units/ { runs = $2 }
        /average_exec_per_sec/ { rate = $2 }
        /ERROR: |== fuzz: / { broken = " BROKEN: " $0 }
        END { sub("/.*", "", n); printf "%-16s %12d %9d %7d %7d%s\n", target, runs, rate, cov, n, broken }' "$build/logs/$target"
done
find "$build/broken" -type f ! -name '*-slow-unit-*' | sort | sed 's/^/broken: /'
exit $status
