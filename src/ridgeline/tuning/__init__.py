"""Search over a space of configurations through one port; see `tuning.port`."""
