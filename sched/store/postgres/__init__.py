"""The store on PostgreSQL (13 or later; tried on 15)."""
