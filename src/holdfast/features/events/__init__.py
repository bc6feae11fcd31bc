"""Events: consumers of the ledger, and subscriptions that create jobs from events."""
