#!/bin/sh
# Makes the pictures of report.md: a study of the flagship, its report.html in a headless Chromium; and beside them what
# they say (pictures.txt). Draw them again when the page changes. --check draws nothing: it compares what they say with
# today's figures, and the checksums of the pictures.
#
# Usage: experiments/guide/pictures.sh [--check]
# Environment: TESSERA, the program (build/tessera); TESSERA_BROWSER, the browser (chromium). Exit status: 0, 1 out of date,
# 2 it cannot be done.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
say() { # what the first picture says, of the rows in JSON; then the checksums
    python3 - "$1" <<'PY' || exit 2
import json, sys
study = json.load(open(sys.argv[1], encoding='utf-8'))
row = next(row for row in study['rows'] if row['strategy'] == study['best_strategy'])
fit = sum(row['fits'] is True for row in study['rows'])
print(f"title: {study['title']}")
print(f"fastest that fits: {row['strategy']}, step {1e3 * row['step_time_s']:.2f} ms, {row['tokens_per_s_per_gpu']:.0f} tokens/s/GPU, "
      f"needs {row['needed_bytes'] / 2**30:.2f} GiB of {row['usable_bytes'] / 2**30:.2f} GiB; {fit} of {len(study['rows'])} fit")
PY
    cksum experiments/guide/report-*.png | awk '{ print $3 ": " $1 }'
}
if [ "${1-}" = --check ]; then
    "${TESSERA:-build/tessera}" compare experiments/flagship/dgx-h100-8.yaml --format json >"$work/rows.json" || exit 2
    say "$work/rows.json" >"$work/today"
    diff experiments/guide/pictures.txt "$work/today" && exit 0
    echo "experiments/guide/report-*.png are out of date: run experiments/guide/pictures.sh and commit what it writes"
    exit 1
fi
"${TESSERA:-build/tessera}" compare experiments/flagship/dgx-h100-8.yaml --jobs 2 --out "$work/out" >/dev/null 2>"$work/err" || {
    cat "$work/err" >&2
    exit 2
}
PYTHONPATH=tests/report PYTHONDONTWRITEBYTECODE=1 python3 - "$work/out/report.html" "$here" <<'PY' || exit 2
import sys

from browser import Browser, find

page, folder = sys.argv[1:]
if not find():
    sys.exit('pictures.sh: there is no browser (package chromium)')
with Browser() as browser:
    # the height of each says how much of the tab is shown
    for key, name, height in (('1', 'strategies', 640), ('2', 'step', 930), ('3', 'two', 720)):
        browser.open('file://' + page, 1040, height)
        browser.frames()
        browser.key(key)
        browser.frames()
        if key == '3':
            browser.value('T.pages[2].page.choose(2, 10)')  # fsdp, fsdp-checkpoint
        browser.frames(3)
        browser.picture(f'{folder}/report-{name}.png')
    if browser.errors:
        sys.exit(f'pictures.sh: the page complains: {browser.errors[0]}')
PY
say "$work/out/summary.json" >experiments/guide/pictures.txt
cat experiments/guide/pictures.txt
