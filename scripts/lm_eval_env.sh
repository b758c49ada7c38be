#!/usr/bin/env bash
# Make the environment of lm-evaluation-harness, or reuse it, and print its Python.
#
# It stands alone because it is no dependency of Ridgeline (`ridgeline quality --tasks` runs it as a
# process). The folder is $RIDGELINE_LM_EVAL_VENV, or else one in the user's cache named by the
# versions of lm-eval and of Python; 0.8 GB, about a minute.
set -Eeuo pipefail
root=$(dirname "$(cd "$(dirname "$0")" && pwd)")
pins=$root/constraints-lm-eval.txt
python=${PYTHON:-$root/.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
pinned=$(sed -n 's/^lm_eval==//p' "$pins")
venv=${RIDGELINE_LM_EVAL_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/ridgeline/lm-eval-$pinned-py$version}
if [ "${1:-}" = --where ]; then
    echo "$venv/bin/python"
    exit 0
fi
seal=$venv/.ridgeline-complete
ours=$venv/.ridgeline-lm-eval
want=$(sha256sum <"$pins" | cut -d' ' -f1)
mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9 # a second caller waits for the first and then finds its work done
if [ "$(cat "$seal" 2>/dev/null)" != "$want" ]; then
    if [ -e "$venv" ] && [ -n "$(ls -A "$venv")" ] && [ ! -e "$ours" ]; then
        echo "lm_eval_env: $venv is not empty and was not made by this script: set RIDGELINE_LM_EVAL_VENV to another folder" >&2
        exit 1
    fi
    rm -rf "$venv"
    mkdir -p "$venv"
    touch "$ours"
    {
        "$python" -m venv "$venv"
        "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet \
            --constraint "$pins" "lm-eval[api]" transformers
    } >&2 || { echo "lm_eval_env: lm-eval $pinned could not be installed" >&2; exit 1; }
    echo "$want" >"$seal"
fi
echo "$venv/bin/python"
