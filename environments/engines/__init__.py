"""environments/engines."""
