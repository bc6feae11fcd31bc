"""A Django app for the tests: an order, tasks and native jobs."""
