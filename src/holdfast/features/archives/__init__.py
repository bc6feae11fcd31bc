"""Archives: finished jobs as files in the artifact store, before retention removes them."""
