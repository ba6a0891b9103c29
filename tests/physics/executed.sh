#!/usr/bin/env bash
# What was simulated is the program: the hash that the simulator made of what it handed to SimGrid
# is the program's, for every strategy of the studies.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

# values KEY: the values of a key of the rows of $out, one a line.
values() {
    sed -n "s/^ *\"$1\": \"\(.*\)\",*\$/\1/p" "$out"
}

for study in flagship/dgx-h100-8 flagship/h100-128 gpt2-xl-a100/compare own-model/compare; do
    works compare "$TSR_SOURCE_DIR/experiments/$study.yaml" --format json
    values strategy >"$tmp/strategies"
    values executed_hash >"$tmp/executed"
    values expected_executed_hash >"$tmp/expected"
    values program_hash | sort -u >"$tmp/programs"
    same "$tmp/expected" "$tmp/executed"
    checks=$((checks + 1))
    n=$(wc -l <"$tmp/strategies")
    [ "$n" -ge 4 ] || complain "$study: $n strategies"
    [ "$(grep -cE '^[0-9a-f]{16}$' "$tmp/executed")" = "$n" ] || complain "$study: not hashes"
    # Strategies that differ have programs that differ.
    [ "$(wc -l <"$tmp/programs")" -ge $((n / 2)) ] || complain "$study: programs are alike"
done
finish
