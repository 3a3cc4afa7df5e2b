"""The plugin's image: ``make image``."""
