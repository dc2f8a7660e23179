"""``python -m outlast``."""

from outlast.cli import run

if __name__ == "__main__":
    run()
