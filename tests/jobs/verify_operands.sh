#!/usr/bin/env bash
# `tessera run --serial --verify-operands`: the losses and checkpoints of a run without it, also with
# evaluation, saving and resuming; without --serial it is refused.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
study=$TSR_SOURCE_DIR/tests/exec/strategies.yaml

# shellcheck disable=SC2059
# tokens FILE COUNT: a token file of 16 bits with tokens below 48 (magic, version, count).
tokens() {
    local i token head all=
    printf -v head '\\%o\\%o\\0\\0' $(($2 % 256)) $(($2 / 256))
    for ((i = 0; i < $2; i++)); do
        printf -v token '\\%o\\0' $((i * i % 47))
        all+=$token
    done
    {
        printf '\210\330\064\001\001\0\0\0'
        printf "$head"
        head -c 1012 /dev/zero
        printf "$all"
    } >"$1"
}
tokens "$tmp/train.bin" 1200
tokens "$tmp/val.bin" 400

# train NAME OPTION...: runs into $tmp/NAME and keeps the losses.
train() {
    local name=$1
    shift
    works run "$study" --on host --set data.train="$tmp/train.bin" --set data.val="$tmp/val.bin" \
        --set eval.every=2 --set eval.batches=2 --set train.steps=2 --out "$tmp/$name" "$@"
    grep -oE '(step|loss|grad_norm): *[0-9.]+' "$out" >"$tmp/$name.losses"
}

for strategy in fsdp hsdp pinned ddp; do
    train "$strategy" --strategy "$strategy"
    train "$strategy-verified" --strategy "$strategy" --serial --verify-operands
    same "$tmp/$strategy.losses" "$tmp/$strategy-verified.losses"
    has "$tmp/$strategy.losses" loss
done
works run "$study" --on host --strategy fsdp --set data.train="$tmp/train.bin" --set train.steps=3 \
    --resume "$tmp/fsdp-verified" --serial --verify-operands
has "$out" "step:  3"

fails 2 --verify-operands --serial -- run "$study" --on host --strategy fsdp --verify-operands
finish
