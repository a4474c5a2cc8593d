"""Hand-written kernels, one idea a file: read, checked, measured and explained."""
