"""Events: consumers of the ledger and subscriptions that make jobs of events."""
