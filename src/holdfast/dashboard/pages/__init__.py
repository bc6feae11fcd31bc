"""The screens, one file each. A module here has ``routes``."""
