"""Services, daemons and tables that several tests use."""
