"""``python -m edgeopt``: the same as the ``edgeopt`` command."""

from edgeopt.cli import main

if __name__ == "__main__":
    main()
