"""What is built on the engine. Features do not import one another."""
