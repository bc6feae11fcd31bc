"""What an attempt leaves behind: its log, and its files on hosts and in the artifact store."""
