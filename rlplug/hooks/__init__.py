"""The contract between the core and plugins, and the only code that calls plugins."""
