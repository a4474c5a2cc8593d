"""Memory-bound PyTorch work at the speed of memory, with an account of every decision."""
