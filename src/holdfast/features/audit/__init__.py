"""The audit trail: seals over the ledger, their verification, actions of operators."""
