"""Kernel texts: the preludes, and a printer a target."""
