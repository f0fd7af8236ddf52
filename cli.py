"""Run andrea from a checkout: `python cli.py ablate norm-placement` is the same as `andrea ablate
norm-placement`.
"""

from andrea.cli.app import main

if __name__ == "__main__":
    main()
