"""Notifiers: tell people in Slack, Microsoft Teams, by e-mail or webhook what needs them."""
