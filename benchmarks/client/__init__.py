"""How fast and how true the load client is."""
