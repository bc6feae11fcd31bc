"""The log of an attempt, and its files on hosts and in the artifact store."""
