"""Which of the twin's constants a calibration may hold, and between which values."""

from collections.abc import Mapping

# Shares of a peak, of which no kernel comes nearer than this.
BANDWIDTH_MOST, FLOPS_MOST = 0.95, 0.90
_SECOND_NS = 1e9
# What a calibration on a host's own runs fits: launch times, gaps, the API server, two shares.
# (lowest, highest): far around what a fit has ever found; a time is no longer than a second.
LIMITS: Mapping[str, tuple[float, float]] = {
    "gemm_bandwidth_share": (0.001, BANDWIDTH_MOST),
    "gemm_flops_share": (0.001, FLOPS_MOST),
    **dict.fromkeys(
        ("step_gap_ns", "piecewise_launch_ns_per_layer", "eager_launch_ns_per_layer",
         "prompt_step_ns", "update_ns_per_request", "receive_ns", "receive_ns_per_token",
         "send_ns_per_chunk"), (1e-3, _SECOND_NS),
    ),
}  # fmt: skip
FREE = tuple(LIMITS)
