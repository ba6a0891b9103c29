#!/usr/bin/env bash
# Files that are no traces, read by the Python package (test_load.py): it needs no PyTorch. Exit status 77: no Python 3.10.
set -euo pipefail
[ -n "${TESSERA:-}" ] && python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || exit 77
cd "$TSR_SOURCE_DIR/tests/torch"
PYTHONPATH=$TSR_SOURCE_DIR/experiments/torch PYTHONDONTWRITEBYTECODE=1 exec python3 -m unittest -q test_load
