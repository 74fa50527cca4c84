"""The store's schema, in steps that Alembic applies (see `rota.sched.store.postgres.migrate`)."""
