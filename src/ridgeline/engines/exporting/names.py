"""What platforms call a GPU of our catalogue."""

from ridgeline.domain.errors import BadInput
from ridgeline.domain.hardware import gpu

# Ours: (label of NVIDIA's feature discovery on a Kubernetes node, SkyPilot's, Modal's); None: it is
# not known to the platform by a name that we know.
_NAMES: dict[str, tuple[str | None, str | None, str | None]] = {
    "H100-SXM": ("NVIDIA-H100-80GB-HBM3", "H100", "H100"),
    "H100-PCIe": ("NVIDIA-H100-PCIe", None, None),
    "H200-SXM": ("NVIDIA-H200", "H200", "H200"),
    "B200-SXM": ("NVIDIA-B200", "B200", "B200"),
    "A100-SXM-80GB": ("NVIDIA-A100-SXM4-80GB", "A100-80GB", "A100-80GB"),
    "L40S": ("NVIDIA-L40S", "L40S", "L40S"),
}
_COLUMNS = {"kubernetes": 0, "skypilot": 1, "modal": 2}


def gpu_name(ours: str | None, platform: str) -> str | None:
    """The platform's name, None where the GPU is not known; raises BadInput where it must be.

    Kubernetes runs without it: any node with free GPUs is then good.
    """
    known = None if ours is None else _NAMES.get(gpu(ours).name)
    name = None if known is None else known[_COLUMNS[platform]]
    if name is None and platform != "kubernetes":
        raise BadInput(
            f"what {platform} calls {'the GPU' if ours is None else ours} is not known",
            where="hardware.gpu",
            fix=f"one of {', '.join(n for n, c in _NAMES.items() if c[_COLUMNS[platform]])}",
        )
    return name
