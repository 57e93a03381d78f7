"""stages/samplers."""
