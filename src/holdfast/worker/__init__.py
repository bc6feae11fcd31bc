"""What makes jobs run: the worker and its duties. It knows stores and handlers, and no feature by name."""
