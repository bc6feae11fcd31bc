"""Programs that command jobs run: the shim that starts one and keeps its log, and the directory of an attempt."""
