// The op_* functions that few graphs use and that need a slow path.
