#!/usr/bin/env bash
# Make the environment of vllm-router, or reuse it, and print its program.
#
# It stands alone because its pins are not ours. The folder is $RIDGELINE_ROUTER_VENV, or else one in
# the user's cache named by the versions of the router and of Python.
set -Eeuo pipefail
root=$(dirname "$(cd "$(dirname "$0")" && pwd)")
pins=$root/constraints-vllm-router.txt
python=${PYTHON:-$root/.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
pinned=$(sed -n 's/^vllm-router==//p' "$pins")
venv=${RIDGELINE_ROUTER_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/ridgeline/vllm-router-$pinned-py$version}
seal=$venv/.ridgeline-complete
want=$(sha256sum <"$pins" | cut -d' ' -f1)
mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9 # a second caller waits for the first and then finds its work done
if [ "$(cat "$seal" 2>/dev/null)" != "$want" ]; then
    rm -rf "$venv"
    "$python" -m venv "$venv" >&2
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet \
        --constraint "$pins" vllm-router >&2 ||
        { echo "vllm_router_env: vllm-router $pinned could not be installed" >&2; exit 1; }
    echo "$want" >"$seal"
fi
echo "$venv/bin/vllm-router"
