"""The scheduling side of Rota, and what both sides share. Users import `rota`."""
