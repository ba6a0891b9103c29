#!/bin/sh
# Makes the pictures of report.md: a study of the flagship, its report.html in a headless Chromium. Draw them again when
# the page changes.
#
# Usage: experiments/guide/pictures.sh
# Environment: TESSERA, the program (build/tessera); TESSERA_BROWSER, the browser (chromium). Exit status: 0, 2 it cannot
# be done.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
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
ls -l "$here"/report-*.png
