"""``python -m validate_ddp`` is the command ``validate-ddp``."""

from validate_ddp.own_path import leave_out_working_directory

if __name__ == "__main__":
    leave_out_working_directory()  # before anything else is imported: Python has put it first

    from validate_ddp.cli import run

    run()
