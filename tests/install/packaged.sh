#!/usr/bin/env bash
# A package's program has no players of recorded scenarios (tests/player): it knows neither their subcommand nor their files,
# says so in a line, and keeps the commands that have the same names. TESSERA_PACKAGED is linked without them.
set -euo pipefail
[ -n "${TESSERA_PACKAGED:-}" ] || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
study=$TSR_SOURCE_DIR/experiments/small/llama.yaml
scenario=$TSR_SOURCE_DIR/tests/golden-memory/tiny-base.json

# ended STATUS WORDS ARGUMENT...: the program ends so, with one line on stderr that has the words.
ended() {
    local status=0 want=$1 words=$2
    shift 2
    "$TESSERA_PACKAGED" "$@" >"$work/out" 2>"$work/err" || status=$?
    if [ $status != "$want" ] || [ "$(wc -l <"$work/err")" != 1 ] || [[ $(cat "$work/err") != *"$words"* ]]; then
        echo "tessera $*: status $status, wanted $want with \"$words\": $(cat "$work/err")"
        exit 1
    fi
}
ended 2 'unknown subcommand "trace"' trace "$scenario"
ended 2 'unknown key "name"' memory "$scenario"
ended 2 '--strategy' memory "$study"
ended 2 'tiny-base.json' check "$scenario"
ended 2 'unknown option --timeline' memory "$study" --strategy fsdp --timeline "$work/timeline"
for topic in all man bash zsh fish; do
    if "$TESSERA_PACKAGED" help $topic | grep -iE 'scenario|--timeline' >"$work/said"; then
        echo "help $topic: $(head -n 1 "$work/said")"
        exit 1
    fi
done
"$TESSERA_PACKAGED" memory "$study" --strategy fsdp -o "$work/packaged.json"
"$TESSERA" memory "$study" --strategy fsdp -o "$work/built.json"
cmp "$work/packaged.json" "$work/built.json"
"$TESSERA_PACKAGED" check "$study" --strategy fsdp >"$work/out"
[[ $(cat "$work/out") == "fsdp: nothing found in "* ]]
echo "the packaged program has no players, and the commands of their names"
