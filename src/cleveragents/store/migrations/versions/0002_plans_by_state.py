"""Find the plans that some process works on without reading them all: every open asks for them."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.get_bind().exec_driver_sql("CREATE INDEX plans_by_state ON plans (state)")
