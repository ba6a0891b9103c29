#!/usr/bin/env bash
# Help, version, and mistakes on the command line.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

works --help
has "$out" compare inspect "Exit status" "Usage" "help all"
checks=$((checks + 1))
grep '^[A-Z][a-z]*\(:\|$\)' "$out" | sed 's/:.*//' | tr '\n' ' ' | grep -q '^Usage Ask Trust Run Inspect Help ' ||
    complain "the groups of the first screen: $(grep '^[A-Z]' "$out")"
[ "$(wc -l <"$out")" -lt 40 ] || complain "the first help screen is no screen"
awk 'length($0) > 82 { n++ } END { exit n > 0 }' "$out" || complain "the first help screen is wider than 82 columns"
grep -q '^  goodput ' "$out" && complain "the first screen has what few need"
cp "$out" "$tmp/overview"
for way in -h help ""; do # nothing at all asks for help, too
    # shellcheck disable=SC2086
    works $way
    same "$out" "$tmp/overview"
done
works help all
cp "$out" "$tmp/all"
has "$out" program goodput "  jobs " "Ask:" "More"
works --version
has "$out" "tessera "
commands=$(sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p' "$tmp/all" | grep -v -x -e help -e tessera)
for command in $commands; do
    works help "$command"
    has "$out" "tessera $command" Example
    cp "$out" "$tmp/help"
    for way in -h --help; do
        works "$command" $way
        same "$out" "$tmp/help"
    done
done

# The reference names every key that --print-config prints.
works help keys
cp "$out" "$tmp/keys"
works compare "$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml" --print-config
sed -n 's/^\([a-z_]*\):.*/\1/p; s/^  \([a-z0-9_]*\):.*/\1/p' "$out" | sed '/strategies/,$d' |
    sort -u >"$tmp/printed"
while read -r key; do
    [ "$key" = title ] || grep -q "^\([a-z0-9]*\.\)*$key" "$tmp/keys" || complain "help keys lacks $key"
done <"$tmp/printed"
has "$tmp/keys" "precision.reduce" "default f32" "allowed: none, f32, bf16 or f16" "microseconds"

# The list of errors is whole.
# shellcheck disable=SC2086
fails 2 '"comparre"' "nearest: compare" $commands "jobs, help" -- comparre
fails 2 '"kyes"' -- help kyes
fails 2 "no file given" -- compare
fails 2 "second file" -- compare a b
fails 2 "--jbos" "nearest: --jobs" "--format" -- compare x --jbos 3
fails 2 "--jobs" "found 0" "1 to 256" -- compare x --jobs 0
fails 2 "--jobs" "no value" -- compare x --jobs
fails 2 "--format" xml "md, csv or json" -- compare x --format xml
fails 2 "--format" md "text or json" -- inspect x --format md
cp "$TESSERA" "$tmp/alone" # no program with GPUs is beside it
with=$TESSERA TESSERA=$tmp/alone
fails 2 "--on cuda: found no $tmp/tessera-cuda" "--on sim or --on host" -- run x --strategy fsdp --on cuda
TESSERA=$with
fails 2 "--on" tpu "sim, host or cuda" -- run x --strategy fsdp --on tpu
finish
