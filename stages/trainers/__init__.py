"""stages/trainers."""
