"""Options that several commands have."""

import click

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


loss_option = click.option(
    "--accept-loss", is_flag=True, help="Roll back even past effects that cannot be undone."
)


repeat_option = click.option(
    "--repeat",
    multiple=True,
    metavar="STEP",
    help="Repeat this step even if its effects outside the sandboxes may have happened.",
)


dry_option = click.option(
    "--dry-run", is_flag=True, help="Show what would happen and change nothing."
)
