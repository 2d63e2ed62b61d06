"""What tests of the emulated card share."""

import pytest

import numbanet


@pytest.fixture(scope="module")
def the_card():
    """One emulated card for all tests of a file."""
    with numbanet.emulated():
        yield
