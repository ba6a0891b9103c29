#!/usr/bin/env bash
# Installs what is missing, builds tessera and runs the flagship comparison: sharding strategies for
# Llama-3.1-8B on one DGX H100 (8 GPUs) and on 128 GPUs. Can be repeated at any time.
set -euo pipefail
# shellcheck source=experiments/setup.sh
. "$(dirname "$0")/setup.sh"

tsr_setup
tsr_say "building into build/"
tsr_configure release
tsr_build build tessera

cd "$TSR_TOP"
for study in dgx-h100-8 h100-128; do
    tsr_say "build/tessera compare experiments/flagship/$study.yaml --out out/$study"
    build/tessera compare "experiments/flagship/$study.yaml" --out "out/$study" </dev/null
done

tsr_say "done. Where to look:"
cat <<'END'
   out/dgx-h100-8/ and out/h100-128/
     compare-*.svg, *.png            strategies compared: time, memory, communication
     summary.csv, summary.json       the tables above, with the resolved configuration
     STRATEGY/memory.svg             memory over the step, by category
     STRATEGY/timeline.svg           streams of a few blocks, exposed communication hatched
     STRATEGY/trace.json             with --traces; open in https://ui.perfetto.dev: a track per stream
   next: build/tessera help, and edit a copy of experiments/flagship/dgx-h100-8.yaml
END
