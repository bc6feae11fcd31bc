"""Messages to running jobs: how both databases keep them. ``features/jobs/messages.py`` offers them."""
