"""The audit trail: seals of the ledger, their verification, and configuration changes."""
