"""Block tests of the requestor."""
