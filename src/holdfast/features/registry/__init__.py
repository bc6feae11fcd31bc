"""The registries of kinds and event types, and the policies for unregistered names."""
