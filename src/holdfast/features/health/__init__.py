"""Health and statistics: the verdict, current figures, activity over time."""
