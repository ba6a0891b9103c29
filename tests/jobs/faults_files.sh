#!/usr/bin/env bash
# shellcheck disable=SC2317 # functions that are called by name
# Damaged files. Tokens and weights that a user gave: one line that names file and field, status 2.
# A damaged newest checkpoint: a run goes on from the one before, to the same end, and says so; where
# the user named that very checkpoint, or none is whole: one line, status 2.
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
export LC_ALL=C
fsdp=(run "$job" --on host --strategy fsdp --ranks 2)

# le BYTES VALUE: little-endian
le() {
    local i v=$2 byte
    for ((i = 0; i < $1; i++)); do
        printf -v byte '\\x%02x' $((v & 255))
        printf '%b' "$byte"
        v=$((v >> 8))
    done
}

# put FILE OFFSET < BYTES: overwrites
put() {
    dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# ---- token files -------------------------------------------------------------------------------

# tokens KIND FILE: 400 tokens, each below 256
tokens() {
    local magic=20240520 version=1 bytes=2 i
    [ "$1" = 16 ] || { magic=20240801 version=7 bytes=4; }
    {
        le 4 $magic
        le 4 $version
        le 4 400
        head -c 1012 /dev/zero
        for ((i = 0; i < 400; i++)); do le $bytes $((i * 7 % 256)); done
    } >"$2"
}
hurt=$tmp/damaged.bin
for kind in 16 32; do
    good=$tmp/good$kind.bin
    tokens $kind "$good"
    works "${fsdp[@]}" --set "data.train=$good" --set train.steps=2
    # every field of the header, and the length of the file
    for field in "0:0:magic number" "4:9:version" "8:0:token count" "8:401:token count" \
        "8:399:token count" "8:-5:token count"; do
        cp "$good" "$hurt"
        IFS=: read -r at value name <<<"$field"
        le 4 "$value" | put "$hurt" "$at"
        fails 2 "$hurt" "$name" -- "${fsdp[@]}" --set "data.train=$hurt"
    done
    for bytes in 0 3 1023 1024 1800; do
        head -c $bytes "$good" >"$hurt"
        fails 2 "$hurt" bytes -- "${fsdp[@]}" --set "data.train=$hurt"
    done
    # a token that the model does not have, served at some step to some rank
    cp "$good" "$hurt"
    le $((kind / 8)) 300 | put "$hurt" $((1024 + 350 * kind / 8))
    for how in --ranks --nproc; do
        checks=$((checks + 1))
        run $how 2 --set "data.train=$hurt" --set train.steps=100 --timeout 60 >"$out" 2>"$err"
        [ $? = 2 ] || complain "a token that is out of range: not status 2"
        lines "$err" 1 "$hurt" "token 350 is 300" 256
    done
done
fails 2 "$tmp/good32.bin" "$tmp/good16.bin" "one kind" -- "${fsdp[@]}" \
    --set "data.train=$tmp/good16.bin,$tmp/good32.bin"
fails 2 "$tmp" "regular file" -- "${fsdp[@]}" --set "data.train=$tmp"
cp "$tmp/good16.bin" "$tmp/short.bin"
le 4 40 | put "$tmp/short.bin" 8
truncate -s $((1024 + 2 * 40)) "$tmp/short.bin"
fails 2 "$tmp/short.bin" "40 tokens" 65 -- "${fsdp[@]}" --set "data.train=$tmp/short.bin" --set seq=64

# cut short while the job reads it
for how in --ranks --nproc; do
    rm -rf "$tmp/run"
    cp "$tmp/good16.bin" "$hurt"
    start $how 2 --set "data.train=$hurt" --set train.steps=1000000 --timeout 60 --out "$tmp/run"
    until_step "$tmp/run" 3 && truncate -s 1100 "$hurt"
    ended 1
    lines "$err" 1 "$hurt: the file ends at byte" "; the last checkpoint is $tmp/run/checkpoints/step_0"
    cp "$tmp/good16.bin" "$hurt"
    works "${fsdp[@]}" --set "data.train=$hurt" --set train.steps=2 --resume "$tmp/run"
done

# ---- weights -----------------------------------------------------------------------------------

works "${fsdp[@]}" --out "$tmp/whole" --set train.steps=10
losses "$tmp/whole" >"$tmp/whole.losses"
works export "$tmp/whole" --out "$tmp/model"
good=$tmp/model/model.safetensors hurt=$tmp/damaged.safetensors
works "${fsdp[@]}" --set "model.weights=$good" --set train.steps=2
header=$(od -An -t u8 -N 8 "$good" | tr -d ' ')

# weights WORD... -- COMMAND...: COMMAND damages $hurt
weights() {
    local words arguments
    split "$@"
    cp "$good" "$hurt"
    "${arguments[@]}"
    cmp -s "$good" "$hurt" && complain "not damaged: ${arguments[*]}"
    fails 2 "$hurt" "${words[@]}" -- "${fsdp[@]}" --set "model.weights=$hurt"
}
cut() { head -c "$1" "$good" >"$hurt"; }
length() { le 8 "$1" | put "$hurt" 0; }
edit() { sed -i "$1" "$hurt"; } # of the same length
weights "0 bytes are too few" -- cut 0
weights "7 bytes are too few" -- cut 7
weights header -- cut $((8 + header / 2))
weights data -- cut $(($(stat -c %s "$good") - 4))
weights header -- length 0
weights header -- length $((header - 1))
weights header -- length 99999999999
weights header -- edit '1s/{"/["/'
weights dtype model.norm.weight -- edit '1s/\("model.norm.weight":{"dtype":"F32\)"/"model.norm.weight":{"dtype":"F99"/'
weights shape model.norm.weight -- edit '1s/\("model.norm.weight":{"dtype":"F32","shape":\[\)32/\116/'
weights data_offsets -- edit '1s/"data_offsets":\[0,/"data_offsets":[4,/'
weights data_offsets -- edit '1s/"data_offsets"/"date_offsets"/'
weights model.norm.weight -- edit '1s/"model.norm.weight"/"model.nurm.weight"/'
weights "header length" -- cp "$job" "$hurt"
fails 2 "$tmp/model/nothing" "not there" -- "${fsdp[@]}" --set "model.weights=$tmp/model/nothing"
printf '{"weight_map": {"model.norm.weight": "absent.safetensors"}}' >"$tmp/index.safetensors.index.json"
fails 2 index.json -- "${fsdp[@]}" --set "model.weights=$tmp/index.safetensors.index.json"

# ---- checkpoints -------------------------------------------------------------------------------

newest=checkpoints/step_00000010
run=$tmp/run

# checkpoint FILE WORD COMMAND...: COMMAND damages FILE (its argument) of the newest checkpoint
checkpoint() {
    local file=$1 word=$2
    shift 2
    rm -rf "$run"
    cp -r "$tmp/whole" "$run"
    "$@" "$run/$newest/$file"
    cmp -s "$run/$newest/$file" "$tmp/whole/$newest/$file" && complain "not damaged: $file $*"
    if [ "$file" != COMMIT ] || [ -e "$run/$newest/COMMIT" ]; then
        fails 2 "$newest/$file" "$word" -- "${fsdp[@]}" --resume "$run/$newest" --out "$tmp/o"
    fi
    works "${fsdp[@]}" --resume "$run" --set train.steps=10
    lines "$err" 3 tessera
    has "$err" "passed over a damaged checkpoint: $run/$newest/$file" "$word" \
        "going on behind step 8" "saved after step 10"
    losses "$run" >"$tmp/again.losses"
    same "$tmp/whole.losses" "$tmp/again.losses"
}
flip() { # OFFSET FILE: one bit
    local byte
    byte=$(od -An -t u1 -j "$1" -N 1 "$2" | tr -d ' ')
    le 1 $((byte ^ 1)) | put "$2" "$1"
}
shorten() { truncate -s -1 "$1"; }
empty() { : >"$1"; }
change() { sed -i "$1" "$2"; }
shard=rank_00001-of-00002.safetensors
checkpoint COMMIT "No such file" rm
checkpoint COMMIT "not complete" empty
checkpoint COMMIT checksum shorten
checkpoint COMMIT checksum change 's/^step 10/step 11/'
checkpoint COMMIT checksum change 's/world 2/world 3/'
checkpoint COMMIT checksum change 's/rank_00001-of/rank_00002-of/'
checkpoint COMMIT checksum flip 60
checkpoint meta.json "No such file" rm
checkpoint meta.json bytes shorten
checkpoint meta.json checksum change 's/"step"/"stop"/'
checkpoint $shard "No such file" rm
checkpoint $shard bytes shorten
checkpoint $shard header flip 0
checkpoint $shard dtype change '1s/"dtype":"F32"/"dtype":"F16"/'
checkpoint $shard "shape: missing" change '1s/"shape":\[/"shapf":[/'
checkpoint $shard data_offsets change '1s/"data_offsets":\[0/"data_offsets":[1/'
checkpoint $shard header change '1s/xxh64=/xxh46=/'
checkpoint $shard "its data are damaged (xxh64" flip $(($(stat -c %s "$tmp/whole/$newest/$shard") - 5))

# By processes, of which one looks at the damaged file, and by more ranks than there are files
rm -rf "$run"
cp -r "$tmp/whole" "$run"
flip 5000 "$run/$newest/$shard"
works run "$job" --on host --strategy fsdp --nproc 2 --resume "$run" \
    --set train.steps=10
has "$err" "passed over a damaged checkpoint: $run/$newest/$shard" "going on behind step 8"

# None is whole: not even then is anything lost or overwritten.
rm -rf "$run"
cp -r "$tmp/whole" "$run"
for step in 6 8 10; do flip 5000 "$run/checkpoints/$(printf step_%08d $step)/$shard"; done
(cd "$run" && find . -type f -exec md5sum {} + | sort -k 2) >"$tmp/before"
checks=$((checks + 1))
run --nproc 2 --resume "$run" >"$out" 2>"$err"
[ $? = 2 ] || complain "no checkpoint is whole: not status 2"
lines "$err" 1 "no checkpoint that is whole" "$newest/$shard"
(cd "$run" && find . -type f -exec md5sum {} + | sort -k 2) >"$tmp/after"
same "$tmp/before" "$tmp/after"
flip 5000 "$tmp/whole/$newest/$shard"
fails 1 "$newest/$shard" -- export "$tmp/whole" --out "$tmp/exported"
finish
