#!/usr/bin/env bash
# tessera check over every recorded-run scenario that trains and the small memory scenarios: nothing
# is found, but in the scenarios below, each with the reason; and how the subcommand ends.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
golden=$TSR_SOURCE_DIR/tests/golden

# The optimizer reads gradients although the last backward was not declared to be the last
# (set_is_last_backward), so that nothing waits for them: the scenario's own mistake.
defective() {
    [ "$1" = rnd-ac-list-twice-2x4 ]
}

n=0
for file in $(grep -El '"kind": *"(train|ddp)"' "$golden"/scenarios/*.json); do
    name=${file##*/} name=${name%.json}
    n=$((n + 1))
    if defective "$name"; then
        "$TESSERA" check "$file" >"$out" 2>"$err"
        [ $? = 4 ] || complain "$name: exit status is not 4"
        has "$err" "$name" race "nothing orders"
        [ "$(wc -l <"$err")" = 1 ] || complain "$name: not one line on stderr"
        has "$out" "1 found" "module" "phase optimizer" "stream default" "stream all_reduce"
    else
        works check "$file"
        has "$out" "nothing found"
    fi
done
[ "$n" -gt 100 ] || complain "only $n scenarios"

for file in "$golden"-memory/tiny-*.json "$golden"-memory/random/*.json; do
    case $file in *.timeline.json) continue ;; esac
    works check "$file"
    has "$out" "nothing found"
done

# More ranks than are emitted one by one: one of each class.
works check "$golden-memory/llama-3-8b-256ranks-bs2-accum2-ac.json"
has "$out" "1 of 256 ranks"

# Every strategy of an experiment, or one; with the phases outside the step.
cat >"$tmp/e.yaml" <<'Y'
model: llama-3.2-1b
seq: 128
mesh: {shard: 2}
phases: [init, load, step1, eval, save]
strategies:
  fsdp: {}
  ddp: {api: ddp}
Y
works check "$tmp/e.yaml"
has "$out" "fsdp: " "ddp: " "2 of 2 ranks" "nothing found"
works check "$tmp/e.yaml" --strategy ddp
grep -q fsdp "$out" && complain "--strategy ddp checks fsdp, too"

# A wrap list in another order than the model's: prefetch goes in the model's all the same.
cat >"$tmp/odd.yaml" <<'Y'
model: llama-3.2-1b
seq: 128
mesh: {shard: 4}
strategies:
  odd:
    forward_prefetch: 1
    wrap: [{modules: [lm_head]}, {modules: ["model.layers.*"], reshard_after_forward: 2}, {modules: [""]}]
Y
works check "$tmp/odd.yaml"
has "$out" "odd: " "nothing found"

# Races that PyTorch has, too, are named: by check, and where the scenario runs.
mkdir "$tmp/scenarios" "$tmp/tensors"
base=$golden/scenarios/mp-bf16-none-w2.json
for name in $(grep -o 'tensors/[^"]*' "$base"); do
    cp "$golden/$name" "$tmp/tensors"
done
with_call() { # WHEN FUNCTION MODULE
    call="{\"at\": {\"when\": \"$1\"}, \"fn\": \"$2\", \"module\": \"$3\", \"args\": {}}"
    sed "1s/{/{\"calls\": [$call],/" "$base" >"$tmp/scenarios/call.json"
}
races() { # FILE NAME WORD...: what both must say
    scenario=$1 name=$2
    shift 2
    "$TESSERA" check "$scenario" >"$out" 2>"$err"
    [ $? = 4 ] || complain "$name: check: exit status is not 4"
    has "$err" "tessera: note: $name: " "$@"
    [ "$(grep -c note "$err")" = 1 ] || complain "$name: check: not one note"
    works trace "$scenario" --executor host -o "$tmp/r.json"
    has "$err" "tessera: note: $name: " "$@"
    [ "$(wc -l <"$err")" = 1 ] || complain "$name: trace: not one line on stderr"
}
races_of_call() {
    races "$tmp/scenarios/call.json" mp-bf16-none-w2 "$@"
}
with_call before_backward set_post_optim_event ""
races_of_call R85 set_post_optim_event "before the optimizer's step"
with_call after_wrap set_all_reduce_hook layers.1
races_of_call Q3 set_all_reduce_hook "2.15 keeps the output"
with_call after_step set_post_optim_event ""
works check "$tmp/scenarios/call.json"
has "$out" "nothing found"
works trace "$tmp/scenarios/call.json" --executor host -o "$tmp/r.json"
[ -s "$err" ] && complain "a note on an event after the step"
races "$golden-found/scenarios/m-race-stray.json" m-race-stray Q19 set_is_last_backward
races "$golden-found/scenarios/m-race-list.json" m-race-list Q18 "optimizer's step"
races "$golden-found/scenarios/m-race-roots.json" m-race-roots Q20 "another root"
sed 's/"F0", "F1", "B1", "B0"/"F0", "B0", "F1", "B1"/' "$golden-found/scenarios/m-race-stray.json" >"$tmp/scenarios/stray.json"
works check "$tmp/scenarios/stray.json"
has "$out" "nothing found"
sed 's/^{/{"calls": [{"at": {"when": "before_backward", "micro": 1}, "fn": "set_is_last_backward", "module": "", "args": {"value": false}}, {"at": {"when": "before_backward", "micro": 0}, "fn": "set_is_last_backward", "module": "", "args": {"value": true}}],/' \
    "$golden-found/scenarios/m-race-stray.json" >"$tmp/scenarios/stray.json"
works check "$tmp/scenarios/stray.json"
has "$out" "nothing found"

# Attention weights, the second output of a forward, of a body that is computed again.
works check "$golden-found/scenarios/m-weights-inside.json"
has "$out" "nothing found"

# Mistakes of the user come first.
fails 2 batch allowed -- check "$tmp/e.yaml" --set batch=0
fails 2 nothing fsdp -- check "$tmp/e.yaml" --strategy nothing
fails 2 kind layout "train, ddp" -- check "$golden/scenarios/layout-gpt2-w48.json"
fails 2 none.json -- check "$tmp/none.json"
echo '{"model": 1}' >"$tmp/odd.json"
fails 2 odd.json -- check "$tmp/odd.json"
fails 2 allowed experiment -- check "$golden/scenarios/raf-default-w2.json" --set batch=2
finish
