import pytest

# So that a failing assertion of a suite shows the compared values.
pytest.register_assert_rewrite(
    "tailrace.testing.formats",
    "tailrace.testing.targets",
    "tailrace.testing.target_plans",
    "tailrace.testing.mapped_targets",
)
