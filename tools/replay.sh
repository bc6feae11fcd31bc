#!/bin/bash
# Carry out all moves on the commit that is checked out, one commit a step; stops at the first error.
#
#     tools/replay.sh                 needs a clean tree, tools/ committed, .venv, and Python 3.12 or later as $PYTHON
#     tools/replay.sh 05-stores       begins with this step
#
# $PYTHON is for the tool only: before 3.12 the parser does not say where the parts of an f-string are.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3.13}
begin=${1:-02-engine}
export PYTHONPATH=tools PYTHONDONTWRITEBYTECODE=1

[ -z "$(git status --porcelain)" ] || { echo "the tree is not clean"; exit 1; }

step() {
    local name=$1 message=$2
    [[ $name < $begin ]] && return
    echo "== $name: $message"
    [ -f "tools/before/$name.py" ] && "$PYTHON" "tools/before/$name.py"
    "$PYTHON" tools/move.py "tools/moves/$name.txt"
    [ -f "tools/after/$name.py" ] && "$PYTHON" "tools/after/$name.py"
    "$PYTHON" tools/contracts.py "$name"
    .venv/bin/ruff format -q src tests bench examples
    .venv/bin/ruff check -q .
    .venv/bin/python tools/import_each.py
    [ -n "${QUICK:-}" ] || .venv/bin/mypy
    .venv/bin/lint-imports --no-logo > /tmp/replay-lint.$$ || { tail -40 /tmp/replay-lint.$$; exit 1; }
    rm -f /tmp/replay-lint.$$
    git add -A
    git commit -q -m "$message"
}

step 02-engine "Move the pure engine modules into engine/"
step 03-models "Move the models and operations of features into their folders"
step 04-small  "Move egress, durable calls and the runtime to outgoing, steps and worker"
step 05-stores "Merge the shallow modules of the stores"
step 06-app    "Move the parts of the app into app/ and their features"
step 10-server "Move routes and pages into features, the rest into server/"
step 11-remote "Move the HTTP client to remote/"
step 12-cli    "Move commands into features and merge the command line's modules"
git log --oneline | head -9
