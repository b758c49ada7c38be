"""A configuration as files for the platforms that run it; nothing here starts anything."""
