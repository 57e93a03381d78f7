"""environments/sources."""
