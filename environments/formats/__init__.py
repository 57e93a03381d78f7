"""Task formats of others, read and written: Harbor's task folders."""
