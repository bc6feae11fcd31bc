"""The verbs on SQLite, one module each: short flows over plain statements, with the triggers as their judge."""
