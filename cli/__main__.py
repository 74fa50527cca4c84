"""`python -m rota.cli`."""

from rota.cli.main import main

main()
