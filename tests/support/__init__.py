"""Code that tests share: services, daemons, tables."""
