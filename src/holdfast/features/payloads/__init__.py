"""Rules for payloads, and the keys they are sealed with."""
