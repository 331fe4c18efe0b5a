import pytest

# So that a failing assertion of a suite shows what was compared.
pytest.register_assert_rewrite(
    "tailrace.testing.formats", "tailrace.testing.targets", "tailrace.testing.mapped_targets"
)
