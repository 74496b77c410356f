"""From kept results to tables, plots and the figures in the documents; nothing here measures."""
