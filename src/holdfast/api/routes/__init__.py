"""One file a noun; each route asks for one scope and calls one verb of the app."""
