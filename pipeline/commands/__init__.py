"""The commands of the command line, by subject. `parser.py` lists them, and `command.py` shows how one is declared."""
