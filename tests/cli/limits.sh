#!/usr/bin/env bash
# Limits of keys that help prints are those that hold.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

# The limits of keys are those that hold: what stands there is accepted, unless another key is in the way.
context='model.positions gpus_per_node world mesh.replicate mesh.shard nodes cluster.nodes cluster.gpus seq loss.chunks tp reshard_after_forward sim.faults'
printf 'model: {name: llama-3.2-1b}\ncluster: dgx-h100-1\nseq: 128\n' >"$tmp/small.yaml"
small=$tmp/small.yaml
works help keys
awk '/^[a-z]/ && NF == 1 { key = $1 } match($0, / from [^ ]+ to [^ ,]+/) {
    split(substr($0, RSTART + 6, RLENGTH - 6), limits, " to "); print key, limits[1], limits[2] }' "$out" >"$tmp/limits"
[ "$(wc -l <"$tmp/limits")" -gt 60 ] || complain "hardly a key with limits"
while read -r key least most; do
    for value in $least $most; do
        case " $context model.layers " in
        *" $key "*) continue ;;
        esac
        other=batch=1 # with what the key is read
        case $key in checkpoint.*) other=checkpoint.every=full ;; ddp.*) other=api=ddp ;; esac
        works inspect "$small" --set $other --set "$key=$value" --set model.layers=1
    done
done <"$tmp/limits"
fails 2 accumulation.steps 65 "1 to 64" -- inspect "$small" --set accumulation.steps=65
fails 2 model.layers 100001 "1 to 100000" -- inspect "$small" --set model.layers=100001
fails 2 nodes 8388608 "up to 1048576" -- inspect "$small" --set nodes=1048576
finish
