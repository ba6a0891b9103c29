#!/usr/bin/env bash
# page.sh: report.html: its figures are those of summary.csv, memory.csv and overlap.csv, hostile texts stay texts, and in a headless Chromium
# every view is drawn, zooms, answers the pointer and keeps up with 128 strategies. Exit 77: what needs no
# browser was tested, and there is none (package chromium; TESSERA_BROWSER names one).
set -euo pipefail
exec python3 "$(dirname "$0")/page.py"
