"""``python -m validate_ddp`` is the command ``validate-ddp``."""

from validate_ddp.cli import run

if __name__ == "__main__":
    run()
