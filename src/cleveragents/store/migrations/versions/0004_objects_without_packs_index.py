"""No index of objects by pack: every checkpoint wrote to it, and only `gc` would read it."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.get_bind().exec_driver_sql("DROP INDEX objects_by_pack")
