"""Plan, apply and undo the moves of duplicates. Only modules here move photos; none of them searches or judges."""
