"""Functions that no data set holds: bench/planted.py draws its base functions from them, and nothing was chosen on them."""
