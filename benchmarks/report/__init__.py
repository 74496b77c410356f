"""From kept results to tables, plots and one page; nothing here measures."""
