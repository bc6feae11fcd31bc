"""Payload rules, and the rotation of encryption keys."""
