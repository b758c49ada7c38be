"""Running a configuration: replicas kept up behind one URL, watched, changed without a gap."""
