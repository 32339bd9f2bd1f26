"""`python -m rlplug` is the same as `rlplug`."""

from rlplug.cli import main

if __name__ == "__main__":
    main()
