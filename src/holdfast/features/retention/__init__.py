"""What is kept for how long, and what was used."""
