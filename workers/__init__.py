"""The execution side of Rota: workers. Users import `rota`."""
