"""The statements of policies: grammar, schedule, scope and settings. No module here calls a service."""
