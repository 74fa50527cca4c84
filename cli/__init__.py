"""The command line, `rota`. Nothing here is for import by users."""
