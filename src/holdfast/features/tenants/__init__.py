"""Tenants: caps, weights, registration."""
