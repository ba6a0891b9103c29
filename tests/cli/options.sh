#!/usr/bin/env bash
# What goes beyond PyTorch (engine/fsdp/OPTIONS.md): each option takes time off a step of the same job, all of
# them most; what they do not go with is refused by its key.
: "${TSR_SOURCE_DIR:?the source tree}"
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh" || exit 1
: "${out:?what the program prints}"

flagship=$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml
small=$TSR_SOURCE_DIR/experiments/small/llama.yaml

# us SETTING...: the step of the flagship's fsdp, in microseconds.
us() {
    works compare "$flagship" --only fsdp --format csv --set dialect=fused "$@"
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "step_time_s") k = i }
        END { gsub(/"[^"]*"/, "x"); printf "%d\n", $k * 1e6 }' "$out"
}
plain=$(us)
every=$(us --set mirror=true --set direct_gather=true --set folded_scale=true)
for option in mirror direct_gather folded_scale; do
    one=$(us --set $option=true)
    checks=$((checks + 1))
    [ "$every" -lt "$one" ] && [ "$one" -lt "$plain" ] ||
        complain "$option: $one us, without $plain us, all options $every us"
done

for option in mirror direct_gather folded_scale; do
    fails 2 "$option" 'api: ddp' 'allowed: no such key, or api: fully_shard' -- \
        compare "$small" --only fsdp --set $option=true --set api=ddp
    fails 2 "$option" 'offload' 'offload: none' -- \
        compare "$small" --only fsdp --set $option=true --set offload=cpu
    fails 2 "$option" 'api: fsdp1' 'allowed: no such key, or api: fully_shard' -- \
        compare "$small" --only fsdp --set $option=true --set api=fsdp1
    fails 2 "$option" 'maybe' 'true or false' -- compare "$small" --only fsdp --set $option=maybe
done
fails 2 folded_scale 'optimizer.variant: foreach' fused -- \
    compare "$small" --only fsdp --set folded_scale=true --set optimizer.variant=foreach
fails 2 folded_scale 'optimizer.name: sgd' adamw -- \
    compare "$small" --only fsdp --set folded_scale=true --set optimizer.name=sgd
fails 2 folded_scale 'clip_variant: loop' foreach -- \
    compare "$small" --only fsdp --set folded_scale=true --set clip=true --set clip_variant=loop
finish
