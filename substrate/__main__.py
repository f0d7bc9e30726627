"""Makes ``python -m substrate`` the same as ``substrate``."""

from substrate.cli import main

if __name__ == "__main__":
    main()
