"""Turns kept results into tables, plots and one page; measures nothing."""
